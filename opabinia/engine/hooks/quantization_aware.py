"""The hook for quantization-aware training: steps compute with the rounding of an INT8 file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from opabinia.config import register
from opabinia.contracts import Batch, Count, Hook, Run, Task
from opabinia.engine.loop.evaluate import evaluation_mode
from opabinia.engine.loop.layer_outputs import observe_inputs
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather

_WEIGHT_LEVELS = 64
"""Weights are multiples of 1/64 of the largest one of their channel, from -64 to 64: 7 bits, as in INT8 exports."""
_LARGEST_INPUT = 255
"""Inputs are integers from 0 to 255: 8 bits."""


@register.hook(name="quantization_aware")
class QuantizationAware(Hook):
    """Trains with the rounding of ``opabinia export --precision int8``, so that an INT8 file loses less (Jacob et al.
    2018, Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, section 3).

    Forward and backward passes of a step see the weights of convolutions and linear layers rounded to 7 bits in each
    output channel, and their inputs to 8 bits. Gradients pass the rounding unchanged, but for inputs out of their
    range, whose gradient is zero. The ranges of inputs are measured before the first step and saved in checkpoints.
    Updates, checkpoints, averages of weights and evaluations have the weights in full precision; the score of the INT8
    file is that of ``opabinia export --evaluate``. It is meant for some epochs after a training, with a small learning
    rate.

    Args:
        batches: batches of the training data from which ranges are measured, over all processes.
        exclude: layers that are not rounded, by patterns of their names as in ``opabinia export --exclude``.

    Raises:
        ValueError: a pattern names no layer, or the model has none that is rounded.
    """

    def __init__(self, *, batches: Count = 8, exclude: Sequence[str] = ()) -> None:
        self.batches, self.exclude = batches, exclude
        self._ranges: dict[str, Tensor] = {}
        self._weights: list[nn.Parameter] = []
        self._precise: list[Tensor] = []  # empty between steps
        self._handles: list[RemovableHandle] = []

    def start(self, run: Run) -> None:
        """Measure the ranges, unless a checkpoint has them."""
        if run.loader is None:  # an evaluation-only run
            return
        layers = _quantized_layers(run.task, self.exclude)
        if not self._ranges:
            with run.autocast():
                self._ranges = measure_ranges(run.task, list(layers), run.batches("train", self.batches))
        reached = {name: layer for name, layer in layers.items() if name in self._ranges}
        if not reached:
            raise ValueError("the model has no convolution or linear layer that could be rounded")
        self._weights = list(dict.fromkeys(layer.weight for layer in reached.values()))  # some layers share them
        for name, layer in reached.items():
            levels = _input_levels(self._ranges[name].to(layer.weight.device))
            self._handles.append(layer.register_forward_pre_hook(partial(self._round_input, *levels)))
        log.info("quantization_aware: %d of %d layers are rounded", len(reached), len(layers))

    def before_step(self, run: Run, batch: Batch) -> None:
        """Round the weights."""
        with torch.no_grad():
            self._precise = [weight.detach().clone() for weight in self._weights]
            for weight in self._weights:
                weight.copy_(round_weight(weight))

    def after_backward(self, run: Run) -> None:
        """Restore the weights before their update."""
        self._restore()

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Restore the weights if a step has failed, and leave the model as it was."""
        self._restore()
        for handle in self._handles:
            handle.remove()

    def tensors(self) -> dict[str, Tensor]:
        """Return smallest and largest input (2) of each layer by name."""
        return self._ranges

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._ranges = dict(tensors)

    def _round_input(self, scale: Tensor, zero: Tensor, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._precise:  # an evaluation
            return inputs
        values, *others = inputs
        return torch.fake_quantize_per_tensor_affine(values.float(), scale, zero, 0, _LARGEST_INPUT), *others

    @torch.no_grad()
    def _restore(self) -> None:
        for weight, precise in zip(self._weights, self._precise, strict=False):
            weight.copy_(precise)
        self._precise = []


def round_weight(weight: Tensor) -> Tensor:
    """Return a weight (output channels x ...) as an INT8 file has it, in 1/64 of the channel's largest one."""
    largest = weight.abs().flatten(1).amax(1).clamp(min=torch.finfo(weight.dtype).tiny)
    scale = (largest / _WEIGHT_LEVELS).view(-1, *[1] * (weight.ndim - 1))
    return (weight / scale).round() * scale


def _input_levels(limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of 256 numbers between two limits (2) around zero, and which of them is zero."""
    scale = ((limits[1] - limits[0]) / _LARGEST_INPUT).clamp(min=torch.finfo(torch.float32).tiny)
    return scale, (-limits[0] / scale).round().to(torch.int32)


def measure_ranges(task: Task, layers: Sequence[str], batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return smallest and largest input (2, with zero between them) of the layers by name, in all batches of all
    processes. Layers that no prediction needs have none."""
    ranges: dict[str, Tensor] = {}

    def measure(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        low, high = inputs[0].float().aminmax()
        limits = torch.stack([-low, high]).clamp(min=0)
        ranges[name] = torch.maximum(ranges[name], limits) if name in ranges else limits

    with evaluation_mode(task), torch.no_grad():
        observe_inputs(task, {name: partial(measure, name) for name in layers}, batches)
    sign = torch.tensor([-1.0, 1.0])
    gathered = all_gather({name: limits.cpu() for name, limits in ranges.items()})
    return {
        name: sign * torch.stack([limits[name] for limits in gathered if name in limits]).amax(0)
        for name in layers
        if any(name in limits for limits in gathered)
    }


def _quantized_layers(task: Task, exclude: Sequence[str]) -> dict[str, Any]:
    """Return the convolutions and linear layers by name, except for those whose weight is computed from others.

    Raises:
        ValueError: a pattern names none.
    """
    layers = {
        name: module
        for name, module in task.named_modules()
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        and "weight" in dict(module.named_parameters(recurse=False))
    }
    for pattern in exclude:
        if not any(fnmatch(name, pattern) for name in layers):
            raise ValueError(f"exclude: no layer is named {pattern!r}; layers: {', '.join(layers)}")
    return {name: layer for name, layer in layers.items() if not any(fnmatch(name, each) for each in exclude)}
