"""What a forward pass costs, counted without computing it."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from opabinia.contracts import Batch, Task
from opabinia.engine.loop.prefetch import to_device
from opabinia.runtime.seeds import generators_kept

META = torch.device("meta")


@dataclass(frozen=True)
class Flops:
    """Floating point operations of a forward pass: matrix products and convolutions, a multiplication and an addition
    being two.

    Attributes:
        count: of them.
        whole: whether that is all; what a detector does with the boxes that it has chosen cannot be counted without
            values.
    """

    count: int
    whole: bool


def forward_flops(model: Task, sample: Batch) -> Flops | None:
    """Operations of one sample's way through ``model.predict``; None where they cannot be counted.

    The model is copied to the meta device, where tensors have shapes and no values: nothing is computed, no memory is
    taken and no random number drawn.

    Args:
        model: on any device.
        sample: a batch of one sample.
    """
    whole = True
    with generators_kept(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            shadow = without_values(model).eval()
            with FlopCounterMode(display=False) as counter:
                try:
                    shadow.predict(to_device(sample, META))
                except Exception:  # a model may ask for a value in any way; what came before it counts
                    whole = False
        except Exception:  # nor need every module bear to be copied
            return None
    count = int(counter.get_total_flops())
    return Flops(count, whole) if count else None


def without_values(model: Task) -> Task:
    """A copy on the meta device; no value is copied on the way there."""
    memo: dict[int, Any] = {}
    for one in model.parameters():
        memo[id(one)] = nn.Parameter(torch.empty_like(one, device=META), one.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device=META)
    return copy.deepcopy(model, memo)
