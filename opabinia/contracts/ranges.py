"""Number types with a range, for signatures of parts."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Interval

Fraction = Annotated[float, Interval(ge=0, le=1)]

NonNegative = Annotated[float, Ge(0)]

Positive = Annotated[float, Gt(0)]

Count = Annotated[int, Ge(1)]


class _AllowInfinity:
    """Allows ``.inf`` as a number in YAML."""

    allow_inf_nan = True


NormOrder = Annotated[float, Ge(1), _AllowInfinity()]
"""p of a p-norm: 1, 2, infinity."""
