"""Lengths and periods that carry their unit: ``12ep`` (epochs), ``5000it`` (optimizer steps), ``1.5h`` (hours)."""

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
    """Annotation that says which units a parameter accepts: ``Annotated[Duration, Units("ep", "it", "h")]``.

    A bare ``Duration`` accepts epochs and iterations only: hours depend on the machine, so nothing that
    shapes the learning may be given in them.
    """

    allowed: tuple[str, ...]

    def __init__(self, *allowed: str) -> None:
        object.__setattr__(self, "allowed", allowed)


@dataclass(frozen=True)
class Duration:
    """A length with its unit. ``Duration.parse("12ep") == Duration(12, "ep")``.

    Epochs and hours may be fractions (``0.5ep``); iterations are whole numbers.
    """

    value: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit {self.unit!r} is unknown; use one of {', '.join(UNITS)}")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"a duration is a finite number from 0 on, not {self.value}")
        if self.unit == "it" and self.value != int(self.value):
            raise ValueError(f"iterations are whole numbers, not {self.value}")

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
        """The number of optimizer steps, rounded to the nearest; never 0 for a duration above 0.

        Raises:
            ValueError: the duration is in hours.
        """
        if self.unit == "h":
            raise ValueError(f"{self} is not a number of steps")
        exact = self.value * (steps_per_epoch if self.unit == "ep" else 1)
        return max(1, round(exact)) if self.value > 0 else 0

    def steps_along(self, starts: Callable[[int], int]) -> int:
        """As :meth:`steps`, of epochs that differ in length, from the first one on.

        Args:
            starts: steps before an epoch.

        Example: of epochs of 3, 3, 6, 6 ... steps ``2ep`` are 6 steps, ``2.5ep`` 9.
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


def clock_time(seconds: float) -> str:
    """Seconds for people, such as ``0:42`` or ``2:05:00``."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
