"""Inspect a model without changing it: outputs and gradients of its layers, convolution kernels, Grad-CAM."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.hooks import RemovableHandle
from torchvision.utils import make_grid

from opabinia.contracts import ParallelTask

Edit = Callable[[str, Any], Any]
"""Map the name and the output of a layer to the output that replaces it."""

# --- outputs and gradients ------------------------------------------------------------------------------------------


class _Value:
    """One tensor of an output, and its gradient."""

    def __init__(self, tensor: Tensor, copy: bool) -> None:
        self.gradient: Tensor | None = None
        self._tensor = tensor.detach().clone() if copy else tensor.detach()
        self._version = _version(self._tensor)

    def tensor(self) -> Tensor:
        if _version(self._tensor) != self._version:
            raise RuntimeError(
                "the next layer changed this output in place (activations often do); "
                "capture(..., copy=True) keeps a copy of it"
            )
        return self._tensor

    def add(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach() if self.gradient is None else self.gradient + gradient.detach()


class Call:
    """One forward pass of a layer."""

    def __init__(self, values: Any) -> None:
        self._values = values  # the output with each tensor replaced by a _Value

    @property
    def output(self) -> Any:
        """The output of the layer, detached and on its device: a tensor, or tensors in the layer's own structure.

        Raises:
            RuntimeError: a later layer changed it in place.
        """
        return _map_structure(self._values, _Value, _Value.tensor)

    @property
    def gradient(self) -> Any:
        """dL/d(output) in the same structure; None where no backward pass reached the output. Several backward passes
        through one graph are summed, as in ``Tensor.grad``."""
        return _map_structure(self._values, _Value, lambda value: value.gradient)


class Layer:
    """The captured forward passes of a layer.

    Attributes:
        name: relative to the task.
        calls: its forward passes, in order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Call] = []

    @property
    def output(self) -> Any:
        """The output of the latest forward pass; see :class:`Call`.

        Raises:
            LookupError: the layer was not called.
        """
        return self._latest.output

    @property
    def gradient(self) -> Any:
        """The gradient of that output; see :class:`Call`."""
        return self._latest.gradient

    @property
    def _latest(self) -> Call:
        if not self.calls:
            raise LookupError(
                f"{self.name!r} was not called: the model skips it, calls one of its methods, or was compiled"
            )
        return self.calls[-1]


@contextmanager
def capture(
    model: nn.Module | ParallelTask,
    layers: Sequence[str],
    *,
    edit: Edit | None = None,
    copy: bool = False,
) -> Iterator[Mapping[str, Layer]]:
    """Capture outputs and gradients of named layers inside a ``with`` block.

    The model stays unchanged: torch's hooks do the work and are removed after the block, however it ends. Run the
    backward pass inside the block. Outputs are not copied, so this only takes the memory that autograd would have
    freed, and nothing waits for the device.

    With several processes each one captures its own samples; gradients are those of its own loss, before any
    all-reduce. A layer that is recomputed in the backward pass (activation checkpointing, non-reentrant) is captured
    once.

    Args:
        model: the task, or its wrapper: DDP, ``torch.compile``, a ``parallel`` part.
        layers: names of modules, relative to the task: ``backbone.model.layer3``.
        edit: ``edit(name, output)`` returns the output that the model continues with, which is also captured.
        copy: copy outputs, for layers whose output the next layer changes in place.

    Yields:
        the layers by name.

    Raises:
        ValueError: the model has no such layer; the message lists similar names.

    Example::

        with capture(task, ["backbone", "head"]) as captured:
            task(batch, clock)["loss"].backward()
        captured["backbone"].output        # B x D
        captured["backbone"].gradient      # B x D
        len(captured["head"].calls)        # 1
    """
    captured = {name: Layer(name) for name in layers}
    handles: list[RemovableHandle] = []

    def on_output(name: str, output: Any) -> Any:
        if edit is not None:
            output = edit(name, output)
            if output is None:
                raise TypeError(f"edit returned None for {name!r}")
        # A recomputation in the backward pass must get the same edit, but was captured before.
        if torch._C._current_graph_task_id() == -1:
            captured[name].calls.append(Call(_map_structure(output, Tensor, track)))
        return output

    def track(tensor: Tensor) -> _Value:
        value = _Value(tensor, copy)
        if tensor.requires_grad:
            handles.append(tensor.register_hook(value.add))  # type: ignore[no-untyped-call]
        return value

    try:
        handles += replace_outputs(_unwrap(model), layers, on_output)
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def replace_outputs(model: nn.Module, layers: Sequence[str], edit: Edit) -> list[RemovableHandle]:
    """Let ``edit(name, output)`` replace the outputs of named layers, until the returned handles are removed.

    Raises:
        ValueError: the model has no such layer; the message lists similar names.
    """
    modules = _find_layers(model, layers)
    return [module.register_forward_hook(partial(_on_forward, edit, name)) for name, module in modules.items()]


def _on_forward(edit: Edit, name: str, module: nn.Module, arguments: Any, output: Any) -> Any:
    return edit(name, output)


def _unwrap(model: nn.Module | ParallelTask) -> nn.Module:
    """Return the task inside its wrappers, each of which has it as its only child."""
    inner = model if isinstance(model, nn.Module) else model.module
    while (children := dict(inner.named_children())).keys() in ({"module"}, {"_orig_mod"}):
        (inner,) = children.values()
    return inner


def _find_layers(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))
    missing = [name for name in names if name not in modules]
    if missing:
        raise ValueError(
            "; ".join(f"there is no layer {name!r}; near: {nearest_names(name, modules)}" for name in missing)
        )
    return {name: modules[name] for name in names}


def nearest_names(name: str, known: Iterable[str]) -> str:
    """List up to three known names that the user may have meant, for messages."""
    names = [candidate for candidate in known if candidate]
    ending = [candidate for candidate in names if candidate.endswith(f".{name}")]
    return ", ".join(ending[:3] or difflib.get_close_matches(name, names, n=3)) or "none"


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place; torch does not count this for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _map_structure(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Apply ``function`` to each ``kind`` in ``value``, through tuples, lists and dicts."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map_structure(item, kind, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_structure(item, kind, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map_structure(item, kind, function) for item in value)
    return value


# --- images ---------------------------------------------------------------------------------------------------------


def kernel_grid(model: nn.Module, layer: str | None = None, *, zoom: int = 8, columns: int = 8) -> Tensor:
    """Draw the kernels of a convolution as one image (float in 0 to 1, 3 x H x W), each stretched from black to white.

    Kernels of one or three input channels are drawn in gray or color, side by side. Kernels of other convolutions get
    a row each, with their input channels side by side in gray.

    Args:
        model: with whole parameters, not a sharded one.
        layer: the name of an ``nn.Conv2d``; None takes the first.
        zoom: pixels per weight, and between kernels.
        columns: kernels per row.

    Raises:
        ValueError: there is no such convolution.

    Example::

        to_pil(kernel_grid(task)).save("kernels.png")
    """
    net = _unwrap(model)
    modules = net.modules() if layer is None else _find_layers(net, [layer]).values()
    convolution = next((module for module in modules if isinstance(module, nn.Conv2d)), None)
    if convolution is None:
        raise ValueError("this model has no convolution" if layer is None else f"{layer!r} is not a convolution")
    weight = convolution.weight.detach().float().cpu()
    if weight.shape[1] not in (1, 3):
        columns, weight = weight.shape[1], weight.flatten(0, 1).unsqueeze(1)
    enlarged = interpolate(weight, scale_factor=zoom, mode="nearest")
    image: Tensor = make_grid(enlarged, nrow=columns, padding=zoom, normalize=True, scale_each=True, pad_value=0.5)
    return image


def grad_cam(activations: Tensor, gradients: Tensor, size: tuple[int, int]) -> Tensor:
    """Compute Grad-CAM heat maps: the image regions that raise a score (Selvaraju et al. 2017, equations 1 and 2).

    Channels are weighted by their mean gradient, and negative evidence is set to 0. Each heat map is enlarged
    bilinearly and divided by its maximum; one without positive evidence is 0 everywhere.

    Args:
        activations: feature maps (B x C x h x w).
        gradients: gradients of the score with respect to them, of the same shape.
        size: height and width of the result.

    Returns:
        B x H x W in 0 to 1.

    Raises:
        ValueError: the shapes differ or are not B x C x h x w.
    """
    if activations.ndim != 4 or activations.shape != gradients.shape:
        shapes = f"{tuple(activations.shape)} and {tuple(gradients.shape)}"
        raise ValueError(f"activations and gradients must both be B x C x h x w, not {shapes}")
    weights = gradients.float().mean((2, 3), keepdim=True)
    heat = (weights * activations.float()).sum(1, keepdim=True).relu()
    heat = interpolate(heat, size=size, mode="bilinear", align_corners=False).squeeze(1)
    highest = heat.amax((1, 2), keepdim=True)
    return heat / highest.where(highest > 0, 1)
