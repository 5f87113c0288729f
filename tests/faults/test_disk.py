"""Full and read-only disks: a clear message, and earlier checkpoints stay complete."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.runtime.files import remove_leftovers
from tests.faults.programs import Program, Server, mounted
from tests.faults.runs import Outcome, Run, metrics, start


def can_mount() -> bool:
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return probe.returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")


@pytest.fixture
def run(server: Server, recipe: Path, tmp_path: Path) -> Iterator[Run]:
    """A run on a file system of 2 MB, of which it needs 0.2."""
    with mounted(tmp_path / "disk", "size=2m") as disk:
        yield Run(server, recipe, disk)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Fill the disk except for ``leave`` bytes; return the file to delete to free the space."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - leave))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def assert_error(program: Program, message: str) -> None:
    """Assert that a program ends with one error, which has this text."""
    program.expect(1)
    assert message in program.err
    assert "Traceback" not in program.err, program.err
    assert program.err.count("error: ") == 1, program.err


@pytest.mark.parametrize("leave", [*(pytest.param(leave, marks=pytest.mark.slow) for leave in (0, 8192)), 16384])
def test_the_disk_is_full_when_a_checkpoint_is_saved(run: Run, uninterrupted: Outcome, leave: int) -> None:
    """No other writes; full at the first byte, in the middle and at the end."""
    program = run.start("train.log_every=999", "loggers=[]", pause="after_backward 9")
    checkpoints = run.folder / "checkpoints"
    last = checkpoints / "last"
    program.until(lambda: last.is_file() and last.read_text().strip() == "step-00000008")  # written in the background
    ballast = fill(run.out, leave=leave)
    program.unpause()
    partial_path = checkpoints / "step-00000010"
    assert_error(program, f"error: cannot write {partial_path}: the disk is full; earlier checkpoints are complete")
    latest = load_latest_checkpoint(checkpoints)
    assert latest and latest[1].step == 8
    assert names(checkpoints) == ["best", "last", "step-00000005", "step-00000008"]
    ballast.unlink()
    run.train("--resume")
    outcome = Outcome.of(run.folder)
    assert outcome.model == uninterrupted.model and outcome.optimizer == uninterrupted.optimizer


def test_the_disk_is_full_when_a_line_is_logged(run: Run, uninterrupted: Outcome) -> None:
    """The line of step 12, or part of it; TensorBoard and the log cannot be written either, and do not raise."""
    program = run.start(pause="after_backward 11")
    # The checkpoint of step 10 is written in the background, and that of step 5 is deleted after it.
    checkpoints = run.folder / "checkpoints"
    program.until(lambda: names(checkpoints) == ["best", "last", "step-00000008", "step-00000010"])
    log = run.folder / "metrics.jsonl"
    # Fill the last block of the file first.
    ballast = fill(run.out)
    while log.stat().st_size % 4096:
        with log.open("ab") as file:
            file.write(b" ")
    program.unpause()
    assert_error(program, f"error: cannot write {log}: the disk is full")
    ballast.unlink()
    run.resume_exactly(uninterrupted)


def test_the_disk_is_full_from_the_beginning(run: Run) -> None:
    fill(run.out)
    assert_error(run.start(), "the disk is full")


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", range(8, 264, 8))
def test_the_disk_is_full_at_any_time(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, kilobytes: int
) -> None:
    """A disk too small for the run is enlarged, and the run resumes."""
    with mounted(tmp_path / "disk", f"size={kilobytes}k") as disk:
        run = Run(server, recipe, disk)
        program = run.start()
        if program.wait() != 0:
            assert_error(program, "the disk is full")
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        run.resume_exactly(uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "kilobytes"), [("ddp", 200), ("fsdp", 330)])
def test_the_disk_of_two_processes_is_full(
    server: Server, many_recipe: Path, tmp_path: Path, parallel: str, kilobytes: int
) -> None:
    """Earlier checkpoints are complete, and no temporary files are left."""
    with mounted(tmp_path / "small", f"size={kilobytes}k") as small:
        overrides = (f"train.parallel={parallel}", "checkpoint.every=2it", "checkpoint.keep=99")
        programs = start(server, 2, str(many_recipe), "--out", str(small), *overrides)
        for program in programs:
            program.wait()
        assert programs[0].status == 1
        log = "".join(program.err for program in programs)
        assert "the disk is full" in log and "Traceback" not in log, log
        checkpoints = small / "many" / "default" / "checkpoints"
        remove_leftovers(checkpoints)  # as the next start does: a process may write after another has failed
        assert not list(checkpoints.glob(".*"))
        for path in checkpoints.glob("step-*"):
            read_checkpoint(path)


def test_a_disk_is_or_becomes_read_only(run: Run) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(run.out)], check=True)
    message = f"error: cannot write {run.folder}: the file system is read-only"
    assert_error(run.start(), message)
    subprocess.run(["mount", "-o", "remount,rw", str(run.out)], check=True)
    run.train("train.length=10it")
    before = metrics(run.folder)
    subprocess.run(["mount", "-o", "remount,ro", str(run.out)], check=True)
    assert_error(run.server.start("train", str(run.folder), "train.length=2ep", "--resume"), message)
    assert metrics(run.folder) == before
