"""How gradients become an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    Clock,
    NormOrder,
    ParallelTask,
    Positive,
    Row,
    Scalars,
    Schedules,
    StepOptions,
    Task,
)
from opabinia.engine.loop.gradient_clipping import clip_each, clip_global, clip_values, global_norm
from opabinia.engine.loop.nonfinite import GRADIENTS, NonFinite, first_non_finite, in_journal, suspects
from opabinia.engine.loop.skip_nonfinite import Guard, begin_momentum, not_finite
from opabinia.runtime.device import autocast
from opabinia.runtime.log import log
from opabinia.runtime.processes import any_rank, rank, world_size
from opabinia.runtime.seeds import seed_model


def total_loss(losses: Mapping[str, Tensor] | Tensor | Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to train, and everything to log under its own name (the rule of basecls).

    A tensor is the loss and a list is summed. Of a dictionary ``total_loss`` alone is trained if it is there,
    else the sum of every key that contains "loss"; the rest is only logged. What is trained is logged as ``loss``, or
    as ``total_loss`` when a part of it has that name.

    Raises:
        ValueError: a dictionary without a loss, or an empty list.

    Example: ``{"loss_a": 2, "aux": 10}`` trains 2; ``{"total_loss": 1, "x_loss": 5}`` trains 1.
    """
    if isinstance(losses, Tensor):
        return losses, {"loss": losses}
    if type(losses) is not dict and not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    trained = [losses["total_loss"]] if "total_loss" in losses else [v for k, v in losses.items() if "loss" in k]
    if not trained:
        raise ValueError(f"the task gave no loss: no key of {sorted(losses)} contains 'loss'")
    total = trained[0] if len(trained) == 1 else torch.stack(trained).sum()
    return total, {**losses, "total_loss" if "loss" in losses and len(trained) > 1 else "loss": total}


def micro_batches(batch: Batch, size: int | None, largest: int | None = None) -> Iterator[tuple[Batch, int]]:
    """The batch in pieces of at most ``size`` samples, and how many of them count; None: as it is.

    Args:
        batch: to be split.
        size: of a piece; the last one is smaller if need be.
        largest: samples of the process that has most: every process has as many pieces as that one, of about the same
            size, because layers may want all processes. One that has too few samples repeats one that does not count.
    """
    count = len(batch.get("id", ()))
    largest = count if largest is None else largest
    if size is None or largest <= size:
        yield batch, count
        return
    pieces = -(-largest // size)
    for number in range(pieces):
        start, stop = number * count // pieces, (number + 1) * count // pieces
        if count == largest:
            start, stop = number * size, min(count, (number + 1) * size)
        part = slice(start, stop) if start < stop else slice(0, 1)
        yield {key: _piece(value, part) for key, value in batch.items()}, stop - start


def _piece(value: Any, part: slice) -> Any:
    """The part of a value of the batch that belongs to some samples; several views of them lie in a tuple."""
    if isinstance(value, tuple):
        return tuple(_piece(view, part) for view in value)
    return value[part] if isinstance(value, Tensor | list) else value


@register.step(name="standard")
class Standard:
    """Forward, backward, one update; a batch too large for the device goes through in pieces.

    Gradients are those of the mean over the global batch, whatever it is split into: each piece counts by its samples.
    Weights stay in full precision; fp16 scales the loss so that small gradients survive (an update whose gradients
    overflow is left out, and counts as a step).

    ``grad_norm`` is the norm of all gradients, before clipping. At most one of the four ways to clip can be chosen.

    Args:
        clip_norm: largest norm of all gradients taken as one vector; longer ones are scaled down to it.
        clip_each: largest norm of each parameter's gradient on its own.
        clip_norm_type: p of these norms; ``.inf`` takes the largest absolute value.
        clip_min: smallest value of a gradient.
        clip_max: largest value of a gradient.

    Raises:
        ValueError: two ways to clip, or a schedule of an option that the optimizer does not have.
    """

    def __init__(
        self,
        task: Task | ParallelTask,
        optimizer: torch.optim.Optimizer,
        schedules: Schedules,
        arithmetic: StepOptions,
        /,
        *,
        clip_norm: Positive | None = None,
        clip_each: Positive | None = None,
        clip_norm_type: NormOrder = 2.0,
        clip_min: float | None = None,
        clip_max: float | None = None,
    ) -> None:
        by_value = clip_min is not None or clip_max is not None
        if (clip_norm is not None) + (clip_each is not None) + by_value > 1:
            raise ValueError("clip_norm, clip_each and clip_min with clip_max exclude each other: choose one")
        if clip_min is not None and clip_max is not None and clip_min > clip_max:
            raise ValueError(f"clip_min ({clip_min}) must not be above clip_max ({clip_max})")
        self.task, self.optimizer, self.arithmetic = task, optimizer, arithmetic
        self.clip_norm, self.clip_each, self.clip_norm_type = clip_norm, clip_each, clip_norm_type
        self.clip_min, self.clip_max = clip_min, clip_max
        self._clips = clip_norm is not None or clip_each is not None or by_value
        self._scheduled = [_Scheduled(group, schedules) for group in optimizer.param_groups]
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._device = self._parameters[0].device
        self._scaler = torch.amp.GradScaler(self._device.type) if arithmetic.precision == "fp16" else None
        self._rank, self._world = rank(), world_size()
        self._whole = self._world == 1 and arithmetic.micro_batch is None
        self._no_sync: Callable[[], AbstractContextManager[object]] = getattr(task, "no_sync", nullcontext)
        self._lowered: Callable[[], AbstractContextManager[object]] = (
            nullcontext if arithmetic.precision == "fp32" else partial(autocast, self._device, arithmetic.precision)
        )
        # On the CPU looking costs nothing, and what is looked at need not be kept.
        self._looks = arithmetic.check_losses or self._device.type == "cpu"
        self._model: Task = task if isinstance(task, Task) else task.module
        self._guard = Guard(self._model) if arithmetic.skip_non_finite else None
        begin_momentum(optimizer)

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars:
        """Train ``batch``; returns the losses and ``grad_norm``, on the device (of fp16 the loss scale is waited for).

        On many processes they are this one's share: their mean over processes is that of the global batch.

        Raises:
            NonFinite: a loss or a gradient is infinite or not a number, and it was looked at; no weight was changed.
        """
        for group, scheduled in zip(self.optimizer.param_groups, self._scheduled, strict=True):
            scheduled.set(group, clock, row.lr_factor)
        for parameter in self._parameters:  # optimizer.zero_grad does this, too, under wrappers that cost 30 us
            parameter.grad = None
        if self._guard is not None:
            self._guard.remember()
        scalars = self._forward_and_backward(batch, row, clock)
        if self._scaler is not None:
            scalars["loss_scale"] = self._scaler.get_scale()
            self._scaler.unscale_(self.optimizer)
        after_backward()
        scalars[GRADIENTS] = self._clipped()
        if self._guard is not None and not self._looks:
            scalars["skipped"] = wrong = not_finite(self._must_be_finite(scalars))
            self._guard.unless(wrong, self.optimizer, self._update)
        else:
            left_out = self._looks and self._went_wrong(scalars, batch, row, clock)
            if self._guard is not None:
                scalars["skipped"] = float(left_out)
            if not left_out:
                self._update()
        if self._scaler is not None:
            skipped = float(scalars.get("skipped", 0.0))  # its gradients say nothing about the scale
            self._scaler.update(self._scaler.get_scale() if skipped else None)
        return scalars

    def _update(self) -> None:
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)

    def _must_be_finite(self, scalars: Mapping[str, Tensor | float]) -> dict[str, Any]:
        found = {name: value for name, value in scalars.items() if "loss" in name and name != "loss_scale"}
        if self._scaler is None:  # gradients in fp16 overflow now and then
            found[GRADIENTS] = scalars[GRADIENTS]
        return found

    def _forward_and_backward(self, batch: Batch, row: Row, clock: Clock) -> dict[str, Tensor | float]:
        """Gradients of the mean over the global batch; what the task says, averaged in the same way."""
        if self._whole:
            return self._piece(batch, 0, 1.0, clock)
        scalars: dict[str, Tensor | float] = {}
        pieces = self._pieces(batch, row)
        for number, (piece, count) in enumerate(pieces):
            # Gradients of processes become their mean, so a piece counts by its share of an average process.
            weight = 1.0 if piece is batch and self._world == 1 else count * self._world / row.seen(self._world)
            with nullcontext() if number == len(pieces) - 1 else self._no_sync():
                said = self._piece(piece, number, weight, clock)
            for name, value in said.items():
                scalars[name] = value + scalars[name] if name in scalars else value
        return scalars

    def _piece(self, piece: Batch, number: int, weight: float, clock: Clock) -> dict[str, Tensor | float]:
        """Add the gradients of a piece; return what the task says of it. It counts by its weight in both."""
        seed_model(self.arithmetic.seed, clock.step, number, self._rank, self._device)
        with self._lowered():
            loss, said = total_loss(self.task(piece, clock))
        loss = loss if weight == 1 else loss * weight
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        values = {name: self._noted(value) for name, value in said.items()}
        return values if weight == 1 else {name: value * weight for name, value in values.items()}

    def _noted(self, value: Tensor | float) -> Tensor | float:
        if not isinstance(value, Tensor):
            return value
        return value.item() if self._looks else value.detach()

    def _pieces(self, batch: Batch, row: Row) -> list[tuple[Batch, int]]:
        largest = -(-row.seen(self._world) // self._world) if self._world > 1 else None
        return list(micro_batches(batch, self.arithmetic.micro_batch, largest))

    def _went_wrong(self, scalars: dict[str, Tensor | float], batch: Batch, row: Row, clock: Clock) -> bool:
        """Whether the update is to be left out, because something is not finite here or in another process.

        Raises:
            NonFinite: it is, and that is an error.
        """
        scalars[GRADIENTS] = float(scalars[GRADIENTS])
        if self._world == 1 and math.isfinite(sum(scalars.values())):
            return False  # in a sum nothing that is not finite gets lost
        values = self._must_be_finite(scalars)
        wrong = {in_journal(name): value for name, value in values.items() if not math.isfinite(value)}
        if not any_rank(bool(wrong))[0]:
            return False
        found = [first_non_finite(self._model, piece, clock, self._lowered) for piece, _ in self._pieces(batch, row)]
        where = next((one for one in found if one), "every layer's output is finite: look at the loss and its gradient")
        said = NonFinite.of(clock.step + 1, wrong, suspects(batch), where)
        if self._guard is None:
            raise NonFinite(f"{said}; the weights are as before", said.step)
        self._guard.put_back()
        log.warning("%s: this update is left out", said)
        return True

    def _clipped(self) -> Tensor:
        """Clip the gradients; return the norm that all of them together had before."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = global_norm(gradients, self.clip_norm_type)
        if self.clip_norm is not None:
            clip_global(self._parameters, norm, self.clip_norm)
        elif self.clip_each is not None:
            clip_each(gradients, self.clip_each, self.clip_norm_type)
        elif self._clips:
            clip_values(gradients, self.clip_min, self.clip_max)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The loss scale of fp16; the optimizer is saved by itself."""
        return {} if self._scaler is None else {"scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`; a state of another precision is left alone."""
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])


class _Scheduled:
    """The options of one parameter group that follow a schedule."""

    def __init__(self, group: dict[str, Any], schedules: Schedules) -> None:
        # Not the group itself: an optimizer that loads a state makes new ones.
        self._options = []
        for name, schedule in schedules.items():
            option = "betas" if name == "momentum" and "momentum" not in group else name
            if option not in group:
                known = ", ".join(sorted(key for key, value in group.items() if isinstance(value, float)))
                raise ValueError(f"schedules: the optimizer has no option {name!r}; it has: {known}")
            base = group[option][0] if option == "betas" else group[option]
            self._options.append((name, option, float(base), schedule))

    def set(self, group: dict[str, Any], clock: Clock, lr_factor: float) -> None:
        """What the optimizer is to use in the step after ``clock``."""
        for name, option, base, schedule in self._options:
            value = base if name == "lr" and group.get("constant_lr") else base * schedule(clock)
            if name == "lr":
                value *= lr_factor
            group[option] = value if option != "betas" else (value, *group["betas"][1:])
