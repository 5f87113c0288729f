"""Grad-CAM for any task: heatmaps of the evidence for a score, without help from the task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone
from opabinia.models.capture import capture, grad_cam

Score = Callable[[], Tensor]
"""Runs the model and returns one number for each of B images."""


def grad_cam_heatmap(model: nn.Module, layer: str, score: Score, size: tuple[int, int]) -> Tensor:
    """Return the Grad-CAM of a score on the feature maps of a layer.

    Gradients are computed only from the score back to the layer, and no parameter's gradient changes. For a layer that
    is called several times (an image and its mirrored copy) the first call that affects the score counts.

    Args:
        model: in evaluation mode.
        layer: as :func:`last_feature_map_layer` names it.
        score: the number to explain.
        size: height and width of the images.

    Returns:
        B x H x W in 0 to 1, on the model's device.

    Raises:
        ValueError: the score does not depend on the layer.
    """
    starts: list[Tensor] = []

    def restart_gradient(name: str, output: Tensor) -> Tensor:
        starts.append(output.detach().requires_grad_())
        return starts[-1].clone()  # the next layer may change it in place

    with torch.enable_grad(), capture(model, [layer], edit=restart_gradient):
        total = score().sum()
    layout = _FeatureMapLayout(model, size)
    gradients = torch.autograd.grad(total, starts, allow_unused=True) if total.requires_grad else ()
    for activations, gradient in zip(starts, gradients, strict=False):
        if gradient is not None:
            return grad_cam(layout.channels_first(activations), layout.channels_first(gradient), size)
    raise ValueError(f"the explained score does not depend on {layer!r}")


def last_feature_map_layer(model: nn.Module, score: Score, size: tuple[int, int]) -> str:
    """Return the name of the last layer with feature maps that affect the score: the deepest feature maps of a
    convolutional network, of a transformer the tokens before its last attention.

    Args:
        model: in evaluation mode.
        score: score of a batch whose images require a gradient.
        size: height and width of the images.

    Raises:
        ValueError: there is none.
    """
    layout = _FeatureMapLayout(model, size)
    outputs: list[tuple[str, Tensor]] = []

    def record(name: str, output: Any) -> Any:
        if layout.matches(output) and output.requires_grad:
            outputs.append((name, output))
        return output

    names = [name for name, _ in model.named_modules() if name]
    with torch.enable_grad(), capture(model, names, edit=record):
        total = score().sum()
    if outputs and total.requires_grad:
        tensors = [output for _, output in outputs]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(total, tensors, allow_unused=True)
        for (name, _), gradient in zip(reversed(outputs), reversed(gradients), strict=True):
            if gradient is not None and layout.channels_first(gradient).any():
                return name
    raise ValueError("the model has no feature maps that affect the explained score")


class _FeatureMapLayout:
    """Recognizes feature maps among the outputs of a model, and their memory layout.

    Feature maps are B x C x h x w, B x h x w x C (Swin), or tokens B x (prefix + h * w) x C, where C is known from the
    backbone. A model with prefix tokens is a transformer: its feature maps are tokens only.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        modules = list(model.modules())
        backbone = next((module for module in modules if isinstance(module, Backbone)), None)
        self._width = 0 if backbone is None else backbone.map_channels or backbone.out_channels
        prefixes = (getattr(module, "num_prefix_tokens", None) for module in modules)
        self._prefix: int | None = next((count for count in prefixes if isinstance(count, int)), None)
        self._size = size

    def matches(self, output: Any) -> bool:
        """Return whether the output of a layer is a feature map with more than one position."""
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return False
        if output.ndim == 3:
            return output.shape[2] == self._width and output.shape[1] > (self._prefix or 0) + 1
        if output.ndim != 4 or self._prefix is not None:
            return False
        return self._is_channels_last(output) or output.shape[2] * output.shape[3] > 1

    def channels_first(self, output: Tensor) -> Tensor:
        """Return a feature map as B x C x h x w."""
        if output.ndim == 3:
            tokens = output[:, self._prefix or 0 :].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], *token_grid(tokens.shape[2], self._size))
        return output.permute(0, 3, 1, 2) if self._is_channels_last(output) else output

    def _is_channels_last(self, output: Tensor) -> bool:
        _, first, second, last = output.shape
        return last == self._width != first and first * second > 1


def token_grid(count: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of ``count`` tokens, as close to the image's aspect ratio as possible.

    Example: 210 tokens of an image of 256 x 128 are 21 x 10.
    """
    height, width = size
    rows = [row for row in range(1, count + 1) if count % row == 0]
    best = min(rows, key=lambda row: abs(math.log(row * row * width / (count * height))))
    return best, count // best
