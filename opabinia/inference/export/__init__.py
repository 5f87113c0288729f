"""Models for use elsewhere: written, read back, and compared with the original before they are there."""

from opabinia.inference.export.export import FORMATS, Form, export

__all__ = ["FORMATS", "Form", "export"]
