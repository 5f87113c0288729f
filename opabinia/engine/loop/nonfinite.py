"""Finding the layer where numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.contracts import Batch, Clock, Task
from opabinia.runtime.processes import gather


class NonFinite(FloatingPointError):
    """A loss or a gradient is not a number any more. The text names the step, the loss, the layer, the samples.

    Attributes:
        step: the step after which the run would have been, from 1 on.
    """

    exit_status = 1

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.step)

    @classmethod
    def of(cls, step: int, wrong: Mapping[str, float], ids: Sequence[Any], where: str = "") -> NonFinite:
        """The same error on every process.

        Args:
            step: see :class:`NonFinite`.
            wrong: what is not finite in this process, by full name.
            ids: of this process's samples.
            where: the first layer in this process of which it is true.
        """
        values: dict[str, float] = {}
        samples: list[str] = []
        places: list[str] = []
        everybody = [found for found in gather((dict(wrong), list(map(str, ids)), where)) if found[0]]
        # Gradients are those of all processes together: whose loss is wrong has spoiled them.
        guilty = [found for found in everybody if set(found[0]) - {GRADIENTS}] or everybody
        for its_values, its_ids, its_where in guilty:
            values = {**its_values, **values}
            samples += [one for one in its_ids if one not in samples]
            places += [its_where] if its_where and its_where not in places else []
        if len(values) > 1:
            values.pop(GRADIENTS, None)
        said = [", ".join(f"{name} is {value}" for name, value in values.items()) + f" at step {step}", *places]
        if samples:
            rest = f" and {len(samples) - _NAMED} more" if len(samples) > _NAMED else ""
            said.append(f"its samples: {', '.join(samples[:_NAMED])}{rest}")
        return cls("; ".join(said), step)


_NAMED = 16
GRADIENTS = "grad_norm"
"""The norm of all gradients; in the journal it keeps its own name."""


@cache
def in_journal(name: str) -> str:
    """What the journal calls a number that a step gives."""
    return name if name == GRADIENTS else f"train/{name}"


def first_non_finite(
    task: Task, batch: Batch, clock: Clock, around: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> str | None:
    """Push ``batch`` through once more and tell the first layer that gives something infinite or not a number.

    It waits for the device after every layer. On many processes all of them call it: a layer may want them all.
    """
    broken = [name for name, value in batch.items() if not all(map(_finite, _tensors(value)))]
    found = [f"not finite in the batch already: {', '.join(broken)}"] if broken else []

    def look(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if found or all(map(_finite, _tensors(output))):
            return
        shapes = ", ".join(" x ".join(map(str, tensor.shape)) or "a number" for tensor in _tensors(inputs))
        kind = type(module).__name__.removeprefix("FSDP")
        cause = "" if all(map(_finite, module.parameters(recurse=False))) else "; its weights are not finite"
        found.append(f"first not finite after layer {name} ({kind}, input {shapes}){cause}")

    def hook(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: look(name, module, inputs, output)

    handles = [module.register_forward_hook(hook(name)) for name, module in task.named_modules() if name]
    try:
        with torch.no_grad(), around():
            task(batch, clock)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def suspects(batch: Batch) -> list[Any]:
    """Ids of the samples of which something is not finite before any layer has seen it; all ids if there are none."""
    ids = list(batch.get("id", ()))
    values = [one for value in batch.values() for one in (value if isinstance(value, tuple) else (value,))]
    rows = [value for value in values if isinstance(value, Tensor) and len(value) == len(ids)]
    broken = [one for number, one in enumerate(ids) if not all(_finite(value[number]) for value in rows)]
    return broken or ids


def _finite(value: Tensor) -> bool:
    if isinstance(value, DTensor):
        value = value.to_local()  # of the whole all processes would have to ask
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
