"""Schedules: pure functions of the clock, evaluated before every step.

The value multiplies what it is a schedule of: the optimizer's ``lr`` (key ``schedule``), its ``weight_decay`` or
``momentum`` (key ``schedules``), a temperature. Each curve below is a function of where it stands between its beginning
and its end; :func:`timed` registers it together with the keys that all of them share: warm-up, delay, and the rules of
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
    """Where a curve stands.

    Attributes:
        step: steps of the run.
        begin: the step at which the curve began.
        length: steps from there to its end.
        clock: the run's, for durations.
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
        """From 0 to 1."""
        return min(1.0, self.done / max(1, self.length))


# --- timing -----------------------------------------------------------------------------------------------------------

_SHARED = """
        warmup: length of the warm-up, from the run's start; the curve begins where it ends.
        warmup_factor: what the value is multiplied by at the first step.
        warmup_mode: how the factor rises to 1: along a line, as a power, or at once when the warm-up is over.
        delay: until then, from the run's start, the curve's first value is held.
        by: the value changes with every step, or with every epoch.
        reach_end: the last step (with ``by: epoch`` the last epoch) has the end's value already; without it the end is
            where one step more would be.
        rule: ``after``: as said above. ``whole`` (basecls): the curve runs over the whole run, multiplied by the
            warm-up. ``sliced`` (detectron2): the same curve, but the warm-up is a line from ``warmup_factor`` times the
            curve's first value to the curve's value at the warm-up's end. ``fastreid``: warm-up by step, then the curve
            by epoch, counted as FastReID's scheduler does: the first epoch after the warm-up has its second value
            already, the first after the delay still the first.
"""


def _shared(
    *,
    warmup: Duration = NONE,
    warmup_factor: Fraction = 0.001,
    warmup_mode: Literal["linear", "constant", "exponential"] = "linear",
    delay: Duration = NONE,
    by: Literal["step", "epoch"] = "step",
    reach_end: bool = False,
    rule: Literal["after", "whole", "sliced", "fastreid"] = "after",
) -> None: ...


def timed(curve: Callable[..., float]) -> Callable[..., float]:
    """Register a curve as a schedule; its own keys come first, then those that all schedules share."""
    shared = inspect.signature(_shared).parameters
    own = inspect.signature(curve).parameters
    keys = [parameter for name, parameter in own.items() if name != "span"]
    defaults = {name: parameter.default for name, parameter in shared.items()}

    @wraps(curve)
    def schedule(clock: Clock, /, **given: Any) -> float:
        timing = {name: given.pop(name, default) for name, default in defaults.items()}
        if timing == defaults:  # as below, and quicker
            return curve(Span(clock.step, 0, clock.total_steps, clock), **given)
        return _value(lambda span: curve(span, **given), clock, **timing)

    first = inspect.Parameter("clock", inspect.Parameter.POSITIONAL_ONLY, annotation=Clock)
    hints = {**get_type_hints(_shared, include_extras=True), **get_type_hints(curve, include_extras=True)}
    ordered = [first, *(p.replace(annotation=hints[p.name]) for p in [*keys, *shared.values()])]
    schedule.__dict__["__signature__"] = inspect.Signature(ordered, return_annotation=float)
    schedule.__annotations__ = {p.name: p.annotation for p in ordered} | {"return": float}
    del schedule.__wrapped__  # or its signature would be read
    text = curve.__doc__ or ""
    schedule.__doc__ = text.rstrip() + ("" if "Args:" in text else "\n\n    Args:") + _SHARED
    return register.schedule(schedule)


def _value(
    curve: Callable[[Span], float],
    clock: Clock,
    *,
    warmup: Duration,
    warmup_factor: float,
    warmup_mode: str,
    delay: Duration,
    by: str,
    reach_end: bool,
    rule: str,
) -> float:
    warm_steps = clock.steps(warmup) if warmup.value else 0
    delay_steps = clock.steps(delay) if delay.value else 0
    if rule == "fastreid":
        return _warm(clock.step, warm_steps, warmup_factor, warmup_mode) * curve(
            _span_of_fastreid(clock, warm_steps, delay_steps)
        )
    at = replace(clock, step=clock.step - clock.epoch_step, epoch_step=0) if by == "epoch" else clock
    begin = max(warm_steps, delay_steps) if rule == "after" else delay_steps
    length = clock.total_steps - begin
    if reach_end:
        length -= clock.length_of(math.ceil(clock.epochs_at(clock.total_steps)) - 1) if by == "epoch" else 1

    step = at.step
    if step >= warm_steps:
        return curve(Span(step, begin, length, at))
    if rule == "sliced" and warmup_mode == "linear":
        first = warmup_factor * curve(Span(0, begin, length, at))
        return first + (curve(Span(warm_steps, begin, length, at)) - first) * step / warm_steps
    return _warm(step, warm_steps, warmup_factor, warmup_mode) * curve(Span(step, begin, length, at))


def _warm(step: int, length: int, factor: float, mode: str) -> float:
    """The warm-up's multiplier: ``factor`` at the first step, 1 from the end of the warm-up on."""
    if step >= length:
        return 1.0
    if mode == "constant":
        return factor
    share = step / length
    return factor ** (1 - share) if mode == "exponential" else factor + (1 - factor) * share


def _span_of_fastreid(clock: Clock, warm_steps: int, delay_steps: int) -> Span:
    """In whole epochs. Its scheduler steps at the end of an epoch: from that on in which the warm-up ends, but not yet
    at the end of the delay.

    Raises:
        ValueError: epochs differ in length.
    """
    if clock.starts is not None:
        raise ValueError("rule: fastreid counts in epochs of one length, and shapes make some longer than others")
    per_epoch = max(1, clock.steps_per_epoch)
    warm, delay = (math.ceil(steps / per_epoch) for steps in (warm_steps, delay_steps))
    stepped = max(0, clock.epoch + 1 - max(warm, delay + 1))
    epochs = math.ceil(clock.total_steps / per_epoch)
    return Span(stepped * per_epoch, 0, max(1, epochs - max(warm, delay)) * per_epoch, clock)


Shape = Literal["cosine", "linear"]

# --- curves -----------------------------------------------------------------------------------------------------------


@timed
def constant(span: Span, *, value: NonNegative = 1.0) -> float:
    """Always the same, after an optional warm-up.

    Args:
        value: it.
    """
    return value


@timed
def cosine(span: Span, *, start: NonNegative = 1.0, end: NonNegative = 0.0) -> float:
    """Half a cosine (Loshchilov and Hutter 2017, no restarts), after an optional warm-up.

    Args:
        start: the value at the beginning of the curve.
        end: the value at the run's end.
    """
    return end + (start - end) * (1 + math.cos(math.pi * span.progress)) / 2


@timed
def cosine_restarts(
    span: Span,
    *,
    cycle: Duration,
    longer: Positive = 1.0,
    lower: Fraction = 1.0,
    end: NonNegative = 0.0,
    wave: Literal["half", "full"] = "half",
    peaks: Literal["lower", "cosine"] = "lower",
) -> float:
    """Half cosines that begin anew (SGDR, Loshchilov and Hutter 2017), after an optional warm-up.

    Args:
        cycle: length of the first one.
        longer: each cycle is so many times as long as the one before.
        lower: each cycle's first value is so many times that of the one before.
        end: the value at the end of each cycle.
        wave: each cycle falls from its first value (``half``), or cycles fall and rise in turn (``full``).
        peaks: the highest values are given by ``lower``, or lie on a half cosine over the whole curve; both are
            VISSL's.
    """
    done, whole, first = _measured(span, cycle)
    length, begin, number = float(first), 0.0, 0
    while done >= begin + length:
        begin, length, number = begin + length, max(min(1.0, first), length * longer), number + 1
    rising, turn = wave == "full" and number % 2 == 1, (number + 1) // 2 if wave == "full" else number
    share, peak = (done - begin) / length, lower**turn
    if peaks == "cosine":
        at = (begin + length if rising else begin) / max(min(1, first), whole)
        peak = _between(1.0, end, at, "cosine")
    return _between(peak, end, 1 - share if rising else share, "cosine")


@timed
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
        shares: how much of the curve each of them has; they add up to 1.
        time: each schedule runs from its beginning to its end in its share (``own``), or over the whole curve, of which
            its share is seen (``whole``).
    """
    if len(schedules) != len(shares) or abs(sum(shares) - 1) > 1e-3:
        raise ValueError(f"{len(shares)} shares for {len(schedules)} schedules, or shares that do not add up to 1")
    starts = [round(sum(shares[:number]) * span.length) for number in range(len(shares))]
    number = bisect_right(starts, span.done) - 1
    if time == "whole":
        return schedules[number](_later(span, 0, span.length))
    stop = [*starts, span.length][number + 1]
    return schedules[number](_later(span, starts[number], stop - starts[number]))


def _later(span: Span, wait: int, length: int) -> Clock:
    """The clock of a schedule that begins so many steps behind the curve, as its durations do."""
    offset = span.begin + wait
    own = replace(span.clock, step=span.done - wait, total_steps=length)
    if (of_run := own.starts) is None or not offset:
        return own
    begin = own.epochs_at(offset)
    return replace(own, starts=lambda count: Duration(begin + count, "ep").steps_along(of_run) - offset)


@timed
def linear(span: Span, *, start: NonNegative = 1.0, end: NonNegative = 0.0) -> float:
    """A line, after an optional warm-up.

    Args:
        start: the value at the beginning of the line.
        end: the value at the run's end.
    """
    return start + (end - start) * span.progress


@timed
def polynomial(span: Span, *, power: Positive = 0.9, end: NonNegative = 0.0) -> float:
    """``(1 - progress) ** power`` (as in DeepLab), after an optional warm-up.

    Args:
        power: 1 is a line.
        end: the value at the run's end.
    """
    return float(end + (1 - end) * (1 - span.progress) ** power)


@timed
def exponential(
    span: Span, *, gamma: Positive | None = None, every: Duration = Duration(1, "ep"), end: Positive = 0.01
) -> float:
    """Falls by the same factor in equal times, after an optional warm-up.

    Args:
        gamma: the factor for each ``every``; null chooses the one that leads to ``end`` at the run's end.
        every: the time in which the value is multiplied by ``gamma``, continuously.
        end: the value at the run's end, when ``gamma`` is not given.
    """
    if gamma is None:
        return float(end**span.progress)
    done, _, unit = _measured(span, every)
    return float(gamma ** (done / unit))


@timed
def step(span: Span, *, every: Duration, gamma: Positive = 0.1) -> float:
    """Times ``gamma`` after each ``every``, after an optional warm-up.

    Args:
        every: the time between two drops, such as ``30ep``, counted from the run's start.
        gamma: the factor at each drop.
    """
    done, _, unit = _measured(span._replace(begin=0), every)
    return float(gamma ** ((done + 1e-9) // unit))  # 0.9 epochs are three times 0.3


@timed
def multi_step(span: Span, *, milestones: list[Duration], gamma: Positive = 0.1) -> float:
    """Times ``gamma`` at each milestone, after an optional warm-up.

    Args:
        milestones: when the value drops, counted from the run's start (with ``rule: fastreid`` from the end of warm-up
            and delay), such as ``[30ep, 60ep, 90ep]``; one at or after the run's end never acts.
        gamma: the factor at each milestone.
    """
    passed = bisect_right(sorted(span.clock.steps(milestone) for milestone in milestones), span.step)
    return float(gamma**passed)


@timed
def one_cycle(
    span: Span, *, rise: Fraction = 0.3, first: NonNegative = 0.04, end: NonNegative = 4e-6, shape: Shape = "cosine"
) -> float:
    """Up to 1 and down again (Smith and Topin 2018, as torch's OneCycleLR).

    Args:
        rise: share of the curve in which it rises.
        first: the value at the beginning.
        end: the value at the run's end.
        shape: of both slopes.
    """
    if span.progress < rise:
        return _between(first, 1.0, span.progress / rise, shape)
    return _between(1.0, end, (span.progress - rise) / max(1e-12, 1 - rise), shape)


@timed
def piecewise(
    span: Span,
    *,
    times: Annotated[list[Duration], MinLen(1)],
    values: Annotated[list[NonNegative], MinLen(1)],
    shape: Literal["steps", "linear", "cosine"] = "linear",
) -> float:
    """Through given values at given times; before the first and behind the last it stays what it is there.

    Example: ``{name: piecewise, times: [0it, 5ep, 20ep], values: [0.1, 1, 0]}``

    Args:
        times: counted from the run's start, ascending.
        values: at these times, as many.
        shape: how it goes from one to the next; with ``steps`` each value holds until the next.
    """
    steps = [span.clock.steps(time) for time in times]
    if len(times) != len(values) or steps != sorted(steps):
        raise ValueError(f"{len(times)} times for {len(values)} values, or times that do not ascend")
    at = bisect_right(steps, span.step) - 1
    if at < 0 or at + 1 >= len(steps) or shape == "steps":
        return values[max(0, at)]
    share = (span.step - steps[at]) / max(1, steps[at + 1] - steps[at])
    return _between(values[at], values[at + 1], share, shape)


@timed
def inverse_sqrt(span: Span, *, flat: Duration = NONE) -> float:
    """``1 / sqrt(time)`` (Vaswani et al. 2017), after the warm-up with which it is used.

    Args:
        flat: the time that counts as 1; until then the value is 1. 0it takes the length of the warm-up, or one epoch.
    """
    unit = span.clock.steps(flat) or span.begin or span.clock.length_of(0)
    return 1 / math.sqrt(max(1.0, (span.begin + span.done) / unit))


def _measured(span: Span, unit: Duration) -> tuple[float, float, float]:
    """What is done of a curve, its whole length, and a duration, in one measure: steps, or epochs where they differ in
    length and the duration is told in them."""
    clock = span.clock
    if clock.starts is None or unit.unit != "ep":
        return span.done, span.length, max(1, clock.steps(unit))
    begin = clock.epochs_at(span.begin)
    done = clock.epochs_at(max(span.step, span.begin)) - begin
    one_step = 1 / clock.length_of(0)  # about: nothing is shorter
    return done, clock.epochs_at(span.begin + span.length) - begin, max(unit.value, one_step)


def _between(first: float, last: float, share: float, shape: str) -> float:
    share = min(1.0, share)
    if shape == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return first + (last - first) * share


# --- scaling ----------------------------------------------------------------------------------------------------------


def scaled(rate: float, batch_size: int, per: int, rule: Literal["linear", "sqrt"] = "linear") -> float:
    """A learning rate that was found for batches of ``per`` samples, for batches of ``batch_size``.

    Goyal et al. 2017 (linear); Krizhevsky 2014 (square root). Lengths and periods in epochs need no scaling.

    Example: ``scaled(0.1, 1024, 256)`` is 0.4, by square root 0.2.
    """
    ratio = batch_size / per
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))
