"""Faults that a program injects into itself at an exact point."""

import io
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from tests.faults.programs import TURN

CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


def die_at(turn: int) -> None:
    """Kill this process just before its n-th call that changes a file."""
    remaining, pid = [turn], os.getpid()

    def call_counted(real: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        remaining[0] -= os.getpid() == pid
        if not remaining[0]:
            os.kill(pid, signal.SIGKILL)
        return real(*arguments, **keywords)

    def open_counted(real: Callable[..., Any], file: Any, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        writes = set(mode) & set("wax")
        return call_counted(real, file, mode, *rest, **keywords) if writes else real(file, mode, *rest, **keywords)

    for name in CALLS:
        setattr(os, name, partial(call_counted, getattr(os, name)))
    io.open = partial(open_counted, io.open)  # pathlib opens files with it


def die_at_turn() -> None:
    """Do so at the turn that the environment names."""
    die_at(int(os.environ[TURN]))


def around(module: str, name: str, before: Callable[..., Any] | None = None, after: Any = None) -> None:
    """Call other functions, with the same arguments, before and after a function of a module."""
    owner = import_module(module)
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = real(*arguments)
        if after is not None:
            after(*arguments)
        return result

    setattr(owner, name, call)


around_saves = partial(around, "opabinia.engine.checkpointing.checkpoint", "save_tensors")


def stop_this_process(*arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def signalled_in_a_save() -> None:
    """SIGTERM while the first checkpoint is written, which never finishes, and another one later."""

    def after(*arguments: Any) -> None:
        stop_this_process()
        time.sleep(2.5)  # earlier it would count as the same request
        stop_this_process()
        time.sleep(600)

    around_saves(after=after)


def stuck_in_a_save() -> None:
    """The disk hangs while the checkpoint of step 10 is written."""
    around_saves(after=lambda path, tensors: time.sleep(600 if "step-00000010" in str(path) else 0))


def slow_saves() -> None:
    """Every file of a checkpoint takes a while."""
    around_saves(before=lambda *arguments: time.sleep(0.2))


def signalled_while_the_config_is_read() -> None:
    """SIGTERM before torch is imported."""
    around("opabinia.config", "compose", before=stop_this_process)


def signalled_before_the_run_begins() -> None:
    """SIGTERM after the imports, before the run handles signals."""
    around("opabinia.training.launch", "run_folder_of", before=stop_this_process)


def late_for_the_lock() -> None:
    """Wait before the folder is locked."""
    from tests.faults.parts import pause_at

    around("opabinia.training.launch", "run_lock", before=lambda folder: pause_at("before the lock"))


def killed_while_workers_start() -> None:
    """The first worker kills the main process before it has started to watch it."""
    main = os.getpid()

    def before(*arguments: Any) -> None:
        if os.getppid() == main:
            os.kill(main, signal.SIGKILL)
        while os.getppid() == main:
            time.sleep(0.001)

    around("opabinia.data.workers", "_init_worker", before=before)
