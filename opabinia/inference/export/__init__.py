"""Export of trained models; each is read back and compared with the original before it is put in place."""

from opabinia.inference.export.export import Form, export
from opabinia.inference.export.measured_files import Measured

__all__ = ["Form", "Measured", "export"]
