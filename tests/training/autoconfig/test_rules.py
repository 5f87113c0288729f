"""Rules of a plan, and their table in the documentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opabinia.training.autoconfig import rules
from opabinia.training.autoconfig.situation import Speed
from tests.training.autoconfig.situations import GPU, situation

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_table_in_the_documentation() -> None:
    assert rules.rules_table() in (DOCS / "planning.md").read_text(encoding="utf-8")


def test_every_rule_has_a_text_and_a_source() -> None:
    assert all(rule.text.endswith(".") and rule.source for rule in rules.RULES.values())


@pytest.mark.parametrize("budget", [60.0, 600.0, 7200.0])
def test_schedule_fits_into_the_budget(budget: float) -> None:
    speed = Speed(model="resnet18", size=224, train=0.02, evaluate=0.007)
    planned = rules.schedule(situation(budget=budget), speed, 32, 300)
    evaluations = planned.evaluations * 0.007 * 300
    seconds = planned.steps * 32 * 0.02 + evaluations
    assert 0.85 * budget <= seconds <= budget
    assert evaluations <= 0.1 * budget + 0.007 * 300


@pytest.mark.parametrize(("samples", "share"), [(300, None), (6_010, None), (24_000, 0.25), (10_000_000, 0.0006)])
def test_an_evaluation_takes_a_tenth_of_the_budget(samples: int, share: float | None) -> None:
    speed = Speed(model="resnet18", size=224, train=0.03, evaluate=0.01)
    part = rules.validation_part(situation(budget=600.0, val_samples=samples), speed)
    assert (part and part.value) == share
    assert rules.validation_part(situation("reid", budget=600.0, val_samples=samples), speed) is None


def test_slow_evaluations_have_some_samples() -> None:
    speed = Speed(model="resnet18", size=224, train=30.0, evaluate=10.0)
    part = rules.validation_part(situation(budget=600.0, val_samples=1_000), speed)
    assert part == (0.5, "500 of 1,000 validation samples: an evaluation of all would take 2:46:40")


def test_length_has_a_ceiling() -> None:
    speed = Speed(model="resnet18", size=224, train=0.001, evaluate=0.001)
    planned = rules.schedule(situation(budget=1e6), speed, 30, 300)
    assert planned.steps == 300 * 100 and "300 epochs" in planned.reason


def test_learning_rate_grows_with_the_square_root_of_the_batch() -> None:
    network = rules.Network("resnet18", 1.0, pretrained=False, lr=1e-3)
    assert [rules.learning_rate(network, batch, "reid").value for batch in (32, 128, 8)] == [1e-3, 2e-3, 5e-4]


def test_learning_rate_of_pretrained_weights_is_limited() -> None:
    network = rules.Network("resnet18", 1.0, lr=1e-3)
    assert [rules.learning_rate(network, batch, "video").value for batch in (32, 8, 2)] == [1e-3, 1e-3, 1e-3]
    assert rules.learning_rate(network, 8, "classification").value == 5e-4


def test_prediction_scales_with_pixels_and_networks() -> None:
    measured = Speed(model=rules.REFERENCE, size=128, train=0.1, evaluate=0.03, threads=1)
    other = rules.NETWORKS["resnet18.a1_in1k"]
    predicted = rules.predicted_speed(situation(speeds=(measured,)), other, 256)
    assert predicted.train == pytest.approx(0.1 * 1.8 / 0.4 * 4)
    assert predicted.threads == 1


def test_gpus_share_the_work() -> None:
    one, four = (rules.assumed_speed(replace(GPU, gpus=count)).train for count in (1, 4))
    assert one == pytest.approx(4 * four)


def test_tiles_cover_the_image() -> None:
    facts = {"object_sides": (9.0, 12.0, 16.0, 20.0, 30.0), "short_sides": (900.0,) * 5, "long_sides": (1500.0,) * 5}
    tiles = rules.tiling(situation("detection", **facts).profile, 400)
    assert (tiles.overlap, tiles.per_image) == (0.1, 3 * 5)  # every 360 pixels, from 0 to the last whole tile
    counted = rules.tiles_as_samples(situation("detection", **facts), tiles).profile
    assert (counted.samples, counted.val_samples) == (15 * 3000, 15 * 300)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, 3600.0),
        ({"weights": (rules.REFERENCE,)}, None),
        ({"budget": 3000.0}, None),
        ({"samples": 5000}, None),
        ({"task": "selfsup"}, None),
    ],
)
def test_pretraining_without_labels(changes: dict[str, Any], expected: float | None) -> None:
    facts = situation(**{"weights": (), "budget": 7200.0, **changes})
    value = rules.pretraining(facts, 40_000)
    assert (None if value is None else value.value) == expected
    assert rules.pretraining(replace(facts, profile=replace(facts.profile, samples=50)), 900) is None
