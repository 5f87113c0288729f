"""The order of hooks, and stopping and resuming at every point."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Hook, Run
from opabinia.engine.checkpointing.checkpoint import WeightsMismatch, read_checkpoint
from opabinia.engine.checkpointing.manager import list_checkpoints, load_latest_checkpoint, read_pointer
from opabinia.engine.hooks.order import order_hooks
from opabinia.engine.loop.trainer import Trainer
from tests.engine.toys import Event, Line, Setup, lines, same_tensors, validation, weights

KEYS = ["user", "metrics_log", "save", "evaluate", "save_best"]


def moments(events: list[Event], key: str = "user") -> list[str]:
    return [f"{moment} {kind or ''}{step}" for moment, hook_key, kind, step in events if hook_key == key]


def step(number: int) -> list[str]:
    return [f"before_step {number}", f"after_backward {number}", f"after_step {number + 1}"]


def evaluation(number: int) -> list[str]:
    return [f"before_phase evaluate{number}", f"after_phase evaluate{number}"]


# --- the events -------------------------------------------------------------------------------------------------------


def test_the_events_of_a_run(tmp_path: Path) -> None:
    """4 steps an epoch, 2.5 epochs, evaluation every 3 steps and at the end."""
    setup = Setup(tmp_path, user={"user": Hook()})
    setup.trainer().run()
    assert moments(setup.events) == [
        "start 0",
        "before_phase train0",
        *(*step(0), *step(1), *step(2)),
        *evaluation(3),
        *step(3),
        "after_phase train4",
        "before_phase train4",
        *(*step(4), *step(5)),
        *evaluation(6),
        *(*step(6), *step(7)),
        "after_phase train8",
        "before_phase train8",
        *step(8),
        *evaluation(9),
        *step(9),
        "after_phase train10",
        *evaluation(10),
        "finish 10",
    ]


def test_hooks_act_in_the_documented_order_at_every_event(tmp_path: Path) -> None:
    setup = Setup(tmp_path, user={"user": Hook()}, evaluate="0ep")
    setup.trainer().run()
    outside = [event for event in setup.events if event[2] != "evaluate"]
    for at in range(0, len(outside), len(KEYS)):
        together = outside[at : at + len(KEYS)]
        assert [key for _, key, _, _ in together] == KEYS
        assert len({(moment, kind, number) for moment, _, kind, number in together}) == 1


def test_hooks_of_the_task_and_the_user_have_their_places() -> None:
    names = ("timer", "batch_schedule", "ema", "metrics_log", "save", "evaluate", "save_best", "eta")
    built_in = {**{name: Hook() for name in reversed(names)}, "bottleneck": None}
    hooks = order_hooks(built_in, {"task.0": Hook()}, {"mine": Hook()})
    assert list(hooks) == [*names[:2], "task.0", "ema", "mine", *names[3:]]
    with pytest.raises(KeyError, match="no place in the order of hooks: later"):
        order_hooks({**built_in, "later": Hook()}, {}, {})


def test_the_clock_and_the_scores_that_hooks_see(tmp_path: Path) -> None:
    records: list[tuple[str, int, float, list[str]]] = []

    class Look(Hook):
        def before_step(self, run: Run, batch: object) -> None:
            records.append(("before_step", run.clock.step, run.clock.epochs_done, sorted(run.scores)))

        def after_step(self, run: Run) -> None:
            records.append(("after_step", run.clock.samples, run.clock.progress, sorted(run.scores)))

    Setup(tmp_path, user={"user": Look()}, length="1ep", evaluate="2it").trainer().run()
    scores = ["val/top1", "val/top2"]
    assert records == [
        *[("before_step", 0, 0.0, []), ("after_step", 2, 0.25, [])],
        *[("before_step", 1, 0.25, []), ("after_step", 4, 0.5, [])],
        *[("before_step", 2, 0.5, scores), ("after_step", 6, 0.75, scores)],
        *[("before_step", 3, 0.75, scores), ("after_step", 8, 1.0, scores)],
    ]


class Failing(Hook):
    def __init__(self, moment: str, error: BaseException) -> None:
        self.how: list[object] = []
        setattr(self, moment, self._fail)
        self._error = error

    def _fail(self, run: Run, *values: object) -> None:
        raise self._error

    def finish(self, run: Run, how: object) -> None:
        self.how.append(how)


@pytest.mark.parametrize(
    "moment", ["start", "before_phase", "before_step", "after_backward", "after_step", "after_phase"]
)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(143)], ids=repr)
def test_finish_receives_the_error_and_everything_is_closed(tmp_path: Path, moment: str, error: BaseException) -> None:
    hook = Failing(moment, error)
    sets = (validation(),)
    trainer = Setup(tmp_path, user={"user": hook}, sets=sets).trainer()
    with pytest.raises(type(error)):
        trainer.run()
    assert hook.how == [error]
    assert trainer.loader.closed == sets[0].loader.closed == 1  # type: ignore[attr-defined]


def test_finish_receives_the_outcome(tmp_path: Path) -> None:
    how: list[object] = []

    class Recorder(Hook):
        def finish(self, run: Run, outcome: object) -> None:
            how.append(outcome)

    Setup(tmp_path / "a", user={"user": Recorder()}).trainer().run()
    Setup(tmp_path / "b", user={"user": Recorder()}, interrupted=lambda: "SIGTERM").trainer().run()
    assert how == ["done", "stopped"]


def test_every_hook_finishes_also_after_an_error_in_another_hook(tmp_path: Path) -> None:
    finished: list[str] = []

    class Broken(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def finish(self, run: Run, how: object) -> None:
            finished.append(self.name)
            raise RuntimeError(self.name)

    trainer = Setup(tmp_path, user={"a": Broken("a"), "b": Broken("b")}).trainer()
    with pytest.raises(RuntimeError, match=r"^a$"):
        trainer.run()
    assert finished == ["a", "b"]
    assert trainer._run.metrics_log._file is None, "closed by a later hook"


def test_the_error_that_ends_a_run_is_the_one_that_is_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Hook):
        def finish(self, run: Run, how: object) -> None:
            raise RuntimeError("later")

    failing = Failing("after_step", ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        Setup(tmp_path, user={"a": failing, "b": Broken()}).trainer().run()
    assert "hooks.b failed, too: RuntimeError: later" in caplog.text


@pytest.mark.parametrize(
    ("key", "hook", "message"),
    [
        *(
            (key, Hook(), f"'{key}' is the key of a built-in hook; choose another, such as my_{key}")
            for key in ("metrics_log", "save", "evaluate", "save_best", "task.0")
        ),
        ("optimizer", Hook(), "'optimizer' is the name of a file in checkpoints; choose another key"),
        ("mine", len, "'mine' is a builtin_function_or_method; a hook must inherit from opabinia.contracts.Hook"),
    ],
)
def test_unusable_hooks_of_the_user_are_refused(key: str, hook: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order_hooks({}, {"task.0": Hook()}, {key: hook})


def test_a_run_of_no_steps(tmp_path: Path) -> None:
    setup = Setup(tmp_path, length="0ep")
    trainer = setup.trainer()
    assert trainer.run() == {}
    assert trainer.stopped is None
    assert {moment for moment, _, _, _ in setup.events} == {"start", "finish"}


# --- resuming at every point ------------------------------------------------------------------------------------------


def undisturbed(tmp_path: Path, **fields: object) -> tuple[Setup, Trainer]:
    setup = Setup(tmp_path / "undisturbed", **{**fields, "keep": 100})  # type: ignore[arg-type]
    trainer = setup.trainer()
    trainer.run()
    return setup, trainer


def rest(events: list[Event]) -> list[Event]:
    """Return the events without those at the start of a new process."""
    return [event for event in events if event[0] != "start" and event[:3:2] != ("before_phase", "train")]


class EvaluatesItself(Hook):
    """A user hook that evaluates."""

    def after_step(self, run: Run) -> None:
        if run.clock.step % 2:
            run.evaluate(lambda name: True)


VARIANTS = {
    "different periods": {},
    "equal periods": {"save": "2it", "evaluate": "2it", "log_every": 2},
    "by epochs": {"save": "1ep", "evaluate": "0.5ep", "log_every": 100},
    "one checkpoint is kept": {"keep": 1, "save": "1it", "evaluate": "1it"},
    "every sample is logged": {"log_samples": True},
    "no best": {"best": False},
    "a hook of the user's evaluates": {"user": {"user": EvaluatesItself()}, "save": "1it"},
    "two validation sets": {"sets": (validation(), validation("other", 4, 2))},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def variant(request: pytest.FixtureRequest) -> dict[str, object]:
    return dict(request.param)


def test_every_checkpoint_leads_to_the_same_result(tmp_path: Path, variant: dict[str, object]) -> None:
    """A resumed run completes the event in which the checkpoint was saved, then the run, and repeats nothing."""
    reference, reference_trainer = undisturbed(tmp_path, **variant)
    saved = list_checkpoints(tmp_path / "undisturbed" / "checkpoints")
    assert len(saved) >= 3
    for path in saved:
        snapshot = read_checkpoint(path)
        setup = Setup(tmp_path / path.name, **variant)  # type: ignore[arg-type]
        setup.folder.mkdir()
        (setup.folder / "metrics.jsonl").write_bytes((tmp_path / "undisturbed" / "metrics.jsonl").read_bytes())
        resumed = setup.trainer()
        resumed.restore(snapshot)
        assert resumed.run() == reference_trainer._run.scores
        assert lines(setup.folder) == lines(reference.folder)
        assert same_tensors(weights(resumed), weights(reference_trainer))
        moment, key = snapshot.state["due"]
        place = reference.events.index((moment, key, "train" if moment == "after_phase" else None, snapshot.step))
        assert rest(setup.events) == rest(reference.events[place + 1 :])


def stop_at(turn: int) -> Callable[[], str | None]:
    calls = Counter[str]()

    def interrupted() -> str | None:
        calls["number"] += 1
        return "SIGTERM" if calls["number"] > turn else None

    return interrupted


@pytest.mark.parametrize("apart", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_stopped_at_every_point_and_resumed(tmp_path: Path, variant: dict[str, object], apart: int) -> None:
    reference, reference_trainer = undisturbed(tmp_path, **variant)
    stopped = True
    turn = 0
    while stopped:
        setup = Setup(tmp_path / f"stopped-{turn}", interrupted=stop_at(turn), **variant)  # type: ignore[arg-type]
        interrupted = setup.trainer()
        interrupted.run()
        stopped = interrupted.stopped == "SIGTERM"
        if stopped:
            assert load_latest_checkpoint(setup.folder / "checkpoints") is not None or interrupted._run.clock.step == 0
        setup.interrupted = lambda: None
        resumed = setup.trainer(resume=True)
        resumed.run()
        assert same_tensors(weights(resumed), weights(reference_trainer)), turn
        assert lines(setup.folder) == lines(reference.folder), turn
        assert read_pointer(setup.folder / "checkpoints", "best") == same_name(reference, setup), turn
        turn += apart
    assert turn > 20


def same_name(reference: Setup, setup: Setup) -> Path | None:
    path = read_pointer(reference.folder / "checkpoints", "best")
    return path and setup.folder / "checkpoints" / path.name


class Crash(Exception):
    pass


class CrashAt(list[Event]):
    """A list of events that raises Crash when it reaches a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def append(self, event: Event) -> None:
        super().append(event)
        if len(self) == self.length and event[0] != "finish":
            raise Crash


@pytest.mark.parametrize("apart", [pytest.param(2, marks=pytest.mark.slow), 29])
def test_crashed_at_every_event_of_every_hook_and_resumed(
    tmp_path: Path, variant: dict[str, object], apart: int
) -> None:
    reference, reference_trainer = undisturbed(tmp_path, **variant)
    for length in range(1, len(reference.events) + 1, apart):
        setup = Setup(tmp_path / f"crashed-{length}", events=CrashAt(length), **variant)  # type: ignore[arg-type]
        try:
            setup.trainer().run()
        except Crash:
            setup.events = []
            latest = load_latest_checkpoint(setup.folder / "checkpoints")
            if latest is None:
                (setup.folder / "metrics.jsonl").unlink()
            resumed = setup.trainer(resume=True)
            resumed.run()
            assert same_tensors(weights(resumed), weights(reference_trainer)), length
            assert lines(setup.folder) == lines(reference.folder), length


# --- resuming with other parts ----------------------------------------------------------------------------------------


def test_the_error_for_another_model_names_its_tensors(tmp_path: Path) -> None:
    Setup(tmp_path).trainer().run()

    class Other(Line):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

    trainer = Setup(tmp_path, task=Other, length="20it").trainer()
    latest = load_latest_checkpoint(tmp_path / "checkpoints")
    assert latest
    with pytest.raises(WeightsMismatch, match=r"size mismatch for layer.weight"):
        trainer.restore(latest[1])
    trainer._run.metrics_log.close()


def test_scores_that_are_no_longer_evaluated_are_not_restored(tmp_path: Path) -> None:
    """Example: scores of EMA weights after a resume without EMA."""
    setup = Setup(tmp_path, sets=(validation("val_ema", 4, 2), validation()))
    assert "val_ema/top1" in setup.trainer().run()
    latest = load_latest_checkpoint(setup.folder / "checkpoints")
    assert latest
    trainer = Setup(tmp_path, length="20it").trainer()
    trainer._run.available_scores = {"val/top1": "max", "val/top2": "max"}
    trainer.restore(latest[1])
    assert sorted(trainer.run()) == ["val/top1", "val/top2"]


@pytest.mark.parametrize("new_optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_another_optimizer_starts_without_state_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, new_optimizer: type[torch.optim.Optimizer]
) -> None:
    old_optimizer = torch.optim.SGD if new_optimizer is torch.optim.AdamW else torch.optim.AdamW
    Setup(tmp_path, optimizer=old_optimizer).trainer().run()
    trainer = Setup(tmp_path, optimizer=new_optimizer, length="20it").trainer(resume=True)
    assert (
        f"the optimizer was {old_optimizer.__name__} and is {new_optimizer.__name__} now: it starts without state"
        in caplog.text
    )
    assert trainer.step.optimizer.state_dict()["state"] == {}
    trainer.run()


def test_options_of_the_optimizer_come_from_the_config(tmp_path: Path) -> None:
    Setup(tmp_path).trainer().run()
    optimizer = partial(torch.optim.AdamW, weight_decay=0.5, betas=(0.5, 0.6))
    trainer = Setup(tmp_path, optimizer=optimizer, length="20it").trainer(resume=True)
    (group,) = trainer.step.optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.05, 0.5, (0.5, 0.6))
    trainer.run()


@pytest.mark.parametrize("more", [0, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 5)), 2])
def test_the_length_is_changed(tmp_path: Path, more: int) -> None:
    """Stopped at every point and resumed with another length, which may be reached already; the end is evaluated."""
    references: dict[int, Trainer] = {}
    steps = set()
    for turn in range(1, 40, 3):
        folder = tmp_path / str(turn)
        interrupted = Setup(folder, length="10it", interrupted=stop_at(turn)).trainer()
        interrupted.run()
        latest = load_latest_checkpoint(folder / "checkpoints")
        assert latest
        done = latest[1].step
        steps.add(done)
        setup = Setup(folder, length=f"{done + more}it")
        trainer = setup.trainer(resume=True)
        scores = trainer.run()
        if done not in references:
            references[done] = Setup(tmp_path / f"{done}-whole", length=f"{done + more}it").trainer()
            references[done].run()
        assert scores == references[done]._run.scores
        assert same_tensors(weights(trainer), weights(references[done]))
        evaluated = [line["step"] for line in lines(setup.folder) if "val/top1" in line]
        if not more and done < 10:  # this step may have been evaluated before it became the last one
            evaluated = sorted(set(evaluated))
        assert evaluated == sorted({*range(3, done + more + 1, 3), done + more} | ({10} & {done}))
        assert read_pointer(folder / "checkpoints", "last") == folder / "checkpoints" / f"step-{done + more:08d}"
    assert len(steps) >= 7
