"""Training on several hosts, which lose their connection, leave and join during a run."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.launches import Hosts, Launch, connected_hosts
from tests.faults.programs import all_gone
from tests.faults.runs import MANY_STEPS, Outcome, Run, assert_same, steps

pytestmark = pytest.mark.slow

SECONDS = 1200
"""Timeout: a lost host is given up after a minute, and a busy machine starts programs slowly."""

# --- two hosts --------------------------------------------------------------------------------------------------------


def two_hosts(recipe: Path, folder: Path) -> Hosts:
    return Hosts(recipe, folder, "--nnodes", "2", "--rdzv-endpoint", f"{Hosts.address(1)}:29500", slow=0.1)


def launch_two(hosts: Hosts) -> tuple[Launch, Launch]:
    first, second = (hosts.launch(number, "--node-rank", str(number - 1)) for number in (1, 2))
    first.until_step(11)
    return first, second


def test_a_run_survives_a_network_outage(recipe: Path, two_process_outcome: Outcome, tmp_path: Path) -> None:
    with connected_hosts(two_hosts(recipe, tmp_path), 2) as hosts:
        first, second = launch_two(hosts)
        hosts.unplug(1)
        time.sleep(1)  # a step that needs no more communication may still end
        before = first.trace
        time.sleep(5)
        assert first.trace == before and second.process.poll() is None, "no step is done, no process ends"
        hosts.plug(1)
        for program in (first, second):
            program.expect(0)
            assert "restarting all workers" not in program.err and "Traceback" not in program.err
    assert_same(Outcome.of(first.run), two_process_outcome)


def test_both_hosts_stop_if_an_agent_dies(recipe: Path, two_process_outcome: Outcome, tmp_path: Path) -> None:
    """Its workers get a stop signal, so all processes stop, and the next start resumes."""
    with connected_hosts(two_hosts(recipe, tmp_path), 2) as hosts:
        first, second = launch_two(hosts)
        workers = [*first.workers(), *second.workers()]
        first.process.kill()
        second.process.wait(120)
        assert all_gone(workers, 20)
        assert second.process.returncode == 143, second.err
    command = ["opabinia", "train", str(recipe), "train.num_threads=1", "--out", str(tmp_path), "--resume"]
    resumed = Launch(tmp_path, *command, "--nproc", "2", "--rdzv-endpoint", "auto")
    resumed.expect(0)
    assert_same(Outcome.of(resumed.run), two_process_outcome)


# --- three hosts, of which some leave and join ------------------------------------------------------------------------


def three_hosts(recipe: Path, folder: Path, *options: str) -> Hosts:
    endpoint = f"{Hosts.address(3)}:29500"
    return Hosts(
        *(recipe, folder, "--nnodes", "1:3", "--resume", "auto", "--rdzv-endpoint", endpoint, *options), slow=0.4
    )


def launch_three(hosts: Hosts) -> list[Launch]:
    """Launch the host of the rendezvous last: a busy machine may start it long before the others."""
    first, second = hosts.launch(1), hosts.launch(2)
    second.until(lambda: "waiting for" in first.err and "waiting for" in second.err, SECONDS)
    return [first, second, hosts.launch(3)]


def starts(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "world_size" in line]


def assert_as_uninterrupted(folder: Path, expected: Path) -> None:
    assert [line["step"] for line in steps(folder)] == list(range(1, MANY_STEPS + 1)), "each step counts once"
    for line, expected_line in zip(steps(folder), steps(expected), strict=True):
        assert line["sample_ids"] == expected_line["sample_ids"]
        assert line["train/loss"] == pytest.approx(expected_line["train/loss"], rel=1e-4)


def test_a_lost_host_rejoins(many_run: Run, one_process_run: Path) -> None:
    hosts = three_hosts(many_run.recipe, many_run.out, "--max-restarts", "0")
    with connected_hosts(hosts, 3):
        first, second, third = launch_three(hosts)
        first.until(lambda: "after_step 7" in first.trace, SECONDS)
        hosts.turn_off(1)  # rank 0, after the checkpoint of step 5
        first.process.wait(10)
        second.until(lambda: second.trace.count("start 5") == 1, SECONDS)
        second.until(lambda: second.trace.count("after_step 9") == 1, SECONDS)
        rejoined = hosts.launch(1)
        for program in (second, third, rejoined):
            program.expect(0, SECONDS)
    assert_as_uninterrupted(many_run.folder, one_process_run)
    sizes = [(line["world_size"], line["micro_batch_size"]) for line in starts(many_run.folder)]
    assert sizes == [(3, 11), (2, 11), (3, 11)]
    assert "start 0" not in rejoined.trace and len(rejoined.trace) > 2, "it has trained, but not from the beginning"


def test_hosts_leave_after_a_notice(many_run: Run, one_process_run: Path) -> None:
    """One of them hosts the rendezvous: the others wait until it is back."""
    hosts = three_hosts(many_run.recipe, many_run.out)
    with connected_hosts(hosts, 3):
        first, second, third = launch_three(hosts)
        for program, witness, step in ((first, first, 2), (third, second, 7)):
            witness.until(lambda witness=witness, step=step: f"after_step {step}" in witness.trace, SECONDS)
            program.process.send_signal(signal.SIGTERM)
            program.expect(143, SECONDS)
        second.until(lambda: "waiting for machine 0 to come back" in second.err, SECONDS)
        for program in (hosts.launch(3), second):
            program.expect(0, SECONDS)
    assert_as_uninterrupted(many_run.folder, one_process_run)
    assert [line["world_size"] for line in starts(many_run.folder)][:2] == [3, 2]
    steps_done = [line for line in second.trace if line.startswith("after_step")]
    assert steps_done == [f"after_step {step}" for step in range(1, MANY_STEPS + 1)], "all have saved"
