"""Programs started without the warm server: an agent's workers cannot be forked from a warm process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.programs import ROOT, TRACE, is_alive


class Launch:
    """``python -m ...`` in its own session.

    Args:
        folder: output folder; ``--out`` of the command.
        command: arguments after ``-m``.
        environment: additional variables.
        within: a command that runs it, such as ``ip netns exec host``.
        name: prefix of its own files in ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        *command: str,
        environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
        name: str = "",
    ) -> None:
        self.folder = folder
        self.run = folder / "faults" / "default"
        self._trace = folder / f"{name}trace"
        self._out, self._err = folder / f"{name}out", folder / f"{name}err"
        keep = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", *command],
                env={**keep, "PYTHONPATH": str(ROOT), TRACE: str(self._trace), **(environment or {})},
                cwd=folder,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def trace(self) -> list[str]:
        return self._trace.read_text().splitlines() if self._trace.exists() else []

    def workers(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split() if is_alive(int(pid))]

    def until(self, condition: Callable[[], object], seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, f"{self.trace[-3:]}\n{self.err}"
            time.sleep(0.005)

    def until_step(self, step: int) -> None:
        self.until(lambda: f"after_step {step}" in self.trace)

    def expect(self, status: int, seconds: float = 120) -> None:
        actual = self.process.wait(seconds)
        assert actual == status, f"{actual}\n{self.out}\n{self.err}"

    def end(self) -> None:
        workers = self.workers() if self.process.poll() is None else []
        for pid in [*workers, self.process.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
