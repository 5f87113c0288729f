"""Schedules compared with detectron2, basecls, FastReID and VISSL."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.optim import schedules as s
from opabinia.runtime.durations import Duration

D = Duration.parse


def clock(step: int, total: int, per_epoch: int = 1) -> Clock:
    return Clock(step, step // per_epoch, step % per_epoch, 0, total, per_epoch)


# --- detectron2 -------------------------------------------------------------------------------------------------------

MILESTONES = [D("80000it"), D("60000it"), D("90000it"), D("99ep")]
ONE_X = partial(s.multi_step, milestones=MILESTONES, warmup=D("1000it"))
LONG_WARM_UP = partial(s.constant, warmup=D("100000it"))


@pytest.mark.parametrize("rule", ["after", "sliced"])
@pytest.mark.parametrize(
    ("schedule", "mode", "factors"),
    [
        pytest.param(
            ONE_X,
            "linear",
            {
                **{0: 1e-3, 1: 1.999e-3, 19: 0.019981, 39: 0.039961, 100: 0.1009, 500: 0.5005, 999: 0.999001},
                **{1000: 1.0, 59_999: 1.0, 60_000: 0.1, 79_999: 0.1, 80_000: 0.01, 89_999: 0.01},
            },
            id="1x",
        ),
        pytest.param(ONE_X, "constant", {999: 1e-3, 1000: 1.0}, id="constant warm-up"),
        pytest.param(LONG_WARM_UP, "linear", {0: 1e-3, 50_000: 0.5005}, id="the run ends within its warm-up"),
    ],
)
def test_detectron2s_steps(schedule: Any, mode: str, rule: str, factors: dict[int, float]) -> None:
    values = [schedule(clock(step, 90_000, 1000), warmup_mode=mode, warmup_rule=rule) for step in factors]
    assert values == pytest.approx([*factors.values()], rel=1e-9)


def test_detectron2s_cosine_runs_over_the_whole_run_and_the_warm_up_leads_to_it() -> None:
    value = partial(s.cosine, warmup=D("100it"), warmup_rule="sliced")
    at_end = (1 + math.cos(math.pi * 100 / 1000)) / 2
    assert value(clock(100, 1000)) == pytest.approx(at_end)
    assert value(clock(50, 1000)) == pytest.approx(0.001 + (at_end - 0.001) * 0.5)
    assert value(clock(500, 1000)) == pytest.approx(0.5)


# --- basecls: by epoch, counted from 1 --------------------------------------------------------------------------------


def basecls(name: str, epoch: int, epochs: int, minimum: float, warmup: int, factor: float) -> float:
    """The formulas of basecls."""
    progress = (epoch - 1) / epochs
    curve = {
        "linear": (1 - minimum) * (1 - progress) + minimum,
        "cosine": (1 - minimum) * 0.5 * (1 + math.cos(math.pi * progress)) + minimum,
        "exponential": minimum**progress,
    }[name]
    share = (epoch - 1) / warmup if warmup else 1.0
    return curve * (factor * (1 - share) + share if epoch <= warmup else 1.0)


@pytest.mark.parametrize("name", ["linear", "cosine", "exponential"])
def test_curves_of_basecls(name: str) -> None:
    value = partial(
        getattr(s, name), end=0.01, warmup=D("5ep"), warmup_factor=0.1, warmup_rule="whole", interval="epoch"
    )
    for step in range(0, 700, 3):
        epoch = step // 7 + 1
        expected = basecls(name, epoch, 100, 0.01, 5, 0.1)
        assert value(clock(step, 700, 7)) == pytest.approx(expected), epoch


def test_basecls_steps_act_after_their_epoch() -> None:
    value = partial(s.multi_step, milestones=[D("30ep"), D("60ep")], warmup_rule="whole", interval="epoch")
    assert [value(clock(epoch * 7, 700, 7)) for epoch in (29, 30, 59, 60)] == pytest.approx([1, 0.1, 0.1, 0.01])


# --- FastReID ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "factors"),
    [
        ("constant", [0.1, 0.1, 0.1, 0.1, 1.0, 1.0]),
        ("linear", [0.1, 0.19, 0.55, 0.91, 1.0, 1.0]),
        ("exponential", [0.1, 0.12589254, 0.31622777, 0.79432823, 1.0, 1.0]),
    ],
)
def test_fastreids_warm_up(mode: Any, factors: list[float]) -> None:
    for rule in ("fastreid", "whole", "after"):
        value = partial(s.constant, warmup=D("10it"), warmup_factor=0.1, warmup_mode=mode, warmup_rule=rule)
        assert [value(clock(step, 100, 20)) for step in (0, 1, 5, 9, 10, 11)] == pytest.approx(factors, abs=1e-7)


def test_fastreid_counts_milestones_from_the_warm_ups_last_epoch() -> None:
    """2000 warm-up iterations, 200 in an epoch, STEPS 40: the milestone takes effect in the epoch of index 49."""
    value = partial(s.multi_step, milestones=[D("40ep")], warmup=D("2000it"), warmup_factor=0.1, warmup_rule="fastreid")
    epochs = [value(clock(epoch * 200 + 3, 24_000, 200)) for epoch in range(120)]
    assert epochs[10:49] == [1.0] * 39 and epochs[49] == pytest.approx(0.1)


def by_fastreids_hook(
    scheduler_type: Any, epochs: int, per_epoch: int, warm_up: int, delay: int, **keys: Any
) -> list[float]:
    """Return the learning rate in each epoch's last step, by torch's schedulers and FastReID's conditions."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    if scheduler_type is torch.optim.lr_scheduler.CosineAnnealingLR:
        keys["T_max"] = epochs - max(math.ceil(warm_up / per_epoch), delay)
    scheduler, lrs, done = scheduler_type(optimizer, **keys), [], 0
    for epoch in range(epochs):
        done += per_epoch
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if done + 1 > warm_up and epoch + 1 > delay:
            scheduler.step()
    return lrs


@pytest.mark.parametrize("warm_up", [0, 15, 100, 200])
@pytest.mark.parametrize("delay", [0, 1, 10, 30])
def test_fastreids_curves_step_by_epoch_after_warm_up_and_delay(warm_up: int, delay: int) -> None:
    """60 epochs of 10 steps; after a delay the cosine never reaches its end, after a warm-up it does."""
    timing: dict[str, Any] = {
        "warmup": Duration(warm_up, "it"),
        "delay": Duration(delay, "ep"),
        "warmup_rule": "fastreid",
    }
    lr_scheduler = torch.optim.lr_scheduler
    for value, expected in (
        (
            partial(s.cosine, end=0.01, **timing),
            by_fastreids_hook(lr_scheduler.CosineAnnealingLR, 60, 10, warm_up, delay, eta_min=0.01),
        ),
        (
            partial(s.multi_step, milestones=[D("12ep"), D("25ep")], **timing),
            by_fastreids_hook(lr_scheduler.MultiStepLR, 60, 10, warm_up, delay, milestones=[12, 25]),
        ),
    ):
        factors = [value(clock(epoch * 10 + 9, 600, 10)) for epoch in range(60)]
        learning = slice(math.ceil(warm_up / 10), None)  # before, the warm-up multiplies
        assert factors[learning] == pytest.approx(expected[learning])


# --- other curves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (partial(s.linear, start=1, end=0.2), [1, 0.6, 0.2]),
        (partial(s.linear, delay=D("20it"), warmup=D("10it")), [0.001, 0.625, 0]),
        (partial(s.cosine, start=1, end=10), [1, 5.5, 10]),
        (partial(s.cosine, warmup=D("20it")), [0.001, (1 + math.cos(math.pi * 0.375)) / 2, 0]),
        (partial(s.polynomial, power=2.0, end=0.2), [1, 0.4, 0.2]),
        (partial(s.exponential, end=0.01), [1, 0.1, 0.01]),
        (partial(s.exponential, gamma=0.5, every=D("25it")), [1, 0.25, 0.0625]),
        (partial(s.step, every=D("30it"), gamma=0.1), [1, 0.1, 0.001]),
        (partial(s.cosine_restarts, cycle=D("20it"), cycle_decay=0.5), [1, 0.125, 1 / 32]),
        (partial(s.piecewise, times=[D("0it"), D("50it"), D("100it")], values=[0.5, 1, 0]), [0.5, 1, 0]),
        (partial(s.piecewise, times=[D("10it"), D("60it")], values=[2, 4], interpolation="steps"), [2, 2, 4]),
        (partial(s.inverse_sqrt, warmup=D("25it")), [0.001, 25**-0.5 * 5 / math.sqrt(2), 0.5]),
    ],
    ids=lambda value: value.func.__name__ if isinstance(value, partial) else str(value),
)
def test_at_beginning_middle_and_end(value: Any, expected: list[float]) -> None:
    assert [value(clock(step, 100)) for step in (0, 50, 100)] == pytest.approx(expected)


def test_one_cycle_is_torchs() -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=101, cycle_momentum=False)
    value = partial(s.one_cycle, pct_start=0.29, start=1 / 25, end=1 / 25 / 1e4)
    for step in range(100):
        # torch puts the top at 0.3 * 101 - 1 = 29.3 steps
        expected = optimizer.param_groups[0]["lr"]
        assert value(clock(step, 100), pct_start=0.293) == pytest.approx(expected, abs=1e-6)
        optimizer.step()
        scheduler.step()


def test_reach_end_reaches_the_minimum_in_the_last_step() -> None:
    value = partial(s.cosine, end=0.1)
    assert value(clock(99, 100)) > 0.1 and value(clock(99, 100), reach_end=True) == pytest.approx(0.1)
    by_epoch = partial(value, interval="epoch", reach_end=True)
    assert [by_epoch(clock(step, 100, 10)) for step in (90, 99)] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("rule", "expected"), [("linear", 0.4), ("sqrt", 0.2)])
def test_scaling_with_the_batch(rule: Any, expected: float) -> None:
    """Values of VISSL."""
    assert s.scale_lr(0.1, 64 * 16, 256, rule) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (partial(s.piecewise, times=[D("1it")], values=[1, 2]), "1 times for 2 values"),
        (partial(s.piecewise, times=[D("5it"), D("1it")], values=[1, 2]), "times that do not ascend"),
        (partial(s.composite, schedules=[s.constant] * 2, shares=[0.5, 0.6]), "shares that do not add up to 1"),
        (partial(s.composite, schedules=[s.constant] * 2, shares=[1.0]), "1 shares for 2 schedules"),
    ],
)
def test_invalid_arguments_are_reported(schedule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(clock(0, 10))


# --- VISSL ------------------------------------------------------------------------------------------------------------

STEPS = 1000


def at(schedule: Any, progress: float) -> float:
    """Return the value at a progress from 0 to 1, as VISSL counts it, in a run of 1000 steps and 10 epochs."""
    value: float = schedule(clock(round(progress * STEPS), STEPS, STEPS // 10))
    return value


def half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


VISSLS = {
    "constant": (partial(s.constant, value=0.3), lambda progress: 0.3),
    "linear": (partial(s.linear, start=0.1, end=0.8), lambda progress: 0.8 * progress + 0.1 * (1 - progress)),
    "cosine": (partial(s.cosine, end=0.01), lambda progress: half_cosine(1, 0.01, progress)),
    "polynomial": (partial(s.polynomial, power=2), lambda progress: (1 - progress) ** 2),
    "multistep": (
        partial(s.piecewise, times=[D("0ep"), D("3ep"), D("8ep")], values=[1, 0.5, 0.2], interpolation="steps"),
        lambda progress: [1, 0.5, 0.2][(int(10 * progress + 1e-6) >= 3) + (int(10 * progress + 1e-6) >= 8)],
    ),
    "step": (
        partial(
            s.piecewise, times=[D(f"{n}it") for n in (0, 250, 500, 750)], values=[1, 2, 3, 4], interpolation="steps"
        ),
        lambda progress: [1, 2, 3, 4][int(4 * progress + 1e-9)],
    ),
    "step_with_fixed_gamma": (
        partial(s.step, every=D("200it"), gamma=0.5),
        lambda progress: 0.5 ** int(5 * progress + 1e-9),
    ),
    "composite, rescaled": (
        partial(s.composite, schedules=[partial(s.linear, start=0.1, end=1), s.cosine], shares=[0.3, 0.7]),
        lambda progress: 0.1 + 0.9 * progress / 0.3 if progress < 0.3 else half_cosine(1, 0, (progress - 0.3) / 0.7),
    ),
    "composite, fixed": (
        partial(s.composite, schedules=[s.constant, s.cosine], shares=[0.3, 0.7], time="whole"),
        lambda progress: 1 if progress < 0.3 else half_cosine(1, 0, progress),
    ),
    "cosine_warm_restart, half": (
        partial(s.cosine_restarts, cycle=D("250it"), cycle_decay=0.8, end=0.01),
        lambda progress: half_cosine(0.8 ** int(4 * progress + 1e-9), 0.01, (4 * progress + 1e-9) % 1),
    ),
    "cosine_warm_restart, adaptive": (
        partial(s.cosine_restarts, cycle=D("250it"), peaks="cosine", end=0.01),
        lambda progress: half_cosine(
            half_cosine(1, 0.01, int(4 * progress + 1e-9) / 4), 0.01, (4 * progress + 1e-9) % 1
        ),
    ),
    "cosine_warm_restart, full": (
        partial(s.cosine_restarts, cycle=D("250it"), cycle_decay=0.8, end=0.01, wave_type="full"),
        lambda progress: half_cosine(0.8 ** (int(4 * progress + 1 + 1e-9) // 2), 0.01, 4 * progress),
    ),
}


@pytest.mark.parametrize("name", VISSLS)
def test_vissls_curves(name: str) -> None:
    schedule, reference = VISSLS[name]
    for progress in (0, 0.1, 0.25, 0.299, 0.3, 0.5, 0.77, 0.8, 0.999):
        assert at(schedule, progress) == pytest.approx(reference(progress), abs=1e-7), progress


def test_vissls_inverse_square_root_after_its_warm_up() -> None:
    """Before ``timescale``, where VISSL's curve rises towards infinity, ours is 1. VISSL's warm-up is part of a
    composite; our curve begins where its own warm-up ends."""
    curve, warm = partial(s.inverse_sqrt, timescale=D("100it")), partial(s.inverse_sqrt, warmup=D("100it"))
    for progress in (0.1, 0.2, 0.5, 0.99):
        assert at(curve, progress) == at(warm, progress) == pytest.approx(math.sqrt(0.1) / math.sqrt(progress))
    assert at(curve, 0.05) == 1 and at(warm, 0.05) < 1


def test_the_peaks_of_whole_waves_on_a_cosine() -> None:
    """Each peak lies on the cosine, the first at 1; VISSL's first peak is as high as the cosine a cycle later."""
    value = partial(s.cosine_restarts, cycle=D("250it"), peaks="cosine", wave_type="full")
    assert [at(value, progress) for progress in (0, 0.25, 0.5, 0.75)] == pytest.approx([1, 0, 0.5, 0])


REQUIRED: dict[str, dict[str, Any]] = {
    "step": {"every": D("2ep")},
    "multi_step": {"milestones": [D("2ep"), D("30it")]},
    "composite": {"schedules": [s.constant, partial(s.cosine, end=0.1)], "shares": [0.3, 0.7]},
    "cosine_restarts": {"cycle": D("2ep")},
    "piecewise": {"times": [D("1ep"), D("3ep")], "values": [0.5, 0.2]},
}


@pytest.mark.parametrize("name", sorted(register.entries["schedule"]))
@given(
    step=st.integers(0, 60),
    warmup=st.integers(0, 20),
    delay=st.integers(0, 20),
    warmup_rule=st.sampled_from(["after", "whole", "sliced", "fastreid"]),
    interval=st.sampled_from(["step", "epoch"]),
    reach_end=st.booleans(),
)
def test_always_a_number_from_0_to_1(
    name: str, step: int, warmup: int, delay: int, warmup_rule: str, interval: str, reach_end: bool
) -> None:
    target: Any = register.entries["schedule"][name].target
    keys = {
        "warmup": Duration(warmup, "it"),
        "delay": Duration(delay, "it"),
        "warmup_rule": warmup_rule,
        "interval": interval,
    }
    value = target(clock(step, 60, 7), **keys, reach_end=reach_end, **REQUIRED.get(name, {}))
    assert 0 <= value <= 1
