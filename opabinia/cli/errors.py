"""How errors leave the program: a clear message and an exit status, no traceback for what a user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from opabinia.runtime.elastic_agent import leave_word
from opabinia.runtime.slurm import told_rank


@contextmanager
def report_errors() -> Iterator[None]:
    """Print what a user can mend and exit: 2 for configs, arguments and data, 1 for a disk or numbers gone wrong.

    Ctrl-C, where nothing runs yet that would have to be saved, exits with 130 and prints nothing. An error that many
    processes have alike is told by the first.
    """
    from opabinia.config import ConfigError

    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        # Before the processes have joined they all read the same config; afterwards they have compared.
        alike = getattr(error, "alike", isinstance(error, ConfigError))
        silent = alike and told_rank(os.environ) > 0
        if isinstance(error, ConfigError):
            leave(2, "" if silent else "\n".join(str(problem) for problem in error.problems))
        # Errors whose text says all bring an exit status along; anything else is a crash.
        status = getattr(error, "exit_status", None)
        if isinstance(status, int):
            leave(status, "" if silent else str(error), final=not getattr(error, "passing", False))
        if silent:
            raise SystemExit(1) from None
        if _is_lost_connection(error):
            _tell("another process has gone: the connection to it is lost")
            raise SystemExit(1) from None
        raise


def leave(status: int, text: str = "", *, final: bool = True) -> NoReturn:
    """Exit with ``status``, having told ``text``. An agent makes another attempt unless it is ``final``."""
    if text:
        _tell(text)
    raise SystemExit(leave_word(status) if final else status)


def _tell(text: str) -> None:
    rank = told_rank(os.environ)
    place = f"[rank {rank}] " if rank else ""
    print(f"{place}error: {text}" if "\n" not in text else place + text, file=sys.stderr)


def _is_lost_connection(error: Exception) -> bool:
    """Whether gloo says that another process has ended: that one knows why, this one's traceback does not help."""
    text = str(error)
    return isinstance(error, RuntimeError) and "gloo" in text and "onnection" in text
