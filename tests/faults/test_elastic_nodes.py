"""Elastic training on three hosts, which leave and join during a run: network namespaces connected by a bridge."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.launches import Launch
from tests.faults.many import STEPS, steps
from tests.faults.programs import SLOW
from tests.faults.test_hosts import ip

SWITCH, HOSTS = "opabinia-switch", ("opabinia-1", "opabinia-2", "opabinia-3")
ADDRESS = "10.77.32.{}"
SECONDS = 1200
"""Timeout: a lost host is given up after a minute, and a busy machine starts programs slowly."""


@pytest.fixture
def hosts() -> Iterator[None]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and the program ip")
    for name in (SWITCH, *HOSTS):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)  # left by a test that was killed
    try:
        for name in (SWITCH, *HOSTS):
            ip("netns", "add", name)
        ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "bridge", "up")
        for number, host in enumerate(HOSTS, 1):
            port = f"port-{number}"
            ip("link", "add", port, "netns", SWITCH, "type", "veth", "peer", "name", "cable", "netns", host)
            ip("-n", SWITCH, "link", "set", port, "master", "bridge", "up")
            ip("-n", host, "addr", "add", ADDRESS.format(number) + "/24", "dev", "cable")
            ip("-n", host, "link", "set", "cable", "up")
            ip("-n", host, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield
    for name in (SWITCH, *HOSTS):
        ip("netns", "del", name)


@pytest.fixture
def programs(hosts: None) -> Iterator[list[Launch]]:
    """The programs of a test, which end with it."""
    started: list[Launch] = []
    yield started
    for program in started:
        program.end()


def launch_on_host(recipe: Path, folder: Path, number: int, *options: str, attempt: int = 1) -> Launch:
    """Launch the same command on every host; the last one hosts the rendezvous."""
    command = ["opabinia", "train", str(recipe), "--out", str(folder), "--nproc", "1", "--nnodes", "1:3"]
    command += ["--resume", "auto"]
    return Launch(
        folder,
        *(*command, "--rdzv-endpoint", f"{ADDRESS.format(3)}:29500", *options),
        environment={SLOW: "0.4"},
        within=["ip", "netns", "exec", HOSTS[number - 1]],
        name=f"{number}-{attempt}-",
    )


def launch_all(programs: list[Launch], recipe: Path, folder: Path, *options: str) -> None:
    """Launch the host of the rendezvous last: a busy machine may start it long before the others."""
    programs += [launch_on_host(recipe, folder, number, *options) for number in (1, 2)]
    first, second = programs
    second.until(lambda: "waiting for" in first.err and "waiting for" in second.err, SECONDS)
    programs.append(launch_on_host(recipe, folder, 3, *options))


def launch_uninterrupted(recipe: Path, folder: Path) -> Launch:
    return Launch(folder, "opabinia", "train", str(recipe), "--out", str(folder), "--name", "uninterrupted")


def turn_off(number: int) -> None:
    """Kill every process of a host."""
    words = subprocess.run(["ip", "netns", "pids", HOSTS[number - 1]], check=True, capture_output=True, text=True)
    for pid in words.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


def starts(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "world_size" in line]


def assert_as_uninterrupted(folder: Path) -> None:
    assert [line["step"] for line in steps(folder)] == list(range(1, STEPS + 1)), "each step counts once"
    for line, expected in zip(steps(folder), steps(folder.with_name("uninterrupted")), strict=True):
        assert line["sample_ids"] == expected["sample_ids"]
        assert line["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4)


@pytest.mark.slow
def test_a_lost_host_rejoins(programs: list[Launch], multi_process_recipe: Path, tmp_path: Path) -> None:
    launch_all(programs, multi_process_recipe, tmp_path, "--max-restarts", "0")
    first, second, third = programs
    first.until(lambda: "after_step 7" in first.trace, SECONDS)
    turn_off(1)  # rank 0, after the checkpoint of step 5
    first.process.wait(10)
    programs.append(launch_uninterrupted(multi_process_recipe, tmp_path))
    second.until(lambda: second.trace.count("start 5") == 1, SECONDS)
    second.until(lambda: second.trace.count("after_step 9") == 1, SECONDS)
    rejoined = launch_on_host(multi_process_recipe, tmp_path, 1, attempt=2)
    programs.append(rejoined)
    for program in (second, third, *programs[3:]):
        program.expect(0, SECONDS)
    run = tmp_path / "together" / "default"
    assert_as_uninterrupted(run)
    assert [(line["world_size"], line["micro_batch_size"]) for line in starts(run)] == [(3, 11), (2, 11), (3, 11)]
    assert "start 0" not in rejoined.trace and len(rejoined.trace) > 2, "it has trained, but not from the beginning"


@pytest.mark.slow
def test_hosts_leave_after_a_notice(programs: list[Launch], multi_process_recipe: Path, tmp_path: Path) -> None:
    """One of them hosts the rendezvous: the others wait until it is back."""
    launch_all(programs, multi_process_recipe, tmp_path)
    first, second, third = programs
    first.until(lambda: "after_step 2" in first.trace, SECONDS)
    first.process.send_signal(signal.SIGTERM)
    first.expect(143, SECONDS)
    second.until(lambda: "after_step 7" in second.trace, SECONDS)
    third.process.send_signal(signal.SIGTERM)
    third.expect(143, SECONDS)
    second.until(lambda: "waiting for machine 0 to come back" in second.err, SECONDS)
    programs.append(launch_on_host(multi_process_recipe, tmp_path, 3, attempt=2))
    programs.append(launch_uninterrupted(multi_process_recipe, tmp_path))
    for program in (second, *programs[3:]):
        program.expect(0, SECONDS)
    run = tmp_path / "together" / "default"
    assert_as_uninterrupted(run)
    assert [line["world_size"] for line in starts(run)][:2] == [3, 2]
    steps_done = [line for line in second.trace if line.startswith("after_step")]
    assert steps_done == [f"after_step {step}" for step in range(1, STEPS + 1)], "all have saved: no step is repeated"
