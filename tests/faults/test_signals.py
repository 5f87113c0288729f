"""Stop signals: the run saves, ends with the right exit status, and resumes exactly."""

import json
import signal
import time
from pathlib import Path

import pytest

from opabinia.runtime.signals import SAME_REQUEST_SECONDS
from tests.faults.programs import PAUSE, SLOW, Program, Server, all_gone, is_alive
from tests.faults.runs import EVALUATIONS, STEPS, Outcome, assert_same, checkpoint, metrics


def last_step(folder: Path) -> int:
    return int((folder / "checkpoints" / "last").read_text().strip().removeprefix("step-"))


def evaluated(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if "val/top1" in line]


def state(folder: Path, step: int) -> dict[str, object]:
    state: dict[str, object] = json.loads((checkpoint(folder, step) / "state.json").read_text())
    return state


def start_paused(server: Server, moment: str, *arguments: str) -> Program:
    """Start a program that pauses at this moment."""
    program = server.start(*arguments, environment={PAUSE: moment})
    program.until_paused()
    return program


def test_sigusr1_stops_like_sigterm(server: Server, recipe: Path, tmp_path: Path) -> None:
    program = start_paused(
        server, "after_backward 6", "train", str(recipe), "--out", str(tmp_path), "data.num_workers=1"
    )
    program.signal_group(signal.SIGUSR1)  # srun sends it to all processes
    program.unpause()
    program.expect(143)
    assert last_step(tmp_path / "faults" / "default") == 7


@pytest.mark.parametrize("step", [*(pytest.param(step, marks=pytest.mark.slow) for step in (7, 12, 30)), 15])
def test_sigterm_saves_and_the_run_resumes(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, step: int
) -> None:
    """In an ordinary step, in a step that writes a line, and in the last step of an epoch and of the run."""
    program = start_paused(server, f"after_backward {step - 1}", "train", str(recipe), "--out", str(tmp_path))
    program.signal(signal.SIGTERM)
    program.unpause()
    program.expect(143)
    folder = tmp_path / "faults" / "default"
    assert last_step(folder) == step
    assert f"stopped: SIGTERM; to resume: opabinia train {folder} --resume" in program.err
    assert "Traceback" not in program.err
    assert program.trace[-1] == "finish stopped"
    assert not (folder / "results.json").exists()
    server.run("train", str(folder), "--resume", "data.num_workers=1")
    assert_same(Outcome.of(folder), uninterrupted)


def test_ctrl_c_reaches_the_whole_group(server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    program = start_paused(
        server, "after_backward 11", "train", str(recipe), "--out", str(tmp_path), "data.num_workers=2"
    )
    workers = program.children()
    assert len(workers) == 4
    program.signal_group(signal.SIGINT)
    program.unpause()
    program.expect(130)
    assert all_gone(workers, 1)
    assert "Traceback" not in program.err
    folder = tmp_path / "faults" / "default"
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume", "data.num_workers=0")
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_second_signal_stops_immediately(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    program = start_paused(
        server, "after_backward 8", "train", str(recipe), "--out", str(tmp_path), "data.num_workers=1"
    )
    workers = program.children()
    program.signal(signal.SIGTERM)
    time.sleep(0.5)
    program.signal(signal.SIGTERM)
    time.sleep(SAME_REQUEST_SECONDS)
    assert program.running(), "two signals in short succession count as one, which waits for the end of the step"
    began = time.monotonic()
    program.signal(signal.SIGTERM)
    program.expect(143, 10)
    assert time.monotonic() - began < 5
    assert all_gone(workers, 1)
    folder = tmp_path / "faults" / "default"
    assert last_step(folder) <= 8
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


@pytest.mark.slow
def test_a_second_signal_during_a_save(server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    """Both arrive while the checkpoint of step 5 is written: the program does not wait for it."""
    program = server.start(
        *("train", str(recipe), "--out", str(tmp_path)), first=["tests.faults.injections:signalled_in_a_save"]
    )
    program.expect(143)
    folder = tmp_path / "faults" / "default"
    assert [path.suffix for path in (folder / "checkpoints").iterdir()] == [".tmp"]
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_during_a_save_completes_it(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, signum: int
) -> None:
    slow = ["tests.faults.injections:slow_saves"]
    program = server.start(
        *("train", str(recipe), "--out", str(tmp_path)), environment={PAUSE: "after_backward 5"}, first=slow
    )
    program.until_paused()
    program.signal(signum)
    program.unpause()
    program.expect(128 + signum)
    folder = tmp_path / "faults" / "default"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "last", "step-00000005", "step-00000006",
    ]  # fmt: skip
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_signal_before_the_first_step_saves_nothing(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    program = start_paused(server, "start 0", "train", str(recipe), "--out", str(tmp_path))
    program.signal(signal.SIGTERM)
    program.unpause()
    program.expect(143)
    folder = tmp_path / "faults" / "default"
    assert list((folder / "checkpoints").iterdir()) == []
    assert program.trace == ["start 0", "finish stopped"]
    resumed = server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert "starting from the beginning" in resumed.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_signal_before_the_first_step_of_a_resumed_run(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    first = start_paused(server, "after_backward 12", "train", str(recipe), "--out", str(tmp_path))
    first.until(lambda: last_step(tmp_path / "faults" / "default") == 10)  # a thread writes it
    first.kill()
    program = start_paused(server, "start 10", "train", str(recipe), "--out", str(tmp_path), "--resume")
    program.signal(signal.SIGTERM)
    program.unpause()
    program.expect(143)
    assert program.trace == ["start 10", "finish stopped"]
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(tmp_path / "faults" / "default"), uninterrupted)


@pytest.mark.parametrize(
    ("evaluation", "moment"),
    [
        (8, "val sample 50"),
        *(pytest.param(step, f"before_phase evaluate {step}", marks=pytest.mark.slow) for step in EVALUATIONS),
    ],
)
def test_an_interrupted_evaluation_is_repeated(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, evaluation: int, moment: str
) -> None:
    """Steps 8 and 23 have no other checkpoint, 15 and 30 end an epoch and were saved just before."""
    program = start_paused(server, moment, "train", str(recipe), "--out", str(tmp_path))
    program.signal(signal.SIGTERM)
    program.unpause()
    program.expect(143)
    folder = tmp_path / "faults" / "default"
    assert last_step(folder) == evaluation
    assert state(folder, evaluation)["due"] == ["after_phase" if evaluation % 15 == 0 else "after_step", "save"]
    assert evaluated(folder) == [step for step in EVALUATIONS if step < evaluation]
    resumed = server.run("train", str(recipe), "--out", str(tmp_path), "--resume", "data.num_workers=2")
    assert resumed.trace[1] == f"before_phase evaluate {evaluation}"
    assert_same(Outcome.of(folder), uninterrupted)
    assert evaluated(folder) == list(EVALUATIONS)


@pytest.mark.slow
def test_repeated_signals(server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    """Each attempt does at most a few steps."""
    folder = tmp_path / "faults" / "default"
    steps = []
    for attempt in range(8):
        program = server.start(
            *("train", str(recipe), "--out", str(tmp_path)), *["--resume"] * bool(attempt), environment={SLOW: "0.01"}
        )
        program.until(lambda program=program: len(program.trace) > 2)
        program.signal(signal.SIGTERM)
        program.expect(143)
        steps.append(last_step(folder) if (folder / "checkpoints" / "last").exists() else 0)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < STEPS
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


def test_the_time_limit_ends_a_run_with_status_0(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    limit = "hooks.time_limit={max_time: 0.0001h}"  # 0.36 s
    program = server.run("train", str(recipe), "--out", str(tmp_path), limit, environment={SLOW: "0.02"})
    assert "stopped: the time limit of 0.0001h is reached" in program.err
    folder = tmp_path / "faults" / "default"
    assert 0 < last_step(folder) < STEPS
    # Without this override the limit applies to the resumed run, too.
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume", "hooks.time_limit.max_time=1h")
    assert_same(Outcome.of(folder), uninterrupted)


@pytest.mark.parametrize("moment", ["signalled_while_the_config_is_read", "signalled_before_the_run_begins"])
def test_a_signal_during_startup(server: Server, recipe: Path, tmp_path: Path, moment: str) -> None:
    """There is nothing to save: the program ends, and the next one can use the same folder."""
    program = server.start(*("train", str(recipe), "--out", str(tmp_path)), first=[f"tests.faults.injections:{moment}"])
    program.expect(143)
    assert not program.err
    assert not is_alive(program.pid)
    server.run("train", str(recipe), "--out", str(tmp_path))
