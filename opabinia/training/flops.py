"""FLOPs of a forward pass, counted without computing it."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from opabinia.contracts import Backbone, Batch, DataMismatch, Task
from opabinia.engine.loop.prefetch import to_device
from opabinia.runtime.seeds import preserve_generators

META = torch.device("meta")


@dataclass(frozen=True)
class FlopCount:
    """Floating point operations of a forward pass: matrix products and convolutions; a multiply-add counts as two.

    Attributes:
        count: number of operations.
        complete: whether that is all; a detector's work on selected boxes cannot be counted without values.
        backbone: number of those in the backbone; 0: it has none, or none is counted.
    """

    count: int
    complete: bool
    backbone: int = 0


def count_forward_flops(model: Task, sample: Batch) -> FlopCount | None:
    """Count the operations of ``model.predict`` for one sample; None if they cannot be counted.

    The model is copied to the meta device, where tensors have shapes and no values: nothing is computed, no memory is
    allocated and no random number drawn.

    Args:
        model: a model on any device.
        sample: a batch of one sample.

    Raises:
        DataMismatch: the model does not take the sample.
    """
    complete = True
    with preserve_generators(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            meta_model = copy_without_values(model, META).eval()
            with FlopCounterMode(display=False) as counter:
                inside = _CallsInside(counter, meta_model)
                try:
                    meta_model.predict(to_device(sample, META))
                except DataMismatch:
                    raise
                except Exception:  # a model may read a value in any way; what came before it counts
                    complete = False
        except DataMismatch:
            raise
        except Exception:  # not every module can be copied
            return None
    count = int(counter.get_total_flops())
    return FlopCount(count, complete, inside.flops) if count else None


class _CallsInside:
    """Counts the operations of modules inside backbones.

    Attributes:
        flops: FLOPs of the calls that have ended.
    """

    def __init__(self, counter: FlopCounterMode, model: Task) -> None:
        self.flops = self._depth = self._before = 0
        self._counter = counter
        # Tasks call other methods than forward: the modules inside are those that are called.
        inside = {inner for module in model.modules() if isinstance(module, Backbone) for inner in module.modules()}
        for module in inside:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        if self._depth == 0:
            self._before = self._counter.get_total_flops()
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.flops += self._counter.get_total_flops() - self._before


def copy_without_values(model: Task, device: torch.device) -> Task:
    """Copy a model, but no values: to the meta device, or to a device of fake tensors within ``FakeTensorMode``."""
    memo: dict[int, Any] = {id(buffer): torch.empty_like(buffer, device=device) for buffer in model.buffers()}
    for param in model.parameters():
        memo[id(param)] = nn.Parameter(torch.empty_like(param, device=device), param.requires_grad)
    return copy.deepcopy(model, memo)
