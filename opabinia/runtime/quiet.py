"""Quiet mode: the terminal shows only warnings, errors and results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False


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
