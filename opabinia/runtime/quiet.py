"""Whether the terminal is to be told warnings and errors only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_quiet = False


def is_quiet() -> bool:
    """Whether the terminal is told warnings, errors and results only."""
    return _quiet


@contextmanager
def quietly(wanted: bool = True) -> Iterator[None]:
    """Tell the terminal no more than that, if it is ``wanted``; files are told all."""
    global _quiet
    before, _quiet = _quiet, wanted
    try:
        yield
    finally:
        _quiet = before
