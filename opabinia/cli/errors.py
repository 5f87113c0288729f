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
        # Errors whose text says all bring an exit status along; anything else is a crash.
        status = getattr(error, "exit_status", None)
        if not isinstance(status, int):
            raise
        _leave(str(error), status)


def _leave(text: str, status: int) -> None:
    print(f"error: {text}" if "\n" not in text else text, file=sys.stderr)
    raise SystemExit(status)
