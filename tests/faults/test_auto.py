"""``auto`` in real processes: what was found is kept, changes nothing else, and one process that runs out of memory
leaves no other waiting."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.faults.programs import Program, Server
from tests.faults.runs import Outcome

ROOM = "OPABINIA_TEST_ROOM"
"""What narrow.py reads; importing it would register its parts for every test of this process."""

NARROW = [
    "plugins=[tests.faults.parts,tests.faults.narrow]",
    "task.backbone={name: narrow}",
    "train.num_threads=1",
    "train.device=cpu",
]
AUTO = ["data.batch_size=auto", "data.augment_on=auto", "data.num_workers=auto"]


def test_it_is_the_run_with_these_numbers_and_a_resume_keeps_them(server: Server, recipe: Path, tmp_path: Path) -> None:
    for name, numbers in (("auto", AUTO), ("said", ["data.batch_size=40"])):
        where, roomy = ["--out", str(tmp_path), "--name", name], {ROOM: "40"}
        first = server.run("train", str(recipe), *where, *NARROW, *numbers, "train.length=1ep", environment=roomy)
        again = server.run("train", str(recipe), *where, "--resume", "train.length=2ep", environment=roomy)
        if name == "auto":
            assert "data.batch_size: 40 (auto: the largest that fits; 40 samples take" in first.err
            match = re.search(r"data.augment_on: (workers|device) \(auto: a sample takes", first.err)
            assert (
                match
                and "data.augment_on: workers (auto" not in again.err
                and "data.augment_on: device (auto" not in again.err
            )
            assert re.search(r"data.num_workers: \d \(auto: reading a batch of 40 takes", first.err)
            assert "data.batch_size: 40" not in again.err and "data.num_workers: " in again.err, again.err
            assert "changed since the run began: data.batch_size" not in again.err
    auto, said = (Outcome.of(tmp_path / "faults" / name) for name in ("auto", "said"))
    assert (auto.model, auto.optimizer, auto.metrics) == (said.model, said.optimizer, said.metrics)
    config = (tmp_path / "faults" / "auto" / "config.yaml").read_text()
    assert "batch_size: 40\n" in config and "num_workers: auto\n" in config and "augment_on: auto" not in config


def in_two(server: Server, rooms: tuple[int, int], *arguments: str) -> list[Program]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environments = [{**address, "RANK": str(rank), ROOM: str(room)} for rank, room in enumerate(rooms)]
    return [server.start(*arguments, environment=environment) for environment in environments]


def test_all_processes_take_what_fits_into_each(server: Server, recipe: Path, tmp_path: Path) -> None:
    first, second = in_two(server, (50, 20), "train", str(recipe), "--out", str(tmp_path), *NARROW, *AUTO)
    first.expect(0)
    second.expect(0)
    assert "data.batch_size: 32 (auto: the largest that fits; 20 samples take" in first.err
    assert "118 samples, 8 steps of 32" in first.err


def test_nothing_fits(server: Server, recipe: Path, tmp_path: Path) -> None:
    both = in_two(server, (50, 1), "train", str(recipe), "--out", str(tmp_path), *NARROW, *AUTO)
    for program in both:
        program.expect(2)
    assert "error: data.batch_size: auto: not even the smallest batch fits into" in both[0].err
    assert "Traceback" not in both[0].err + both[1].err


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_recipe_is_measured_and_nothing_is_kept(server: Server, recipe: Path, tmp_path: Path, processes: int) -> None:
    file = tmp_path / "found.json"
    command = ["benchmark", str(recipe), *NARROW, "data.num_workers=1", "--steps", "4", "--out", str(file), "--json"]
    if processes == 1:
        programs = [server.start(*command, environment={ROOM: "99"})]
    else:
        programs = in_two(server, (99, 99), *command)
    for program in programs:
        program.expect(0)
    found = json.loads(file.read_text())
    assert json.loads(programs[0].out) == found
    assert (found["processes"], found["batch_size"], found["workers"], found["steps"]) == (processes, 8, 1, 4)
    step = found["step"]
    inside = sum(step[name] for name in ("data", "forward", "backward", "update", "other"))
    assert all(seconds >= 0 for seconds in step.values())
    if processes == 1:  # of several, the whole and the waiting are those of the slowest
        assert step["seconds"] == pytest.approx(inside)
    for name in ("loader_samples_per_s", "model_samples_per_s", "read", "peak_flops", "floor"):
        assert found[name] > 0, name
    assert found["flops"] == EXPECTED // processes
    assert found["waits_for"] in ("data", "device") and found["advice"]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert not any("runs" in one.out + one.err for one in programs)


# 8 samples; the convolution has 9 weights for each of 8 channels at 16 places (its input gets no gradient).
EXPECTED = 8 * 2 * (2 * 9 * 8 * 16 + 3 * (16 * 8 * 8 + 8 * 10))
