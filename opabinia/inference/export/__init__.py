"""Export of trained models; each is read back and compared with the original before it is put in place."""

from opabinia.inference.export.export import Form, export

__all__ = ["Form", "export"]
