"""``auto`` in real processes: the measured values are saved, change nothing else, and no process waits for one that
runs out of memory."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.faults.programs import Program, Server
from tests.faults.runs import Outcome

ROOM = "OPABINIA_TEST_ROOM"
"""The variable of narrow.py; importing it would register its parts for every test of this process."""

NARROW = [
    "plugins=[tests.faults.parts,tests.faults.narrow]",
    "task.backbone={name: narrow}",
    "train.num_threads=1",
    "train.device=cpu",
]
AUTO = ["data.batch_size=auto", "data.augment_on=auto", "data.num_workers=auto"]


def test_auto_equals_the_run_with_these_values_and_resuming_keeps_them(
    server: Server, recipe: Path, tmp_path: Path
) -> None:
    for name, values in (("auto", AUTO), ("explicit", ["data.batch_size=40"])):
        output, environment = ["--out", str(tmp_path), "--name", name], {ROOM: "40"}
        first = server.run("train", str(recipe), *output, *NARROW, *values, "train.length=1ep", environment=environment)
        resumed = server.run("train", str(recipe), *output, "--resume", "train.length=2ep", environment=environment)
        if name == "auto":
            assert "data.batch_size: 40 (auto: the largest that fits; 40 samples take" in first.err
            match = re.search(r"data.augment_on: (workers|device) \(auto: a sample takes", first.err)
            assert (
                match
                and "data.augment_on: workers (auto" not in resumed.err
                and "data.augment_on: device (auto" not in resumed.err
            )
            assert re.search(r"data.num_workers: \d \(auto: reading a batch of 40 takes", first.err)
            assert "data.batch_size: 40" not in resumed.err and "data.num_workers: " in resumed.err, resumed.err
            assert "changed since the run began: data.batch_size" not in resumed.err
    auto, explicit = (Outcome.of(tmp_path / "faults" / name) for name in ("auto", "explicit"))
    assert (auto.model, auto.optimizer, auto.metrics) == (explicit.model, explicit.optimizer, explicit.metrics)
    config = (tmp_path / "faults" / "auto" / "config.yaml").read_text()
    assert "batch_size: 40\n" in config and "num_workers: auto\n" in config and "augment_on: auto" not in config


def start_two(server: Server, rooms: tuple[int, int], *arguments: str) -> list[Program]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environments = [{**address, "RANK": str(rank), ROOM: str(room)} for rank, room in enumerate(rooms)]
    return [server.start(*arguments, environment=environment) for environment in environments]


def test_all_processes_use_the_batch_size_that_fits_into_each(server: Server, recipe: Path, tmp_path: Path) -> None:
    first, second = start_two(server, (50, 20), "train", str(recipe), "--out", str(tmp_path), *NARROW, *AUTO)
    first.expect(0)
    second.expect(0)
    assert "data.batch_size: 32 (auto: the largest that fits; 20 samples take" in first.err
    assert "118 samples, 8 steps of 32" in first.err


def test_an_error_if_no_batch_fits(server: Server, recipe: Path, tmp_path: Path) -> None:
    programs = start_two(server, (50, 1), "train", str(recipe), "--out", str(tmp_path), *NARROW, *AUTO)
    for program in programs:
        program.expect(2)
    assert "error: data.batch_size: auto: not even the smallest batch fits into" in programs[0].err
    assert "Traceback" not in programs[0].err + programs[1].err


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_benchmark_leaves_no_files(server: Server, recipe: Path, tmp_path: Path, processes: int) -> None:
    file = tmp_path / "report.json"
    command = ["benchmark", str(recipe), *NARROW, "data.num_workers=1", "--steps", "4", "--out", str(file), "--json"]
    if processes == 1:
        programs = [server.start(*command, environment={ROOM: "99"})]
    else:
        programs = start_two(server, (99, 99), *command)
    for program in programs:
        program.expect(0)
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
