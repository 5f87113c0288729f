"""Programs that tests start, watch, signal and kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Environment variables with which tests control their programs; the config stays the same.
TRACE = "OPABINIA_TEST_TRACE"
"""File to which the hook ``trace`` of :mod:`tests.faults.parts` writes."""
PAUSE = "OPABINIA_TEST_PAUSE"
"""Where the program waits until it may go on: a line of the trace, or ``val sample 40``."""
CRASH = "OPABINIA_TEST_CRASH"
"""A line of the trace at which it fails."""
BROKEN = "OPABINIA_TEST_BROKEN"
"""Index of a training sample that cannot be read."""
SLOW = "OPABINIA_TEST_SLOW"
"""Seconds that each backward pass and each validation sample take."""
ROOM = "OPABINIA_TEST_ROOM"
"""Samples that fit into the memory of the program."""
TURN = "OPABINIA_TEST_TURN"
"""Number of the call that changes files before which the program kills itself (see :mod:`tests.faults.injections`)."""


class Server:
    """Starts programs from a warm process (see ``server.py``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = 0
        self._to_end: list[Program] = []
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,  # Ctrl-C in the tests must not reach it
        )
        assert self._process.stdout and self._process.stdout.readline() == "ready\n"

    def ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        first: Sequence[str] = (),
        function: str | None = None,
        code: str | None = None,
        stderr: str | None = None,
        folder: Path | None = None,
        lasts: bool = False,
    ) -> "Program":
        """Start ``opabinia`` with these arguments, a function named ``module:name`` instead, or some code in the root
        of the repository.

        ``first`` are functions called before; ``stderr`` is a terminal to write to; ``folder`` is the working
        directory. A program that ``lasts`` is not killed when the test that started it ends.
        """
        path = self.folder / f"program-{self._started}"
        request = {
            "arguments": arguments,
            "stdout": str(path.with_suffix(".out")),
            "stderr": stderr or str(path.with_suffix(".err")),
            "folder": str(folder or (ROOT if code else self.folder)),
            "environment": {TRACE: str(path.with_suffix(".trace")), **(environment or {})},
            "first": list(first),
            "function": function,
            "code": code,
        }
        program = Program(self, self.ask(request), path, arguments)
        self._started += 1
        if not lasts:
            self._to_end.append(program)
        return program

    def run(self, *arguments: str, status: int = 0, seconds: float = 60, **options: Any) -> "Program":
        """Start a program, wait for its end and expect this exit status."""
        program = self.start(*arguments, **options)
        program.expect(status, seconds)
        return program

    def end_programs(self) -> None:
        """Kill the remaining processes of a test: programs, and workers that have outlived theirs."""
        while self._to_end:
            program = self._to_end.pop()
            for pid in programs_of_group(program.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            program.wait(10)

    def close(self) -> None:
        self.end_programs()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


class Ended(AssertionError):
    """A program ended while a test waited for a condition."""


class Program:
    """A running or ended program; ``status`` is its exit status once it has been waited for, -9 after SIGKILL."""

    def __init__(self, server: Server, pid: int, path: Path, arguments: Sequence[str]) -> None:
        self.server, self.pid, self.path, self.arguments = server, pid, path, arguments
        self.status: int | None = None

    @property
    def out(self) -> str:
        return self._read(".out")

    @property
    def err(self) -> str:
        return self._read(".err")

    @property
    def trace(self) -> list[str]:
        """The lines of the ``trace`` hook of :mod:`tests.faults.parts`."""
        return self._read(".trace").splitlines()

    def _read(self, suffix: str) -> str:
        path = self.path.with_suffix(suffix)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def wait(self, seconds: float = 60) -> int | None:
        if self.status is None:
            self.status = self.server.ask({"wait": self.pid, "seconds": seconds})
        return self.status

    def expect(self, status: int, seconds: float = 60) -> None:
        actual = self.wait(seconds)
        assert actual == status, f"{self.arguments}: ended with {actual}\n{self.out}\n{self.err}"

    def running(self) -> bool:
        return self.wait(0) is None

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Wait for a condition while the program runs."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"the condition was not met in time\n{self.trace[-3:]}\n{self.err}"
            # Waiting for its end is a request to the server: too slow for every iteration.
            time.sleep(0.0002)
            if not is_alive(self.pid) and not condition():
                raise Ended(f"{self.trace[-3:]}\n{self.err}")

    def until_traced(self, line: str) -> None:
        self.until(lambda: line in self.trace)

    def until_paused(self) -> None:
        self.until(self.path.with_suffix(".paused").exists)

    def unpause(self) -> None:
        """End the pause."""
        self.path.with_suffix(".go").touch()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Signal a paused program, which ends with the status of a run that has saved."""
        self.signal(number)
        self.unpause()
        self.expect(128 + number)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Signal the process group, as a terminal does at Ctrl-C: workers get it, too."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.expect(-signal.SIGKILL)

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split() if is_alive(int(pid))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def programs_of_group(group: int) -> list[int]:
    """Return the living processes of a process group: a program of the server and its workers."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _group(pid) == group and is_alive(pid) and _is_of_server(pid)]


def _is_of_server(pid: int) -> bool:
    """Return whether it is a program of the server; the id of an ended group may have been reused."""
    try:
        return b"tests/faults/server.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _group(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def all_gone(pids: Sequence[int], seconds: float) -> bool:
    """Return whether all these processes end within this number of seconds."""
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small file system in memory; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
