"""Quiet mode: the terminal shows only warnings, errors and results. In a command it shows no warning of data twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False
_shown: set[str] | None = None


def is_quiet() -> bool:
    """Return whether the terminal shows only warnings, errors and results."""
    return _quiet


@contextmanager
def quiet_terminal(quiet: bool = True) -> Iterator[None]:
    """Set quiet mode inside the block; log files are not affected."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


@contextmanager
def warnings_once() -> Iterator[None]:
    """Show each text of a warning of data once inside the block, which is a command: it makes sources several times.
    Log files are not affected."""
    global _shown
    before, _shown = _shown, set()
    try:
        yield
    finally:
        _shown = before


def is_repeated(warning: str) -> bool:
    """Return whether this command has shown a warning with this text before; from now on it has."""
    if _shown is None or warning in _shown:
        return _shown is not None
    _shown.add(warning)
    return False
