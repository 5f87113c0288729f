"""``opabinia demo``: what it trains, what it writes, and how it resumes."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opabinia.cli import demo
from opabinia.cli.demo import DemoTask
from opabinia.runtime.signals import Stopped
from tests.cli.conftest import SIX_STEPS, Ended

Opabinia = Callable[..., Ended]


def shorten(monkeypatch: pytest.MonkeyPatch, task: DemoTask, *overrides: str) -> None:
    monkeypatch.setitem(demo.PARTS, task, replace(demo.PARTS[task], overrides=tuple(overrides)))


def test_one_task(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time there is nothing to train; of another config it is not the same demo."""
    shorten(monkeypatch, DemoTask.classification, *SIX_STEPS)
    words = ("demo", "classification", "--out", tmp_path)
    run = tmp_path / "classification" / "digits" / "demo"
    for time in range(2):
        ended = opabinia(*words)
        assert ended.status == 0, ended.err
        assert "1 of 1, classification: which digit is it?" in ended.out
        assert (f"{run} is finished: nothing to train" in ended.out) == (time == 1)
        assert ("step 6/6" in ended.err) == (time == 0)
        assert f"the report is in {run / 'report.html'}" in ended.out
        assert f"opabinia config show {run} --origin" in ended.out[ended.out.index("next:") :]
    shorten(monkeypatch, DemoTask.classification, *SIX_STEPS, "optimizer.lr=0.5")
    ended = opabinia(*words)
    assert ended.status == 2
    assert f"{run}: contains a run of another config (optimizer.lr 0.004 in the folder, 0.5 requested)" in ended.err


def test_the_same_command_resumes(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.training import launch

    def stopped(*_: object, **__: object) -> None:
        raise Stopped("SIGINT", 130)

    shorten(monkeypatch, DemoTask.classification, *SIX_STEPS, "checkpoint.every=2it")
    words = ("demo", "classification", "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_train_and_report", stopped)
        ended = opabinia(*words)
    assert ended.status == 130
    assert "the same command resumes" in ended.err
    assert not list(tmp_path.rglob("report.html"))
    assert opabinia(*words).status == 0


def test_mistakes(opabinia: Opabinia, tmp_path: Path) -> None:
    ended = opabinia("demo", "segmentation")
    assert ended.status == 2 and "segmentation" in ended.err and "detection" in ended.err
    (tmp_path / "runs").write_text("no folder")
    ended = opabinia("demo", "classification", "--out", tmp_path / "runs")
    assert ended.status == 1 and f"cannot write {tmp_path / 'runs'}" in ended.err and "Traceback" not in ended.err
    ended = opabinia("demo", "classification", "--out", tmp_path, "--name", "../elsewhere")
    assert ended.status == 2 and "is not valid for a run" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "minimum"),
    [("classification", 0.985), ("reid", 0.45), ("selfsup", 0.85), ("video", 0.95), ("detection", 0.75)],
)
def test_demo(task: str, minimum: float, tmp_path: Path) -> None:
    """Trains on real handwritten digits, to about the scores that the recipes state."""
    program = [sys.executable, "-m", "opabinia", "demo", task, "--out", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=True)
    score = demo.PARTS[DemoTask(task)].score
    values = re.findall(rf"{score}\W+(0\.\d{{4}}|1\.0000)", done.stdout)
    assert len(values) == 2 and len(set(values)) == 1, "among all scores, and at the end"
    assert float(values[0]) >= minimum
    (results,) = tmp_path.rglob("results.json")
    assert str(results.parent) in done.stdout
    assert f"the report is in {results.parent / 'report.html'}" in done.stdout
