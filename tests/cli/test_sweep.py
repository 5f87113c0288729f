"""The commands ``train --seeds`` and ``sweep``, with runs of two steps."""

import json
import operator
import os
import re
import shlex
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.cli import main
from opabinia.data.sources import Digits
from opabinia.training import launch
from tests.cli.conftest import CommandResult
from tests.runtime.pseudo_terminal import on_terminal

RECIPE = "classification/digits"
SMALL = [
    "train.length=2it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0",
    "loggers=[]", "evaluate.every=0ep",
]  # fmt: skip
Opabinia = Callable[..., CommandResult]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without its header."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def results(folder: Path) -> dict[str, float]:
    scores: dict[str, float] = json.loads((folder / "results.json").read_text())
    return scores


def read_record(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def finish_time(folder: Path, file: str = "results.json") -> int:
    return (folder / file).stat().st_mtime_ns


@pytest.fixture
def interrupt_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``interrupt_run(name)`` sends Ctrl-C once, after the first step of the run in the folder of that name."""
    session = launch.Session

    def prepare(name: str) -> None:
        checked: list[str] = []

        def with_ctrl_c(
            folder: Path, resume: Any, interrupted: Callable[[], str | None], begin: Any, **options: Any
        ) -> Any:
            def ask() -> str | None:
                checked.append(folder.name)
                if folder.name == name and checked.count(name) == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                return interrupted()

            return session(folder, resume, ask, begin, **options)

        monkeypatch.setattr(launch, "Session", with_ctrl_c)

    return prepare


# --- train --seeds ----------------------------------------------------------------------------------------------------


def test_repeats_resume_after_an_interruption(
    opabinia: Opabinia, tmp_path: Path, interrupt_run: Callable[[str], None]
) -> None:
    out = tmp_path / "classification" / "digits"
    command = ["train", RECIPE, *SMALL, "--seeds", "0,3", "--name", "a", "--out", tmp_path]
    interrupt_run("a-seed3")
    result = opabinia(*command)
    assert (result.status, result.out) == (130, "")
    assert "stopped in run 2 of 2 (seed 3): the same command resumes" in result.err
    assert not (out / "a-seeds.json").exists() and not (out / "a-seed3" / "results.json").exists()
    first = finish_time(out / "a-seed0")

    result = opabinia(*command)
    assert result.status == 0, result.err
    assert finish_time(out / "a-seed0") == first, "a finished run is not repeated"
    assert f"resuming {out / 'a-seed3'} from step 1" in result.err
    scores = [results(out / f"a-seed{seed}") for seed in (0, 3)]
    single_scores = launch.train(RECIPE, [*SMALL, "seed=3"], out=tmp_path / "single")[1]
    assert scores[1] == single_scores != scores[0]
    table = {row[0]: row[1:] for row in rows(result.out)}
    saved = read_record(out / "a-seeds.json")
    assert saved["seeds"] == [0, 3] and saved["overrides"] == SMALL
    for name in scores[0]:
        values = [run_scores[name] for run_scores in scores]
        mean, std = statistics.mean(values), statistics.stdev(values)
        assert table[name] == [f"{value:.4f}" for value in (mean, std, *values)]
        assert saved["scores"][name] == {"values": {"0": values[0], "3": values[1]}, "mean": mean, "std": std}

    result = opabinia("train", RECIPE, *SMALL, "--seeds", "3", "--name", "a", "--out", tmp_path)
    assert [row[2] for row in rows(result.out)] == ["-"] * len(single_scores), "a single run has no standard deviation"

    result = opabinia(*command, "optimizer.lr=0.1")
    assert (result.status, result.out) == (2, "")
    assert "a-seed0: contains a run of another config (optimizer.lr 0.004 in the folder, 0.1 requested)" in result.err


def test_repeats_of_a_run_folder(opabinia: Opabinia, six_steps: Path, tmp_path: Path) -> None:
    """The run's config is the recipe; the run itself is not changed."""
    run = tmp_path / "default"
    run.mkdir()
    (run / "config.yaml").write_bytes((six_steps / "config.yaml").read_bytes())
    result = opabinia("train", run, *SMALL, "--seeds", "5")
    assert result.status == 0, result.err
    assert (tmp_path / "default-seed5" / "results.json").exists()
    assert [path.name for path in run.iterdir()] == ["config.yaml"]
    assert "default-seeds.json" in result.out


# --- train --folds ----------------------------------------------------------------------------------------------------


def test_folds_resume_after_an_interruption(
    opabinia: Opabinia, tmp_path: Path, interrupt_run: Callable[[str], None]
) -> None:
    out = tmp_path / "classification" / "digits"
    source = Digits()
    truth = {source.id(index): source.classes[source.info.labels[index]] for index in range(len(source))}
    command = ["train", RECIPE, *SMALL, "--folds", "2", "--name", "a", "--out", tmp_path]
    interrupt_run("a-fold2")
    result = opabinia(*command)
    assert (result.status, result.out) == (130, "")
    assert "stopped in run 2 of 2 (fold 2): the same command resumes" in result.err
    first = finish_time(out / "a-fold1")
    before = (out / "a-folds" / "fold2.json").read_bytes()

    result = opabinia(*command, "--json")
    assert result.status == 0, result.err
    assert finish_time(out / "a-fold1") == first, "a finished run is not repeated"
    assert f"resuming {out / 'a-fold2'} from step 1" in result.err
    assert (out / "a-folds" / "fold2.json").read_bytes() == before
    saved, printed = read_record(out / "a-folds" / "folds.json"), json.loads(result.out)
    assert printed["record"] == str(out / "a-folds" / "folds.json")
    assert saved["runs"] == ["../a-fold1", "../a-fold2"] and saved["overrides"] == SMALL
    scores = [results(out / f"a-fold{fold}") for fold in (1, 2)]
    values = [run_scores["val/top1"] for run_scores in scores]
    assert saved["scores"]["val/top1"] == {
        "values": {"1": values[0], "2": values[1]}, "mean": statistics.mean(values), "std": statistics.stdev(values)
    }  # fmt: skip

    lines = [json.loads(line) for line in (out / "a-folds" / "predictions.jsonl").read_text().splitlines()]
    held_out = {name: fold for fold in (1, 2) for name in read_record(out / f"a-folds/fold{fold}.json")["val"]}
    assert {line["path"]: line["fold"] for line in lines} == held_out and len(lines) == len(held_out) == 1437
    right = [line["top"][0]["class"] == truth[line["path"]] for line in lines]
    over_all = statistics.mean(right)
    assert saved["out_of_fold"]["val/top1"] == printed["out_of_fold"]["val/top1"] == pytest.approx(over_all)
    sizes = [sum(fold == number for fold in held_out.values()) for number in (1, 2)]
    assert over_all == pytest.approx(sum(map(operator.mul, values, sizes)) / sum(sizes)), "the last checkpoint predicts"

    written = finish_time(out / "a-folds", "predictions.jsonl")
    table = opabinia(*command)
    assert rows(table.out)[0][:2] == ["val/top1", f"{statistics.mean(values):.4f}"]
    assert rows(table.out)[0][3] == f"{over_all:.4f}"
    assert finish_time(out / "a-folds", "predictions.jsonl") == written, "predictions of these runs are kept"
    assert read_record(out / "a-folds" / "folds.json") == saved
    assert "report.html; opabinia report" in table.out and "over 2 folds" in (out / "a-folds/report.html").read_text()
    result = opabinia("train", RECIPE, *SMALL, "--folds", "3", "--name", "a", "--out", tmp_path)
    assert result.status == 2 and "folds.json: belongs to folds with another folds (2, not 3)" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--folds", "1"], "Invalid value for '--folds': Input should be greater than or equal to 2"),
        (["--folds", "2", "--seeds", "0"], "--folds: cannot be combined with --seeds"),
        (["--group-by", "folder"], "--group-by: it belongs to --folds: add it"),
        (["--folds", "2", "--resume", "last"], "--resume: remove it: with --folds the same command resumes"),
        (["--folds", "2", "--nproc", "2"], "--nproc: remove it: --folds trains in one process"),
        (["--folds", "5000"], "--folds: 1437 samples cannot be divided into 5000 folds"),
        (
            ["--folds", "2", "--group-by", "patient"],
            "'patient' is neither a field (folder, sequence, camera, view) nor",
        ),
    ],
)
def test_wrong_folds(opabinia: Opabinia, tmp_path: Path, options: list[str], message: str) -> None:
    result = opabinia("train", RECIPE, *options, "--out", tmp_path)
    assert result.status == 2 and message in " ".join(result.err.replace("│", "").split()), result.err
    assert not list(tmp_path.rglob("*.json"))


# --- sweep ------------------------------------------------------------------------------------------------------------


def test_a_sweep_with_a_run_that_fails(
    opabinia: Opabinia, tmp_path: Path, interrupt_run: Callable[[str], None]
) -> None:
    out = tmp_path / "classification" / "digits"
    words = [*SMALL, "optimizer.lr=0.002,1e30", "task.backbone.model=test_resnet,nowhere"]
    command = ["sweep", RECIPE, *words, "--name", "s", "--out", tmp_path]
    interrupt_run("s-002")
    result = opabinia(*command)
    assert (result.status, result.out) == (130, "")
    assert "stopped in run 3 of 4 (s-002): the same command resumes" in result.err
    before = read_record(out / "s.json")
    assert [bool(run["scores"]) for run in before["runs"]] == [True, False, False, False]
    first = finish_time(out / "s-000")

    result = opabinia(*command)
    assert result.status == 0, result.err
    assert finish_time(out / "s-000") == first
    assert "run 2 of 4" not in result.err and "run 3 of 4: s-002" in result.err and "run 4 of 4: s-003" in result.err
    runs = read_record(out / "s.json")["runs"]
    assert runs[0]["scores"] == results(out / "s-000")
    assert [run["changes"]["optimizer.lr"] for run in runs] == ["0.002", "0.002", "1e30", "1e30"]
    assert "has no 'nowhere'" in runs[1]["failed"]
    assert "train/loss is nan at step 2" in runs[2]["failed"]
    table = rows(result.out)
    assert [row[0] for row in table] == ["s-000", "s-001", "s-002", "s-003"]
    assert table[0][1:4] == ["0.002", "test_resnet", f"{runs[0]['scores']['val/top1']:.4f}"]
    assert table[2][-1] == runs[2]["failed"][:76] + " ..."
    assert f"best by val/top1 (max, after its last step): {out / 's-000'}\n" in result.out

    again = re.search(r"^train it again: opabinia (.*)$", result.out, re.MULTILINE)
    assert again
    assert opabinia(*shlex.split(again[1])).status == 0
    assert results(out / "s-000-again") == runs[0]["scores"]

    result = opabinia("sweep", RECIPE, *SMALL, "optimizer.lr=0.002,0.1", "--name", "s", "--out", tmp_path)
    assert (result.status, result.out) == (2, "")
    assert "s.json: belongs to a sweep with another space" in result.err


@pytest.mark.slow
def test_a_random_sweep_of_runs_that_draw_their_seed(opabinia: Opabinia, tmp_path: Path) -> None:
    out = tmp_path / "classification" / "digits"
    words = [*SMALL, "seed=null", "optimizer.lr=log(1e-4..1e-1)"]
    options = ["--seed", 3, "--metric", "val/nll", "--out", tmp_path]
    assert opabinia("sweep", RECIPE, *words, "--random", 1, *options).status == 0
    first = finish_time(out / "sweep-000")
    result = opabinia("sweep", RECIPE, *words, "--random", 2, *options)
    assert result.status == 0, result.err
    assert finish_time(out / "sweep-000") == first, "a sweep may be extended"
    values = {run["name"]: run["scores"]["val/nll"] for run in read_record(out / "sweep.json")["runs"]}
    assert [row[0] for row in rows(result.out)] == sorted(values, key=lambda name: values[name])
    assert [row[2] for row in rows(result.out)] == [f"{value:.4f}" for value in sorted(values.values())]
    best = min(values, key=lambda name: values[name])
    again = re.search(r"^train it again: opabinia (.*)$", result.out, re.MULTILINE)
    assert again
    assert opabinia(*shlex.split(again[1])).status == 0
    assert results(out / f"{best}-again")["val/nll"] == values[best]

    result = opabinia("sweep", RECIPE, *words, "--random", 2, *options[:2], "--metric", "val/top2", *options[4:])
    assert (result.status, result.out) == (2, "")
    assert "--metric: the runs have no score 'val/top2'; did you mean 'val/top" in result.err
    result = opabinia("sweep", RECIPE, *words, "--random", 2, *options, "--better", "max")
    assert [row[2] for row in rows(result.out)] == [f"{value:.4f}" for value in sorted(values.values())[::-1]]
    shown = on_terminal(lambda: main([*map(str, ("sweep", RECIPE, *words, "--random", 2, *options))]), columns=60)
    table = [line for line in shown.lines if line.startswith("│")]
    assert len(table) == 2 and all(line.count("│") > 3 and line.endswith("│") and len(line) <= 60 for line in table)
    assert "more scores" in shown.text


def test_a_sweep_without_scores(opabinia: Opabinia, tmp_path: Path) -> None:
    result = opabinia("sweep", RECIPE, *SMALL, "task.backbone.model=no,none", "--out", tmp_path)
    assert result.status == 1
    assert [row[0] for row in rows(result.out)] == ["sweep-000", "sweep-001"]
    assert "no run has a score to compare by" in result.out


def test_optuna(opabinia: Opabinia, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = [*SMALL, "optimizer.lr=log(1e-4..1e-1)", "optimizer.weight_decay=0,0.1", "--optuna"]
    for count in (1, 2):
        result = opabinia("sweep", RECIPE, *words, count, "--out", tmp_path)
        assert result.status == 0, result.err
        assert len(rows(result.out)) == count
    assert "run 1 of 2" not in result.err and "run 2 of 2" in result.err
    result = opabinia("sweep", RECIPE, *words, 2, "optimizer.beta=0.1", "--out", tmp_path)
    assert result.status == 2 and "unknown key" in result.err


def test_errors_of_all_trials_are_reported_before_the_first_run(opabinia: Opabinia, tmp_path: Path) -> None:
    result = opabinia("sweep", RECIPE, "optimizer.lr=0.1,x", "train.length=2it,4", "sed=1", "--out", tmp_path)
    assert (result.status, result.out) == (2, "")
    assert len(result.err.splitlines()) == 3
    assert all(word in result.err for word in ("optimizer.lr=x", "train.length=4", "sed=1"))
    assert not list(tmp_path.iterdir())
