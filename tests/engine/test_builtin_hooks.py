"""The built-in hooks, each alone; ``test_trainer.py`` tests their order and events."""

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.contracts import Clock, Evaluator, Hook, Phase, Run
from opabinia.engine.checkpointing.manager import list_checkpoints, load_latest_checkpoint, read_pointer
from opabinia.engine.hooks.save_best import SaveBest
from opabinia.engine.hooks.save_checkpoint import SaveCheckpoint
from opabinia.engine.hooks.time_limit import TimeLimit
from opabinia.runtime.durations import Duration
from tests.engine.toys import Line, Setup, lines, same_tensors, weights

TRAIN, EVALUATE = Phase("train", "train"), Phase("evaluate", "val")


# --- best -------------------------------------------------------------------------------------------------------------


class Scored:
    """A run with the fields that the hook reads."""

    def __init__(self) -> None:
        self.marked: list[int] = []
        self.scores: dict[str, float] = {}
        self.checkpoints = self
        self.clock = self
        self.step = 0

    def mark_best(self, step: int) -> None:
        self.marked.append(step)


def marked(better: str, scores: list[float | None], hook: SaveBest | None = None) -> list[int]:
    run: Any = Scored()
    hook = hook or SaveBest("val/x", better)
    for step, score in enumerate(scores, 1):
        run.step = step
        if score is not None:
            run.scores = {"val/x": score, "val/y": -score}
            hook.after_phase(run, EVALUATE)
        hook.after_step(run) if step % 2 else hook.after_phase(run, TRAIN)
    return run.marked  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("better", "scores", "expected"),
    [
        ("max", [0.1, 0.3, 0.2, 0.4], [1, 2, 4]),
        ("min", [0.1, 0.3, 0.2, 0.05], [1, 4]),
        ("max", [0.5, 0.5, 0.5], [1]),  # the first of equal scores is kept
        ("min", [0.5, 0.5, 0.5], [1]),
        ("max", [math.nan, 0.1, math.nan, 0.2], [2, 4]),
        ("max", [-math.inf, -5.0], [1, 2]),
        ("max", [None, 0.0, None, None], [2]),  # 0 is a score
        ("max", [0.2, None, 0.1, None, 0.3], [1, 5]),  # a score is compared when it is new
    ],
)
def test_best_marks_every_new_best(better: str, scores: list[float | None], expected: list[int]) -> None:
    assert marked(better, scores) == expected


def test_best_by_a_weighted_sum() -> None:
    hook = SaveBest("val/x + 2*val/y", "max")  # val/y is -val/x
    assert marked("max", [0.3, 0.1, 0.2, 0.05], hook) == [1, 2, 4]
    assert marked("max", [0.1], SaveBest("val/x + val/z", "max")) == []


@pytest.mark.parametrize(
    ("better", "before", "after", "expected"),
    [("max", [0.1, 0.5], [0.5, 0.4, 0.6], [3]), ("min", [math.inf], [math.inf, 3.0], [2])],
)
def test_best_continues_from_its_state(
    better: str, before: list[float | None], after: list[float | None], expected: list[int]
) -> None:
    hook, resumed = SaveBest("val/x", better), SaveBest("val/x", better)
    marked(better, before, hook)
    resumed.load_state_dict(json.loads(json.dumps(hook.state_dict(), allow_nan=False)))
    assert marked(better, after, resumed) == expected


def test_best_that_was_saved_but_not_yet_pointed_to(tmp_path: Path) -> None:
    """Killed in between: the state has the best score already, so no later evaluation would point to it."""
    setup = Setup(tmp_path, save="0ep", evaluate="4it", length="4it")
    setup.trainer().run()
    assert read_pointer(tmp_path / "checkpoints", "best") == tmp_path / "checkpoints" / "step-00000004"
    (tmp_path / "checkpoints" / "best").unlink()
    latest = load_latest_checkpoint(tmp_path / "checkpoints")
    assert latest and latest[1].state["due"] == ["after_phase", "save"]
    state = {**latest[1].state, "due": ["after_phase", "best"], "hooks": {"best": {"best": 0.5, "step": 4}}}
    trainer = setup.trainer()
    trainer.restore(type(latest[1])(4, latest[1].tensors, state))
    trainer.run()
    assert read_pointer(tmp_path / "checkpoints", "best") == tmp_path / "checkpoints" / "step-00000004"


def test_a_deleted_best_checkpoint_is_forgotten(tmp_path: Path) -> None:
    """After a rollback, or deleted by hand: the next score counts as the best."""
    setup = Setup(tmp_path, save="4it", evaluate="4it", length="8it")
    setup.trainer().run()
    latest = load_latest_checkpoint(tmp_path / "checkpoints")
    assert latest
    trainer = setup.trainer()
    trainer.restore(
        type(latest[1])(8, latest[1].tensors, {**latest[1].state, "hooks": {"best": {"best": 2.0, "step": 1}}})
    )
    trainer.run()
    assert (tmp_path / "checkpoints" / "best").read_text() == "step-00000008\n"


# --- saving -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The simulated time, set by the test."""
    value = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: value[0])
    yield value


class Ticks(Hook):
    """Every step takes an hour of simulated time."""

    def __init__(self, now: list[float], hours: float = 1.0) -> None:
        self.now, self.hours = now, hours

    def after_step(self, run: Run) -> None:
        self.now[0] += 3600 * self.hours


@pytest.mark.parametrize(
    ("every", "expected"),
    [("2.5h", [3, 6, 9, 10]), ("1h", list(range(1, 11))), ("100h", [10]), ("0h", list(range(1, 11)))],
)
def test_saving_by_the_hour(tmp_path: Path, now: list[float], every: str, expected: list[int]) -> None:
    setup = Setup(tmp_path, user={"user": Ticks(now)}, best=False, keep=99, evaluate="0ep")
    trainer = setup.trainer()
    trainer._hooks.hooks["save"].hook = SaveCheckpoint(Duration.parse(every, ("h",)))  # type: ignore[attr-defined]
    trainer.run()
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path / "checkpoints")] == expected


def test_the_end_is_saved_once_also_when_best_and_periodic_meet(tmp_path: Path) -> None:
    setup = Setup(tmp_path, save="10it", evaluate="0ep", keep=99)
    setup.trainer().run()
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000010"]
    assert read_pointer(tmp_path / "checkpoints", "best") == read_pointer(tmp_path / "checkpoints", "last")


# --- the time limit ---------------------------------------------------------------------------------------------------


def test_the_time_limit_stops_with_a_checkpoint_to_resume_from(tmp_path: Path, now: list[float]) -> None:
    reference = Setup(tmp_path / "whole")
    reference_trainer = reference.trainer()
    reference_trainer.run()

    def limited() -> Setup:
        limit = TimeLimit(max_time=Duration.parse("3h", ("h",)))
        return Setup(tmp_path / "parts", user={"tick": Ticks(now), "limit": limit})

    reached: list[int] = []
    for _ in range(9):
        trainer = limited().trainer(resume=True)
        trainer.run()
        reached.append(trainer._run.clock.step)
        if not trainer.stopped:
            break
        assert trainer.stopped == "the time limit of 3h is reached"
    assert reached == [3, 6, 9, 10]
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same_tensors(weights(trainer), weights(reference_trainer))


def test_a_final_time_limit_completes_the_run_with_an_evaluation(tmp_path: Path, now: list[float]) -> None:
    limit = TimeLimit(max_time=Duration.parse("3h", ("h",)), final=True)
    trainer = Setup(tmp_path, evaluate="0ep", user={"tick": Ticks(now), "limit": limit}).trainer()
    trainer.run()
    evaluated = [line["step"] for line in lines(tmp_path) if any(name.startswith("val") for name in line)]
    assert (trainer.stopped, trainer._run.clock.step, evaluated) == (None, 3, [3])
    assert (tmp_path / "checkpoints/best").read_text() == "step-00000003\n"


def slower_run(folder: Path, now: list[float], **options: Any) -> Setup:
    """A run of 20 steps of an hour, with time for 12."""
    limit = TimeLimit(max_time=Duration.parse("12h", ("h",)), shorten=True)
    return Setup(folder, length="20it", user={"tick": Ticks(now), "limit": limit}, schedule=linear, **options)


def linear(clock: Clock) -> float:
    return 1 - clock.progress


def test_a_run_that_would_end_too_late_is_shortened_with_its_schedule(tmp_path: Path, now: list[float]) -> None:
    trainer = slower_run(tmp_path, now, log_every=1).trainer()
    trainer.run()
    rates = [line["lr"] / 0.05 for line in lines(tmp_path) if "lr" in line]
    # After 3 hours there is time for 9 more steps, of which 0.9 are used: 3 + 8 steps.
    assert rates == pytest.approx([1 - step / 20 for step in range(3)] + [1 - step / 11 for step in range(3, 11)])
    assert (trainer.stopped, trainer._run.clock.step) == (None, 11)
    assert [line["step"] for line in lines(tmp_path) if "val/top1" in line][-1] == 11


@pytest.mark.parametrize("stop", [3, 5, 7, 11])
def test_a_shortened_run_is_resumed_exactly(tmp_path: Path, now: list[float], stop: int) -> None:
    whole = slower_run(tmp_path / "whole", now).trainer()
    whole.run()
    trainer = slower_run(tmp_path / "parts", now).trainer()
    trainer.interrupted = lambda: "stop" if trainer._run.clock.step == stop else None
    trainer.run()
    resumed = slower_run(tmp_path / "parts", now).trainer(resume=True)
    resumed._run.start_time -= 3600 * stop  # the same time is left
    resumed.run()
    assert (resumed.stopped, resumed._run.clock.step) == (None, 11)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same_tensors(weights(resumed), weights(whole))


def test_another_length_in_the_config_replaces_a_shortened_one(tmp_path: Path, now: list[float]) -> None:
    slower_run(tmp_path, now).trainer().run()
    longer = Setup(tmp_path, length="24it").trainer(resume=True)
    longer.run()
    assert longer._run.clock.step == 24


# --- lines ------------------------------------------------------------------------------------------------------------


def test_lines_every_few_steps_and_at_the_end_of_every_epoch(tmp_path: Path) -> None:
    setup = Setup(tmp_path, log_every=3, evaluate="0ep", sets=())
    setup.trainer().run()
    assert [line["step"] for line in lines(tmp_path)] == [3, 4, 6, 8, 9, 10]


def test_every_step_with_the_ids_of_its_samples(tmp_path: Path) -> None:
    setup = Setup(tmp_path, log_samples=True, log_every=3, length="1ep", evaluate="0ep", sets=())
    setup.trainer().run()
    assert [(line["step"], line["sample_ids"]) for line in lines(tmp_path)] == [
        (1, ["0/0", "0/1"]),
        (2, ["0/2", "0/3"]),
        (3, ["0/4", "0/5"]),
        (4, ["0/6", "0/7"]),
    ]


class Spoil(Hook):
    """Makes the weights infinite after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Run) -> None:
        if run.clock.step == self.step:
            with torch.no_grad():
                next(run.task.parameters()).fill_(math.nan)


@pytest.mark.parametrize(("save", "expected"), [("1it", [5, 6]), ("4it", [4])])
def test_no_checkpoint_is_saved_of_non_finite_weights(tmp_path: Path, save: str, expected: list[int]) -> None:
    """The loss of step 7 is detected at the line of step 9 or at the next save."""
    from opabinia.engine.loop.nonfinite import NonFiniteError

    setup = Setup(tmp_path, user={"user": Spoil(6)}, save=save, evaluate="0ep", log_every=9, sets=())
    with pytest.raises(NonFiniteError, match=r"train/loss is nan at step 7"):
        setup.trainer().run()
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path / "checkpoints")] == expected


class Infinite(Line):
    """Logs values that are not finite."""

    def forward(self, batch: Any, clock: Any) -> Any:
        return {**super().forward(batch, clock), "aux": torch.tensor(math.inf), "other": torch.tensor(math.nan)}


class NaNScore(Evaluator):
    """An evaluator whose score is NaN."""

    better = {"top1": "max"}  # noqa: RUF012

    def update(self, predictions: Any, batch: Any) -> None: ...

    def state(self) -> None: ...

    def compute(self, states: Any) -> dict[str, float]:
        return {"top1": math.nan}


class NaNEvaluated(Infinite):
    def evaluators(self, dataset_info: Any) -> Any:
        return [NaNScore()]


@pytest.mark.parametrize("task", [Infinite, NaNEvaluated])
def test_logged_values_and_scores_may_be_non_finite_and_are_resumed(tmp_path: Path, task: Callable[[], Line]) -> None:
    setup = Setup(tmp_path / "whole", task=task, save="1it", log_every=4, keep=99)
    trainer = setup.trainer()
    trainer.run()
    assert lines(setup.folder)[-2]["train/aux"] is None
    reference = lines(setup.folder)
    (setup.folder / "checkpoints" / "last").write_text("step-00000005\n")
    resumed = setup.trainer(resume=True)
    assert resumed._run.clock.step == 5
    scores = resumed.run()
    assert lines(setup.folder) == reference
    assert set(scores) >= {"val/top1"}
    assert same_tensors(weights(resumed), weights(trainer))
