"""Two hosts: network namespaces connected by a link that can be taken down."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.launches import Launch
from tests.faults.programs import SLOW, all_gone
from tests.faults.runs import Outcome, assert_same

HOSTS = ("opabinia-a", "opabinia-b")
ADDRESS = "10.77.31.{}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and the program ip")
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)  # left by a test that was killed
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "cable-a", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable-b", "netns", HOSTS[1])
        for number, host in enumerate(HOSTS):
            cable = f"cable-{'ab'[number]}"
            ip("-n", host, "addr", "add", ADDRESS.format(number + 1) + "/24", "dev", cable)
            ip("-n", host, "link", "set", cable, "up")
            ip("-n", host, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield
    for host in HOSTS:
        ip("netns", "del", host)


def launch_on_hosts(recipe: Path, folder: Path) -> list[Launch]:
    """Launch the same command on both hosts, with their node ranks."""
    common = ["opabinia", "train", str(recipe), "train.num_threads=1", "--out", str(folder), "--nproc", "1"]
    rendezvous = ["--nnodes", "2", "--rdzv-endpoint", f"{ADDRESS.format(1)}:29500"]
    return [
        Launch(
            folder,
            *(*common, *rendezvous, "--node-rank", str(number)),
            environment={SLOW: "0.1"},
            within=["ip", "netns", "exec", host],
            name=f"{host}-",
        )
        for number, host in enumerate(HOSTS)
    ]


@pytest.mark.slow
def test_a_run_survives_a_network_outage(
    hosts: None, recipe: Path, two_process_outcome: Outcome, tmp_path: Path
) -> None:
    programs = launch_on_hosts(recipe, tmp_path)
    try:
        first, second = programs
        first.until_step(11)
        ip("-n", HOSTS[0], "link", "set", "cable-a", "down")
        time.sleep(1)  # a step that needs no more communication may still end
        before = first.trace
        time.sleep(5)
        assert first.trace == before and second.process.poll() is None, "no step is done, no process ends"
        ip("-n", HOSTS[0], "link", "set", "cable-a", "up")
        first.expect(0)
        second.expect(0)
    finally:
        for program in programs:
            program.end()
    assert_same(Outcome.of(first.run), two_process_outcome)
    for program in programs:
        assert "restarting all workers" not in program.err and "Traceback" not in program.err


@pytest.mark.slow
def test_both_hosts_stop_if_an_agent_dies(
    hosts: None, recipe: Path, two_process_outcome: Outcome, tmp_path: Path
) -> None:
    """Its workers get a stop signal, so all processes stop, and the next start resumes."""
    programs = launch_on_hosts(recipe, tmp_path)
    try:
        first, second = programs
        first.until_step(11)
        workers = [*first.workers(), *second.workers()]
        first.process.kill()
        second.process.wait(120)
        assert all_gone(workers, 20)
        assert second.process.returncode == 143, second.err
    finally:
        for program in programs:
            program.end()
    resumed = Launch(
        tmp_path,
        "opabinia",
        "train",
        str(recipe),
        "train.num_threads=1",
        "--out",
        str(tmp_path),
        "--resume",
        "--nproc",
        "2",
        "--rdzv-endpoint",
        "auto",
    )
    resumed.expect(0)
    assert_same(Outcome.of(resumed.run), two_process_outcome)
