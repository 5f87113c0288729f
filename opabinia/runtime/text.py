"""Text for the terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return a number with its noun, such as ``1 step``, ``2 steps`` or ``3 processes``."""
    return f"{count} {word}{'' if count == 1 else ending}"


def first_of(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names, separated by commas, and how many more there are: ``cat, dog and 3 more``."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def error_text(error: Exception) -> str:
    """Return the text of an error, after its type unless it is a ValueError, whose texts are written for users."""
    return str(error) if isinstance(error, ValueError) and str(error) else f"{type(error).__name__}: {error}"


def printable(text: str) -> str:
    """Escape line breaks, terminal codes and other characters that cannot be printed on one line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def one_line(text: str, length: int = 200) -> str:
    """Return a name on one line of at most ``length`` characters: see :func:`printable`, and the end is cut off."""
    shown = printable(text[: length + 1])
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells, the names of the columns first, as the text of a CSV file."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
