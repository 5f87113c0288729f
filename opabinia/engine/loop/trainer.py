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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opabinia.contracts import Batch, Clock, Hook, Loader, Phase, Plan, Row, Run, Scalars, Step, Stop, Task
from opabinia.engine.checkpointing.checkpoint import (
    CheckpointManager,
    Snapshot,
    WeightsMismatch,
    load_optimizer_state,
    optimizer_state,
)
from opabinia.engine.checkpointing.norm_statistics import (
    load_statistics,
    mean_state,
    mean_statistics,
    statistics_of_all,
)
from opabinia.engine.checkpointing.sharded import load_state
from opabinia.engine.loggers.metrics_log import MetricsLogger, read_from_json, told_in_json
from opabinia.engine.loop.evaluate import EvaluationStopped, Validation, evaluate_all
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.engine.loop.nonfinite import NonFinite, in_journal
from opabinia.engine.loop.skip_nonfinite import begin_momentum
from opabinia.runtime.log import log
from opabinia.runtime.processes import agreed, is_rank_zero, world_size

TRAIN = Phase("train", "train")
STATISTICS = "statistics"
"""The file of a checkpoint with every process's own running statistics."""
_AT_EVERY_STEP = 64
"""Up to so many processes agree on stopping at every step; more of them at fewer, as agreeing takes longer."""


class Trainer:
    """Trains a task.

    Args:
        task: the model, on ``device``.
        step: how a batch becomes an update.
        plan: all batches of the run.
        loader: gives them, from any step on, on ``device``.
        validation: data sets to evaluate on.
        journal: takes the numbers.
        hooks: by key, in the order in which they act (see ``hooks/__init__.py``).
        folder: the run folder.
        device: where batches are.
        keep: number of newest checkpoints to keep.
        about: plain values saved in every checkpoint (seed, fingerprint of the data ...).
        interrupted: asked after every step why the run is to stop; None to go on.
        left_out: numbers of batches (``Row.step``) that are not trained: their numbers went wrong once.
        sharded: whether every process holds a part of the parameters only.
        batches: gives hooks batches of their own (see :class:`opabinia.contracts.Run`).
        offered: the scores that evaluations give, likewise.
        began: when this start of the run began, likewise; None: now.

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
        metrics_log: MetricsLogger,
        hooks: Mapping[str, Hook],
        folder: Path,
        device: torch.device,
        keep: int = 2,
        about: Mapping[str, Any] | None = None,
        interrupted: Callable[[], str | None] = lambda: None,
        left_out: Collection[int] = (),
        sharded: bool = False,
        batches: Callable[[str, int], Iterable[Batch]] = lambda name, count: (),
        offered: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> None:
        self.task, self.step, self.plan, self.loader = task, step, plan, loader
        self.validation, self.device = validation, device
        self.about, self.interrupted = dict(about or {}), interrupted
        self._left_out, self._sharded = frozenset(left_out), sharded
        self._alone = world_size() == 1
        self._agree_every = max(1, world_size() // _AT_EVERY_STEP)
        self._moments = HookDispatcher(hooks)
        self._checkpoints = CheckpointManager(folder / "checkpoints", keep, self.snapshot, write=is_rank_zero())
        self._run = Run(
            task=task,
            optimizer=step.optimizer,
            loader=loader,
            metrics_log=metrics_log,
            clock=Clock.at(plan, 0),
            checkpoints=self._checkpoints,
            evaluate=self.evaluate,
            scores={},
            folder=folder,
            models=[task, *{id(one.task): one.task for one in validation if one.task}.values()],
            batches=batches,
            offered=dict(offered or {}),
            began=time.monotonic() if began is None else began,
        )
        self._resumed: tuple[tuple[str, str] | None, Clock] = None, self._run.clock

    @property
    def stopped(self) -> str | None:
        """Why the run stopped before its end, if it did."""
        stop = self._run.stop
        return stop.reason if stop and not stop.over else None

    # --- the crank --------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, float]:
        """Train to the end of the plan, or until something asks to stop; return the newest scores."""
        run = self._run
        how: str | BaseException = "stopped"
        try:
            try:
                self._turn()
            except EvaluationStopped:
                # A resume comes back to the hook that asked for the evaluation.
                self._moments.now = self._moments.just_before()
                self._stops()
            self._save_if_stopped()
            self._checkpoints.wait()
            how = "stopped" if self.stopped else "done"
        except BaseException as error:
            how = error
            raise
        finally:
            self.loader.close()
            for validation in self.validation:
                validation.close()
            try:
                self._end_saving(how)
            finally:
                self._moments.finish(run, how)
        return dict(run.scores)

    def _turn(self) -> None:
        run = self._run
        self._moments.start(run)
        self._do_what_is_due()
        batches = self.loader.iterate(run.clock.step)
        while run.clock.step < self.plan.total_steps and not self._stops():
            self._train_epoch(batches)

    def _train_epoch(self, batches: Iterator[tuple[Row, Batch]]) -> None:
        run = self._run
        self._moments.call(run, "before_phase", TRAIN)
        ended = False
        while not ended and not run.stop:
            began = time.perf_counter()
            row, batch = next(batches)
            ready = time.perf_counter()
            scalars = self._trained(batch, row)
            run.clock = run.clock.following(self.plan, row)
            times = {"time/data": ready - began, "time/step": time.perf_counter() - began}
            times["time/read"] = self.loader.seconds
            values = {in_journal(name): value for name, value in scalars.items()}
            values["lr"] = self.step.optimizer.param_groups[0]["lr"]
            values["samples"] = float(row.count)
            values |= times
            run.metrics_log.add(run.clock.step, values, batch.get("id", ()))
            self._moments.call(run, "after_step")
            ended = run.clock.phase_ended
            if ended or run.clock.step % self._agree_every == 0:
                self._stops()
        if not run.stop:
            self._moments.call(run, "after_phase", TRAIN)
        elif ended:
            self._moments.now = "after_phase", ""  # what a resume makes up for

    def _trained(self, batch: Batch, row: Row) -> Scalars:
        if row.step in self._left_out:
            return {}
        self._moments.call(self._run, "before_step", batch)
        return self.step(batch, row, self._run.clock, self._after_backward)

    def _after_backward(self) -> None:
        self._moments.call(self._run, "after_backward")

    def evaluate(self, takes: Callable[[str], bool] = lambda name: True) -> dict[str, float]:
        """One evaluation phase for each validation set that ``takes`` names; scores go to the journal and the run."""
        taken = [one for one in self.validation if takes(one.name)]
        with mean_statistics(self._run.models):
            scores = evaluate_all(
                self._run, self._moments, taken, self.device, self._wants_to_be_resumed, sharded=self._sharded
            )
        self._stops()
        return scores

    # --- stopping and going on --------------------------------------------------------------------------------------

    def _wish(self) -> Stop | None:
        """The stop that this process has been asked for, by a hook or from outside."""
        if self._moments.wish is None and (reason := self.interrupted()):
            return Stop(reason)
        return self._moments.wish

    def _stops(self) -> bool:
        """Whether the run stops here, as all processes agree: the wish of one is enough."""
        if self._run.stop is None:
            wish = self._wish()
            self._run.stop = wish if self._alone else agreed(wish)
        return self._run.stop is not None

    def _wants_to_be_resumed(self) -> bool:
        """Whether to leave off in the middle; a run that is over still finishes what it is at."""
        stop = self._run.stop or self._wish()
        return stop is not None and not stop.over

    def _save_if_stopped(self) -> None:
        """Make sure that a run which stops on request has a checkpoint of its last step."""
        step = self._run.clock.step
        if self._run.stop and step > 0 and self._checkpoints.saved != step:
            self._checkpoints.save()

    def _end_saving(self, how: str | BaseException) -> None:
        """Complete a save under way, unless all is to stop at once; its error must not hide what ended the run."""
        if isinstance(how, SystemExit):
            return
        if isinstance(how, BaseException) and not isinstance(how, NonFinite):  # which all processes have
            self._checkpoints.hurry(10)
        try:
            self._checkpoints.wait()
        except Exception as error:
            log.warning("besides, the last save has failed: %s", error)

    def _do_what_is_due(self) -> None:
        """Go on right behind the hook that saved the checkpoint this run was resumed from.

        The moment is completed as it was then: if it was the end of a shorter run, its evaluation is still due. If it
        is the end now and was not then, that end is made up for.
        """
        (due, then), now = self._resumed, self._run.clock
        self._resumed = None, now
        if due is not None:
            self._run.clock = then
            self._complete(*due)
            self._run.clock = now
        if then.step < then.total_steps and now.step >= now.total_steps and not self._run.stop:
            self._moments.call(self._run, "after_phase", TRAIN)

    def _complete(self, moment: str, saver: str) -> None:
        if moment == "after_step":
            self._moments.call(self._run, moment, after=saver)
            if self._run.clock.phase_ended and not self._run.stop:
                self._moments.call(self._run, "after_phase", TRAIN)
        elif moment == "after_phase":
            self._moments.call(self._run, moment, TRAIN, after=saver)

    def snapshot(self) -> Snapshot:
        """Everything that a resumed run needs, at this moment."""
        run = self._run
        tensors, plain = optimizer_state(self.task, self.step.optimizer)
        epoch_began = self.plan.samples_before(self.plan.epoch_start(run.clock.epoch))
        state = {
            **self.about,
            "step": run.clock.step,
            "samples": run.clock.samples,
            "epoch": run.clock.epoch,
            "position": run.clock.samples - epoch_began,
            "due": list(self._moments.now) if self._moments.now else None,
            "scores": told_in_json(run.scores),
            "journal": run.metrics_log.state_dict(),
            "total_steps": run.clock.total_steps,
            "optimizer": plain,
            "optimizer_kind": _kind(self.step.optimizer),
            "train_step": self.step.state_dict(),
            "hooks": self._moments.state_dict(),
            "left_out": sorted(self._left_out),
        }
        files = {"model": mean_state(self.task), "optimizer": tensors, **self._moments.tensors()}
        if statistics := statistics_of_all(run.models):
            files[STATISTICS] = statistics
        return Snapshot(run.clock.step, files, state)

    def restore(self, snapshot: Snapshot) -> None:
        """Put the run where :meth:`snapshot` was taken.

        Raises:
            DoesNotFit: the model's tensors are others.
        """
        run, state = self._run, snapshot.state
        try:
            load_state(self.task, snapshot.tensors["model"])
        except RuntimeError as error:
            raise WeightsMismatch(str(error)) from error
        self._restore_optimizer(snapshot)
        self.step.load_state_dict(state["train_step"])
        self._moments.load_state_dict(state["hooks"])
        self._moments.load_tensors(snapshot.tensors)
        load_statistics(run.models, snapshot.tensors.get(STATISTICS, {}))
        run.metrics_log.load_state_dict(state["journal"])
        run.clock = Clock.at(self.plan, snapshot.step)
        run.scores.update(read_from_json(state["scores"]))
        self._checkpoints.saved = snapshot.step
        due = tuple(state["due"]) if state["due"] else None
        self._resumed = due, replace(run.clock, total_steps=state["total_steps"])

    def _restore_optimizer(self, snapshot: Snapshot) -> None:
        before, now = snapshot.state["optimizer_kind"], _kind(self.step.optimizer)
        if before != now:
            log.warning("the optimizer was %s and is %s now: it begins without a state", before, now)
            return
        tensors, plain = snapshot.tensors["optimizer"], snapshot.state["optimizer"]
        load_optimizer_state(self.task, self.step.optimizer, tensors, plain)
        begin_momentum(self.step.optimizer)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """What decides which state an optimizer keeps: its class, and the options that add to it."""
    options = ("amsgrad", "centered", "momentum")
    return " with ".join([type(optimizer).__name__, *(name for name in options if optimizer.defaults.get(name))])
