"""Output at the end of commands: best score, next commands, ``--json`` and ``--quiet``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.cli.outcome import NEXT_COMMANDS
from opabinia.config import live_catalog
from tests.cli.conftest import SIX_STEPS, CommandResult

Opabinia = Callable[..., CommandResult]


def final(run: Path) -> dict[str, float]:
    scores: dict[str, float] = json.loads((run / "results.json").read_text())
    return scores


def test_the_best_score_and_the_next_commands(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("train", copied_run, "--resume")
    score = final(copied_run)["val/top1"]
    checkpoint = copied_run / "checkpoints" / "step-00000006"
    assert f"best val/top1 {score:.4f} at step 6: {checkpoint}\n" in result.out
    lines = result.out[result.out.index("next:") :].splitlines()[1:]
    commands = [line.partition("  # ")[0].strip() for line in lines]
    assert commands[0] == f"opabinia eval {copied_run}" and f"opabinia predict {copied_run} IMAGES/" in commands


def test_training_prints_one_json_object(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("train", copied_run, "--resume", "train.length=7it", "--json")
    assert result.status == 0
    output = json.loads(result.out)
    assert output["run"] == str(copied_run) and output["scores"] == final(copied_run)
    assert output["report"] == str(copied_run / "report.html")
    assert output["best"]["metric"] == "val/top1" and Path(output["best"]["checkpoint"]).is_dir()
    assert "best val/top1" not in result.err, "the best score is shown once"
    assert "step 7/7" in result.err and "the report is in" in result.err


def test_quiet_prints_warnings_and_scores_only(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("train", copied_run, "--resume", "train.length=8it", "--quiet")
    assert result.status == 0
    assert "changed since the run began: train.length" in result.err, "a warning"
    assert "step 8/8" not in result.err and "run     " not in result.err and "best val/top1" not in result.err
    assert f"{final(copied_run)['val/top1']:.4f}" in result.out and "next:" not in result.out
    assert "best val/top1" in (copied_run / "train.log").read_text(), "the log file has all messages"


def test_an_evaluation_as_json(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("eval", copied_run, "--json", "--quiet")
    assert json.loads(result.out) == {"run": str(copied_run), "checkpoint": "best", "scores": final(copied_run)}
    assert "evaluating" not in result.err


@pytest.mark.slow
def test_a_sweep_and_a_series_as_json(opabinia: Opabinia, tmp_path: Path) -> None:
    short = ["train.length=1it", *SIX_STEPS[1:], "loggers=[]"]
    words = ["classification/digits", *short, "--out", tmp_path, "--json", "--quiet"]
    result = opabinia("sweep", *words, "optimizer.lr=0.001,0.002")
    output = json.loads(result.out)
    assert (output["metric"], output["better"]) == ("val/top1", "max")
    assert output["best"] == output["runs"][0]["run"]
    assert {run["changes"]["optimizer.lr"] for run in output["runs"]} == {"0.001", "0.002"}
    assert all(run["scores"] == final(Path(run["run"])) for run in output["runs"])
    assert "run 1 of 2" not in result.err
    result = opabinia("train", *words, "--seeds", "0,1", "--name", "two")
    output = json.loads(result.out)
    assert len(output["runs"]) == 2 and output["scores"]["val/top1"].keys() == {"mean", "std"}


def test_every_task_has_next_commands() -> None:
    parts = live_catalog()
    for name in parts.names("task"):
        entry = parts.get("task", name)
        assert entry is not None
        task: Any = parts.load(entry)
        assert task.next_commands[0] == "eval" and len(task.next_commands) >= 4
        assert NEXT_COMMANDS.keys() >= set(task.next_commands)
