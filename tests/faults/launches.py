"""Programs started without the warm server: an agent's workers cannot be forked from a warm process."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.programs import ROOT, SLOW, TRACE, is_alive


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


# --- several hosts ----------------------------------------------------------------------------------------------------


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Hosts:
    """Network namespaces connected by a bridge; programs on them end with the block of :func:`connected_hosts`."""

    def __init__(self, recipe: Path, folder: Path, *options: str, slow: float) -> None:
        self._recipe, self._folder, self._options, self._slow = recipe, folder, options, slow
        self.programs: list[Launch] = []

    @staticmethod
    def name(number: int) -> str:
        return f"opabinia-{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.32.{number}"

    def launch(self, number: int, *options: str) -> Launch:
        """Launch the run with one process on a host, counted from 1."""
        command = ["opabinia", "train", str(self._recipe), "train.num_threads=1", "--out", str(self._folder)]
        launch = Launch(
            self._folder,
            *(*command, "--nproc", "1", *self._options, *options),
            environment={SLOW: str(self._slow)},
            within=["ip", "netns", "exec", self.name(number)],
            name=f"{number}-{len(self.programs)}-",
        )
        self.programs.append(launch)
        return launch

    def unplug(self, number: int) -> None:
        ip("-n", self.name(number), "link", "set", "cable", "down")

    def plug(self, number: int) -> None:
        ip("-n", self.name(number), "link", "set", "cable", "up")

    def turn_off(self, number: int) -> None:
        """Kill every process of a host."""
        for pid in ip("netns", "pids", self.name(number)).split():
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def connected_hosts(hosts: Hosts, count: int) -> Iterator[Hosts]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and the program ip")
    switch, names = "opabinia-switch", [hosts.name(number) for number in range(1, count + 1)]
    for name in (switch, *names):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)  # left by a test that was killed
    try:
        for name in (switch, *names):
            ip("netns", "add", name)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            port = f"port-{number}"
            ip("link", "add", port, "netns", switch, "type", "veth", "peer", "name", "cable", "netns", name)
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "addr", "add", hosts.address(number) + "/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        yield hosts
    finally:
        for program in hosts.programs:
            program.end()
        for name in (switch, *names):
            ip("netns", "del", name)
