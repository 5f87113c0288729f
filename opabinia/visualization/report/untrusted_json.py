"""JSON that others have written, read without trust: what is broken is told, and never ends a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 64_000_000
"""A file with more is left out."""


def read_json(path: Path, notes: list[str]) -> Any:
    """The value in a file; None where there is no such file, and with a note where it cannot be read."""
    text = read_text(path, notes)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        notes.append(f"{path.name} is no whole JSON and is left out")
        return None


def read_text(path: Path, notes: list[str], most: int = MOST_BYTES) -> str | None:
    """The text in a file; None where there is no such file, and with a note where it is too large."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > most:
            notes.append(f"{path.name} has more than {most // 1_000_000} MB and is left out")
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def dict_of(value: Any) -> dict[str, Any]:
    """``value``, where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def dicts_of(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in ``value``, where it is a list."""
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def texts_of(value: Any) -> list[str]:
    """The texts in ``value``, where it is a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def number_of(value: Any) -> float | None:
    """A finite number as it is, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
