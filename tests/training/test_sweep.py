"""The points of a sweep, what is told before the first run, the order of results, and the numbers of repeats."""

import math
import statistics
import sys
from collections import Counter
from pathlib import Path

import pytest

from opabinia.config import ConfigError
from opabinia.runtime.files import DiskError, InUse
from opabinia.runtime.signals import Stopped
from opabinia.training.sweep import (
    MOST,
    Choices,
    Record,
    Span,
    Tried,
    better_way,
    check_all,
    chosen_metric,
    draw,
    grid,
    parse_seeds,
    parse_space,
    probes,
    propose,
    ranked,
    refuse_too_many,
    split_choices,
    summarise,
    try_run,
)

# --- the space --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.1", ["0.1"]),
        ("0.1,0.3", ["0.1", "0.3"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{name: sgd, lr: 0.1},adamw", ["{name: sgd, lr: 0.1}", "adamw"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("[{a: 'x]'},2],3", ["[{a: 'x]'},2]", "3"]),
        ("1,", ["1", ""]),
    ],
)
def test_commas_inside_something_divide_nothing(text: str, parts: list[str]) -> None:
    assert split_choices(text) == parts


def test_a_space() -> None:
    space = parse_space(["--optimizer.lr=0.1, 0.3", "seed=1", "a=log(1e-4..1e-1)", "b=lin(0..0.5)", "c=int(1..8)"])
    assert space.axes == (
        Choices("optimizer.lr", ("0.1", "0.3")),
        Span("a", "log", 1e-4, 1e-1),
        Span("b", "lin", 0, 0.5),
        Span("c", "int", 1, 8),
    )
    assert space.shared == ("seed=1",)
    assert space.size is None
    assert parse_space(["a=1,2,3", "c=int(1..8)"]).size == 24


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("a", "KEY=VALUE"),
        ("=1,2", "KEY=VALUE"),
        ("a=1,", "a: a choice is empty"),
        ("a=1,2,1", "a: the choice 1 is there twice"),
        ("a=0.1,1e-1", "a: the choice 1e-1 is there twice"),
        ("a=lin(0..1),2", "a: a range stands alone"),
        ("a=uniform(0..1)", r"uniform\(0..1\) is no range: log"),
        ("a=lin(1..0)", "the first end is the smaller one"),
        ("a=lin(1..1)", "the first end is the smaller one"),
        ("a=lin(0..x)", "'x' is no number"),
        ("a=lin(0...inf)", "is no number"),
        ("a=log(0..1)", "both ends are above 0"),
        ("a=int(0.5..2)", "both ends are whole numbers"),
        ("a=2", "nothing varies"),
    ],
)
def test_what_is_no_space(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_space([word])


def test_all_mistakes_in_a_space_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_space(["a=1,1", "b=lin(1..0)", "c=1,2", "c=3"])
    assert [problem.path for problem in caught.value.problems] == ["a", "b", "c"]


# --- its points -------------------------------------------------------------------------------------------------------


def test_grid() -> None:
    space = parse_space(["a=1,2", "x=0", "b=p,q,r"])
    points = [tuple(point.items()) for point in grid(space)]
    assert points[:2] == [(("a", "1"), ("b", "p")), (("a", "1"), ("b", "q"))]
    assert len(set(points)) == 6
    assert space.overrides(grid(space)[5]) == ["x=0", "a=2", "b=r"]


def test_what_has_no_grid() -> None:
    with pytest.raises(ConfigError, match="b: a range has no grid: --random N or --optuna N"):
        grid(parse_space(["a=1,2", "b=lin(0..1)"]))
    words = [f"{key}={','.join(map(str, range(10)))}" for key in "abcd"]
    assert len(grid(parse_space(words))) == MOST
    with pytest.raises(ConfigError, match="20,000 points"):
        grid(parse_space([*words, "e=1,2"]))


def test_random_points_of_a_grid() -> None:
    space = parse_space(["a=1,2,3", "b=int(4..7)"])
    points = draw(space, 12, seed=1)
    assert {(point["a"], point["b"]) for point in points} == {(a, b) for a in "123" for b in "4567"}
    assert draw(space, 5, seed=1) == points[:5], "a sweep may be made longer"
    assert draw(space, 12, seed=2) != points
    with pytest.raises(ConfigError, match="--random: there are only 12 different points, not 13"):
        draw(space, 13, seed=1)


def test_every_point_is_as_likely() -> None:
    space = parse_space(["a=1,2", "b=1,2,3"])
    found = Counter(tuple(point.values()) for seed in range(1200) for point in draw(space, 2, seed))
    assert len(found) == 6
    assert all(340 < count < 460 for count in found.values()), "400 each; the standard deviation is 16"


def test_random_points_of_ranges() -> None:
    space = parse_space(["a=log(1e-4..1e-1)", "b=lin(-1..3)", "c=int(1..3)", "d=x,y"])
    points = draw(space, 600, seed=0)
    assert draw(space, 10, seed=0) == points[:10]
    assert len({tuple(point.values()) for point in points}) == 600
    a, b = ([float(point[key]) for point in points] for key in "ab")
    assert 1e-4 <= min(a) < 1.1e-4 and 0.09 < max(a) <= 0.1
    assert sum(value < 10**-2.5 for value in a) == pytest.approx(300, abs=50), "half of the powers of ten"
    assert -1 <= min(b) < -0.9 and 2.9 < max(b) <= 3
    assert statistics.mean(b) == pytest.approx(1, abs=0.2)
    assert Counter(point["c"] for point in points).keys() == {"1", "2", "3"}
    assert all(count > 150 for count in Counter(point["c"] for point in points).values())
    assert all(count > 240 for count in Counter(point["d"] for point in points).values())


def test_a_range_too_narrow_for_six_digits() -> None:
    with pytest.raises(ConfigError, match="only 1 different points were found, not 5"):
        draw(parse_space(["a=lin(1.00000001..1.00000002)"]), 5, seed=0)


def test_probes_show_every_choice_and_both_ends() -> None:
    points = probes(parse_space(["a=1,2,3", "b=log(0.1..10)", "c=int(1..8)"]))
    assert len(points) == 5
    assert {point["a"] for point in points} == {"1", "2", "3"}
    assert {point["b"] for point in points} == {"0.1", "10.0"}
    assert {point["c"] for point in points} == {"1", "8"}


def test_all_configs_are_checked_and_each_mistake_is_told_once() -> None:
    space = parse_space(["optimizer.lr=0.1,x", "train.length=2it,4", "data.batch_size=8"])
    with pytest.raises(ConfigError) as caught:
        check_all("classification/digits", [space.overrides(point) for point in grid(space)])
    assert sorted(problem.path for problem in caught.value.problems) == ["optimizer.lr", "train.length"]
    good = parse_space(["optimizer.lr=0.1,0.2"])
    resolved = check_all("classification/digits", [good.overrides(point) for point in grid(good)])
    assert [one.config["optimizer"]["lr"] for one in resolved] == [0.1, 0.2]


# --- Optuna -----------------------------------------------------------------------------------------------------------


def test_optuna_finds_what_is_good() -> None:
    pytest.importorskip("optuna")
    space = parse_space(["a=log(1e-4..1)", "b=int(0..9)", "c=x,y"])

    def score(point: dict[str, str]) -> float:
        return -((math.log10(float(point["a"])) + 2) ** 2) - (int(point["b"]) - 3) ** 2 / 10 + (point["c"] == "y")

    def tried(count: int, better: str = "max") -> list[tuple[dict[str, str], float | None]]:
        known: list[tuple[dict[str, str], float | None]] = []
        for _ in range(count):
            point = propose(space, known, 0, "min" if better == "min" else "max")
            known.append((point, score(point) * (1 if better == "max" else -1)))
        return known

    known = tried(40)
    assert len({tuple(point.values()) for point, _ in known}) == 40
    late = statistics.mean(score(point) for point, _ in known[25:])
    drawn = statistics.mean(map(score, draw(space, 200, seed=0)))
    assert late > drawn + 0.5
    assert [point for point, _ in tried(15)] == [point for point, _ in known[:15]], "it hangs on its arguments alone"
    downwards = [point for point, _ in tried(15, "min")]
    assert downwards == [point for point, _ in known[:15]], "the same search the other way round"
    assert propose(space, known[:5], 1, "max") != known[5][0], "another seed"


def test_optuna_takes_no_point_twice() -> None:
    pytest.importorskip("optuna")
    space = parse_space(["a=1,2,3", "b=x,y"])
    known: list[tuple[dict[str, str], float | None]] = []
    for number in range(6):
        known.append((propose(space, known, 0, "max"), None if number == 2 else float(number)))
    assert len({tuple(point.values()) for point, _ in known}) == 6
    with pytest.raises(ConfigError, match="--optuna: there are only 6 different points, not 7"):
        refuse_too_many(space, 7, "--optuna")


def test_without_optuna_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"--optuna: needs Optuna .*pip install 'opabinia\[sweep\]'"):
        propose(parse_space(["a=1,2"]), [], 0, "max")


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (RuntimeError("CUDA out of memory.\nTried  to allocate 2 GiB"), "RuntimeError: CUDA out of memory. Tried to"),
        (FloatingPointError("loss is nan\n\nmore"), "FloatingPointError: loss is nan"),
    ],
)
def test_a_run_that_fails_is_a_line(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("opabinia.training.launch.train", fail)
    outcome = try_run("classification/digits", [], out=tmp_path, name="a")
    assert isinstance(outcome, str)
    assert outcome.startswith(reason) and "\n" not in outcome and "more" not in outcome


@pytest.mark.parametrize("error", [Stopped("SIGINT", 130), DiskError("full"), InUse("busy"), KeyboardInterrupt()])
def test_what_ends_the_sweep(error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("opabinia.training.launch.train", fail)
    with pytest.raises(type(error)):
        try_run("classification/digits", [], out=tmp_path, name="a")


# --- what came of it --------------------------------------------------------------------------------------------------


def test_the_record_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "digits" / "sweep.json"
    runs = [
        Tried("sweep-000", {"a": "1"}, {"val/top1": 0.5}),
        Tried("sweep-001", {"a": "2"}, failed="no"),
        Tried("s", {}),
    ]
    Record("digits", ["a=1,2"], "random", 3, runs).write(path)
    assert [file.name for file in path.parent.iterdir()] == ["sweep.json"], "nothing is left of writing aside"
    again = Record("digits", ["a=1,2"], "random", 3)
    again.take_over(path)
    assert again.runs == runs
    assert [run.done for run in again.runs] == [True, True, False]
    Record("digits", ["a=1,2"], "grid", None).take_over(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record("other", ["a=1,2"], "grid", None), r"sweep.json: is a sweep with another recipe \(digits there, other"),
        (Record("digits", ["a=1,3"], "grid", None), r"another space \(a=1,2 there, a=1,3 here\): --name begins"),
        (Record("digits", ["a=1,2"], "random", None), r"another how \(grid there, random here\)"),
        (Record("digits", ["a=1,2"], "grid", 1), "another seed"),
    ],
)
def test_the_record_of_another_sweep(record: Record, message: str, tmp_path: Path) -> None:
    Record("digits", ["a=1,2"], "grid", None).write(tmp_path / "sweep.json")
    with pytest.raises(ConfigError, match=message):
        record.take_over(tmp_path / "sweep.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"recipe": "d", "space": [], "how": "grid", "seed": null, "runs": [1]}']
)
def test_a_record_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ConfigError, match=r"sweep\.json: (cannot be read|is not the record of a sweep)"):
        Record("d", [], "grid", None).take_over(tmp_path / "sweep.json")


def test_the_best_comes_first() -> None:
    values = {"a": 0.2, "b": math.nan, "c": 0.9, "d": 0.5}
    runs = [Tried("failed", {}, failed="no"), *(Tried(name, {}, {"x": value}) for name, value in values.items())]
    assert [run.name for run in ranked(runs, "x", "max")] == ["c", "d", "a", "b", "failed"]
    assert [run.name for run in ranked(runs, "x", "min")] == ["a", "d", "c", "b", "failed"]


def test_the_metric() -> None:
    assert chosen_metric(None, {"val/top1": 1, "val/top5": 1}) == "val/top1"
    assert chosen_metric("val/top5", {"val/top1": 1, "val/top5": 1}) == "val/top5"
    assert chosen_metric(None, {}) is None
    with pytest.raises(ConfigError, match="--metric: the runs give no score 'val/top2'; did you mean 'val/top"):
        chosen_metric("val/top2", {"val/top1": 1})


@pytest.mark.parametrize(
    ("metric", "better"),
    [("val/top1", "max"), ("val/mAP", "max"), ("val/nll", "min"), ("val/ece", "min"), ("val/bbox_loss", "min"),
     ("val_ema/Error", "min"), ("val/lossless", "max"), ("", "max")],
)  # fmt: skip
def test_which_way_is_better(metric: str, better: str) -> None:
    assert better_way(metric) == better


# --- repeats ----------------------------------------------------------------------------------------------------------


def test_seeds() -> None:
    assert parse_seeds("0, 2,1") == [0, 2, 1]


@pytest.mark.parametrize("text", ["", ",", "0,", "a", "-1", "1.5", "1;2", "0,1,0", "1,01", str(2**63)])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="command line: --seeds: "):
        parse_seeds(text)


def test_mean_and_deviation() -> None:
    values = {0: 0.5, 1: 0.75, 7: 0.625}
    summary = summarise({seed: {"x": value, **({"y": 2.0} if seed == 7 else {})} for seed, value in values.items()})
    assert summary["x"].values == values
    assert summary["x"].mean == 0.625
    assert summary["x"].std == 0.125, "of a sample: n - 1"
    assert (summary["y"].values, summary["y"].mean, summary["y"].std) == ({7: 2.0}, 2.0, None)


def test_a_score_that_is_no_number_is_not_hidden() -> None:
    summary = summarise({0: {"x": math.nan}, 1: {"x": 1.0}})["x"]
    assert math.isnan(summary.mean) and summary.std is not None and math.isnan(summary.std)
