"""The trainer: feeds batches to the step and dispatches hooks.

It builds nothing, reads no config and knows no task. The whole loop::

    start
    hooks that a checkpoint left due           (resumed runs only)
    for each epoch:  before_phase
        for each batch:  before_step, step (with after_backward), after_step
        after_phase
    finish

**Host and device.** Nothing in the loop waits for a GPU: losses stay on the device, and the host queues the next step
while the GPU computes. The host waits when the metrics log writes a line (one copy of all pending values), when a
checkpoint is copied, in evaluations, and wherever the step or a hook reads a tensor.

**Processes.** Every process runs the same loop over its own share of each batch. They meet in the backward pass (the
all-reduce of gradients), in the metrics log, in evaluations and checkpoints, and once per step to agree on stopping:
one process that stopped by itself would leave the others waiting. Hooks therefore only request a stop.

**Resuming.** A resumed run equals an uninterrupted one bit by bit, because everything that changes is either a pure
function of the step (the plan, augmentation and dropout seeds, schedules) or in the checkpoint
(``checkpointing/content.py``), such as a length that a hook has shortened. A checkpoint is saved from inside a hook; it
records that position (``due``), and the resumed run first completes the event: the hooks behind the one that saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opabinia.contracts import Batch, Clock, GlobalBatch, Hook, Phase, Plan, Run, Scalars, Step, Stop
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.engine.checkpointing.content import restore_snapshot, take_snapshot
from opabinia.engine.checkpointing.manager import CheckpointManager
from opabinia.engine.loop.evaluate import EvaluationStopped, ValidationSet, evaluate_all
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.engine.loop.nonfinite import NonFiniteError, log_name
from opabinia.engine.loop.norm_statistics import use_mean_statistics
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather, any_rank, world_size

TRAIN = Phase("train", "train")
_MAX_WORLD_SIZE_FOR_EVERY_STEP = 64
"""Up to this many processes agree on stopping after every step; with more the agreement takes longer and is rarer."""


class Trainer:
    """Trains a task.

    Args:
        run: the state that hooks see, with the model, the loader of its batches and the metrics log. The trainer adds
            its own part: clock, optimizer, checkpoints, models and evaluations.
        step: turns a batch into an update.
        plan: all batches of the run.
        validation: datasets to evaluate on.
        hooks: by key, in the order in which they act (see ``hooks/__init__.py``).
        keep: number of newest checkpoints to keep.
        metadata: JSON values saved in every checkpoint (seed, fingerprint of the data ...).
        interrupted: called after every step; returns the reason to stop, or None to continue.
        skip_batches: batches (by ``GlobalBatch.step``) that are not trained: their losses were not finite before.
        sharded: whether every process holds only a shard of the parameters.

    Example::

        scores = Trainer(Run(task, metrics_log, folder, loader=loader), step=step, plan=plan, ...).run()
    """

    def __init__(
        self,
        run: Run,
        *,
        step: Step,
        plan: Plan,
        validation: Sequence[ValidationSet],
        hooks: Mapping[str, Hook],
        keep: int = 2,
        metadata: Mapping[str, Any] | None = None,
        interrupted: Callable[[], str | None] = lambda: None,
        skip_batches: Collection[int] = (),
        sharded: bool = False,
    ) -> None:
        assert run.loader is not None
        self._run, self.step, self.plan, self.loader = run, step, plan, run.loader
        self.validation, self._device = validation, next(run.task.parameters()).device
        self.metadata, self.interrupted = dict(metadata or {}), interrupted
        self._skip_batches, self._sharded = frozenset(skip_batches), sharded
        self._planned_steps = plan.total_steps  # the run may end earlier: ``Run.ends_at``
        self._evaluated_step = -1
        self._stop: Stop | None = None  # all processes have agreed on it; ``run.stop`` is a request
        self._agree_every = max(1, world_size() // _MAX_WORLD_SIZE_FOR_EVERY_STEP)
        self._hooks = HookDispatcher(hooks)
        self._checkpoints = CheckpointManager(run.folder / "checkpoints", keep, self.snapshot)
        run.clock, run.optimizer = Clock.at(plan, 0), step.optimizer
        run.checkpoints, run.evaluate = self._checkpoints, self.evaluate
        run.models = [run.task, *{id(dataset.task): dataset.task for dataset in validation if dataset.task}.values()]
        # Position inside an event, and clock, at which the checkpoint was saved that this run resumes from.
        self._resumed_at: tuple[tuple[str, str] | None, Clock] = None, self._run.clock

    @property
    def stopped(self) -> str | None:
        """The reason why the run stopped before its end, if it did."""
        return self._stop.reason if self._stop and not self._stop.final else None

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, float]:
        """Train to the end of the plan, or until a stop is requested; return the newest scores."""
        run = self._run
        how: str | BaseException = "stopped"
        try:
            try:
                self._train()
            except EvaluationStopped:
                # The checkpoint must say that the evaluation is due: go back before the hook that asked for it.
                self._hooks.active = self._hooks.previous_position()
                self._agree_on_stop()
            # A run that is stopped saves its last step, unless a hook has done so.
            if self._stop and run.clock.step > 0 and self._checkpoints.last_saved_step != run.clock.step:
                self._checkpoints.save()
            self._checkpoints.wait()
            how = "stopped" if self.stopped else "done"
        except BaseException as error:
            how = error
            raise
        finally:
            self.loader.close()
            for dataset in self.validation:
                dataset.close()
            try:
                self._finish_saving(how)
            finally:
                self._hooks.finish(run, how)
        return dict(run.scores)

    def _train(self) -> None:
        run = self._run
        self._hooks.start(run)
        self._complete_resumed_event()
        batches = self.loader.iterate(run.clock.step)
        while run.clock.step < self.plan.total_steps and not self._agree_on_stop():
            self._train_epoch(batches)
        if self._stop and self._stop.final and self._evaluated_step != run.clock.step:
            self.evaluate()
            self._hooks.call(run, "after_step", after="evaluate")  # it may be the best of the run

    def _train_epoch(self, batches: Iterator[tuple[GlobalBatch, Batch]]) -> None:
        """Train to the end of the current epoch; a resumed run may be in the middle of one."""
        run = self._run
        self._hooks.call(run, "before_phase", TRAIN)
        epoch_ended = False
        while not epoch_ended and not self._stop:
            started = time.perf_counter()
            global_batch, batch = next(batches)
            loaded = time.perf_counter()
            scalars: Scalars = {}
            if global_batch.step not in self._skip_batches:
                self._hooks.call(run, "before_step", batch)
                scalars = self.step(batch, global_batch, run.clock, lambda: self._hooks.call(run, "after_backward"))
            run.clock = run.clock.following(self.plan, global_batch)
            values = {
                **{log_name(name): value for name, value in scalars.items()},
                "lr": self.step.optimizer.param_groups[0]["lr"],
                "samples": float(global_batch.count),
                # Seconds on the host: a GPU may still be busy. The metrics log adds the time that it waits for it.
                "time/data": loaded - started,
                "time/step": time.perf_counter() - started,
                "time/read": self.loader.seconds,
            }
            run.metrics_log.add(run.clock.step, values, batch.get("id", ()))
            self._hooks.call(run, "after_step")
            epoch_ended = run.clock.phase_ended
            if epoch_ended or run.clock.step % self._agree_every == 0:
                self._agree_on_stop()
        if not self._stop:
            self._hooks.call(run, "after_phase", TRAIN)
        elif epoch_ended:
            self._hooks.active = "after_phase", ""  # no hook has seen the end of the epoch: all are due on resume

    def evaluate(self, accepts: Callable[[str], bool] = lambda name: True) -> dict[str, float]:
        """Evaluate on the validation sets whose names ``accepts`` takes; write and return the scores."""
        run, datasets = self._run, [dataset for dataset in self.validation if accepts(dataset.name)]
        with use_mean_statistics(run.models):
            scores = evaluate_all(run, self._hooks, datasets, self._device, self._must_interrupt, sharded=self._sharded)
        self._evaluated_step = run.clock.step
        self._agree_on_stop()
        return scores

    # --- stopping -----------------------------------------------------------------------------------------------------

    def _requested_stop(self) -> Stop | None:
        """Return the stop that a hook of this process, or ``interrupted``, asked for."""
        if self._run.stop is None and (reason := self.interrupted()):
            self._run.stop = Stop(reason)
        return self._run.stop

    def _agree_on_stop(self) -> bool:
        """Return whether the run stops here, the same on all processes: the request of one is enough. Likewise for its
        length.

        A process that saved or stopped by itself would leave the others waiting in a collective operation.
        """
        if self._stop is None:
            request, ends_at = self._requested_stop(), self._run.ends_at
            stops, ends_earlier = any_rank(request is not None, ends_at is not None)
            if stops:
                self._stop = next(filter(None, all_gather(request)))
            if ends_earlier:
                self._end_at(min(step for step in all_gather(ends_at) if step is not None))
        return self._stop is not None

    def _end_at(self, step: int) -> None:
        """End the run at a step, the next one at the earliest; never later than planned."""
        run = self._run
        total_steps = min(max(step, run.clock.step + 1), self.plan.total_steps)
        self.plan, run.ends_at = self.plan.with_length(total_steps), None
        run.clock = replace(run.clock, total_steps=total_steps)

    def _must_interrupt(self) -> bool:
        """Return whether to interrupt an evaluation; a run that is over (early stopping) completes it."""
        stop = self._stop or self._requested_stop()
        return stop is not None and not stop.final

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _finish_saving(self, how: str | BaseException) -> None:
        """Wait for a save in progress, unless the process must end at once. Its error must not hide the run's."""
        if isinstance(how, SystemExit):
            return
        if isinstance(how, BaseException) and not isinstance(how, NonFiniteError):
            # Other processes may be dead: do not wait long for their shards. A NonFiniteError is raised on all.
            self._checkpoints.limit_wait(10)
        try:
            self._checkpoints.wait()
        except Exception as error:
            log.warning("in addition, the last save failed: %s", error)

    def _complete_resumed_event(self) -> None:
        """Call the hooks that come after the one that saved the checkpoint this run resumes from.

        They see the clock of that time: if it was the end of a shorter run, its evaluation is still due. If the step is
        the end of the run now and was not then (the run is shorter now), the hooks of that end are called, too.
        """
        run = self._run
        (position, then), now = self._resumed_at, run.clock
        self._resumed_at = None, now
        if position is not None:
            event, key = position
            run.clock = then
            if event == "after_step":
                self._hooks.call(run, "after_step", after=key)
                if then.phase_ended and not self._stop:
                    self._hooks.call(run, "after_phase", TRAIN)
            elif event == "after_phase":
                self._hooks.call(run, "after_phase", TRAIN, after=key)
            run.clock = replace(now, total_steps=self.plan.total_steps)
        if then.step < then.total_steps and now.step >= now.total_steps and not self._stop:
            self._hooks.call(run, "after_phase", TRAIN)

    def snapshot(self) -> Snapshot:
        """Return everything that a resumed run needs, as of now. All processes must call it."""
        metadata = {**self.metadata, "planned_steps": self._planned_steps}
        return take_snapshot(
            self._run, self.plan, self.step, self._hooks, metadata=metadata, skip_batches=self._skip_batches
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the state of :meth:`snapshot`.

        Raises:
            WeightsMismatch: the model's tensors have other names or shapes.
        """
        run, state = self._run, snapshot.state
        if state.get("planned_steps") == self._planned_steps:  # the length in the config is the same
            self.plan = self.plan.with_length(state["total_steps"])
        restore_snapshot(snapshot, run, self.plan, self.step, self._hooks)
        self._checkpoints.last_saved_step = snapshot.step
        position = tuple(state["due"]) if state["due"] else None
        self._resumed_at = position, replace(run.clock, total_steps=state["total_steps"])
