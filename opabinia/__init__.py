"""Opabinia: one PyTorch training engine for five kinds of vision work."""

__version__ = "0.1.0"
