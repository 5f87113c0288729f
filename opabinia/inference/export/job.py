"""What is exported, and when it is not what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from opabinia.inference.export.description import Description
from opabinia.inference.export.wrapper import Inference


class Job(NamedTuple):
    """What is exported.

    Attributes:
        inference: the function.
        inputs: samples that it is compared on.
        description: goes along.
    """

    inference: Inference
    inputs: Mapping[str, Tensor]
    description: Description


class Different(Exception):
    """What was read back does not compute what the original does. Nothing was left on the disk."""

    exit_status = 1


def refuse_different(difference: float, tolerance: float, what: str) -> None:
    """Tell a difference that is too large, or no number.

    Args:
        difference: the largest one.
        tolerance: what is allowed.
        what: has read the model back.

    Raises:
        Different: it is.
    """
    if not difference <= tolerance:
        raise Different(
            f"in {what} the model gives something else than the original: the largest difference is {difference:.1e}, "
            f"allowed is {tolerance:.0e} (--tolerance); nothing was written"
        )
