"""Faults that a program brings upon itself, at an exact place."""

import io
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.faults.programs import TURN

CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


def die_at_turn() -> None:
    """Kill this process just before its n-th call that changes a file."""
    left = [int(os.environ[TURN])]
    pid = os.getpid()

    def counted(real: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        left[0] -= os.getpid() == pid
        if not left[0]:
            os.kill(pid, signal.SIGKILL)
        return real(*arguments, **keywords)

    def opened(real: Callable[..., Any], file: Any, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        return (
            counted(real, file, mode, *rest, **keywords)
            if set(mode) & set("wax")
            else real(file, mode, *rest, **keywords)
        )

    for name in CALLS:
        setattr(os, name, partial(counted, getattr(os, name)))
    io.open = partial(opened, io.open)  # what pathlib opens files with
