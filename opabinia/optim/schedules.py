"""Schedules: pure functions of the clock, evaluated before every step.

The value multiplies an option: the optimizer's ``lr`` (key ``schedule``), its ``weight_decay`` or ``momentum`` (key
``schedules``), a temperature. Each curve below is a function of its progress between begin and end;
:func:`register_curve` registers it together with the parameters that all curves share: warm-up, delay, and the rules of
other systems for both.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Clock, Fraction, NonNegative, Positive, SchedulePart
from opabinia.runtime.durations import Duration

NONE = Duration(0, "it")


class Span(NamedTuple):
    """The progress of a curve.

    Attributes:
        step: steps of the run.
        begin: the step at which the curve begins.
        length: steps from there to its end.
        clock: clock of the run, for durations.
    """

    step: int
    begin: int
    length: int
    clock: Clock

    @property
    def done(self) -> int:
        """Steps since the curve began; 0 before."""
        return max(0, self.step - self.begin)

    @property
    def progress(self) -> float:
        """The completed fraction, 0 to 1."""
        return min(1.0, self.done / max(1, self.length))


# --- timing -----------------------------------------------------------------------------------------------------------

_SHARED = """
        warmup: length of the warm-up, from the start of the run; the curve begins at its end.
        warmup_factor: multiplies the value at the first step.
        warmup_mode: the rise of the factor to 1: ``linear``, ``exponential``, or ``constant`` until the warm-up ends.
        delay: until then, from the start of the run, the curve keeps its first value.
        interval: the value changes with every ``step`` or every ``epoch``.
        reach_end: reach the end value at the last step (with ``interval: epoch`` in the last epoch); otherwise it would
            be reached one step later.
        warmup_rule: ``after``: the curve begins after the warm-up. ``whole`` (basecls): the curve covers the whole run,
            multiplied by the warm-up. ``sliced`` (detectron2): likewise, but the warm-up is a line from
            ``warmup_factor`` times the curve's first value to the curve's value at the end of the warm-up.
            ``fastreid``: warm-up by step, then the curve by epoch, counted as FastReID's scheduler does: the first
            epoch after the warm-up already has the second value, the first one after the delay still the first.
"""


def register_curve(curve: Callable[..., float]) -> Callable[..., float]:
    """Register a curve as a schedule; its own parameters come first, then those that all schedules share."""
    own, shared = (list(inspect.signature(function).parameters.values()) for function in (curve, _value))
    own, shared = own[1:], shared[2:]
    defaults = {parameter.name: parameter.default for parameter in shared}

    @wraps(curve)
    def schedule(clock: Clock, /, **given: Any) -> float:
        timing = {name: given.pop(name, default) for name, default in defaults.items()}
        if timing == defaults:  # the same as below, but faster
            return curve(Span(clock.step, 0, clock.total_steps, clock), **given)
        return _value(lambda span: curve(span, **given), clock, **timing)

    first = inspect.Parameter("clock", inspect.Parameter.POSITIONAL_ONLY, annotation=Clock)
    hints = {**get_type_hints(_value, include_extras=True), **get_type_hints(curve, include_extras=True)}
    ordered = [first, *(p.replace(annotation=hints[p.name]) for p in [*own, *shared])]
    schedule.__dict__["__signature__"] = inspect.Signature(ordered, return_annotation=float)
    schedule.__annotations__ = {p.name: p.annotation for p in ordered} | {"return": float}
    del schedule.__wrapped__  # otherwise its signature would be used
    text = curve.__doc__ or ""
    schedule.__doc__ = text.rstrip() + ("" if "Args:" in text else "\n\n    Args:") + _SHARED
    return register.schedule(schedule)


def _value(
    curve: Callable[[Span], float],
    clock: Clock,
    *,
    warmup: Duration = NONE,
    warmup_factor: Fraction = 0.001,
    warmup_mode: Literal["linear", "constant", "exponential"] = "linear",
    delay: Duration = NONE,
    interval: Literal["step", "epoch"] = "step",
    reach_end: bool = False,
    warmup_rule: Literal["after", "whole", "sliced", "fastreid"] = "after",
) -> float:
    """Evaluate a curve with the parameters that all schedules share; their annotations are those of the config."""
    warm_steps = clock.steps(warmup) if warmup.value else 0
    delay_steps = clock.steps(delay) if delay.value else 0
    if warmup_rule == "fastreid":
        span = _fastreid_span(clock, warm_steps, delay_steps)
        return _warmup_multiplier(clock.step, warm_steps, warmup_factor, warmup_mode) * curve(span)
    at = replace(clock, step=clock.step - clock.epoch_step, epoch_step=0) if interval == "epoch" else clock
    begin = max(warm_steps, delay_steps) if warmup_rule == "after" else delay_steps
    length = clock.total_steps - begin
    if reach_end:
        length -= clock.length_of(math.ceil(clock.epochs_at(clock.total_steps)) - 1) if interval == "epoch" else 1

    step = at.step
    if step >= warm_steps:
        return curve(Span(step, begin, length, at))
    if warmup_rule == "sliced" and warmup_mode == "linear":
        first = warmup_factor * curve(Span(0, begin, length, at))
        return first + (curve(Span(warm_steps, begin, length, at)) - first) * step / warm_steps
    return _warmup_multiplier(step, warm_steps, warmup_factor, warmup_mode) * curve(Span(step, begin, length, at))


def _warmup_multiplier(step: int, length: int, factor: float, mode: str) -> float:
    """The multiplier of the warm-up: ``factor`` at the first step, 1 after the warm-up."""
    if step >= length:
        return 1.0
    if mode == "constant":
        return factor
    progress = step / length
    return factor ** (1 - progress) if mode == "exponential" else factor + (1 - factor) * progress


def _fastreid_span(clock: Clock, warm_steps: int, delay_steps: int) -> Span:
    """The span in whole epochs. FastReID's scheduler steps at the end of an epoch: first in the epoch in which the
    warm-up ends, but not yet at the end of the delay.

    Raises:
        ValueError: epochs differ in length.
    """
    if clock.starts is not None:
        raise ValueError(
            "warmup_rule: fastreid needs epochs of equal length, and data.shapes makes some longer than others"
        )
    per_epoch = max(1, clock.steps_per_epoch)
    warm, delay = (math.ceil(steps / per_epoch) for steps in (warm_steps, delay_steps))
    stepped = max(0, clock.epoch + 1 - max(warm, delay + 1))
    epochs = math.ceil(clock.total_steps / per_epoch)
    return Span(stepped * per_epoch, 0, max(1, epochs - max(warm, delay)) * per_epoch, clock)


# --- curves -----------------------------------------------------------------------------------------------------------


@register_curve
def constant(span: Span, *, value: NonNegative = 1.0) -> float:
    """A constant value, after an optional warm-up.

    Args:
        value: the constant.
    """
    return value


@register_curve
def cosine(span: Span, *, start: NonNegative = 1.0, end: NonNegative = 0.0) -> float:
    """Cosine annealing (Loshchilov and Hutter 2017, without restarts), after an optional warm-up.

    Args:
        start: the first value of the curve.
        end: the value at the end of the run.
    """
    return end + (start - end) * (1 + math.cos(math.pi * span.progress)) / 2


@register_curve
def cosine_restarts(
    span: Span,
    *,
    cycle: Duration,
    cycle_mult: Positive = 1.0,
    cycle_decay: Fraction = 1.0,
    end: NonNegative = 0.0,
    wave_type: Literal["half", "full"] = "half",
    peaks: Literal["decay", "cosine"] = "decay",
) -> float:
    """Cosine annealing with warm restarts (SGDR, Loshchilov and Hutter 2017), after an optional warm-up.

    Args:
        cycle: length of the first cycle.
        cycle_mult: the length of each cycle is multiplied by this.
        cycle_decay: the first value of each cycle is multiplied by this.
        end: the value at the end of each cycle.
        wave_type: every cycle falls (``half``), or cycles alternately fall and rise (``full``); VISSL's.
        peaks: the first values follow ``cycle_decay`` (``decay``), or a half cosine over the whole
            curve (``cosine``); VISSL's.
    """
    done, whole, first = _in_one_unit(span, cycle)
    length, begin, number = float(first), 0.0, 0
    while done >= begin + length:
        begin, length, number = begin + length, max(min(1.0, first), length * cycle_mult), number + 1
    rising, turn = wave_type == "full" and number % 2 == 1, (number + 1) // 2 if wave_type == "full" else number
    fraction, peak = (done - begin) / length, cycle_decay**turn
    if peaks == "cosine":
        position = (begin + length if rising else begin) / max(min(1, first), whole)
        peak = _between(1.0, end, position, "cosine")
    return _between(peak, end, 1 - fraction if rising else fraction, "cosine")


@register_curve
def composite(
    span: Span,
    *,
    schedules: Annotated[list[SchedulePart], MinLen(1)],
    shares: Annotated[list[Positive], MinLen(1)],
    time: Literal["own", "whole"] = "own",
) -> float:
    """One schedule after the other, after an optional warm-up.

    Example: ``{name: composite, schedules: [{name: linear, start: 0, end: 1}, cosine], shares: [0.1, 0.9]}``

    Args:
        schedules: in this order.
        shares: fraction of the curve that each of them covers; they add up to 1.
        time: each schedule runs from begin to end within its share (``own``), or runs over the whole curve and is used
            in its share (``whole``).
    """
    if len(schedules) != len(shares) or abs(sum(shares) - 1) > 1e-3:
        raise ValueError(f"{len(shares)} shares for {len(schedules)} schedules, or shares that do not add up to 1")
    starts = [round(sum(shares[:number]) * span.length) for number in range(len(shares))]
    number = bisect_right(starts, span.done) - 1
    if time == "whole":
        return schedules[number](_shifted_clock(span, 0, span.length))
    stop = [*starts, span.length][number + 1]
    return schedules[number](_shifted_clock(span, starts[number], stop - starts[number]))


def _shifted_clock(span: Span, wait: int, length: int) -> Clock:
    """The clock of a schedule that begins ``wait`` steps after the curve; its durations count from there."""
    offset = span.begin + wait
    clock = replace(span.clock, step=span.done - wait, total_steps=length)
    if (starts := clock.starts) is None or not offset:
        return clock
    begin = clock.epochs_at(offset)
    return replace(clock, starts=lambda count: Duration(begin + count, "ep").steps_from(starts) - offset)


@register_curve
def linear(span: Span, *, start: NonNegative = 1.0, end: NonNegative = 0.0) -> float:
    """A line, after an optional warm-up.

    Args:
        start: the first value of the line.
        end: the value at the end of the run.
    """
    return start + (end - start) * span.progress


@register_curve
def polynomial(span: Span, *, power: Positive = 0.9, end: NonNegative = 0.0) -> float:
    """``(1 - progress) ** power`` (as in DeepLab), after an optional warm-up.

    Args:
        power: 1 is a line.
        end: the value at the end of the run.
    """
    return float(end + (1 - end) * (1 - span.progress) ** power)


@register_curve
def exponential(
    span: Span, *, gamma: Positive | None = None, every: Duration = Duration(1, "ep"), end: Positive = 0.01
) -> float:
    """Exponential decay, after an optional warm-up.

    Args:
        gamma: factor per ``every``; null: the factor that gives ``end`` at the end of the run.
        every: period in which the value is multiplied by ``gamma``, continuously.
        end: the value at the end of the run if ``gamma`` is null.
    """
    if gamma is None:
        return float(end**span.progress)
    done, _, period = _in_one_unit(span, every)
    return float(gamma ** (done / period))


@register_curve
def step(span: Span, *, every: Duration, gamma: Positive = 0.1) -> float:
    """Step decay: multiply by ``gamma`` after every period, after an optional warm-up.

    Args:
        every: period, such as ``30ep``, counted from the start of the run.
        gamma: factor of each drop.
    """
    done, _, period = _in_one_unit(span._replace(begin=0), every)
    return float(gamma ** ((done + 1e-9) // period))  # 0.9 epochs are three times 0.3


@register_curve
def multi_step(span: Span, *, milestones: list[Duration], gamma: Positive = 0.1) -> float:
    """Multiply by ``gamma`` at each milestone, after an optional warm-up.

    Args:
        milestones: times of the drops, such as ``[30ep, 60ep, 90ep]``, counted from the start of the run (with
            ``warmup_rule: fastreid`` from the end of warm-up and delay). Those after the run have no effect.
        gamma: factor at each milestone.
    """
    passed = bisect_right(sorted(span.clock.steps(milestone) for milestone in milestones), span.step)
    return float(gamma**passed)


@register_curve
def one_cycle(
    span: Span,
    *,
    pct_start: Fraction = 0.3,
    start: NonNegative = 0.04,
    end: NonNegative = 4e-6,
) -> float:
    """Rise to 1 and fall again along two half cosines (Smith and Topin 2018, as torch's OneCycleLR).

    Args:
        pct_start: fraction of the curve in which it rises, 0 to 1.
        start: the first value; the inverse of torch's ``div_factor``.
        end: the value at the end of the run.
    """
    if span.progress < pct_start:
        return _between(start, 1.0, span.progress / pct_start, "cosine")
    return _between(1.0, end, (span.progress - pct_start) / max(1e-12, 1 - pct_start), "cosine")


@register_curve
def piecewise(
    span: Span,
    *,
    times: Annotated[list[Duration], MinLen(1)],
    values: Annotated[list[NonNegative], MinLen(1)],
    interpolation: Literal["steps", "linear", "cosine"] = "linear",
) -> float:
    """Interpolate given values at given times; before the first and after the last time the value is constant.

    Example: ``{name: piecewise, times: [0it, 5ep, 20ep], values: [0.1, 1, 0]}``

    Args:
        times: ascending, counted from the start of the run.
        values: one for each time.
        interpolation: between two times; with ``steps`` each value holds until the next time.
    """
    steps = [span.clock.steps(time) for time in times]
    if len(times) != len(values) or steps != sorted(steps):
        raise ValueError(f"{len(times)} times for {len(values)} values, or times that do not ascend")
    index = bisect_right(steps, span.step) - 1
    if index < 0 or index + 1 >= len(steps) or interpolation == "steps":
        return values[max(0, index)]
    fraction = (span.step - steps[index]) / max(1, steps[index + 1] - steps[index])
    return _between(values[index], values[index + 1], fraction, interpolation)


@register_curve
def inverse_sqrt(span: Span, *, timescale: Duration = NONE) -> float:
    """``1 / sqrt(time / timescale)`` (Vaswani et al. 2017), to be used with a warm-up.

    Args:
        timescale: until then the value is 1. 0it takes the length of the warm-up, or one epoch.
    """
    steps = span.clock.steps(timescale) or span.begin or span.clock.length_of(0)
    return 1 / math.sqrt(max(1.0, (span.begin + span.done) / steps))


def _in_one_unit(span: Span, duration: Duration) -> tuple[float, float, float]:
    """The completed part of a curve, its length, and a duration, all in steps; in epochs if these differ in length and
    the duration is in epochs."""
    clock = span.clock
    if clock.starts is None or duration.unit != "ep":
        return span.done, span.length, max(1, clock.steps(duration))
    begin = clock.epochs_at(span.begin)
    done = clock.epochs_at(max(span.step, span.begin)) - begin
    one_step = 1 / clock.length_of(0)  # about: the shortest possible duration
    return done, clock.epochs_at(span.begin + span.length) - begin, max(duration.value, one_step)


def _between(first: float, last: float, fraction: float, shape: str) -> float:
    fraction = min(1.0, fraction)
    if shape == "cosine":
        fraction = (1 - math.cos(math.pi * fraction)) / 2
    return first + (last - first) * fraction


# --- scaling ----------------------------------------------------------------------------------------------------------


def scale_lr(lr: float, batch_size: int, base_batch_size: int, rule: Literal["linear", "sqrt"] = "linear") -> float:
    """Scale a learning rate that was tuned for ``base_batch_size`` to ``batch_size``.

    Goyal et al. 2017 (linear); Krizhevsky 2014 (square root). Lengths and periods in epochs need no scaling.

    Example: ``scale_lr(0.1, 1024, 256)`` is 0.4, by square root 0.2.
    """
    ratio = batch_size / base_batch_size
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))
