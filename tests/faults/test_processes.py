"""Several processes of one run, with all ways to start them; they stop together."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opabinia.runtime.signals import SAME_REQUEST_SECONDS
from tests.faults.launches import Launch
from tests.faults.programs import BROKEN, CRASH, PAUSE, SLOW, Program, all_gone, is_alive
from tests.faults.runs import SAVES, STEPS, Outcome, Run, assert_same, checkpoint, expect, free_port, start

# --- initialization -------------------------------------------------------------------------------------------------

InitMethod = Callable[[int, int, Path], tuple[dict[str, str], list[str]]]
"""Maps a rank, a port and a folder to a process's environment and additional arguments."""


def by_env(rank: int, port: int, folder: Path) -> tuple[dict[str, str], list[str]]:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), **address}, []


def by_tcp(rank: int, port: int, folder: Path) -> tuple[dict[str, str], list[str]]:
    return {"RANK": str(rank), "WORLD_SIZE": "2"}, [f"train.distributed.init=tcp://127.0.0.1:{port}"]


def by_file(rank: int, port: int, folder: Path) -> tuple[dict[str, str], list[str]]:
    return {"RANK": str(rank), "WORLD_SIZE": "2"}, [f"train.distributed.init=file://{folder}/rendezvous"]


def by_slurm(rank: int, port: int, folder: Path) -> tuple[dict[str, str], list[str]]:
    return {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "MASTER_PORT": str(port),  # the default, derived from the job id, would be the same in every test
    }, []


def start_two(run: Run, *overrides: str, environment: dict[str, str] | None = None) -> list[Program]:
    """Start two processes of one run from the warm server."""
    return start(run.server, 2, *run.words, *overrides, environments=[environment or {}])


@pytest.mark.parametrize(
    "init_method", [*(pytest.param(init_method, marks=pytest.mark.slow) for init_method in (by_tcp, by_file)), by_slurm]
)
def test_all_init_methods_give_the_same_run(
    run: Run, two_process_outcome: Outcome, tmp_path: Path, init_method: InitMethod
) -> None:
    port, programs = free_port(), []
    for rank in range(2):
        environment, arguments = init_method(rank, port, tmp_path)
        programs.append(run.start("train.num_threads=1", *arguments, environment=environment))
    expect(programs)
    first, second = programs
    assert_same(Outcome.of(run.folder), two_process_outcome)
    assert "rank 0 of 2 on cpu" in first.err and "val/top1" in first.out
    assert (second.out, second.err) == ("", "")
    assert "rank 1 of 2 on cpu" in (run.folder / "train.rank1.log").read_text()


def test_a_folder_in_use_is_refused_once(run: Run) -> None:
    expect(start_two(run, "train.length=1it"))
    first, second = start_two(run, "train.length=1it")
    expect([first, second], 2)
    assert "holds a run, which is never overwritten" in first.err
    assert len(first.err.splitlines()) == 1
    assert (second.out, second.err) == ("", "")


def test_an_error_of_one_process_is_reported_with_its_rank(run: Run) -> None:
    first, second = start_two(run, environment={BROKEN: "61"})
    second.wait()
    first.wait()
    failed, other = (first, second) if first.status == 2 else (second, first)
    prefix = "[rank 1] " * (failed is second)
    assert (failed.status, other.status) == (2, 1)
    assert f"{prefix}error: sample 61, SomeDigits: OSError: the disk is on fire" in failed.err
    assert "another rank has ended: the connection to it is lost" in other.err
    assert "Traceback" not in first.err + second.err


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_stops_both(run: Run, two_process_outcome: Outcome, rank: int) -> None:
    programs = start_two(run, "train.num_threads=1", environment={SLOW: "0.02"})
    programs[0].until_traced("after_step 6")
    programs[rank].signal(signal.SIGTERM)
    assert "Traceback" not in expect(programs, 143)
    assert run.last_step >= 6
    expect(start_two(run, "train.num_threads=1", "--resume"))
    assert_same(Outcome.of(run.folder), two_process_outcome)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *(pytest.param(number, 143, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGUSR1)),
        (signal.SIGINT, 130),
    ],
    ids=str,
)
def test_a_signal_stops_a_process_that_waits_for_others(run: Run, number: int, status: int) -> None:
    port = free_port()
    program = run.start(environment=by_env(0, port, run.out)[0])
    program.until(lambda: port_is_open(port))
    program.signal(number)
    program.expect(status)
    assert program.err == ""
    assert not run.folder.exists()


def port_is_open(port: int) -> bool:
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)


# --- an agent -------------------------------------------------------------------------------------------------------
# From here on programs are started without the warm server: every worker imports torch.


@pytest.fixture
def launch(recipe: Path, tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    launches: list[Launch] = []

    def start(*arguments: str, nproc: str = "2", environment: dict[str, str] | None = None) -> Launch:
        options = ["--nproc", nproc, "--rdzv-endpoint", "auto"]
        train = ["opabinia", "train", str(recipe), "train.num_threads=1", "--out", str(tmp_path)]
        launches.append(Launch(tmp_path, *train, *options, *arguments, environment=environment))
        return launches[-1]

    yield start
    for program in launches:
        program.end()


Start = Callable[..., Launch]


@pytest.mark.slow
def test_nproc_and_torchrun_are_the_same(
    launch: Start, recipe: Path, two_process_outcome: Outcome, tmp_path: Path
) -> None:
    by_nproc = launch()
    by_nproc.expect(0)
    assert_same(Outcome.of(by_nproc.run), two_process_outcome)
    assert by_nproc.out.count("csv,") == 1
    assert by_nproc.err.count("rank 0 of 2") == 1 and "WARNING" not in by_nproc.err and "torch" not in by_nproc.err
    folder = tmp_path / "torchrun"
    folder.mkdir()
    command = ["opabinia", "train", str(recipe), "train.num_threads=1", "--out", str(folder)]
    by_torchrun = Launch(folder, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *command)
    try:
        by_torchrun.expect(0)
        assert_same(Outcome.of(by_torchrun.run), two_process_outcome)
    finally:
        by_torchrun.end()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "step"), [(0, SAVES[1] + 1), (1, 2)])
def test_a_run_continues_after_a_worker_was_killed(
    launch: Start, two_process_outcome: Outcome, rank: int, step: int
) -> None:
    """Before the first checkpoint it restarts from the beginning, later from the last checkpoint."""
    program = launch(environment={SLOW: "0.05"})
    program.until_step(step)
    os.kill(program.workers()[rank], signal.SIGKILL)
    program.expect(0)
    assert_same(Outcome.of(program.run), two_process_outcome)
    assert len(re.findall(r"process \d+ was killed by SIGKILL: restarting all workers", program.err)) == 1
    assert "Traceback" not in program.err
    starts = [line for line in program.trace if line.startswith("start ")]
    assert starts[:2] == ["start 0"] * 2
    assert starts[2:] == [f"start {max([save for save in SAVES if save <= step], default=0)}"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)], ids=str
)
def test_a_signal_to_the_agent_saves(
    launch: Start, run: Run, two_process_outcome: Outcome, number: int, status: int
) -> None:
    program = launch(environment={SLOW: "0.05"})
    program.until_step(6)
    workers = program.workers()
    assert len(workers) == 2
    os.killpg(program.process.pid, number)  # a terminal's Ctrl-C; the workers have sessions of their own
    program.expect(status)
    assert all_gone(workers, 0)
    assert 6 <= run.last_step < STEPS and (checkpoint(run.folder, run.last_step) / "state.json").exists()
    assert "restarting all workers" not in program.err and "Traceback" not in program.err
    assert program.err.count("saving after this step") == 1
    launch("--resume").expect(0)
    assert_same(Outcome.of(run.folder), two_process_outcome)


@pytest.mark.slow
def test_a_second_signal_to_the_agent_stops_at_once(launch: Start) -> None:
    program = launch(environment={PAUSE: "after_backward 6"})
    program.until(lambda: (program.folder / "trace").with_suffix(".paused").exists())
    workers = program.workers()
    program.process.send_signal(signal.SIGTERM)
    time.sleep(SAME_REQUEST_SECONDS + 0.5)
    assert all(map(is_alive, workers)), "they would save at the end of the step"
    program.process.send_signal(signal.SIGTERM)
    program.expect(143, 10)
    assert all_gone(workers, 0)
    assert "restarting all workers" not in program.err


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 1.0, 3.0, 5.0])
def test_a_signal_during_startup(launch: Start, delay: float) -> None:
    program = launch()
    time.sleep(delay)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(60) in ((143, -signal.SIGTERM) if delay == 0 else (143,)), program.err
    assert "Traceback" not in program.err and "restarting all workers" not in program.err


@pytest.mark.slow
def test_workers_end_with_their_agent(launch: Start, run: Run, two_process_outcome: Outcome) -> None:
    program = launch(environment={SLOW: "0.05"})
    program.until_step(6)
    workers = program.workers()
    program.process.kill()
    assert all_gone(workers, 20)
    assert run.last_step > SAVES[0], "they have saved"
    launch("--resume").expect(0)
    assert_same(Outcome.of(run.folder), two_process_outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "status", "message", "count", "restarts"),
    [
        ((), {BROKEN: "61"}, 2, "error: sample 61, SomeDigits: OSError: the disk is on fire", (1,), 0),
        (
            *(("--max-restarts", "1"), {CRASH: "after_step 2"}, 1),
            *("RuntimeError: crashed at after_step 2", (2, 4), 1),  # one or both processes
        ),
        (("data.val.source=no_such_part", "optimizer.lr=fast"), {}, 2, "\n", (2,), 0),
    ],
    ids=["deterministic error", "repeated crash", "config"],
)
def test_an_error_is_reported_once_for_each_attempt(
    launch: Start,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    status: int,
    message: str,
    count: tuple[int, ...],
    restarts: int,
) -> None:
    program = launch(*arguments, environment=environment)
    program.expect(status)
    assert program.err.count(message) in count
    assert program.err.count("restarting all workers") == restarts
    assert restarts or "Traceback" not in program.err


@pytest.mark.slow
def test_a_run_of_another_launch_is_not_resumed(launch: Start) -> None:
    launch("train.length=5it").expect(0)
    program = launch("train.length=5it")
    program.expect(2)
    assert "holds a run, which is never overwritten" in program.err
    assert len(program.err.splitlines()) == 1


@pytest.mark.slow
def test_a_port_in_use_is_reported(recipe: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        options = ["--out", str(tmp_path), "--nproc", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        program = Launch(tmp_path, "opabinia", "train", str(recipe), *options)
        program.expect(2)
    assert re.fullmatch(
        rf"error: cannot listen at 127.0.0.1:{port}: it is taken, .*--rdzv-endpoint auto .*\n", program.err
    )
