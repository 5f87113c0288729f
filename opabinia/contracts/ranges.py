"""Number types with a range, and paths that must exist, for signatures of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from opabinia.config import MustExist

Fraction = Annotated[float, Interval(ge=0, le=1)]

NonNegative = Annotated[float, Ge(0)]

Positive = Annotated[float, Gt(0)]

Count = Annotated[int, Ge(1)]

Channels = Literal[1, 3]
"""Channels of an image: 1 for gray, 3 for color."""


InputPath = Annotated[Path, MustExist()]
"""A file or folder that a part reads: a config with a missing one is rejected before anything is built."""


class _AllowInfinity:
    """Allows ``.inf`` as a number in YAML."""

    allow_inf_nan = True


NormOrder = Annotated[float, Ge(1), _AllowInfinity()]
"""p of a p-norm: 1, 2, infinity."""
