"""Stop signals: the run saves, ends with the right exit status, and resumes exactly."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.runtime.signals import SAME_REQUEST_SECONDS
from tests.faults.programs import SLOW, Program, Server, all_gone, is_alive
from tests.faults.runs import EVALUATIONS, STEPS, Outcome, Run, assert_same, checkpoint, metrics, start

SIGNALS = 100


def evaluated(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if "val/top1" in line]


@pytest.mark.parametrize("step", [*(pytest.param(step, marks=pytest.mark.slow) for step in (7, 12, 30)), 15])
def test_sigterm_saves_and_the_run_resumes(run: Run, uninterrupted: Outcome, step: int) -> None:
    """In an ordinary step, in a step that writes a line, and in the last step of an epoch and of the run."""
    program = run.start(pause=f"after_backward {step - 1}")
    program.stop()
    assert run.last_step == step
    assert f"stopped: SIGTERM; to resume: opabinia train {run.folder} --resume" in program.err
    assert "Traceback" not in program.err
    assert program.trace[-1] == "finish stopped"
    assert not (run.folder / "results.json").exists()
    run.server.run("train", str(run.folder), "--resume", "data.num_workers=1")
    assert_same(Outcome.of(run.folder), uninterrupted)


@pytest.mark.parametrize(
    ("number", "status", "workers"),
    [pytest.param(signal.SIGUSR1, 143, 1, marks=pytest.mark.slow, id="srun"), (signal.SIGINT, 130, 2)],
)
def test_a_signal_to_the_whole_group(run: Run, uninterrupted: Outcome, number: int, status: int, workers: int) -> None:
    program = run.start(f"data.num_workers={workers}", pause="after_backward 11")
    children = program.children()
    assert len(children) == 2 * workers
    program.signal_group(number)
    program.unpause()
    program.expect(status)
    assert all_gone(children, 1)
    assert "Traceback" not in program.err
    run.resume_exactly(uninterrupted, "data.num_workers=0")


def test_a_second_signal_stops_immediately(run: Run, uninterrupted: Outcome) -> None:
    program = run.start("data.num_workers=1", pause="after_backward 8")
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
    assert run.last_step <= 8
    run.resume_exactly(uninterrupted)


@pytest.mark.slow
def test_a_second_signal_during_a_save(run: Run, uninterrupted: Outcome) -> None:
    """Both arrive while the checkpoint of step 5 is written: the program does not wait for it."""
    run.train(first=["tests.faults.injections:signalled_in_a_save"], status=143)
    assert [path.suffix for path in (run.folder / "checkpoints").iterdir()] == [".tmp"]
    run.resume_exactly(uninterrupted)


def test_a_signal_during_a_save_completes_it(run: Run, uninterrupted: Outcome) -> None:
    run.start(pause="after_backward 5", first=["tests.faults.injections:slow_saves"]).stop()
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert names == ["last", "step-00000005", "step-00000006"]
    run.resume_exactly(uninterrupted)


def test_a_signal_before_the_first_step_saves_nothing(run: Run) -> None:
    program = run.start(pause="start 0")
    program.stop()
    assert list((run.folder / "checkpoints").iterdir()) == []
    assert program.trace == ["start 0", "finish stopped"]
    assert "starting from the beginning" in run.train("--resume", "train.length=1it").err


@pytest.mark.slow
def test_a_signal_before_the_first_step_of_a_resumed_run(run: Run, uninterrupted: Outcome) -> None:
    first = run.start(pause="after_backward 12")
    first.until(lambda: run.last_step == 10)  # a thread writes it
    first.kill()
    program = run.start("--resume", pause="start 10")
    program.stop()
    assert program.trace == ["start 10", "finish stopped"]
    run.resume_exactly(uninterrupted)


@pytest.mark.parametrize(
    ("evaluation", "moment"),
    [
        (8, "val sample 50"),
        *(pytest.param(step, f"before_phase evaluate {step}", marks=pytest.mark.slow) for step in EVALUATIONS),
    ],
)
def test_an_interrupted_evaluation_is_repeated(run: Run, uninterrupted: Outcome, evaluation: int, moment: str) -> None:
    """Steps 8 and 23 have no other checkpoint, 15 and 30 end an epoch and were saved just before."""
    run.start(pause=moment).stop()
    assert run.last_step == evaluation
    state = json.loads((checkpoint(run.folder, evaluation) / "state.json").read_text())
    assert state["due"] == ["after_phase" if evaluation % 15 == 0 else "after_step", "save"]
    assert evaluated(run.folder) == [step for step in EVALUATIONS if step < evaluation]
    resumed = run.resume_exactly(uninterrupted, "data.num_workers=2")
    assert resumed.trace[1] == f"before_phase evaluate {evaluation}"
    assert evaluated(run.folder) == list(EVALUATIONS)


def test_the_time_limit_ends_a_run_with_status_0(run: Run) -> None:
    limit = "hooks.time_limit={max_time: 0.0001h}"  # 0.36 s
    program = run.train(limit, environment={SLOW: "0.02"})
    assert "stopped: the time limit of 0.0001h is reached" in program.err
    assert 0 < run.last_step < STEPS


@pytest.mark.parametrize("moment", ["signalled_while_the_config_is_read", "signalled_before_the_run_begins"])
def test_a_signal_during_startup(run: Run, moment: str) -> None:
    """There is nothing to save: the program ends, and the next one can use the same folder."""
    program = run.train(first=[f"tests.faults.injections:{moment}"], status=143)
    assert not program.err
    assert not is_alive(program.pid)
    run.train("train.length=1it")


# --- many signals -----------------------------------------------------------------------------------------------------


def shell_status(program: Program) -> int | None:
    """Return the exit status in a shell: 143, too, if a signal ends the program before Python handles it."""
    status = program.wait()
    return 128 - status if status is not None and status < 0 else status


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hundred_signals(
    server: Server, recipe: Path, uninterrupted: Outcome, two_process_outcome: Outcome, tmp_path: Path, processes: int
) -> None:
    """All processes get the signal, as from srun, at a random time: exit status 143 each time, and valid checkpoints.
    After a run has finished, a new one starts in another folder."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    generator = random.Random(number)
    expected = uninterrupted if processes == 1 else two_process_outcome

    def start_run(name: str) -> list[Program]:
        words = [str(recipe), "train.num_threads=1", "--out", str(tmp_path), "--name", name, "--resume", "auto"]
        return start(server, processes, *words, environments=[{SLOW: "0.005"}])

    began = time.monotonic()
    for program in start_run("whole"):
        program.expect(0)
    seconds = time.monotonic() - began
    stopped, runs, saved = 0, 0, set()
    while stopped < SIGNALS:
        programs = start_run(f"run-{runs}")
        time.sleep(generator.uniform(0, seconds / 3))
        for program in programs:
            if is_alive(program.pid):
                program.signal(signal.SIGTERM)
        statuses = [shell_status(program) for program in programs]
        folder = tmp_path / "faults" / f"run-{runs}"
        if (folder / "results.json").exists():  # it had finished, or was about to
            assert set(statuses) <= {0, 143}
            assert_same(Outcome.of(folder), expected)
            runs += 1
            continue
        assert statuses == [143] * processes, [program.err for program in programs]
        assert not any("Traceback" in program.err for program in programs)
        stopped += 1
        newest = load_latest_checkpoint(folder / "checkpoints") if (folder / "checkpoints").exists() else None
        if newest is not None:
            assert 0 < newest[1].step <= STEPS
            saved.add((runs, newest[1].step))
    print(f"{stopped} stopped, {runs} runs finished, {len(saved)} different checkpoints resumed")
    assert len(saved) > SIGNALS / 10
