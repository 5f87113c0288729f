"""Features extracted with several processes, or after a kill, equal those of one uninterrupted process."""

from pathlib import Path

import numpy as np
import pytest

from tests.faults.programs import BROKEN, PAUSE, TURN, Server
from tests.faults.runs import RECIPE, Trainings, contents, expect, start

LAYERS = "trunk,embedding,head"


@pytest.fixture(scope="module")
def run(trainings: Trainings) -> Path:
    values = ("train.num_threads=1", "data.train.source.n=470", "evaluate.batch_size=8", "data.num_workers=0")
    return trainings(RECIPE, 1, "train.length=2it", *values)


@pytest.fixture(scope="module")
def expected(warm_server: Server, run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The features of both splits: 470 samples in 59 batches, and 90 in 12."""
    out = tmp_path_factory.mktemp("uninterrupted") / "out"
    warm_server.run("extract", str(run), "--split", "all", "--layers", LAYERS, "--out", str(out))
    files = contents(out)
    assert len(files) == 14 and {"val/trunk.npy", "train/ids.json", "val/classes.json"} <= files.keys()
    return files


def extract(server: Server, run: Path, out: Path, world: int, *arguments: str, broken: str = "") -> str:
    """Extract in this many processes; return the log of rank 0."""
    words = (str(run), "--layers", LAYERS, "--out", str(out), *arguments)
    programs = start(server, world, *words, command="extract", environments=[{BROKEN: broken}])
    expect(programs)
    # Skipped samples are logged by the process that tried to read them, everything else by rank 0.
    assert all(line.startswith("skipped: ") for program in programs[1:] for line in program.err.splitlines())
    return programs[0].err


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_features_do_not_depend_on_the_number_of_processes(
    server: Server, run: Path, expected: dict[str, bytes], tmp_path: Path, world: int
) -> None:
    log = extract(server, run, tmp_path / "out", world, "--split", "train,val")
    assert contents(tmp_path / "out") == expected
    assert f"470 samples of train in {tmp_path}/out/train" in log


def test_parquet_files_do_not_depend_on_the_number_of_processes(server: Server, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for world in (1, 2):
        extract(server, run, tmp_path / str(world), world, "--format", "parquet")
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.slow) for world in (1, 3))])
def test_samples_that_cannot_be_read_are_skipped_and_counted(
    server: Server, run: Path, expected: dict[str, bytes], tmp_path: Path, world: int
) -> None:
    arguments = ("--split", "train", "data.on_error=skip", "data.num_workers=1")
    log = extract(server, run, tmp_path / "out", world, *arguments, broken="13")
    assert "1 sample could not be read: skipped" in log
    labels = np.load(tmp_path / "out" / "labels.npy")
    all_labels = np.frombuffer(expected["train/labels.npy"][-8 * 470 :], np.int64)
    assert np.array_equal(labels, np.delete(all_labels, 13))
    assert b'"samples": 469' in (tmp_path / "out" / "about.json").read_bytes()
    assert b'"skipped": 1' in (tmp_path / "out" / "about.json").read_bytes()


def test_a_sample_that_cannot_be_read_is_named(server: Server, run: Path, tmp_path: Path) -> None:
    command = ("extract", str(run), "--split", "train", "--out", str(tmp_path / "out"))
    program = server.run(*command, status=2, environment={BROKEN: "13"})
    assert "error: sample 13, SomeDigits: OSError: the disk is on fire" in program.err
    assert not (tmp_path / "out").exists()


def test_one_process_is_killed_and_two_resume(
    server: Server, run: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("extract", str(run), "--split", "all", "--layers", LAYERS, "--out", str(out))
    program = server.start(*command, environment={PAUSE: "train sample 100"})
    program.until_paused()
    program.kill()
    assert not out.exists() or not list(out.glob("[a-z]*"))
    log = extract(server, run, out, 2, "--split", "all")
    # 12 batches were done; a shard is finished when the batch after it begins.
    assert f"resuming {out}/train: 11 shards of 1 batches are finished" in log
    assert contents(out) == expected


def test_two_writers_are_refused(server: Server, run: Path, tmp_path: Path) -> None:
    command = ("extract", str(run), "--out", str(tmp_path / "out"))
    first = server.start(*command, environment={PAUSE: "val sample 20"})
    first.until_paused()
    assert "another process is writing" in server.run(*command, status=2).err
    first.unpause()
    first.expect(0)


def kill_repeatedly(server: Server, command: tuple[str, ...], step: int) -> int:
    """Run a command and kill it before its n-th call that changes a file, n growing by ``step``, until it finishes;
    return the number of kills."""
    for kills in range(1000):
        program = server.start(
            *command,
            first=["tests.faults.injections:die_at_turn"],
            environment={TURN: str((kills + 1) * step)},
        )
        if program.wait() != -9:
            program.expect(0)
            return kills
    raise AssertionError("it does not finish")


@pytest.mark.parametrize("begun", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["begun", "from nothing"])
def test_extraction_resumes_after_a_kill_at_any_write(
    server: Server, run: Path, expected: dict[str, bytes], tmp_path: Path, begun: bool
) -> None:
    """In a shard, while shards are joined, and while earlier files are replaced."""
    out = tmp_path / "out"
    server.run("extract", str(run), "--layers", "trunk", "--out", str(out))
    command = ("extract", str(run), "--layers", LAYERS, "--out", str(out))
    if begun:
        unfinished = server.start(*command, environment={PAUSE: "val sample 89"})
        unfinished.until_paused()
        unfinished.kill()
    assert kill_repeatedly(server, command, 9 if begun else 1) > 3
    assert contents(out) == {name[4:]: content for name, content in expected.items() if name.startswith("val/")}
    assert list(tmp_path.iterdir()) == [out], "no temporary files are left"
