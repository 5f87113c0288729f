"""A model to be exported, and the check of an exported one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from opabinia.contracts import ExportModule
from opabinia.inference.export.description import Description


class ExportJob(NamedTuple):
    """A model to be exported.

    Attributes:
        module: the function of tensors.
        inputs: samples on which original and exported model are compared.
        description: written with the model.
    """

    module: ExportModule
    inputs: Mapping[str, Tensor]
    description: Description


class ExportMismatch(Exception):
    """The model that was read back computes something else than the original. Nothing was written."""

    exit_status = 1


def check_difference(difference: float, tolerance: float, reader: str) -> None:
    """Check the difference between the original and the model that was read back.

    Args:
        difference: the largest one.
        tolerance: the largest allowed one.
        reader: library that has read the model back.

    Raises:
        ExportMismatch: the difference is larger, or not a number.
    """
    if not difference <= tolerance:
        raise ExportMismatch(
            f"in {reader} the model gives other outputs than the original: the largest difference is {difference:.1e}, "
            f"allowed is {tolerance:.0e} (--tolerance); nothing was written"
        )
