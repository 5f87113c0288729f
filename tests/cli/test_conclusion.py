"""The conclusion of a run: its text, worst classes, and what is said about more time."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from opabinia.cli.conclusion import (
    ClassScore,
    Conclusion,
    baseline_advice,
    conclude,
    data_advice,
    direction,
    print_conclusion,
    time_advice,
    training_score,
    worst_classes,
)
from opabinia.training.baselines import Baseline
from opabinia.training.learning_curve import LearningCurve
from tests.cli.conftest import CommandResult

RECALLS = [
    {"class": "shirt", "samples": 50, "recall": 0.8},
    {"class": "skirt", "samples": 1, "recall": 0.0},
    {"class": "dress", "samples": 20, "recall": 1.0},
    {"class": "sock", "samples": 0, "recall": 0.0},
]
CLASSES: dict[str, tuple[Sequence[Any], list[tuple[str, float, str]]]] = {
    "recall": (RECALLS, [("skirt", 0.0, "1 image"), ("shirt", 0.8, "50 images")]),
    "AP": (
        [
            {"class": "cell", "objects": 9, "AP": 0.5},
            {"class": "cup", "objects": 2, "AP": 0.1},
            {"class": "x", "objects": 0, "AP": None},
        ],
        [("cup", 0.1, "2 objects")],
    ),
    "AP50": (
        [{"class": "cell", "objects": 9, "AP": 0.5, "AP50": 0.6}, {"class": "cup", "objects": 2, "AP": 1, "AP50": 0.5}],
        [("cup", 0.5, "2 objects")],
    ),
    "IoU": (
        [{"class": "road", "pixels": 900, "IoU": 0.9}, {"class": "pole", "pixels": 100, "IoU": 0.2}],
        [("pole", 0.2, "10.0% of the pixels")],
    ),
    "PQ": (
        [
            {"class": "car", "PQ": 0.5, "matched": 3, "missed": 1},
            {"class": "sky", "PQ": 0.7, "matched": 1, "missed": 0},
        ],
        [("car", 0.5, "4 segments")],
    ),
    "one class": ([{"class": "cell", "objects": 9, "AP": 0.5}], []),
    "none": ([], []),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), CLASSES.values(), ids=CLASSES)
def test_worst_classes(rows: Sequence[Any], expected: list[tuple[str, float, str]]) -> None:
    assert worst_classes({"per_class": rows}, "AP50", "images") == [ClassScore(*row) for row in expected]


CURVES: dict[str, tuple[list[float], float | None, str]] = {
    "rising": ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.05, "a longer training is worth a try"),
    "flat": ([0.1, 0.5, 0.7, 0.8, 0.8, 0.81, 0.81, 0.81, 0.82], 0.05, "within its uncertainty of 0.050"),
    "flat, noisy": ([0.1, 0.5, 0.7, 0.8, 0.7, 0.8, 0.8, 0.7, 0.8], None, "within its uncertainty of 0.100"),
    "overfitting": ([0.1, 0.5, 0.9, 0.9, 0.9, 0.8, 0.7, 0.7, 0.7], 0.05, "it overfits"),
    "few": ([0.1, 0.2, 0.3], 0.05, "too few evaluations (3) to see a trend"),
}


@pytest.mark.parametrize(("scores", "uncertainty", "text"), CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("sign", [1, -1])
def test_advice_about_time(scores: list[float], uncertainty: float | None, text: str, sign: int) -> None:
    """Also of a loss, for which low is better."""
    values = [(10 * number, sign * score) for number, score in enumerate(scores, 1)]
    assert direction([value for _, value in values], sign * max(scores)) == sign
    assert text in time_advice(values, sign, uncertainty)


def test_no_time_is_advised_for_a_perfect_score() -> None:
    assert "the score is 1" in time_advice([(1, 0.9), (2, 1.0)], 1, 0.05, 0.97)


TRAINED = [
    (CURVES["few"][0], 0.9, "training samples score 0.900, clearly above: more data would help more"),
    (CURVES["few"][0], 0.3, "training samples score 0.300, not clearly above: a longer training may help"),
    (
        CURVES["flat"][0],
        0.99,
        "would add little; training samples score 0.990, clearly above: more data",
    ),
    (
        CURVES["flat"][0],
        0.82,
        "would add little; training samples score 0.820, not clearly above: a larger",
    ),
]


@pytest.mark.parametrize(("scores", "trained", "text"), TRAINED)
def test_advice_by_the_score_of_training_samples(scores: list[float], trained: float, text: str) -> None:
    values = list(enumerate(scores, 1))
    assert text in time_advice(values, 1, 0.05, trained)


def test_training_score() -> None:
    lines = [{"step": step, "train/top1": 0.1 * step, "train/loss": 1.0} for step in range(1, 9)]
    assert training_score([*lines, {"step": 8, "val/top1": 0.0}], "val_ema/top1") == pytest.approx(0.7)
    assert training_score(lines, "val/AP") is None


def test_advice_beside_a_baseline_that_is_nearly_perfect() -> None:
    assert baseline_advice(high=1.0, best=0.998).startswith("pixels alone are as good")
    assert baseline_advice(high=0.6, best=0.998) == baseline_advice(high=0.6, best=0.55)
    assert baseline_advice(high=0.6, best=0.55).startswith("this is not clearly better than without training")


def test_advice_about_data() -> None:
    curve = LearningCurve((100, 200, 400), (0.5, 0.6, 0.7), 50)
    assert curve.gain == pytest.approx(0.1) and curve.gain_uncertainty(0.05) == pytest.approx(0.05 / 2**0.5)
    assert data_advice(curve, 1, 0.05) == (
        "more data: twice the training data changed the score by +0.100 (100 to 400 samples, 50 steps each), more than "
        "its uncertainty of 0.035: more data would help"
    )
    for sign, uncertainty in ((1, 0.2), (1, None), (-1, 0.05)):
        assert "that does not show whether more data would help" in data_advice(curve, sign, uncertainty)
    assert "not measured" in data_advice(None, 1, 0.05)


def test_text() -> None:
    interval = {"low": 0.88, "high": 0.94, "count": 341, "unit": "images"}
    baselines = [Baseline('always answering "t-shirt"', 0.163), Baseline("pixels", 0.5)]
    others = {"test/top1": 0.9, "test/top1_ci_low": 0.8, "test/top1_ci_high": 0.95}
    worst = [ClassScore("skirt", 0.75, "12 images")]
    conclusion = Conclusion("val/top1", 0.912, interval, others, baselines, worst, ["more time: no"])
    assert conclusion.lines() == [
        "val/top1 0.9120 (95 % confidence: 0.880 to 0.940; 341 images)",
        "test/top1 0.9000 (95 %: 0.8000 to 0.9500)",
        'without training: always answering "t-shirt": 0.163; pixels: 0.500',
        "worst classes: skirt: 0.75 (12 images)",
        "more time: no",
    ]
    assert json.loads(json.dumps(conclusion.plain()))["baselines"][0]["score"] == 0.163
    assert Conclusion("val/top1", 0.49, None, {}, [], [], []).lines() == ["val/top1 0.4900"]


def test_a_long_evaluation_is_not_repeated(copied_run: Path) -> None:
    conclusion = conclude(copied_run, seconds=0)
    assert conclusion is not None and conclusion.interval is None
    assert conclusion.score == json.loads((copied_run / "results.json").read_text())["val/top1"]
    assert len(conclusion.worst_classes) == 3 and len(conclusion.baselines) == 1
    assert not (copied_run / "eval" / "val" / "scores.json").exists()
    assert conclusion.advice[-1].startswith(f"for a confidence interval: opabinia eval {copied_run}")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_rank_0_draws_the_conclusion_alone(copied_run: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """The process group of the run has ended, and could not be joined again."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    conclusion = conclude(copied_run)
    assert (conclusion is None) == (rank == "1")
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (rank, "2")


def test_the_conclusion_of_a_run(
    opabinia: Callable[..., CommandResult], copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclusion = conclude(copied_run, curve_seconds=1)
    assert conclusion is not None and conclusion.interval is not None
    assert conclusion.interval["low"] < conclusion.score < conclusion.interval["high"]
    texts = [baseline.text for baseline in conclusion.baselines]
    assert texts[0].startswith('always answering "') and texts[1].startswith("class of the most similar training image")
    assert len(conclusion.worst_classes) == 3
    assert conclusion.advice[0].startswith("this is not clearly better than without training")
    assert conclusion.advice[1] == "more data: not measured, for lack of time or of data"
    capsys.readouterr()
    print_conclusion(copied_run, conclusion)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("val/top1 0.") and "next:" in lines and len(lines) <= 12
    assert lines[-1].startswith(f"  opabinia train {copied_run} --resume")
