"""The log: ``train.log`` for each rank, the terminal for rank 0 only (in quiet mode: warnings, errors and
results)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opabinia.runtime.files import disk_errors
from opabinia.runtime.processes import is_rank_zero, rank
from opabinia.runtime.quiet import is_quiet, is_repeated
from opabinia.runtime.text import printable

log = logging.getLogger("opabinia")


@contextmanager
def logging_to(folder: Path | None) -> Iterator[None]:
    """Write the log to ``folder/train.log`` (``train.rank1.log`` ...) and, on rank 0, to stderr: once, also in nested
    blocks."""
    handlers: list[logging.Handler] = []
    if folder is not None:
        name = "train.log" if is_rank_zero() else f"train.rank{rank()}.log"
        with disk_errors(folder / name):
            handlers.append(logging.FileHandler(folder / name, encoding="utf-8", errors="backslashreplace"))
        handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%m-%d %H:%M:%S"))
    if is_rank_zero() and not any(isinstance(handler, _Terminal) for handler in log.handlers):
        handlers.append(_Terminal())
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    # A full disk must not turn every later line into a traceback on the terminal.
    raising, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = raising
        for handler in handlers:
            log.removeHandler(handler)
            # On a full disk closing fails again, which would hide the first error.
            with suppress(OSError):
                handler.close()


@contextmanager
def silence() -> Iterator[None]:
    """Disable the log inside the block."""
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler for the terminal; skips long texts (the model, the config), which go to the file only, warnings of
    data that the command has shown before, and in quiet mode all but warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and is_quiet():
            return
        is_known = getattr(record, "once", False) and is_repeated(record.getMessage())
        if not is_known and not getattr(record, "file_only", False):
            self.stream = sys.stderr  # looked up for every line because a progress bar replaces it
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))  # files may hold terminal codes


def log_to_file(title: str, text: str) -> None:
    """Write a long text to the log file only."""
    log.info("%s\n%s", title, text, extra={"file_only": True})


def warn_once(text: str, *arguments: object) -> None:
    """Write a warning of data, which a command may read several times: the terminal shows it once, see
    :func:`opabinia.runtime.quiet.warnings_once`."""
    log.warning(text, *arguments, extra={"once": True})
