"""Where in a picture a score comes from: Grad-CAM for any task, without the task's help."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone
from opabinia.models.capture import capture, grad_cam

Score = Callable[[], Tensor]
"""Runs the model and gives one number for each of the B pictures."""


def heat(model: nn.Module, layer: str, score: Score, size: tuple[int, int]) -> Tensor:
    """Grad-CAM of a score on the maps of a layer.

    Only what comes after the layer is gone back through, and no parameter's gradient changes. Of a layer that is called
    several times (a picture and its mirror image) the first call that matters counts.

    Args:
        model: in evaluation mode.
        layer: as :func:`last_maps` names it.
        score: what is to be explained.
        size: height and width of the pictures.

    Returns:
        B x H x W in 0 to 1, on the model's device.

    Raises:
        ValueError: the score does not depend on the maps of that layer.
    """
    starts: list[Tensor] = []

    def start_here(name: str, output: Tensor) -> Tensor:
        starts.append(output.detach().requires_grad_())
        return starts[-1].clone()  # which the next layer may change in place

    with torch.enable_grad(), capture(model, [layer], edit=start_here):
        total = score().sum()
    shape = _Shape(model, size)
    gradients: tuple[Tensor | None, ...] = ()
    if total.requires_grad:
        gradients = torch.autograd.grad(total, starts, allow_unused=True)
    for maps, gradient in zip(starts, gradients, strict=False):
        if gradient is not None:
            return grad_cam(shape.maps(maps), shape.maps(gradient), size)
    raise ValueError(f"what is to be explained does not depend on {layer!r}")


def last_maps(model: nn.Module, score: Score, size: tuple[int, int]) -> str:
    """The last layer that gives maps of the picture on which the score depends: the deepest maps of a convolutional
    network, of a transformer the tokens before its last mixing of tokens.

    Args:
        model: in evaluation mode.
        score: of a batch whose images require a gradient.
        size: height and width of the pictures.

    Raises:
        ValueError: there is none.
    """
    shape = _Shape(model, size)
    found: list[tuple[str, Tensor]] = []

    def note(name: str, output: Any) -> Any:
        if shape.fits(output) and output.requires_grad:
            found.append((name, output))
        return output

    names = [name for name, _ in model.named_modules() if name]
    with torch.enable_grad(), capture(model, names, edit=note):
        total = score().sum()
    if found and total.requires_grad:
        outputs = [output for _, output in found]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(total, outputs, allow_unused=True)
        for (name, _), gradient in zip(reversed(found), reversed(gradients), strict=True):
            if gradient is not None and shape.maps(gradient).any():
                return name
    raise ValueError("this model gives no maps that what is to be explained depends on")


class _Shape:
    """Which tensors are maps of a picture in a model, and how they lie.

    Maps are B x C x h x w, B x h x w x C (Swin), or tokens B x (prefix + h * w) x C, where C is what the backbone says.
    What tells of prefix tokens is a transformer, whose maps are its tokens only.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        modules = list(model.modules())
        backbone = next((module for module in modules if isinstance(module, Backbone)), None)
        self._width = 0 if backbone is None else backbone.map_channels or backbone.out_channels
        prefixes = (getattr(module, "num_prefix_tokens", None) for module in modules)
        self._prefix: int | None = next((one for one in prefixes if isinstance(one, int)), None)
        self._size = size

    def fits(self, output: Any) -> bool:
        """Whether the output of a layer is maps with more than one place."""
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return False
        if output.ndim == 3:
            return output.shape[2] == self._width and output.shape[1] > (self._prefix or 0) + 1
        if output.ndim != 4 or self._prefix is not None:
            return False
        return self._channels_last(output) or output.shape[2] * output.shape[3] > 1

    def maps(self, output: Tensor) -> Tensor:
        """B x C x h x w."""
        if output.ndim == 3:
            tokens = output[:, self._prefix or 0 :].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], *_grid(tokens.shape[2], self._size))
        return output.permute(0, 3, 1, 2) if self._channels_last(output) else output

    def _channels_last(self, output: Tensor) -> bool:
        _, first, second, last = output.shape
        return last == self._width != first and first * second > 1


def _grid(count: int, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of ``count`` tokens, as near to the picture's shape as they go.

    Example: 210 tokens of a picture of 256 x 128 are 21 x 10.
    """
    height, width = size
    rows = [row for row in range(1, count + 1) if count % row == 0]
    best = min(rows, key=lambda row: abs(math.log(row * row * width / (count * height))))
    return best, count // best
