"""Errors of data: samples that cannot be made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opabinia.runtime.text import error_text


class DataError(ValueError):
    """A sample could not be made. The text names the sample, the source or transform, and the original message.

    The traceback of the worker is attached as a note.
    """

    exit_status = 2


@contextmanager
def errors_in(location: str, part: object) -> Iterator[None]:
    """Turn any error inside into a DataError with its location and the name of the part."""
    try:
        yield
    except Exception as error:
        raise data_error(location, part, error) from error


def data_error(location: str, part: object, error: Exception, hint: str = "") -> DataError:
    """Return the error of a part: its location, the name of the part, the original message and a hint."""
    return DataError(f"{location}, {part_name(part)}: {error_text(error)}{hint}")


def part_name(part: object) -> str:
    """Return the name of a source, transform or mix, for messages."""
    while isinstance(part, partial):
        part = part.func
    return getattr(part, "__name__", None) or type(part).__name__
