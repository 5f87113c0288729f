"""A pseudo-terminal of a given size, and the output of a program on it."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple

SIZES = [(80, 24), (120, 40)]
"""Columns and rows of common terminals."""


class Shown(NamedTuple):
    """The output of a program on its terminal, and its exit status."""

    text: str
    status: int

    @property
    def lines(self) -> list[str]:
        """All lines and frames, without control sequences, padding and empty lines; bars consist of ``━``."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text.replace("\x1b[1A", "\n"))
        plain = re.sub("[╸╺]", "━", plain)
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]

    @property
    def bars(self) -> list[str]:
        """The frames of progress bars."""
        return [line for line in self.lines if re.search(r"  (ETA|in) [?\d]", line)]


def resize(terminal: int, columns: int, rows: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def on_terminal(
    program: Callable[[], object], columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Shown:
    """Run a function in a forked process with a terminal as stdin, stdout and stderr."""
    size_is_set, ready = os.pipe()
    pid, leader = pty.fork()
    if pid == 0:
        status = 1
        try:
            os.read(size_is_set, 1)
            for name in ("COLUMNS", "LINES", "NO_COLOR"):
                os.environ.pop(name, None)
            os.environ.update({"TERM": "xterm", **(environment or {})})
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            program()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    resize(leader, columns, rows)
    os.write(ready, b"1")
    output = b""
    timer = threading.Timer(60, os.kill, (pid, 9))
    timer.start()
    try:
        while part := os.read(leader, 65536):
            output += part
    except OSError:  # Linux: the other end is closed
        pass
    timer.cancel()
    _, status = os.waitpid(pid, 0)
    for descriptor in (leader, size_is_set, ready):
        os.close(descriptor)
    return Shown(output.decode(), os.waitstatus_to_exitcode(status))
