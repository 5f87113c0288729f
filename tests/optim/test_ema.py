"""Exponential moving average of weights: decay rules (basecls, BYOL), parameters and buffers."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from opabinia.contracts import Clock
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.optim.ema import Ema, WeightAverage, decay_at, slow_average_warning
from opabinia.runtime.durations import Duration
from tests.kernels import Kernels


def clock(step: int, total: int = 100, per_epoch: int = 10) -> Clock:
    return Clock(step, step // per_epoch, step % per_epoch, 0, total, per_epoch)


@pytest.mark.parametrize(("start", "copies"), [("0ep", 0), ("2ep", 20), ("7it", 7)])
def test_the_average_is_a_copy_until_its_start(start: str, copies: int) -> None:
    ema = Ema(decay=0.9, start=Duration.parse(start), warmup=False)
    assert [decay_at(ema, clock(step)) for step in range(1, 31)] == [0.0] * copies + [0.9] * (30 - copies)


def test_the_average_is_updated_every_n_steps() -> None:
    decays = [decay_at(Ema(decay=0.9, every=4, warmup=False), clock(step)) for step in range(1, 10)]
    assert decays == [None, None, None, 0.9, None, None, None, 0.9, None]


def test_the_decay_warms_up() -> None:
    decays = [decay_at(Ema(decay=0.5), clock(step)) for step in (1, 2, 8, 9, 50)]
    assert decays == pytest.approx([2 / 11, 3 / 12, 9 / 18, 0.5, 0.5])


@pytest.mark.parametrize(
    ("settings", "warms_up"),
    [
        ({}, True),
        ({"warmup": False}, False),
        ({"start": Duration(5, "ep")}, False),
        ({"schedule": lambda clock: 1.0}, False),
        ({"start": Duration(5, "ep"), "warmup": True}, True),
    ],
)
def test_the_decay_warms_up_unless_another_rule_is_chosen(settings: dict[str, Any], warms_up: bool) -> None:
    assert Ema(**settings).warms_up == warms_up


PLAN = ConstantPlan(samples=205, batch_size=8, length=Duration(200, "it"))


def cosine(clock: Clock) -> float:
    return (1 + math.cos(math.pi * clock.progress)) / 2


@pytest.mark.parametrize(
    "settings",
    [
        {"decay": 0.995, "warmup": False},
        {"decay": 0.9999, "every": 4, "warmup": False},
        {"decay": 1.0, "schedule": cosine},
    ],
)
def test_an_average_that_cannot_catch_up_is_reported_with_a_fitting_value(settings: dict[str, Any]) -> None:
    warning = slow_average_warning(Ema(**settings), PLAN)
    suggested = re.search(r"ema\.decay=([\d.e-]+)$", warning)
    assert suggested and "ema.warmup=true" in warning
    if settings == {"decay": 0.995, "warmup": False}:
        assert f"{0.995**200:.0%} of it" in warning
    fitting = Ema(**(settings | {"decay": float(suggested[1])}))
    decays = [decay_at(fitting, Clock.at(PLAN, step)) for step in range(1, 201)]
    assert 0.03 < math.prod(1.0 if decay is None else decay for decay in decays) <= 0.11
    assert slow_average_warning(Ema(**(settings | {"warmup": True})), PLAN) == ""


def test_an_average_that_catches_up_is_not_reported() -> None:
    assert slow_average_warning(Ema(decay=0.98, warmup=False), PLAN) == ""
    assert slow_average_warning(Ema(start=Duration(9, "ep")), PLAN) == ""


def test_a_schedule_raises_the_decay_to_1() -> None:
    ema = Ema(decay=0.996, schedule=lambda clock: 1 - clock.progress)
    assert decay_at(ema, clock(50)) == pytest.approx(0.998) and decay_at(ema, clock(100)) == 1.0


@given(st.integers(1, 1000), st.floats(0, 1), st.integers(1, 8), st.booleans())
def test_the_decay_stays_between_0_and_1(step: int, decay: float, every: int, warmup: bool) -> None:
    current = decay_at(Ema(decay=decay, every=every, warmup=warmup), clock(step, 1000))
    assert current is None or 0 <= current <= 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(2), nn.Linear(2, 2)


def add(model: nn.Module, amount: float) -> None:
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.add_(amount if value.is_floating_point() else 1)


def test_weights_and_buffers() -> None:
    model = Model()
    average = WeightAverage(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    add(model, 1.0)
    average.update(0.75)
    for name, value in average.model.state_dict().items():
        copied = name.endswith("tracked")
        expected = before[name] + (1 if copied else 0.25)
        assert torch.allclose(value, expected), name
    average.update(0.0)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in average.model.state_dict().items())


def test_an_update_of_many_layers_takes_as_few_kernels_as_of_one() -> None:
    counts = []
    for layers in (1, 30):
        average = WeightAverage(nn.Sequential(*(Model() for _ in range(layers))))
        with Kernels() as kernels:
            average.update(0.75)
        counts.append(kernels.count + kernels.views)
    assert counts == [2, 2]


def test_the_average_is_in_eval_mode_and_requires_no_gradients() -> None:
    model = Model()
    average = WeightAverage(model)
    assert not average.model.training and model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    add(model, 1.0)
    assert not torch.equal(average.model.layer.weight, model.layer.weight)
