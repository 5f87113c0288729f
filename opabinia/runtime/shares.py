"""Shares of streams in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose


def remaining_share(given: Mapping[str, float | None]) -> float:
    """Return what the given shares leave for the streams without one (None): 0 if every stream has one.

    Raises:
        ValueError: the given shares do not sum to 1, one is 0, or they leave nothing for the other streams.

    Example: ``remaining_share({"a": 0.25, "b": None})`` is 0.75.
    """
    known = {name: share for name, share in given.items() if share is not None}
    if zero := [name for name, share in known.items() if share <= 0]:
        raise ValueError(
            f"tasks.{zero[0]}.batch_share: expected a number above 0; omit a stream without samples in a batch"
        )
    place = f"tasks.{next(iter(known), '')}.batch_share"
    rest, others = 1 - sum(known.values()), [name for name in given if name not in known]
    if others and rest < 1e-6:
        raise ValueError(f"{place}: the given shares sum to {1 - rest:g} and leave nothing for {', '.join(others)}")
    if not others and not isclose(rest, 0, abs_tol=1e-6):
        shares = ", ".join(f"{name} {share:g}" for name, share in known.items())
        raise ValueError(f"{place}: the shares of the streams sum to {1 - rest:g} ({shares}), not to 1")
    return rest
