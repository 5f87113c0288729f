"""Faults that a program injects into itself at an exact point."""

import io
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.faults.programs import TURN

CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


def die_at_turn() -> None:
    """Kill this process just before its n-th call that changes a file."""
    remaining = [int(os.environ[TURN])]
    pid = os.getpid()

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


def signalled_in_a_save() -> None:
    """SIGTERM while the first checkpoint is written, which never finishes, and another one later."""
    from opabinia.engine.checkpointing import checkpoint

    real = checkpoint.save_tensors

    def save(path: Any, tensors: Any) -> None:
        real(path, tensors)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2.5)  # earlier it would count as the same request
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)

    checkpoint.save_tensors = save


def stuck_in_a_save() -> None:
    """The disk hangs while the checkpoint of step 10 is written."""
    from opabinia.engine.checkpointing import checkpoint

    real = checkpoint.save_tensors

    def save(path: Any, tensors: Any) -> None:
        real(path, tensors)
        if "step-00000010" in str(path):
            time.sleep(600)

    checkpoint.save_tensors = save


def slow_saves() -> None:
    """Every file of a checkpoint takes a while."""
    from opabinia.engine.checkpointing import checkpoint

    real = checkpoint.save_tensors

    def save(path: Any, tensors: Any) -> None:
        time.sleep(0.2)
        real(path, tensors)

    checkpoint.save_tensors = save


def signalled_while_the_config_is_read() -> None:
    """SIGTERM before torch is imported."""
    from opabinia import config

    real = config.compose

    def compose(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    config.compose = compose


def signalled_before_the_run_begins() -> None:
    """SIGTERM after the imports, before the run handles signals."""
    from opabinia.training import launch

    real = launch.run_folder_of

    def run_folder_of(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    launch.run_folder_of = run_folder_of


def late_for_the_lock() -> None:
    """Wait before the folder is locked."""
    from opabinia.training import launch
    from tests.faults.parts import pause_at

    real = launch.run_lock

    def run_lock(folder: Any) -> Any:
        pause_at("before the lock")
        return real(folder)

    launch.run_lock = run_lock


def killed_while_workers_start() -> None:
    """The first worker kills the main process before it has started to watch it."""
    from opabinia.data import loader

    main, real = os.getpid(), loader._init_worker

    def start(*arguments: int) -> None:
        if os.getppid() == main:
            os.kill(main, signal.SIGKILL)
        while os.getppid() == main:
            time.sleep(0.001)
        real(*arguments)

    loader._init_worker = start
