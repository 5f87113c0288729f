"""Evaluation: scores are bitwise identical for any number of processes."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.contracts import Batch, Clock, DatasetInfo, Evaluator, Hook, Phase, Predictions, Run
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop import evaluate as engine
from opabinia.engine.loop.evaluate import EvaluationStopped, evaluate, evaluate_all, evaluation_run
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.evaluation.classification.topk import TopK
from tests.engine.toys import CPU, Line, LineCollector, make_run, validation

# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_task_is_restored(training: bool) -> None:
    modes: list[tuple[bool, bool]] = []

    class Look(Line):
        def predict(self, batch: Batch) -> Predictions:
            modes.append((self.training, torch.is_grad_enabled()))
            return super().predict(batch)

    task = Look().train(training)
    evaluate(task, validation(), CPU)
    assert modes == [(False, False)] * 3
    assert task.training is training
    assert all(module.training is training for module in task.modules())


def test_the_mode_of_each_module_is_restored_also_after_an_error() -> None:
    class Broken(Line):
        def predict(self, batch: Batch) -> Predictions:
            raise RuntimeError("no")

    task = Broken().train()
    task.dropout.eval()
    with pytest.raises(RuntimeError, match="no"):
        evaluate(task, validation(), CPU)
    assert (task.training, task.dropout.training, task.layer.training) == (True, False, True)


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_an_evaluation_stops_between_two_batches(num_batches: int) -> None:
    calls = iter(range(99))
    task = Line()
    with pytest.raises(EvaluationStopped):
        evaluate(task, validation(), CPU, lambda: next(calls) == num_batches)
    assert next(calls) == num_batches + 1
    assert task.training


CLOCK = Clock(step=4, epoch=1, total_steps=8, steps_per_epoch=4, samples=8)


class Phases(Hook):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, run: Run) -> None:
        self.events.append("start")

    def before_phase(self, run: Run, phase: Phase) -> None:
        self.events.append(("before", *phase, sorted(run.scores)))

    def after_phase(self, run: Run, phase: Phase) -> None:
        self.events.append(("after", *phase, sorted(run.scores)))

    def finish(self, run: Run, how: Any) -> None:
        self.events.append(how)


def test_each_set_is_a_phase_and_writes_a_line() -> None:
    logger, hook = LineCollector(), Phases()
    run = make_run(clock=CLOCK, metrics_log=MetricsLogger(None, [logger]))
    scores = evaluate_all(run, HookDispatcher({"h": hook}), [validation(), validation("other", 4)], CPU)
    names = ["other/top1", "other/top2", "val/top1", "val/top2"]
    assert sorted(scores) == sorted(run.scores) == names
    assert hook.events == [
        ("before", "evaluate", "val", []),
        ("after", "evaluate", "val", names[2:]),
        ("before", "evaluate", "other", names[2:]),
        ("after", "evaluate", "other", names),
    ]
    assert [sorted(line) for line in logger.lines] == [
        ["epoch", "samples", "step", "time/val", "val/top1", "val/top2"],
        ["epoch", "other/top1", "other/top2", "samples", "step", "time/other"],
    ]


def test_a_stopped_evaluation_writes_no_line() -> None:
    """Not even for a set that is complete: all sets will be evaluated again."""
    logger = LineCollector()
    batches = iter(range(99))
    with pytest.raises(EvaluationStopped):
        evaluate_all(
            make_run(clock=CLOCK, metrics_log=MetricsLogger(None, [logger])),
            HookDispatcher({}),
            [validation(), validation("other")],
            CPU,
            lambda: next(batches) == 4,
        )
    assert logger.lines == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_only_evaluates(fails: bool) -> None:
    class Failing(Phases):
        def after_phase(self, run: Run, phase: Phase) -> None:
            if fails:
                raise KeyError("x")

    hook, val_set = Failing(), validation()
    run = make_run(clock=CLOCK, metrics_log=MetricsLogger(None))
    with pytest.raises(KeyError) if fails else nullcontext():
        assert set(evaluation_run(run, HookDispatcher({"h": hook}), [val_set], CPU)) == {"val/top1", "val/top2"}
    assert hook.events[0] == "start"
    assert isinstance(hook.events[-1], KeyError) if fails else hook.events[-1] == "done"
    assert val_set.loader.closed == 1  # type: ignore[attr-defined]


# --- tables and files -------------------------------------------------------------------------------------------------


class Listing(TopK):
    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        return {"samples": sum(count for _, count in states)}

    def files(self, states: Sequence[Any]) -> dict[str, Any]:
        return {"results.json": [hits for hits, _ in states]}


class Listed(Line):
    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [Listing((1,))]


def evaluate_listed(folder: Path) -> None:
    run = make_run(clock=CLOCK, metrics_log=MetricsLogger(None), folder=folder)
    evaluate_all(run, HookDispatcher({}), [replace(validation("val", 4), task=Listed())], CPU)


def test_tables_and_files_are_in_the_folder_of_the_set(tmp_path: Path) -> None:
    evaluate_listed(tmp_path)
    assert json.loads((tmp_path / "eval/val/details.json").read_text()) == {"step": 4, "samples": 4}
    ((hits,),) = json.loads((tmp_path / "eval/val/results.json").read_text())
    assert 0 <= hits <= 4


@pytest.mark.parametrize(
    ("content", "kept"), [('{"step": 3, "samples": 7}', True), ('{"step": 4}', False), ("{", False), ("", False)]
)
def test_an_evaluation_only_run_keeps_results_of_another_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, kept: bool
) -> None:
    caplog.set_level("INFO", logger="opabinia")
    details = tmp_path / "eval/val/details.json"
    details.parent.mkdir(parents=True)
    details.write_text(content)
    run = replace(make_run(clock=CLOCK, metrics_log=MetricsLogger(None), folder=tmp_path), optimizer=None)
    evaluate_all(run, HookDispatcher({}), [replace(validation("val", 4), task=Listed())], CPU)
    folder = details.parent / "step-00000004" if kept else details.parent
    assert json.loads((folder / "details.json").read_text()) == {"step": 4, "samples": 4}
    assert (folder / "results.json").is_file() and (details.read_text() == content) == kept
    assert ("keeps the tables of step 3; those of step 4 are in" in caplog.text) == kept


def test_only_rank_zero_writes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_rank_zero", lambda: False)
    evaluate_listed(tmp_path)
    assert not (tmp_path / "eval").exists()
