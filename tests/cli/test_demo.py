"""``opabinia demo``: training, output, and resuming."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from opabinia.cli import demo
from opabinia.cli.demo import PARTS, TRACKING, DemoTask
from opabinia.cli.side_by_side import TrainingProcess, _table
from opabinia.runtime.durations import Duration
from opabinia.runtime.signals import Stopped
from tests.cli.conftest import CommandResult

Opabinia = Callable[..., CommandResult]

SHORT = "base: classification/digits\ntrain: {length: 6it, device: cpu, num_threads: 1}\ndata: {num_workers: 0}\n"


def shorten(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> None:
    (folder / "six_steps.yaml").write_text(SHORT + text)
    part = replace(PARTS[DemoTask.classification], recipe=str(folder / "six_steps.yaml"))
    monkeypatch.setitem(PARTS, DemoTask.classification, part)


# --- one task ---------------------------------------------------------------------------------------------------------


def test_one_task(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second demo trains nothing; a run of another config is an error."""
    shorten(tmp_path, monkeypatch)
    words = ("demo", "classification", "--out", tmp_path)
    run = tmp_path / "six_steps" / "demo"
    for attempt in range(2):
        result = opabinia(*words)
        assert result.status == 0, result.err
        assert "classification: which digit is it?" in result.out
        assert (f"{run} is finished: nothing to train" in result.out) == (attempt == 1)
        assert ("step 6/6" in result.err) == (attempt == 0)
        assert f"the report is in {run / 'report.html'}" in result.out
        assert f"opabinia config show {run} --origin" in result.out[result.out.index("next:") :]
    shorten(tmp_path, monkeypatch, "optimizer: {lr: 0.5}\n")
    result = opabinia(*words)
    assert result.status == 2
    assert f"{run}: contains a run of another config (optimizer.lr 0.004 in the folder, 0.5 requested)" in result.err


def test_the_same_command_resumes(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.training import launch

    def stopped(*_: object, **__: object) -> None:
        raise Stopped("SIGINT", 130)

    shorten(tmp_path, monkeypatch, "checkpoint: {every: 2it}\n")
    words = ("demo", "classification", "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_train_and_report", stopped)
        result = opabinia(*words)
    assert result.status == 130
    assert "the same command resumes" in result.err
    assert not list(tmp_path.rglob("report.html"))
    assert opabinia(*words).status == 0


def test_user_errors(opabinia: Opabinia, tmp_path: Path) -> None:
    result = opabinia("demo", "depth")
    assert result.status == 2 and "segmentation" in result.err and "detection" in result.err
    (tmp_path / "runs").write_text("no folder")
    result = opabinia("demo", "classification", "--out", tmp_path / "runs")
    assert result.status == 1 and f"cannot write {tmp_path / 'runs'}" in result.err and "Traceback" not in result.err
    for task in ("classification", "all"):
        result = opabinia("demo", task, "--out", tmp_path, "--name", "../elsewhere")
        assert result.status == 2 and "is not valid for a run" in result.err


# --- all tasks --------------------------------------------------------------------------------------------------------

PYTHON = sys.executable
FAKE_PROGRAM = """#!{python} -IS
import json, os, pathlib, sys, time
recipe, out, name = sys.argv[4], sys.argv[sys.argv.index("--out") + 1], sys.argv[sys.argv.index("--name") + 1]
folder = pathlib.Path(out, recipe, name)
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "calls.jsonl", "a") as calls:
    print(json.dumps([time.time(), os.environ["OMP_NUM_THREADS"], *sys.argv[1:]]), file=calls)
behaviour = {behaviour!r}.get(recipe, "")
if behaviour == "fail":
    sys.exit("error: no such " + recipe)
with open(folder / "metrics.jsonl", "a") as log:
    print(json.dumps({{"step": 9, "epoch": 0.5, "train/loss": 0.25, "time/step": 1.0}}), file=log)
if behaviour == "wait":
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
scores = {{"val/top1": 1, "val/mAP": 1, "val/AP": 1, "val/mIoU": 1, "val/knn_top1": 0.75}}
(folder / "results.json").write_text(json.dumps(scores))
"""


@pytest.fixture
def fake_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``fake_training({recipe: "wait" or "fail"})`` replaces training and reports by a fake program."""
    monkeypatch.setattr(demo, "report", lambda runs, *, out: print(f"report of {len(runs)} runs in {out}"))
    monkeypatch.setattr("opabinia.cli.side_by_side.POLL_SECONDS", 0.02)
    monkeypatch.setattr("opabinia.runtime.resources.cores", lambda: 2)

    def replace_training(behaviour: dict[str, str]) -> None:
        program = tmp_path / "python"
        program.write_text(FAKE_PROGRAM.format(python=PYTHON, behaviour=behaviour))
        program.chmod(0o755)
        monkeypatch.setattr("opabinia.cli.side_by_side.sys.executable", str(program))

    replace_training({})
    return replace_training


def calls(out: Path) -> dict[str, list[list[str]]]:
    """Return the arguments of the training processes by recipe, in the order of their first start."""
    by_recipe = {
        str(file.parent.parent.relative_to(out)): [json.loads(line) for line in file.read_text().splitlines()]
        for file in out.rglob("calls.jsonl")
    }
    return dict(sorted(by_recipe.items(), key=lambda item: item[1][0][0]))


def test_all_tasks(opabinia: Opabinia, tmp_path: Path, fake_training: Callable[..., None]) -> None:
    """Each task is a process with one thread, the longest first; a second demo trains nothing."""
    out = tmp_path / "runs"
    result = opabinia("demo", "--out", out)
    assert result.status == 0, result.err
    started = calls(out)
    # Two run at a time, so one of the first two has begun before any other; the second may be slow to start.
    assert next(iter(started)) in {"selfsup/digits_vicreg", "detection/digits"}
    for recipe, ((_, threads, *words),) in started.items():
        assert threads == "1"
        assert words[:4] == ["-m", "opabinia", "train", recipe] and "data.num_workers=0" in words
        assert words[words.index("--resume") + 1] == "auto" and "demo-short" in words
    for task, part in PARTS.items():
        assert re.search(rf"^{task}  finished  \d+%  {part.score.removeprefix('val/')} \d", result.err, re.MULTILINE)
        assert re.search(rf"{task}\W+{part.score}\W+\d\.\d{{4}}\W+{re.escape(part.baseline)}", result.out)
    assert f"report of 6 runs in {out / 'demo.html'}" in result.out
    again = opabinia("demo", "--out", out)
    assert again.status == 0 and "report of 6 runs" in again.out
    assert calls(out) == started


def test_tracking(
    opabinia: Opabinia, tmp_path: Path, fake_training: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models are trained side by side; then their tracks are evaluated."""
    evaluated: list[tuple[Path, Path]] = []
    monkeypatch.setattr(demo, "_track", lambda *runs: evaluated.append(runs))
    out = tmp_path / "runs"
    result = opabinia("demo", "tracking", "--out", out)
    assert result.status == 0, result.err
    assert {*calls(out)} == {part.recipe for part in TRACKING.values()}
    assert evaluated == [(out / "detection/digit_tracks/demo", out / "reid/digit_tracks/demo")]
    assert f"report of 2 runs in {out / 'demo-tracking.html'}" in result.out
    fake_training({"reid/digit_tracks": "fail"})
    assert opabinia("demo", "tracking", "--out", out, "--name", "again").status == 1
    assert len(evaluated) == 1


def test_a_failure_stops_no_other_task(opabinia: Opabinia, tmp_path: Path, fake_training: Callable[..., None]) -> None:
    fake_training({"detection/digits": "fail"})
    result = opabinia("demo", "--out", tmp_path / "runs")
    assert result.status == 1
    assert f"{tmp_path / 'runs/detection/digits/demo-short'} failed (exit status 1):" in result.err
    assert "error: no such detection/digits" in result.err
    assert "report of 5 runs" in result.out and "val/AP" not in result.out


def test_ctrl_c_stops_all_processes_and_the_same_command_resumes(
    opabinia: Opabinia, tmp_path: Path, fake_training: Callable[..., None]
) -> None:
    out = tmp_path / "runs"
    fake_training({"selfsup/digits_vicreg": "wait", "detection/digits": "wait"})

    def interrupt() -> None:
        while len(list(out.rglob("metrics.jsonl"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = opabinia("demo", "--out", out)
    assert result.status == 130
    assert "stopped: the same command resumes" in result.err and "report" not in result.out
    assert len(re.findall(r"^\w+  stopped  \d+%  loss 0.250", result.err, re.MULTILINE)) == 2
    assert len(calls(out)) == 2, "no other task is started"
    fake_training({})
    assert opabinia("demo", "--out", out).status == 0
    assert [len(starts) for starts in calls(out).values()] == [2, 2, 1, 1, 1, 1]


def test_torch_is_not_imported(tmp_path: Path, fake_training: Callable[..., None]) -> None:
    """The process that shows the table must not slow down those that train."""
    code = (
        "import sys; from pathlib import Path; from opabinia.cli.demo import PARTS, _train_all; "
        f"sys.executable = {str(tmp_path / 'python')!r}; "
        f"_train_all(PARTS, Path({str(tmp_path)!r}), 'short'); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}  # as on the first call
    subprocess.run([PYTHON, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width: int, tmp_path: Path) -> None:
    """Each task has a line, also in a narrow terminal; the question is truncated."""
    length = Duration(1, "ep")
    runs = [TrainingProcess(task, part.question, tmp_path, length, part.score, ()) for task, part in PARTS.items()]
    for run in runs:
        run.status, run._newest = -9, {"epoch": 0.5, "train/loss": 123.4567}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(_table(runs))
    lines = console.export_text().splitlines()
    assert len(lines) == len(PARTS)
    for line, (task, part) in zip(lines, PARTS.items(), strict=True):
        assert line.startswith(task) and "failed (exit status -9)  50%  loss 123.457" in line
        assert part.question[:8] in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "minimum"),
    [
        ("classification", 0.985),
        ("reid", 0.45),
        ("selfsup", 0.85),
        ("video", 0.95),
        ("detection", 0.75),
        ("segmentation", 0.83),
    ],
)
def test_demo(task: str, minimum: float, tmp_path: Path) -> None:
    """Train on real handwritten digits, to about the scores stated in the recipes."""
    program = [sys.executable, "-m", "opabinia", "demo", task, "--out", str(tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=True)
    score = demo.PARTS[DemoTask(task)].score
    values = re.findall(rf"{score}\W+(0\.\d{{4}}|1\.0000)", result.stdout)
    assert len(values) == 2 and len(set(values)) == 1, "among all scores, and at the end"
    assert float(values[0]) >= minimum
    (results,) = tmp_path.rglob("results.json")
    assert str(results.parent) in result.stdout
    assert f"the report is in {results.parent / 'report.html'}" in result.stdout


@pytest.mark.slow
def test_demo_of_all_tasks(tmp_path: Path) -> None:
    """Short runs of all tasks: each score is far above its baseline."""
    minimum = {
        "classification": 0.98,
        "reid": 0.4,
        "selfsup": 0.64,
        "video": 0.9,
        "detection": 0.7,
        "segmentation": 0.4,
    }
    program = [sys.executable, "-m", "opabinia", "demo", "--out", str(tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=True)
    for task, part in PARTS.items():
        (value,) = re.findall(rf"{task}\W+{part.score}\W+([\d.]+)", result.stdout)
        assert float(value) >= minimum[task], task
    assert f"the report is in {tmp_path / 'demo.html'}" in result.stdout
    assert len(list(tmp_path.rglob("results.json"))) == len(PARTS)
