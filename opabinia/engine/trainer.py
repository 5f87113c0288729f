"""The trainer turns the crank: batches through the step, hooks at their moments.

It builds nothing, reads no config and knows no task. The whole loop, as a sentence::

    start
    what a checkpoint left due
    for each epoch:  before_phase
        for each batch:  before_step, step (after_backward), after_step
        after_phase
    finish
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opabinia.contracts import Batch, Clock, Hook, Loader, Phase, Plan, Row, Run, Step, Task
from opabinia.engine.checkpoint import Checkpoints, Snapshot, load_optimizer_state, optimizer_state
from opabinia.engine.evaluate import EvaluationStopped, Validation, evaluate, to_device
from opabinia.engine.journal import Journal
from opabinia.runtime.processes import is_first

TRAIN = Phase("train", "train")


class Trainer:
    """Trains a task.

    Args:
        task: the model, on ``device``.
        step: how a batch becomes an update.
        plan: all batches of the run.
        loader: gives them, from any step on.
        validation: data sets to evaluate on.
        journal: takes the numbers.
        hooks: by key, in the order in which they act; one of them is "save".
        folder: the run folder.
        device: where batches go.
        keep: number of newest checkpoints to keep.
        about: plain values saved in every checkpoint (seed, fingerprint of the data ...).
        interrupted: tells, after every step, why the run is to stop; None to go on.

    Example::

        scores = Trainer(task=task, step=step, plan=plan, loader=loader, ...).run()
    """

    def __init__(
        self,
        *,
        task: Task,
        step: Step,
        plan: Plan,
        loader: Loader,
        validation: Sequence[Validation],
        journal: Journal,
        hooks: Mapping[str, Hook],
        folder: Path,
        device: torch.device,
        keep: int = 2,
        about: Mapping[str, Any] | None = None,
        interrupted: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.task, self.step, self.plan, self.loader = task, step, plan, loader
        self.validation, self.hooks, self.device = validation, hooks, device
        self.about, self.interrupted = dict(about or {}), interrupted
        self._moment: str | None = None
        self._hook: str | None = None
        self._due: tuple[str, str] | None = None
        checkpoints = Checkpoints(folder / "checkpoints", keep, self.snapshot, write=is_first())
        self._run = Run(
            task=task,
            optimizer=step.optimizer,
            loader=loader,
            journal=journal,
            clock=Clock.at(plan, 0),
            checkpoints=checkpoints,
            evaluate=self.evaluate,
            scores={},
            folder=folder,
        )

    @property
    def stopped(self) -> str | None:
        """Why the run stopped before its end, if it did."""
        return self._run.stop

    # --- the crank --------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, float]:
        """Train to the end of the plan, or until something asks to stop; return the newest scores."""
        run = self._run
        how: str | BaseException = "stopped"
        try:
            self._call("start")
            self._do_what_is_due()
            batches = self.loader.iterate(run.clock.step)
            while run.clock.step < self.plan.total_steps and not run.stop:
                self._train_epoch(batches)
            how = "stopped" if run.stop else "done"
            self._save_if_stopped()
        except EvaluationStopped:
            # Still inside the moment in which the evaluation was asked for: a resume comes back to it.
            self._hook = "save"
            self._save_if_stopped()
        except BaseException as error:
            how = error
            raise
        finally:
            self.loader.close()
            for validation in self.validation:
                validation.loader.close()
            self._call("finish", how)
        return dict(run.scores)

    def _train_epoch(self, batches: Iterator[tuple[Row, Batch]]) -> None:
        run = self._run
        run.stop = run.stop or self.interrupted()
        if run.stop:
            return
        self._call("before_phase", TRAIN)
        ended = False
        while not ended and not run.stop:
            began = time.perf_counter()
            row, cpu_batch = next(batches)
            batch = to_device(cpu_batch, self.device)
            loaded = time.perf_counter()
            self._call("before_step", batch)
            rate = self.step.learning_rate(row, run.clock)
            scalars = self.step(batch, row, run.clock, self._after_backward)
            run.clock = Clock.at(self.plan, row.step + 1)
            run.journal.add(run.clock.step, {f"train/{name}": value for name, value in scalars.items()})
            times = {"time/data": loaded - began, "time/step": time.perf_counter() - began}
            run.journal.add(run.clock.step, {"lr": rate, "samples": float(row.count), **times})
            run.stop = run.stop or self.interrupted()
            self._call("after_step")
            ended = run.clock.phase_ended
        if ended and not run.stop:
            self._call("after_phase", TRAIN)

    def _after_backward(self) -> None:
        self._call("after_backward")

    def evaluate(self) -> dict[str, float]:
        """One evaluation phase for each validation set; scores go to the journal and to ``run.scores``."""
        scores: dict[str, float] = {}
        for validation in self.validation:
            phase = Phase("evaluate", validation.name)
            self._nested("before_phase", phase)
            began = time.perf_counter()
            found = evaluate(self.task, validation, self.device, self._wants_to_stop)
            self._run.journal.write(
                self._run.clock, {**found, f"time/{validation.name}": time.perf_counter() - began}
            )
            scores.update(found)
            self._run.scores.update(found)
            self._nested("after_phase", phase)
        return scores

    def _wants_to_stop(self) -> bool:
        self._run.stop = self._run.stop or self.interrupted()
        return self._run.stop is not None

    # --- moments ----------------------------------------------------------------------------------------------------

    def _call(self, moment: str, *values: Any, after: str | None = None) -> None:
        """Let every hook (only those behind ``after``, if given) act at a moment."""
        keys = list(self.hooks)
        arguments = (self._run, *values)
        self._moment = moment
        for key in keys[keys.index(after) + 1 if after else 0 :]:
            self._hook = key
            getattr(self.hooks[key], moment)(*arguments)
        self._moment = self._hook = None

    def _nested(self, moment: str, phase: Phase) -> None:
        """A moment inside another one: an evaluation that a hook asked for."""
        outer = self._moment, self._hook
        self._call(moment, phase)
        self._moment, self._hook = outer

    def _do_what_is_due(self) -> None:
        """Go on right behind the hook that saved the checkpoint this run was resumed from."""
        due, self._due = self._due, None
        if due is None:
            return
        moment, saver = due
        if moment == "after_step":
            self._call("after_step", after=saver)
            if self._run.clock.phase_ended and not self._run.stop:
                self._call("after_phase", TRAIN)
        else:
            self._call("after_phase", TRAIN, after=saver)

    def _save_if_stopped(self) -> None:
        """Make sure that a run which stops on request has a checkpoint of its last step."""
        checkpoints, step = self._run.checkpoints, self._run.clock.step
        assert checkpoints is not None
        if self._run.stop and step > 0 and checkpoints.saved != step:
            checkpoints.save()
        self._moment = self._hook = None

    # --- state ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything that a resumed run needs, at this moment."""
        run = self._run
        tensors, plain = optimizer_state(self.task, self.step.optimizer)
        moment = self._moment if self._moment in ("after_step", "after_phase") else None
        state = {
            **self.about,
            "step": run.clock.step,
            "epoch": run.clock.epoch,
            "position": run.clock.samples - self.plan.samples_before(self.plan.epoch_start(run.clock.epoch)),
            "due": [moment, self._hook] if moment else None,
            "scores": run.scores,
            "journal": run.journal.state_dict(),
            "optimizer": plain,
            "train_step": self.step.state_dict(),
            "hooks": {key: state for key, hook in self.hooks.items() if (state := hook.state_dict())},
        }
        return Snapshot(run.clock.step, {"model": self.task.state_dict(), "optimizer": tensors}, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Put the run where :meth:`snapshot` was taken.

        Raises:
            RuntimeError: the model's tensors do not fit (torch names them).
        """
        run, state = self._run, snapshot.state
        self.task.load_state_dict(dict(snapshot.tensors["model"]))
        load_optimizer_state(self.task, self.step.optimizer, snapshot.tensors["optimizer"], state["optimizer"])
        self.step.load_state_dict(state["train_step"])
        for key, saved in state["hooks"].items():
            if key in self.hooks:
                self.hooks[key].load_state_dict(saved)
        run.journal.load_state_dict(state["journal"])
        run.clock = Clock.at(self.plan, snapshot.step)
        run.scores.update(state["scores"])
        self._due = tuple(state["due"]) if state["due"] else None
        assert run.checkpoints is not None
        run.checkpoints.saved = snapshot.step
