"""Recipes found for some number of processes, on another: detectron2's numbers, without its zeros."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.training.run_folder import resolve
from opabinia.training.world_size_scaling import auto_scale


def config(**found: Any) -> dict[str, Any]:
    train = {"reference_world_size": 8, "lr_batch_size": None, "length": found.get("length", "5000it"), "log_every": 20}
    return {
        "data": {"batch_size": found.get("batch", 16)},
        "optimizer": {"name": "sgd", "lr": found.get("lr", 0.1)},
        "schedule": {"name": "multistep", "milestones": found.get("steps", ["4000it"]), "warmup": "1000it"},
        "train": {**train, **found.get("train", {})},
        "evaluate": {"every": found.get("evaluate", "1ep")},
        "checkpoint": {"every": found.get("save", "1000it")},
        "ema": {"every": 8, "decay": 0.99},
        "hooks": {"precise": {"name": "precise_bn", "batches": 200}, "limit": {"max_time": "1.5h"}},
    }


def numbers(found: dict[str, Any]) -> tuple[Any, ...]:
    """Batch, rate, length, milestones, period of saving, warm-up."""
    schedule = found["schedule"]
    return (
        *(found["data"]["batch_size"], found["optimizer"]["lr"], found["train"]["length"]),
        *(schedule["milestones"], found["checkpoint"]["every"], schedule["warmup"]),
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
def test_as_detectron2_does(processes: int, expected: tuple[Any, ...]) -> None:
    found, changes = auto_scale(config(), processes)
    assert numbers(found) == expected
    assert found["train"]["reference_world_size"] == processes
    assert auto_scale(found, processes) == (found, [])  # once is enough
    assert f"optimizer.lr: 0.1 -> {expected[1]}" in changes
    assert f"schedule.milestones.0: 4000it -> {expected[3][0]}" in changes


def test_halves_go_to_the_even_number_and_no_period_becomes_zero() -> None:
    long = {"length": "90000it", "steps": ["60000it", "80000it"], "save": "5000it", "evaluate": "5it", "lr": 0.02}
    found, _ = auto_scale(config(**long), 16)
    assert numbers(found)[2:5] == ("45000it", ["30000it", "40000it"], "2500it")
    assert found["evaluate"]["every"] == "2it"  # of 2.5
    found, _ = auto_scale(config(**long), 128)
    assert found["checkpoint"]["every"] == "312it" and found["evaluate"]["every"] == "1it"


def test_what_is_counted_without_a_unit_follows_and_what_is_not_counted_in_steps_stays() -> None:
    found, _ = auto_scale(config(), 16)
    assert found["ema"] == {"every": 4, "decay": 0.99}
    assert found["train"]["log_every"] == 10
    assert found["hooks"] == {"precise": {"name": "precise_bn", "batches": 100}, "limit": {"max_time": "1.5h"}}
    assert found["evaluate"]["every"] == "1ep"


def test_a_rate_that_follows_the_batch_anyway_is_not_scaled_twice() -> None:
    found, _ = auto_scale(config(train={"lr_batch_size": 16}), 16)
    assert found["optimizer"]["lr"] == 0.1


@pytest.mark.parametrize("tuned", [None, 16])
def test_nothing_to_do(tuned: int | None) -> None:
    given = config(train={"reference_world_size": tuned})
    assert auto_scale(given, 16) == (given, [])


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.batch_size.*15 does not divide over 8 ranks"):
        auto_scale(config(batch=15), 16)


def test_a_real_recipe(tmp_path: Path) -> None:
    whole = resolve(
        "classification/digits", ["train.reference_world_size=4", "data.batch_size=64", "checkpoint.every=10it"]
    ).config
    found, changes = auto_scale(whole, 1)
    assert found["data"]["batch_size"] == 16 and found["checkpoint"]["every"] == "40it"
    assert len(changes) >= 3
