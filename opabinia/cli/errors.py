"""Errors of commands: a clear message and an exit status, without traceback where the user can fix the cause."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import repr as shortened
from typing import TYPE_CHECKING, NoReturn

from opabinia.runtime.elastic_agent import report_exit_status
from opabinia.runtime.slurm import launched_rank

if TYPE_CHECKING:
    from opabinia.config import ConfigError


@contextmanager
def report_errors() -> Iterator[None]:
    """Print errors that the user can fix and exit: 2 for config, arguments and data, 1 for disk and non-finite values.

    With Python's development mode (``PYTHONDEVMODE=1``) the traceback of a config error and of its cause comes first.
    Ctrl-C before a run has begun exits with 130 and prints nothing. Rank 0 prints the message of an error that all
    ranks share.
    """
    from opabinia.config import ConfigError

    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        # Before the ranks have joined they all read the same config; afterwards they have compared.
        on_all_ranks = getattr(error, "on_all_ranks", isinstance(error, ConfigError))
        silent = on_all_ranks and launched_rank(os.environ) > 0
        if isinstance(error, ConfigError):
            if sys.flags.dev_mode and not silent:
                traceback.print_exception(error)
            leave(2, "" if silent else "\n".join(str(problem) for problem in error.problems))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            leave(2, "" if silent else f"{shortened(str(error.filename))}: the path is too long")
        # Errors whose text is enough have an exit status; anything else is a crash.
        status = getattr(error, "exit_status", None)
        if isinstance(status, int):
            leave(status, "" if silent else str(error), final=not getattr(error, "temporary", False))
        if silent:
            raise SystemExit(1) from None
        # gloo reports that another rank has ended: that rank knows why, a traceback here does not help.
        if isinstance(error, RuntimeError) and "gloo" in str(error) and "onnection" in str(error):
            _print_error("another rank has ended: the connection to it is lost")
            raise SystemExit(1) from None
        raise


def option_error(option: str, message: str) -> ConfigError:
    """Return the error of a command line option."""
    from opabinia.config import ConfigError, Problem

    return ConfigError(Problem("command line", option, message))


def leave(status: int, text: str = "", *, final: bool = True) -> NoReturn:
    """Print ``text`` and exit with ``status``. The elastic agent restarts this rank unless it is ``final``."""
    if text:
        _print_error(text)
    raise SystemExit(report_exit_status(status) if final else status)


def _print_error(text: str) -> None:
    rank = launched_rank(os.environ)
    prefix = f"[rank {rank}] " if rank else ""
    print(f"{prefix}error: {text}" if "\n" not in text else prefix + text, file=sys.stderr)
