"""Opabinia: one PyTorch training engine for five kinds of vision work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opabinia.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from opabinia.config import adapt as adapt
    from opabinia.config import register as register
    from opabinia.inference.load import load as load


def __getattr__(name: str) -> Any:
    """``opabinia.register``, ``adapt`` and ``load``, imported when they are first used."""
    if name == "load":
        from opabinia.inference.load import load

        return load
    if name in ("adapt", "register"):
        from opabinia import config

        return getattr(config, name)
    raise AttributeError(f"module 'opabinia' has no attribute {name!r}")
