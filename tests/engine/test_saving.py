"""Saving in the background: training continues, errors are raised, and a run ends when all saves are complete."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Hook, Run
from opabinia.engine.checkpointing import checkpoint
from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.engine.checkpointing.manager import CheckpointManager, list_checkpoints
from opabinia.runtime.files import DiskError
from tests.engine.toys import Setup


class At(Hook):
    """Calls a function after a step."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.step, self.act = step, act

    def after_step(self, run: Run) -> None:
        if run.clock.step == self.step:
            self.act()


def fail(error: BaseException) -> None:
    raise error


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(folder / "checkpoints")]


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set it to let the background thread continue: it waits in the middle of each checkpoint."""
    event = threading.Event()

    def save(path: Path, tensors: Any) -> None:
        event.wait()
        time.sleep(0.05)  # code that does not wait for the save runs first
        save_tensors(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", save)
    yield event
    event.set()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk."""

    def save(path: Path, tensors: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", save)


def setup(folder: Path, hook: Hook | None = None, save: str = "4it", length: str = "7it") -> Setup:
    return Setup(folder, save=save, length=length, user={"user": hook} if hook else {}, sets=(), best=False)


@pytest.fixture
def only_the_first_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its error must be found without another save."""
    saves = iter([CheckpointManager.save])
    monkeypatch.setattr(CheckpointManager, "save", lambda manager: next(saves, lambda manager: None)(manager))


def test_a_full_disk_is_an_error_before_the_next_save(tmp_path: Path, full: None, only_the_first_save: None) -> None:
    with pytest.raises(DiskError, match="step-00000002: the disk is full"):
        setup(tmp_path, save="2it", length="1000000it").trainer().run()


def test_a_full_disk_at_the_end_is_an_error(tmp_path: Path, full: None) -> None:
    ends: list[object] = []

    class End(Hook):
        def finish(self, run: Run, how: str | BaseException) -> None:
            ends.append(how)

    with pytest.raises(DiskError, match="step-00000007: the disk is full") as caught:
        setup(tmp_path, End(), save="0ep").trainer().run()
    assert ends == [caught.value]


@pytest.mark.parametrize("error", [RuntimeError("a crash"), KeyboardInterrupt()], ids=["crash", "Ctrl-C"])
def test_a_save_in_progress_is_completed_however_the_run_ends(
    tmp_path: Path, go: threading.Event, error: BaseException
) -> None:
    hook = At(6, lambda: (go.set(), fail(error)))
    with pytest.raises(type(error)):
        setup(tmp_path, hook).trainer().run()
    assert steps(tmp_path) == [4]


def test_a_failed_save_does_not_hide_the_error_of_the_run(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "_encode_state", lambda state: fail(OSError(28, "No space left on device")))
    hook = At(6, lambda: (go.set(), fail(RuntimeError("a crash"))))
    with pytest.raises(RuntimeError, match="a crash"):
        setup(tmp_path, hook).trainer().run()
    assert "in addition, the last save failed: cannot write" in caplog.text


def test_an_immediate_exit_does_not_wait(tmp_path: Path, go: threading.Event) -> None:
    hook = At(6, lambda: fail(SystemExit(143)))
    trainer = setup(tmp_path, hook).trainer()
    with pytest.raises(SystemExit):
        trainer.run()
    assert steps(tmp_path) == []
    go.set()
    trainer._checkpoints.wait()
    assert steps(tmp_path) == [4]
