"""Exponential moving average of weights: decay rules (basecls, BYOL), parameters and buffers."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from opabinia.contracts import Clock, Run, Task, non_memory_buffers
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.models.feature_queue import VectorQueue
from opabinia.optim import ema
from opabinia.optim.ema import Ema, SavedAverage, WeightAverage, slow_average_warning
from opabinia.runtime import processes
from opabinia.runtime.durations import Duration
from tests.kernels import Kernels

NO_RUN: Any = None


def clock(step: int, total: int = 100, per_epoch: int = 10) -> Clock:
    return Clock(step, step // per_epoch, step % per_epoch, 0, total, per_epoch)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"start": Duration(0, "ep"), "warmup": False}, [0.25] * 6, id="no start"),
        pytest.param({"start": Duration(4, "it"), "warmup": False}, [1, 1, 1, 1, 0.25, 0.25], id="steps"),
        pytest.param({"start": Duration(0.3, "ep")}, [1, 1, 1, 0.25, 0.25, 0.25], id="epochs"),
        pytest.param({"every": 2, "warmup": False}, [None, 0.25, None, 0.25, None, 0.25], id="every"),
        pytest.param({}, [1 - (1 + n) / (10 + n) for n in range(1, 7)], id="warm-up"),
        pytest.param({"schedule": lambda clock: 1 - clock.step / 5}, [0.2, 0.15, 0.1, 0.05, 0.0, -0.05], id="schedule"),
    ],
)
def test_the_weight_of_the_model_over_time(settings: dict[str, Any], expected: list[float | None]) -> None:
    settings = {"decay": 0.75, **settings}
    assert [Ema(**settings).weight_at(clock(step)) for step in range(1, 7)] == pytest.approx(expected)
    warmed_up = Ema(decay=0.75, every=2, start=Duration(7, "it"), warmup=True)
    assert [warmed_up.weight_at(clock(step)) for step in (7, 10, 90)] == pytest.approx([None, 1 - 2 / 11, 0.25])


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
    weights = [fitting.weight_at(Clock.at(PLAN, step)) for step in range(1, 201)]
    assert 0.03 < math.prod(1.0 if weight is None else 1 - weight for weight in weights) <= 0.11
    assert slow_average_warning(Ema(**(settings | {"warmup": True})), PLAN) == ""


def test_an_average_that_catches_up_is_not_reported() -> None:
    assert slow_average_warning(Ema(decay=0.98, warmup=False), PLAN) == ""
    assert slow_average_warning(Ema(start=Duration(9, "ep")), PLAN) == ""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.queue = nn.BatchNorm1d(2), nn.Linear(2, 2), VectorQueue(2, 4)


def add(model: nn.Module, amount: float) -> None:
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.add_(amount if value.is_floating_point() else 1)


def expected_state(before: dict[str, Tensor], weight: float, buffers: str) -> dict[str, Tensor]:
    """Return an average of these tensors after an update by a model with larger values, see :func:`add`."""

    def expected(name: str, value: Tensor) -> Tensor:
        if name.startswith("queue") or (buffers == "kept" and not name.endswith(("weight", "bias"))):
            return value
        return value + (weight if value.is_floating_point() else 1)

    return {name: expected(name, value) for name, value in before.items()}


@pytest.mark.parametrize("buffers", ["kept", "averaged", "synchronized"])
def test_an_update_moves_weights_and_by_choice_buffers(buffers: Any) -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    average = copy.deepcopy(model)
    hook = WeightAverage(average, model, lambda clock: {0: 0.25, 1: None, 2: 1.0}[clock.step], buffers)
    add(model, 1.0)
    for step, weight in ((0, 0.25), (1, 0.25), (2, 1.0)):
        hook.after_step(Run(Task(), None, Path(), clock=clock(step)))  # type: ignore[arg-type]
        torch.testing.assert_close(dict(average.state_dict()), expected_state(before, weight, buffers))


def test_only_a_part_of_the_model_may_be_averaged() -> None:
    model = Model()
    average = nn.ModuleDict({"layer": copy.deepcopy(model.layer)})
    before = average["layer"].weight.clone()
    add(model, 1.0)
    WeightAverage(average, model, lambda clock: 0.25).update(0.25)
    torch.testing.assert_close(average["layer"].weight, before + 0.25)


@pytest.mark.parametrize(("buffers", "count"), [("kept", 1), ("averaged", 2), ("synchronized", 8)])
def test_an_update_of_many_layers_takes_as_few_kernels_as_of_one(
    buffers: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_has_group", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    for layers in (1, 30):
        model = nn.Sequential(*(Model() for _ in range(layers)))
        hook = WeightAverage(copy.deepcopy(model), model, lambda clock: 0.25, buffers)
        with Kernels() as kernels:
            hook.update(0.25)
        assert kernels.count == count and (buffers == "synchronized" or not kernels.views)


def test_synchronized_statistics_are_the_mean_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    average = copy.deepcopy(model)
    monkeypatch.setattr(ema, "world_size", lambda: 2)
    monkeypatch.setattr(ema, "all_reduce_mean", lambda tensors: [tensor + 7 for tensor in tensors])
    WeightAverage(average, model, lambda clock: 1.0, "synchronized").update(1.0)
    assert average.norm.running_mean.tolist() == [7, 7] and torch.equal(average.norm.weight, model.norm.weight)


def test_a_saved_average_starts_as_a_copy_unless_it_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Model(), Model()
    average = copy.deepcopy(other)
    hook = SavedAverage(average, model, lambda clock: 0.5)
    assert model.training and not average.training and not any(param.requires_grad for param in average.parameters())
    hook.start(NO_RUN)
    assert all(map(torch.equal, average.parameters(), model.parameters()))
    add(model, 1.0)
    hook.update(0.5)
    saved = {name: value.clone() for name, value in hook.tensors().items()}
    torch.testing.assert_close(saved, dict(average.state_dict()), rtol=0, atol=0)

    restored = copy.deepcopy(other)
    second = SavedAverage(restored, other, lambda clock: 0.5)
    second.load_tensors(saved)
    second.start(NO_RUN)
    torch.testing.assert_close(dict(restored.state_dict()), saved, rtol=0, atol=0)
    monkeypatch.setattr(ema, "all_reduce_mean", lambda tensors: [tensor + 7 for tensor in tensors])
    assert torch.equal(second.tensors()["norm.running_mean"], saved["norm.running_mean"] + 7), "the mean over ranks"
    assert torch.equal(second.tensors()["queue.features"], saved["queue.features"])


def test_buffers_have_the_names_of_state_dict_without_memories() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), VectorQueue(4, 2))
    model.register_buffer("scale", torch.ones(1))
    names = ["scale", "0.running_mean", "0.running_var", "0.num_batches_tracked"]
    assert [name for name, _ in non_memory_buffers(model)] == names
