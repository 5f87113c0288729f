"""Finding the layer where numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, Task


class NonFinite(FloatingPointError):
    """A loss is not a number any more. The text names the step, the loss, the layer and the shape of its input."""

    exit_status = 1


class _Found(Exception):
    pass


def first_non_finite(
    task: Task, batch: Batch, clock: Clock, around: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> str:
    """Push ``batch`` through once more and tell the first layer that gives something infinite or not a number.

    Meant for a run that is over: it waits for the device after every layer.
    """
    if broken := [name for name, value in batch.items() if isinstance(value, Tensor) and not _finite(value)]:
        return f"not finite in the batch already: {', '.join(broken)}"

    def look(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if all(map(_finite, _tensors(output))):
            return
        shapes = ", ".join(" x ".join(map(str, tensor.shape)) or "a number" for tensor in _tensors(inputs))
        cause = "" if all(map(_finite, module.parameters(recurse=False))) else "; its weights are not finite"
        raise _Found(
            f"first not finite after layer {name or 'the task'} ({type(module).__name__}, input {shapes}){cause}"
        )

    def hook(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: look(name, module, inputs, output)

    handles = [module.register_forward_hook(hook(name)) for name, module in task.named_modules() if name]
    try:
        with torch.no_grad(), around():
            task(batch, clock)
    except _Found as found:
        return str(found)
    finally:
        for handle in handles:
            handle.remove()
    return "every layer's output is finite: look at the loss itself"


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
