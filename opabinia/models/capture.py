"""Looking into a model without changing it: outputs and gradients of its layers, kernels, Grad-CAM."""

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
"""From the name of a layer and its output to the output that is to be used in its place."""

EditGradient = Callable[[str, Tensor], Tensor]
"""From the name of a layer and the gradient of its output to the gradient that is to be used in its place."""

# --- outputs and gradients ------------------------------------------------------------------------------------------


class _Value:
    """One tensor of an output, and what comes back to it."""

    def __init__(self, tensor: Tensor, copy: bool) -> None:
        self.gradient: Tensor | None = None
        self._tensor = tensor.detach().clone() if copy else tensor.detach()
        self._version = _version(self._tensor)

    def tensor(self) -> Tensor:
        if _version(self._tensor) != self._version:
            raise RuntimeError(
                "the layer after it has changed this output in place (an activation often does); "
                "capture(..., copy=True) keeps it as it was"
            )
        return self._tensor

    def add(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach() if self.gradient is None else self.gradient + gradient.detach()


class Call:
    """One forward pass of a layer."""

    def __init__(self, values: Any) -> None:
        self._values = values  # the output with a _Value in the place of each tensor

    @property
    def output(self) -> Any:
        """What the layer gave, detached and on its device: a tensor, or tensors in the layer's own structure.

        Raises:
            RuntimeError: a later layer has changed it in place.
        """
        return _mapped(self._values, _Value, _Value.tensor)

    @property
    def gradient(self) -> Any:
        """dL/d(output), in the same structure; None where no backward pass has come by. Several backward passes through
        the same graph add up, as they do in ``Tensor.grad``."""
        return _mapped(self._values, _Value, lambda value: value.gradient)


class Layer:
    """What a layer did.

    Attributes:
        name: relative to the task.
        calls: its forward passes, in order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Call] = []

    @property
    def output(self) -> Any:
        """What its newest forward pass gave; see :class:`Call`.

        Raises:
            LookupError: there was none.
        """
        return self._newest.output

    @property
    def gradient(self) -> Any:
        """The gradient of that output; see :class:`Call`."""
        return self._newest.gradient

    @property
    def _newest(self) -> Call:
        if not self.calls:
            raise LookupError(
                f"{self.name!r} was not called: the model takes another way, calls a method of it, or was compiled"
            )
        return self.calls[-1]


class Seen(Mapping[str, Layer]):
    """Layers by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._layers = {name: Layer(name) for name in names}

    def __getitem__(self, name: str) -> Layer:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


@contextmanager
def capture(
    model: nn.Module | ParallelTask,
    layers: Sequence[str],
    *,
    edit: Edit | None = None,
    edit_gradient: EditGradient | None = None,
    copy: bool = False,
) -> Iterator[Seen]:
    """Outputs and gradients of named layers, while the block lasts.

    The model stays as it is: what listens are hooks of torch, which are gone after the block, however it ended. The
    backward pass belongs into the block. Outputs are not copied, so this takes memory only for what autograd would have
    let go, and nothing waits for the device.

    On many processes each sees its own samples; gradients are those of its own loss, before any exchange. A layer that
    is computed again in the backward pass (activation checkpointing, not its reentrant form) is seen once.

    Args:
        model: the task, or what wraps it: DDP, ``torch.compile``, a ``parallel`` part.
        layers: names of modules, relative to the task: ``backbone.model.layer3``.
        edit: ``edit(name, output)`` gives what the model goes on with, and what is seen.
        edit_gradient: ``edit_gradient(name, gradient)`` gives the gradient to go on with, and that is seen; called for
            each tensor of an output.
        copy: copy outputs, for layers whose output the next one changes in place.

    Raises:
        ValueError: the model has no such layer; near names are told.

    Example::

        with capture(task, ["backbone", "head"]) as seen:
            task(batch, clock)["loss"].backward()
        seen["backbone"].output        # B x D
        seen["backbone"].gradient      # B x D
        len(seen["head"].calls)        # 1
    """
    modules = _found(_inner(model), layers)
    seen = Seen(modules)
    handles: list[RemovableHandle] = []

    def listen(name: str, module: nn.Module, arguments: Any, output: Any) -> Any:
        if edit is not None:
            output = _given(edit(name, output), name, "edit")
        # A layer that is computed again must compute the same, but has been seen.
        if torch._C._current_graph_task_id() == -1:
            seen[name].calls.append(Call(_mapped(output, Tensor, partial(watch, name))))
        return output

    def watch(name: str, tensor: Tensor) -> _Value:
        value = _Value(tensor, copy)
        if tensor.requires_grad:
            handles.append(tensor.register_hook(partial(come_back, name, value)))  # type: ignore[no-untyped-call]
        return value

    def come_back(name: str, value: _Value, gradient: Tensor) -> Tensor:
        if edit_gradient is not None:
            gradient = _given(edit_gradient(name, gradient), name, "edit_gradient")
        value.add(gradient)
        return gradient

    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(partial(listen, name)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _given(value: Any, name: str, edit: str) -> Any:
    if value is None:
        raise TypeError(f"{edit} gave nothing back for {name!r}")
    return value


def _inner(model: nn.Module | ParallelTask) -> nn.Module:
    """The task inside what wraps it: a wrapper has it as its only child."""
    inner = model if isinstance(model, nn.Module) else model.module
    while (children := dict(inner.named_children())).keys() in ({"module"}, {"_orig_mod"}):
        (inner,) = children.values()
    return inner


def _found(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))
    missing = [name for name in names if name not in modules]
    if missing:
        raise ValueError("; ".join(f"there is no layer {name!r}; near: {near(name, modules)}" for name in missing))
    return {name: modules[name] for name in names}


def near(name: str, known: Iterable[str]) -> str:
    """Names that may have been meant, for messages."""
    known = [one for one in known if one]
    ending = [one for one in known if one.endswith(f".{name}")]
    near = ending[:3] or difflib.get_close_matches(name, known, n=3)
    return ", ".join(near) or "none"


def _version(tensor: Tensor) -> int:
    """How often it was changed in place; of inference tensors nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """``value`` with everything in it that is a ``kind`` changed; tuples, lists and dicts are gone through."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, kind, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, kind, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, kind, change) for item in value)
    return value


# --- pictures -------------------------------------------------------------------------------------------------------


def kernels(model: nn.Module, layer: str | None = None, *, zoom: int = 8, columns: int = 8) -> Tensor:
    """The kernels of a convolution as one picture (float in 0 to 1, 3 x H x W), each stretched from black to white.

    Kernels of one or three input channels are drawn in grey or colour, side by side. Of others every kernel has a row,
    with its input channels side by side in grey.

    Args:
        model: with whole parameters, not a sharded one.
        layer: the name of an ``nn.Conv2d``; None takes the first.
        zoom: pixels for each weight, and between kernels.
        columns: kernels in a row.

    Raises:
        ValueError: there is no such convolution.

    Example::

        to_pil(kernels(task)).save("kernels.png")
    """
    weight = _convolution(_inner(model), layer).weight.detach().float().cpu()
    if weight.shape[1] not in (1, 3):
        columns, weight = weight.shape[1], weight.flatten(0, 1).unsqueeze(1)
    large = interpolate(weight, scale_factor=zoom, mode="nearest")
    picture: Tensor = make_grid(large, nrow=columns, padding=zoom, normalize=True, scale_each=True, pad_value=0.5)
    return picture


def _convolution(model: nn.Module, layer: str | None) -> nn.Conv2d:
    modules = model.modules() if layer is None else _found(model, [layer]).values()
    found = next((module for module in modules if isinstance(module, nn.Conv2d)), None)
    if found is None:
        raise ValueError("this model has no convolution" if layer is None else f"{layer!r} is no convolution")
    return found


def grad_cam(activations: Tensor, gradients: Tensor, size: tuple[int, int]) -> Tensor:
    """Where a score comes from: Grad-CAM (Selvaraju et al. 2017, equations 1 and 2).

    A channel counts as much as its gradient on the mean over the map; what speaks against the score is cut off. Each
    map is enlarged bilinearly and divided by its maximum; one on which nothing speaks for the score is 0 everywhere.

    Args:
        activations: feature maps (B x C x h x w).
        gradients: of the score with respect to them, of the same shape.
        size: height and width of the result.

    Returns:
        B x H x W in 0 to 1.

    Raises:
        ValueError: the shapes do not fit.
    """
    if activations.ndim != 4 or activations.shape != gradients.shape:
        shapes = f"{tuple(activations.shape)} and {tuple(gradients.shape)}"
        raise ValueError(f"activations and gradients are B x C x h x w, both alike, not {shapes}")
    weights = gradients.float().mean((2, 3), keepdim=True)
    maps = (weights * activations.float()).sum(1, keepdim=True).relu()
    large = interpolate(maps, size=size, mode="bilinear", align_corners=False).squeeze(1)
    highest = large.amax((1, 2), keepdim=True)
    return large / highest.where(highest > 0, 1)
