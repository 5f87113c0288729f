"""A loop over the rows of tensors that exported graphs keep as a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


def scan(
    step: Callable[[State, tuple[Tensor, ...]], tuple[State, Tensor]], state: State, rows: tuple[Tensor, ...]
) -> tuple[State, Tensor]:
    """Call ``step(state, row)`` for each row in turn; return the last state and the stacked outputs.

    In an exported graph it is torch's operator. Elsewhere that one would compile ``step``, and fail for the third size
    in a process (torch 2.15), so it is a plain loop.

    Args:
        step: returns the next state and an output.
        state: tensors, the first state.
        rows: tensors with the same number of rows. Without any the output is the last of them, as int32.
    """
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan as operator  # a private module, which only exports need

        result: Any = operator(step, state, rows)
        last, stacked = result
        return last, stacked
    outputs = []
    for row in zip(*rows, strict=True):
        state, output = step(state, row)
        outputs.append(output)
    return state, torch.stack(outputs) if outputs else rows[-1].int()
