"""Hyperparameter sweeps: search space and methods, checks before the first run, ranking, records, repeated seeds."""

import math
import statistics
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from opabinia.config import ConfigError
from opabinia.runtime.files import DiskError, FolderInUse
from opabinia.runtime.json_files import InvalidFile
from opabinia.runtime.signals import Stopped
from opabinia.training.sweep.record import Record, Trial, choose_metric, metric_direction, rank_trials
from opabinia.training.sweep.runs import check_configs, run_trial
from opabinia.training.sweep.seeds import parse_seeds, summarize
from opabinia.training.sweep.trials import (
    MAX_GRID_SIZE,
    Choices,
    Range,
    boundary_trials,
    check_count,
    grid_trials,
    parse_space,
    random_trials,
    suggest,
)

# --- search space -----------------------------------------------------------------------------------------------------


def test_parse_space() -> None:
    space = parse_space(["--optimizer.lr=0.1, 0.3", "seed=1", "a=log(1e-4..1e-1)", "b=lin(0..0.5)", "c=int(1..8)"])
    assert space.axes == (
        Choices("optimizer.lr", ("0.1", "0.3")),
        Range("a", "log", 1e-4, 1e-1),
        Range("b", "lin", 0, 0.5),
        Range("c", "int", 1, 8),
    )
    assert space.shared == ("seed=1",)
    assert space.size is None
    assert parse_space(["a=1,2,3", "c=int(1..8)"]).size == 24
    # Commas in brackets and quotes do not split.
    values = ("[{a: 'x]'},2]", "{name: sgd, lr: 0.1}", "'a,b'", '"c,d"', "3")
    assert parse_space([f"a={','.join(values)}"]).axes == (Choices("a", values),)
    with pytest.raises(ConfigError) as caught:
        parse_space(["a=1,1", "b=lin(1..0)", "c=1,2", "c=3"])
    assert [problem.path for problem in caught.value.problems] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("a", "KEY=VALUE"),
        ("=1,2", "KEY=VALUE"),
        ("a=1,", "a: a choice is empty"),
        ("a=1,2,1", "a: the choice 1 occurs twice"),
        ("a=0.1,1e-1", "a: the choice 1e-1 occurs twice"),
        ("a=lin(0..1),2", "a: a range cannot be combined"),
        ("a=uniform(0..1)", r"uniform\(0..1\) is not a range: use log"),
        ("a=lin(1..0)", "the first end must be less"),
        ("a=lin(1..1)", "the first end must be less"),
        ("a=lin(0..x)", "'x' is not a number"),
        ("a=lin(0...inf)", "is not a number"),
        ("a=log(0..1)", "both ends must be above 0"),
        ("a=int(0.5..2)", "both ends must be whole numbers"),
        ("a=2", "nothing varies"),
    ],
)
def test_invalid_spaces(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_space([word])


# --- search methods ---------------------------------------------------------------------------------------------------


def test_grid() -> None:
    space = parse_space(["a=1,2", "x=0", "b=p,q,r"])
    points = [tuple(point.items()) for point in grid_trials(space)]
    assert points[:2] == [(("a", "1"), ("b", "p")), (("a", "1"), ("b", "q"))]
    assert len(set(points)) == 6
    assert space.overrides(grid_trials(space)[5]) == ["x=0", "a=2", "b=r"]
    with pytest.raises(ConfigError, match="b: a range cannot be used in a grid: use --random N or --optuna N"):
        grid_trials(parse_space(["a=1,2", "b=lin(0..1)"]))
    words = [f"{key}={','.join(map(str, range(10)))}" for key in "abcd"]
    assert len(grid_trials(parse_space(words))) == MAX_GRID_SIZE
    with pytest.raises(ConfigError, match="20,000 trials"):
        grid_trials(parse_space([*words, "e=1,2"]))


def test_random_trials_of_a_grid() -> None:
    space = parse_space(["a=1,2,3", "b=int(4..7)"])
    points = random_trials(space, 12, seed=1)
    assert {(point["a"], point["b"]) for point in points} == {(a, b) for a in "123" for b in "4567"}
    assert random_trials(space, 5, seed=1) == points[:5], "a sweep can be extended"
    assert random_trials(space, 12, seed=2) != points
    with pytest.raises(ConfigError, match="--random: there are only 12 different trials, not 13"):
        random_trials(space, 13, seed=1)
    with pytest.raises(ConfigError, match="only 1 different trials, not 5"):
        random_trials(parse_space(["a=lin(1.00000001..1.00000002)"]), 5, seed=0)
    space = parse_space(["a=1,2", "b=1,2,3"])
    counts = Counter(tuple(point.values()) for seed in range(1200) for point in random_trials(space, 2, seed))
    assert len(counts) == 6
    assert all(340 < count < 460 for count in counts.values()), "400 expected; the standard deviation is 16"


def test_random_trials_of_ranges() -> None:
    space = parse_space(["a=log(1e-4..1e-1)", "b=lin(-1..3)", "c=int(1..3)", "d=x,y"])
    points = random_trials(space, 600, seed=0)
    assert random_trials(space, 10, seed=0) == points[:10]
    assert len({tuple(point.values()) for point in points}) == 600
    a, b = ([float(point[key]) for point in points] for key in "ab")
    assert 1e-4 <= min(a) < 1.1e-4 and 0.09 < max(a) <= 0.1
    assert sum(value < 10**-2.5 for value in a) == pytest.approx(300, abs=50), "half of the powers of ten"
    assert -1 <= min(b) < -0.9 and 2.9 < max(b) <= 3
    assert statistics.mean(b) == pytest.approx(1, abs=0.2)
    assert Counter(point["c"] for point in points).keys() == {"1", "2", "3"}
    assert all(count > 150 for count in Counter(point["c"] for point in points).values())
    assert all(count > 240 for count in Counter(point["d"] for point in points).values())


def test_boundary_trials_contain_every_choice_and_both_ends() -> None:
    points = boundary_trials(parse_space(["a=1,2,3", "b=log(0.1..10)", "c=int(1..8)"]))
    assert len(points) == 5
    assert {point["a"] for point in points} == {"1", "2", "3"}
    assert {point["b"] for point in points} == {"0.1", "10.0"}
    assert {point["c"] for point in points} == {"1", "8"}


def test_all_configs_are_checked_and_each_error_is_reported_once() -> None:
    space = parse_space(["optimizer.lr=0.1,x", "train.length=2it,4", "data.batch_size=8"])
    with pytest.raises(ConfigError) as caught:
        check_configs("classification/digits", [space.overrides(point) for point in grid_trials(space)])
    assert sorted(problem.path for problem in caught.value.problems) == ["optimizer.lr", "train.length"]
    valid = parse_space(["optimizer.lr=0.1,0.2"])
    resolved = check_configs("classification/digits", [valid.overrides(point) for point in grid_trials(valid)])
    assert [config.config["optimizer"]["lr"] for config in resolved] == [0.1, 0.2]


# --- Optuna -----------------------------------------------------------------------------------------------------------


def test_optuna_converges() -> None:
    pytest.importorskip("optuna")
    space = parse_space(["a=log(1e-4..1)", "b=int(0..9)", "c=x,y"])

    def score(point: dict[str, str]) -> float:
        return -((math.log10(float(point["a"])) + 2) ** 2) - (int(point["b"]) - 3) ** 2 / 10 + (point["c"] == "y")

    def run_sweep(count: int, better: str = "max") -> list[tuple[dict[str, str], float | None]]:
        known: list[tuple[dict[str, str], float | None]] = []
        for _ in range(count):
            point = suggest(space, known, 0, "min" if better == "min" else "max")
            known.append((point, score(point) * (1 if better == "max" else -1)))
        return known

    known = run_sweep(40)
    assert len({tuple(point.values()) for point, _ in known}) == 40
    late = statistics.mean(score(point) for point, _ in known[25:])
    drawn = statistics.mean(map(score, random_trials(space, 200, seed=0)))
    assert late > drawn + 0.5
    assert [point for point, _ in run_sweep(15)] == [point for point, _ in known[:15]], "depends only on its arguments"
    downwards = [point for point, _ in run_sweep(15, "min")]
    assert downwards == [point for point, _ in known[:15]], "the same search with the opposite direction"
    assert suggest(space, known[:5], 1, "max") != known[5][0], "another seed"


def test_optuna_repeats_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    space = parse_space(["a=1,2,3", "b=x,y"])
    known: list[tuple[dict[str, str], float | None]] = []
    for number in range(6):
        known.append((suggest(space, known, 0, "max"), None if number == 2 else float(number)))
    assert len({tuple(point.values()) for point, _ in known}) == 6
    with pytest.raises(ConfigError, match="--optuna: there are only 6 different trials, not 7"):
        check_count(space, 7, "--optuna")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"--optuna: needs Optuna .*pip install 'opabinia\[sweep\]'"):
        suggest(space, [], 0, "max")


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (RuntimeError("CUDA out of memory.\nTried  to allocate 2 GiB"), "RuntimeError: CUDA out of memory. Tried to"),
        (FloatingPointError("loss is nan\n\nmore"), "FloatingPointError: loss is nan"),
        *(
            (error, None)
            for error in (Stopped("SIGINT", 130), DiskError("full"), FolderInUse("x"), KeyboardInterrupt())
        ),
    ],
)
def test_a_failed_run_returns_one_line_or_ends_the_sweep(
    error: BaseException, reason: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("opabinia.training.launch.train", Mock(side_effect=error))
    if reason is None:
        with pytest.raises(type(error)):
            run_trial("classification/digits", [], out=tmp_path, name="a")
        return
    outcome = run_trial("classification/digits", [], out=tmp_path, name="a")
    assert isinstance(outcome, str)
    assert outcome.startswith(reason) and "\n" not in outcome and "more" not in outcome


# --- records and ranking ----------------------------------------------------------------------------------------------


def test_the_record_is_written_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "digits" / "sweep.json"
    runs = [
        Trial("sweep-000", {"a": "1"}, {"val/top1": 0.5}),
        Trial("sweep-001", {"a": "2"}, failed="no"),
        Trial("s", {}),
    ]
    Record("digits", ["a=1,2"], "random", 3, runs).write(path)
    assert [file.name for file in path.parent.iterdir()] == ["sweep.json"], "no temporary file remains"
    loaded = Record("digits", ["a=1,2"], "random", 3)
    loaded.load_runs(path)
    assert loaded.runs == runs
    assert [run.done for run in loaded.runs] == [True, True, False]
    Record("digits", ["a=1,2"], "grid", None).load_runs(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            Record("other", ["a=1,2"], "grid", None),
            r"sweep.json: belongs to a sweep with another recipe \(digits, not other",
        ),
        (Record("digits", ["a=1,3"], "grid", None), r"another space \(a=1,2, not a=1,3\): choose another --name"),
        (Record("digits", ["a=1,2"], "random", None), r"another search method \(grid, not random\)"),
        (Record("digits", ["a=1,2"], "grid", 1), "another seed"),
    ],
)
def test_the_record_of_another_sweep(record: Record, message: str, tmp_path: Path) -> None:
    Record("digits", ["a=1,2"], "grid", None).write(tmp_path / "sweep.json")
    with pytest.raises(ConfigError, match=message):
        record.load_runs(tmp_path / "sweep.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"recipe": "d", "space": [], "how": "grid", "seed": null, "runs": [1]}']
)
def test_files_that_are_not_records(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(InvalidFile, match=r"sweep\.json: (not valid JSON|input should be|runs\.0: input should be)"):
        Record("d", [], "grid", None).load_runs(tmp_path / "sweep.json")


def test_ranking_and_its_metric() -> None:
    values = {"a": 0.2, "b": math.nan, "c": 0.9, "d": 0.5}
    runs = [Trial("failed", {}, failed="no"), *(Trial(name, {}, {"x": value}) for name, value in values.items())]
    assert [run.name for run in rank_trials(runs, "x", "max")] == ["c", "d", "a", "b", "failed"]
    assert [run.name for run in rank_trials(runs, "x", "min")] == ["a", "d", "c", "b", "failed"]
    scores = {"val/top1": 1.0, "val/top5": 1.0}
    assert [choose_metric(name, scores) for name in (None, "val/top5")] == ["val/top1", "val/top5"]
    assert choose_metric(None, {}) is None
    with pytest.raises(ConfigError, match="--metric: the runs have no score 'val/top2'; did you mean 'val/top"):
        choose_metric("val/top2", {"val/top1": 1})


@pytest.mark.parametrize(
    ("metric", "better"),
    [("val/top1", "max"), ("val/mAP", "max"), ("val/nll", "min"), ("val/ece", "min"), ("val/bbox_loss", "min"),
     ("val_ema/Error", "min"), ("val/lossless", "max"), ("", "max")],
)  # fmt: skip
def test_metric_direction(metric: str, better: str) -> None:
    assert metric_direction(metric) == better


# --- repeated seeds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", ",", "0,", "a", "-1", "1.5", "1;2", "0,1,0", "1,01", str(2**63)])
def test_invalid_lists_of_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="command line: --seeds: "):
        parse_seeds(text)
    assert parse_seeds("0, 2,1") == [0, 2, 1]


def test_mean_and_deviation() -> None:
    values = {0: 0.5, 1: 0.75, 7: 0.625}
    summary = summarize({seed: {"x": value, **({"y": 2.0} if seed == 7 else {})} for seed, value in values.items()})
    assert summary["x"].values == values
    assert summary["x"].mean == 0.625
    assert summary["x"].std == 0.125, "of a sample: n - 1"
    assert (summary["y"].values, summary["y"].mean, summary["y"].std) == ({7: 2.0}, 2.0, None)
    not_finite = summarize({0: {"x": math.nan}, 1: {"x": 1.0}})["x"]
    assert math.isnan(not_finite.mean) and not_finite.std is not None and math.isnan(not_finite.std)
