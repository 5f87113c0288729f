"""Durations with a unit: ``12ep`` (epochs), ``5000it`` (optimizer steps), ``1.5h`` (hours)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

UNITS = ("ep", "it", "h")
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(ep|it|h)")


@dataclass(frozen=True)
class Units:
    """Annotation with the units that a parameter accepts: ``Annotated[Duration, Units("ep", "it", "h")]``.

    A bare ``Duration`` accepts epochs and iterations only: hours depend on the machine, so nothing that affects the
    training result may be given in them.
    """

    allowed: tuple[str, ...]

    def __init__(self, *allowed: str) -> None:
        object.__setattr__(self, "allowed", allowed)


@dataclass(frozen=True)
class Duration:
    """A duration with its unit. ``Duration.parse("12ep") == Duration(12, "ep")``.

    Epochs and hours may be fractions (``0.5ep``); iterations are whole numbers.
    """

    value: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unknown unit {self.unit!r}; use one of {', '.join(UNITS)}")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"a duration must be finite and at least 0, not {self.value}")
        if self.unit == "it" and self.value != int(self.value):
            raise ValueError(f"iterations must be a whole number, not {self.value}")

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...] = ("ep", "it")) -> Duration:
        """Read ``12ep``, ``5000it`` or ``1.5h``.

        Raises:
            ValueError: the text is not a number with one of the ``allowed`` units.
        """
        match = _PATTERN.fullmatch(text.strip())
        if not match or match[2] not in allowed:
            examples = {"ep": "12ep", "it": "5000it", "h": "1.5h"}
            raise ValueError(f"not a duration such as {' or '.join(examples[unit] for unit in allowed)}")
        return cls(float(match[1]), match[2])

    def steps(self, steps_per_epoch: int) -> int:
        """Return the nearest number of optimizer steps; at least 1 for a duration above 0.

        Raises:
            ValueError: the duration is in hours.
        """
        if self.unit == "h":
            raise ValueError(f"{self} is not a number of steps")
        exact = self.value * (steps_per_epoch if self.unit == "ep" else 1)
        return max(1, round(exact)) if self.value > 0 else 0

    def steps_from(self, starts: Callable[[int], int]) -> int:
        """Return the number of steps, like :meth:`steps`, from the first epoch on if epochs differ in length.

        Args:
            starts: returns the number of steps before an epoch.

        Example: with epochs of 3, 3, 6, 6 ... steps ``2ep`` are 6 steps, ``2.5ep`` 9.
        """
        if self.unit != "ep":
            return self.steps(1)
        whole = int(self.value)
        exact = starts(whole) + (self.value - whole) * (starts(whole + 1) - starts(whole))
        return max(1, round(exact)) if self.value > 0 else 0

    def __str__(self) -> str:
        value = float(self.value)
        number = str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"  # never 1e-07
        return f"{number}{self.unit}"


LEAST_SECONDS = 30.0
"""Least time that is planned for."""


def parse_seconds(text: str) -> float:
    """Return the seconds of a time such as ``90s``, ``30m``, ``1.5h`` or ``2d``.

    Raises:
        ValueError: it is none, or less than 30 seconds.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text.strip())
    if match is None:
        raise ValueError(f"not a time such as 30m, 1.5h or 2d (found {text!r})")
    seconds = float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2]]
    if seconds < LEAST_SECONDS:
        raise ValueError(f"at least {LEAST_SECONDS:g}s are needed (found {text!r})")
    return seconds


def format_seconds(seconds: float) -> str:
    """Return seconds as ``0:42`` or ``2:05:00``."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
