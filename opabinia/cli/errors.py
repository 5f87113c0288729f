"""How errors leave the program: a clear message and an exit status, no traceback for what a user can mend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def report_errors() -> Iterator[None]:
    """Print what a user can mend and exit: 2 for configs, arguments and data, 1 for a disk or numbers gone wrong.

    Ctrl-C, where nothing runs yet that would have to be saved, exits with 130 and prints nothing.
    """
    from opabinia.config import ConfigError

    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ConfigError as error:
        _leave("\n".join(str(problem) for problem in error.problems), 2)
    except Exception as error:
        status = _known(error)
        if status is None:
            raise
        _leave(str(error), status)


def _known(error: Exception) -> int | None:
    """The exit status of an error whose text says all; None for a crash. The classes are not imported to be compared:
    an error can only be of one if its module is loaded."""
    statuses = {"DataError": 2, "InUse": 2, "DiskError": 1, "NonFinite": 1}
    return next((statuses[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in statuses), None)


def _leave(text: str, status: int) -> None:
    print(f"error: {text}" if "\n" not in text else text, file=sys.stderr)
    raise SystemExit(status)
