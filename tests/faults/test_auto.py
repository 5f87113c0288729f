"""``auto`` in real processes: the measured values are saved, change nothing else, and no process waits for one that
runs out of memory."""

import json
import re
from pathlib import Path

import pytest

from tests.faults.programs import ROOM
from tests.faults.runs import Outcome, Run, expect, start

NARROW = [
    "task.backbone={name: narrow}",
    "train.num_threads=1",
    "train.device=cpu",
]
AUTO = ["data.batch_size=auto", "data.augment_on=auto", "data.num_workers=auto"]


def test_auto_equals_the_run_with_these_values_and_resuming_keeps_them(run: Run) -> None:
    runs = {name: Run(run.server, run.recipe, run.out, name) for name in ("auto", "explicit")}
    for name, values in (("auto", AUTO), ("explicit", ["data.batch_size=40"])):
        first = runs[name].train(*NARROW, *values, "train.length=1ep", environment={ROOM: "40"})
        resumed = runs[name].train("--resume", "train.length=2ep", environment={ROOM: "40"})
        if name == "auto":
            assert "data.batch_size: 40 (auto: the largest that fits; 40 samples take" in first.err
            assert re.search(r"data.augment_on: (workers|device) \(auto: a sample takes", first.err)
            assert not re.search(r"data.augment_on: (workers|device) \(auto", resumed.err)
            assert re.search(r"data.num_workers: \d \(auto: reading a batch of 40 takes", first.err)
            assert "data.batch_size: 40" not in resumed.err and "data.num_workers: " in resumed.err, resumed.err
            assert "changed since the run began: data.batch_size" not in resumed.err
    auto, explicit = (Outcome.of(each.folder) for each in runs.values())
    assert (auto.model, auto.optimizer, auto.metrics) == (explicit.model, explicit.optimizer, explicit.metrics)
    config = (runs["auto"].folder / "config.yaml").read_text()
    assert "batch_size: 40\n" in config and "num_workers: auto\n" in config and "augment_on: auto" not in config


def test_all_processes_use_the_batch_size_that_fits_into_each(run: Run) -> None:
    log = expect(start(run.server, 2, *run.words, *NARROW, *AUTO, environments=[{ROOM: "50"}, {ROOM: "20"}]))
    assert "data.batch_size: 32 (auto: the largest that fits; 20 samples take" in log
    assert "118 samples, 8 steps of 32" in log


def test_an_error_if_no_batch_fits(run: Run) -> None:
    log = expect(start(run.server, 2, *run.words, *NARROW, *AUTO, environments=[{ROOM: "50"}, {ROOM: "1"}]), 2)
    assert "error: data.batch_size: auto: not even the smallest batch fits into" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_benchmark_leaves_no_files(run: Run, tmp_path: Path, processes: int) -> None:
    file = tmp_path / "report.json"
    words = [str(run.recipe), *NARROW, "data.num_workers=1", "--steps", "4", "--out", str(file), "--json"]
    programs = start(run.server, processes, *words, command="benchmark", environments=[{ROOM: "99"}])
    expect(programs)
    report = json.loads(file.read_text())
    assert json.loads(programs[0].out) == report
    assert (report["processes"], report["batch_size"], report["workers"], report["steps"]) == (processes, 8, 1, 4)
    step = report["step"]
    inside = sum(step[name] for name in ("data", "forward", "backward", "update", "other"))
    assert all(seconds >= 0 for seconds in step.values())
    if processes == 1:  # with several processes, total and waiting time are those of the slowest
        assert step["seconds"] == pytest.approx(inside)
    for name in ("loader_samples_per_s", "model_samples_per_s", "read", "peak_flops", "floor"):
        assert report[name] > 0, name
    assert report["flops"] == EXPECTED // processes
    assert report["waits_for"] in ("data", "device") and report["advice"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert not any("runs" in program.out + program.err for program in programs)


# 8 samples; the convolution has 9 weights for each of 8 channels at 16 places (its input gets no gradient).
EXPECTED = 8 * 2 * (2 * 9 * 8 * 16 + 3 * (16 * 8 * 8 + 8 * 10))
