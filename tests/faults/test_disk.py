"""Full and read-only disks: a clear message, and earlier checkpoints stay complete."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from tests.faults.programs import PAUSE, Program, Server, mounted
from tests.faults.runs import Outcome, assert_same, metrics


def can_mount() -> bool:
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return probe.returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, of which a run needs 0.2."""
    with mounted(tmp_path / "disk", "size=2m") as folder:
        yield folder


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


def assert_no_traceback(program: Program) -> None:
    assert "Traceback" not in program.err, program.err
    assert program.err.count("error: ") == 1, program.err


def train_until(server: Server, moment: str, recipe: Path, disk: Path, *overrides: str) -> Program:
    program = server.start("train", str(recipe), *overrides, "--out", str(disk), environment={PAUSE: moment})
    program.until_paused()
    return program


@pytest.mark.parametrize("leave", [0, pytest.param(8192, marks=pytest.mark.slow), 16384])
def test_the_disk_is_full_when_a_checkpoint_is_saved(
    server: Server, recipe: Path, uninterrupted: Outcome, disk: Path, leave: int
) -> None:
    """No other writes; full at the first byte, in the middle and at the end."""
    program = train_until(server, "after_backward 9", recipe, disk, "train.log_every=999", "loggers=[]")
    last = disk / "faults" / "default" / "checkpoints" / "last"
    program.until(lambda: last.is_file() and last.read_text().strip() == "step-00000008")  # written in the background
    ballast = fill(disk, leave=leave)
    program.unpause()
    program.expect(1)
    folder = disk / "faults" / "default"
    partial_path = folder / "checkpoints" / "step-00000010"
    assert f"error: cannot write {partial_path}: the disk is full; earlier checkpoints are complete" in program.err
    assert_no_traceback(program)
    latest = load_latest_checkpoint(folder / "checkpoints")
    assert latest and latest[1].step == 8
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "best", "last", "step-00000005", "step-00000008",
    ]  # fmt: skip
    ballast.unlink()
    server.run("train", str(recipe), "--out", str(disk), "--resume")
    outcome = Outcome.of(folder)
    assert outcome.model == uninterrupted.model and outcome.optimizer == uninterrupted.optimizer


def test_the_disk_is_full_when_a_line_is_logged(
    server: Server, recipe: Path, uninterrupted: Outcome, disk: Path
) -> None:
    """The line of step 12, or part of it; TensorBoard and the log cannot be written either, and do not raise."""
    program = train_until(server, "after_backward 11", recipe, disk)
    folder = disk / "faults" / "default"
    # Fill the last block of the file first.
    ballast = fill(disk)
    while (folder / "metrics.jsonl").stat().st_size % 4096:
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(b" ")
    program.unpause()
    program.expect(1)
    assert f"error: cannot write {folder / 'metrics.jsonl'}: the disk is full" in program.err
    assert_no_traceback(program)
    ballast.unlink()
    server.run("train", str(recipe), "--out", str(disk), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


def test_the_disk_is_full_from_the_beginning(server: Server, recipe: Path, disk: Path) -> None:
    fill(disk)
    program = server.run("train", str(recipe), "--out", str(disk), status=1)
    assert "the disk is full" in program.err
    assert_no_traceback(program)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", range(8, 264, 8))
def test_the_disk_is_full_at_any_time(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, kilobytes: int
) -> None:
    """A disk too small for the run is enlarged, and the run resumes."""
    with mounted(tmp_path / "disk", f"size={kilobytes}k") as disk:
        program = server.start("train", str(recipe), "--out", str(disk))
        if program.wait() != 0:
            program.expect(1)
            assert "the disk is full" in program.err
            assert_no_traceback(program)
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        server.run("train", str(recipe), "--out", str(disk), "--resume")
        assert_same(Outcome.of(disk / "faults" / "default"), uninterrupted)


def test_a_read_only_disk(server: Server, recipe: Path, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    program = server.run("train", str(recipe), "--out", str(disk), status=1)
    assert f"error: cannot write {disk / 'faults' / 'default'}: the file system is read-only" in program.err
    assert_no_traceback(program)


def test_a_disk_becomes_read_only(server: Server, recipe: Path, uninterrupted: Outcome, disk: Path) -> None:
    server.run("train", str(recipe), "train.length=10it", "--out", str(disk))
    folder = disk / "faults" / "default"
    before = metrics(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    program = server.run("train", str(folder), "train.length=2ep", "--resume", status=1)
    assert f"error: cannot write {folder}: the file system is read-only" in program.err
    assert_no_traceback(program)
    assert metrics(folder) == before
