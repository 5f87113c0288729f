"""A run and its saves in the background: it goes on meanwhile, is told of errors, and ends with all of them done."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opabinia.contracts import Hook, Run
from opabinia.engine.checkpointing import checkpoint
from opabinia.engine.checkpointing.checkpoint import listed, save_tensors
from opabinia.runtime.files import DiskError
from tests.engine.toys import Setup


class At(Hook):
    """Does something after a step."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.step, self.act = step, act

    def after_step(self, run: Run) -> None:
        if run.clock.step == self.step:
            self.act()


def fail(error: BaseException) -> None:
    raise error


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in listed(folder / "checkpoints")]


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What lets the writer go on: it waits in the middle of each checkpoint."""
    event = threading.Event()

    def save(path: Path, tensors: Any) -> None:
        event.wait()
        time.sleep(0.05)  # who does not wait for the writer comes first
        save_tensors(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", save)
    yield event
    event.set()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without space for checkpoints."""

    def save(path: Path, tensors: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", save)


def setup(folder: Path, hook: Hook | None = None, save: str = "4it", length: str = "7it") -> Setup:
    return Setup(folder, save=save, length=length, user={"user": hook} if hook else {}, sets=(), best=False)


def test_the_loop_goes_on_while_a_checkpoint_is_written(tmp_path: Path, go: threading.Event) -> None:
    """The save of step 4 waits for step 6: if the loop waited for it, both would for ever."""
    seen: list[list[int]] = []
    hook = At(6, lambda: (seen.append(steps(tmp_path)), go.set()))
    setup(tmp_path, hook).trainer().run()
    assert seen == [[]]
    assert steps(tmp_path) == [4, 7]


def test_a_disk_that_is_full_is_told_before_the_next_save(tmp_path: Path, full: None) -> None:
    trainer = setup(tmp_path, save="2it", length="1000000it").trainer()
    trainer._checkpoints.save = only_once(trainer._checkpoints.save)  # type: ignore[method-assign]
    with pytest.raises(DiskError, match="step-00000002: the disk is full"):
        trainer.run()


def only_once(save: Callable[[], Path]) -> Callable[[], Path | None]:
    """Only the first of many saves takes place."""
    calls = iter([save])
    return lambda: next(calls, lambda: None)()


def test_a_disk_that_is_full_at_the_end_is_told(tmp_path: Path, full: None) -> None:
    ends: list[object] = []

    class End(Hook):
        def finish(self, run: Run, how: str | BaseException) -> None:
            ends.append(how)

    with pytest.raises(DiskError, match="step-00000007: the disk is full") as caught:
        setup(tmp_path, End(), save="0ep").trainer().run()
    assert ends == [caught.value]


@pytest.mark.parametrize("error", [RuntimeError("a crash"), KeyboardInterrupt()], ids=["crash", "Ctrl-C"])
def test_whatever_ends_a_run_the_save_under_way_is_completed(
    tmp_path: Path, go: threading.Event, error: BaseException
) -> None:
    hook = At(6, lambda: (go.set(), fail(error)))
    with pytest.raises(type(error)):
        setup(tmp_path, hook).trainer().run()
    assert steps(tmp_path) == [4]


def test_a_save_that_fails_does_not_hide_what_ended_the_run(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "_sealed", lambda state: fail(OSError(28, "No space left on device")))
    hook = At(6, lambda: (go.set(), fail(RuntimeError("a crash"))))
    with pytest.raises(RuntimeError, match="a crash"):
        setup(tmp_path, hook).trainer().run()
    assert "besides, the last save has failed: cannot write" in caplog.text


def test_who_stops_at_once_does_not_wait(tmp_path: Path, go: threading.Event) -> None:
    hook = At(6, lambda: fail(SystemExit(143)))
    trainer = setup(tmp_path, hook).trainer()
    with pytest.raises(SystemExit):
        trainer.run()
    assert steps(tmp_path) == []
    go.set()
    trainer._checkpoints.wait()
    assert steps(tmp_path) == [4]
