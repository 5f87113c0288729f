"""The values that annotation files may hold, the same for all formats: numbers are finite and bounded, texts are not
nested, flags are 0 or 1. The errors give the value; callers add the file and the record."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from reprlib import Repr
from typing import Any

MAX_SIDE = 2**24
"""Pixels: the largest coordinate and the limit of an image's sides. Below it float32 is exact to a pixel."""

MAX_PIXELS = 2**28
"""The largest height x width of an image; Pillow decodes up to 179 million pixels."""

MAX_CLASSES = 1_000_000
"""The largest number of classes that a label may imply, unless there are more samples."""

MAX_TEXT = 4096
"""Characters of a name, as of a path."""


class _ShortRepr(Repr):
    # Python writes no integers of more than 4300 digits, which are 14,284 bits.
    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() <= 14_000 else "a number of thousands of digits"


_SHORT = _ShortRepr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 2, 4, 4, 60, 60, 60


def shortened(value: Any) -> str:
    """Return a value for a message: at most 60 characters, whatever its size and depth."""
    return f"{_SHORT.repr(value):.60}"


@contextmanager
def errors_in(where: str, *types: type[Exception]) -> Iterator[None]:
    """Raise errors of these types, ValueError if none is given, as ValueError whose text begins with ``where``, such as
    ``a.csv, line 3: ``."""
    named = types or (ValueError,)
    try:
        yield
    except named as error:
        raise ValueError(f"{where}{getattr(error, 'strerror', None) or error}") from error


def whole_number(value: Any, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Return a whole number, by default of 64 bits.

    Raises:
        ValueError: it is none (also text, true and 1.0), or not in the range.
    """
    if type(value) is not int or not low <= value <= high:
        expected = "an integer of 64 bits" if high == 2**63 - 1 and low == -(2**63) else f"an integer, {low} to {high}"
        raise ValueError(f"{shortened(value)} is not {expected}")
    return value


def parse_whole(text: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Return the whole number that a text is; see :func:`whole_number`."""
    return whole_number(int(text) if re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text) else text, low, high)


def parse_number(text: str) -> float:
    """Return the finite number that a text is, at most :data:`MAX_SIDE`.

    Raises:
        ValueError: it is none, or larger.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= MAX_SIDE:
        raise ValueError(f"{shortened(text)} is not a number of at most {MAX_SIDE}")
    return value


def numbers(values: Any, count: int | None = None, limit: float = MAX_SIDE) -> list[float] | None:
    """Return a list of ``count`` finite numbers, at most ``limit``, as it is; anything else as None."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        return None
    if not {*map(type, values)} <= {int, float}:
        return None
    if values and not (-limit <= min(values) <= max(values) <= limit and math.isfinite(sum(values))):  # the sum: NaN
        return None
    return values


def flag(value: Any) -> bool:
    """Return a flag of JSON: 0, 1, true or false; null is false.

    Raises:
        ValueError: it is something else, such as the text "0".
    """
    if value is None or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{shortened(value)} is none of 0, 1, true and false")


def parse_flag(text: str) -> bool:
    """Return the flag that a text is, of XML or a table.

    Raises:
        ValueError: it is none of 0, 1, true and false, in lower or upper case.
    """
    value = {"0": False, "false": False, "1": True, "true": True}.get(text.strip().lower())
    return flag(text if value is None else value)


def text(value: Any) -> str:
    """Return a name: a text or a number, as text without spaces around it.

    Raises:
        ValueError: it is empty, NaN, longer than :data:`MAX_TEXT`, nested, true, false, or half a character.
    """
    if type(value) not in (str, int, float):
        raise ValueError(f"{shortened(value)} is neither text nor a number")
    if type(value) is int and value.bit_length() > 14_000:
        raise ValueError(f"{shortened(value)} is no name")
    name = str(value).strip()
    if not name or name.lower() == "nan":
        raise ValueError(f"{shortened(value)} is not a name")
    if len(name) > MAX_TEXT:
        raise ValueError(f"{shortened(name)} has {len(name)} characters, more than {MAX_TEXT}")
    return name


def image_size(height: Any, width: Any) -> tuple[int, int]:
    """Return the height and width of an image.

    Raises:
        ValueError: they are not positive whole numbers, or larger than images are.
    """
    if not all(type(side) is int and 1 <= side < MAX_SIDE for side in (height, width)) or height * width > MAX_PIXELS:
        raise ValueError(f"{shortened(width)} x {shortened(height)} is not a size in pixels")
    return height, width


def parse_json(content: str | bytes, where: object) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON; the text begins with ``where`` and has line and column.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        place = f"{error.msg}, line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where} is not complete JSON: {place}; is it truncated?") from error
    # Python rejects numbers with thousands of digits and extreme nesting.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from error


def leaves_root(root: Path, name: str | bytes) -> bool:
    """Return whether a path leads out of the folder that it is relative to; links are not followed."""
    path = os.fsdecode(name)
    if not path.startswith("/") and ".." not in path:
        return False
    base = os.path.abspath(root)
    return os.path.commonpath([base, os.path.normpath(os.path.join(base, path))]) != base


def check_below_root(where: object, root: Path, names: Sequence[str | bytes]) -> None:
    """Raise ValueError if paths lead out of the folder that they are relative to; see :func:`leaves_root`."""
    outside = [os.fsdecode(name) for name in names if leaves_root(root, name)]
    if outside:
        listed = ", ".join(map(shortened, outside[:3])) + (" ..." if len(outside) > 3 else "")
        raise ValueError(f"{where}: {len(outside)} of {len(names)} paths lead out of {root}: {listed}; {ROOT_HINT}")


ROOT_HINT = "set root to a folder that holds all of them; root: / allows absolute paths"
