"""JSON of unknown origin: broken content becomes a note and never ends a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_BYTES = 64_000_000
"""Larger files are omitted."""


def read_json(path: Path, notes: list[str]) -> Any:
    """Return the value in a file; None if there is no such file, or, with a note, if it cannot be read.

    Infinite numbers and NaN, which a page cannot show, are null.
    """
    text = read_text(path, notes)
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=lambda number: number_of(float(number)))
    except (ValueError, RecursionError):
        notes.append(f"{path.name} is not valid JSON and is omitted")
        return None


def read_text(path: Path, notes: list[str]) -> str | None:
    """Return the text in a file; None if there is no such file, or, with a note, if it is too large or unreadable."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_BYTES:
            notes.append(f"{path.name} has more than {MAX_BYTES // 1_000_000} MB and is omitted")
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def dict_of(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return ``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def dicts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Return the objects in ``value``, if it is a list."""
    return (item for item in list_of(value) if isinstance(item, dict))


def texts_of(value: Any) -> list[str]:
    """Return the strings in ``value``, if it is a list."""
    return [item for item in list_of(value) if isinstance(item, str)]


def finite(value: Any) -> float:
    """Return a finite number; raise ``ValueError`` for anything else."""
    if (number := number_of(value)) is None:
        raise ValueError(f"not a finite number: {value!r:.60}")
    return number


def number_of(value: Any) -> float | None:
    """Return a finite number as it is, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
