"""Scaling of recipes to another number of processes: detectron2's rules, but no value becomes zero."""

from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.training.run_folder import resolve
from opabinia.training.world_size_scaling import auto_scale


def config(**changes: Any) -> dict[str, Any]:
    train = {
        "reference_world_size": 8,
        "lr_batch_size": None,
        "length": changes.get("length", "5000it"),
        "log_every": 20,
    }
    return {
        "data": {"batch_size": changes.get("batch", 16)},
        "optimizer": {"name": "sgd", "lr": changes.get("lr", 0.1)},
        "schedule": {"name": "multistep", "milestones": changes.get("steps", ["4000it"]), "warmup": "1000it"},
        "train": {**train, **changes.get("train", {})},
        "evaluate": {"every": changes.get("evaluate", "1ep")},
        "checkpoint": {"every": changes.get("save", "1000it")},
        "ema": {"every": 8, "decay": 0.99},
        "hooks": {"precise": {"name": "precise_bn", "batches": 200}, "limit": {"max_time": "1.5h"}},
    }


def scaled_values(values: dict[str, Any]) -> tuple[Any, ...]:
    """Return batch size, learning rate, length, milestones, checkpoint period and warmup."""
    schedule = values["schedule"]
    return (
        *(values["data"]["batch_size"], values["optimizer"]["lr"], values["train"]["length"]),
        *(schedule["milestones"], values["checkpoint"]["every"], schedule["warmup"]),
    )


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (16, (32, 0.2, "2500it", ["2000it"], "500it", "500it")),
        (4, (8, 0.05, "10000it", ["8000it"], "2000it", "2000it")),
        (3, (6, 0.0375, "13333it", ["10667it"], "2667it", "2667it")),
        (64, (128, 0.8, "625it", ["500it"], "125it", "125it")),
    ],
)
def test_scaled_values_equal_detectron2(processes: int, expected: tuple[Any, ...]) -> None:
    scaled, changes = auto_scale(config(), processes)
    assert scaled_values(scaled) == expected
    assert scaled["train"]["reference_world_size"] == processes
    assert auto_scale(scaled, processes) == (scaled, [])  # scaling is idempotent
    assert f"optimizer.lr: 0.1 -> {expected[1]}" in changes
    assert f"schedule.milestones.0: 4000it -> {expected[3][0]}" in changes


def test_halves_are_rounded_to_even_and_no_period_becomes_zero() -> None:
    long = {"length": "90000it", "steps": ["60000it", "80000it"], "save": "5000it", "evaluate": "5it", "lr": 0.02}
    scaled, _ = auto_scale(config(**long), 16)
    assert scaled_values(scaled)[2:5] == ("45000it", ["30000it", "40000it"], "2500it")
    assert scaled["evaluate"]["every"] == "2it"  # rounded from 2.5
    scaled, _ = auto_scale(config(**long), 128)
    assert scaled["checkpoint"]["every"] == "312it" and scaled["evaluate"]["every"] == "1it"


def test_integer_periods_are_scaled_and_durations_in_epochs_or_hours_are_not() -> None:
    scaled, _ = auto_scale(config(), 16)
    assert scaled["ema"] == {"every": 4, "decay": 0.99}
    assert scaled["train"]["log_every"] == 10
    assert scaled["hooks"] == {"precise": {"name": "precise_bn", "batches": 100}, "limit": {"max_time": "1.5h"}}
    assert scaled["evaluate"]["every"] == "1ep"
    with_reference = auto_scale(config(train={"lr_batch_size": 16}), 16)[0]
    assert with_reference["optimizer"]["lr"] == 0.1, "it follows the batch size already"
    recipe = resolve("classification/digits", ["train.reference_world_size=4", "checkpoint.every=10it"]).config
    assert auto_scale(recipe, 1)[0]["checkpoint"]["every"] == "40it"


@pytest.mark.parametrize("tuned", [None, 16])
def test_without_a_change_of_world_size_nothing_is_scaled(tuned: int | None) -> None:
    unscaled = config(train={"reference_world_size": tuned})
    assert auto_scale(unscaled, 16) == (unscaled, [])


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.batch_size.*15 does not divide over 8 ranks"):
        auto_scale(config(batch=15), 16)
