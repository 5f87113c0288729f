"""The logger for TensorBoard."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log


@register.logger(name="tensorboard")
class TensorBoard:
    """Every value of the metrics log by step, in the folder ``tensorboard``. A resumed run hides repeated steps."""

    def __init__(self, folder: Path, clock: Clock, /) -> None:
        # Half a second of imports that an evaluation or a config check need not pay.
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.writer import SummaryWriter

        self._summary, self._value = Summary, Summary.Value
        _silence_thread_errors()
        self._folder = folder / "tensorboard"
        with disk_errors(self._folder):
            self._writer = SummaryWriter(str(self._folder), purge_step=clock.step + 1 if clock.step else None)
        self._events: Any = self._writer.file_writer

    def write(self, line: Mapping[str, Any]) -> None:
        """Write the values of a line."""
        # One event with all of them: an add_scalar for each costs ten times as much.
        values = [
            self._value(tag=name, simple_value=value)
            for name, value in line.items()
            if name not in ("step", "samples", "sample_ids") and value is not None
        ]
        with disk_errors(self._folder):
            self._events.add_summary(self._summary(value=values), line["step"])

    def close(self) -> None:
        """Flush and close."""
        # An error here would hide the one that ended the run.
        try:
            self._writer.close()
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder, error.strerror)


@cache
def _silence_thread_errors() -> None:
    """Drop the traceback of a disk error in TensorBoard's thread: the next call raises the same error."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not (type(args.thread).__module__.startswith("tensorboard.") and isinstance(args.exc_value, OSError)):
            before(args)

    threading.excepthook = hook
