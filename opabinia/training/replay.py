"""Repeat one step of a run: the same samples, the same random numbers, the same weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from opabinia.config import ConfigError, Problem
from opabinia.engine.checkpointing.checkpoint import BadCheckpoint, Snapshot, read_checkpoint, read_state
from opabinia.engine.checkpointing.manager import list_checkpoints, step_of
from opabinia.engine.hooks.record_step import RecordStep, StepRecorded
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.process_group import process_group
from opabinia.runtime.processes import from_rank_zero, world_size
from opabinia.training.run_folder import build_parts, holds_run, process_group_options, resolve
from opabinia.training.session import Session, TrainingRun, training_only


def replay(folder: Path, step: int) -> Path:
    """Repeat one step of a run from the nearest checkpoint before it, and record it.

    The run itself is not changed. Hooks that change training act as they did; nothing is evaluated and nothing saved.
    With the same number of processes, results are bitwise identical.

    Args:
        folder: the run folder.
        step: the optimizer step, from 1 on.

    Returns:
        The folder ``replay/step-N`` in the run folder with ``batch.safetensors``, ``batch.json`` and ``step.json``
        (losses, and the norm of each parameter's gradient); see
        :class:`opabinia.engine.hooks.record_step.RecordStep`.

    Raises:
        ConfigError: there is no such run or step.
        NonFiniteError: the step fails as it did then; its batch and gradients are written.
    """
    if not holds_run(folder):
        raise ConfigError(Problem("command line", "", f"{folder} holds no run"))
    resolved = resolve(folder)
    with process_group(**process_group_options(resolved.config)), logging_to(None):
        snapshot = from_rank_zero(lambda: _checkpoint_before(folder, step))
        skipped = from_rank_zero(lambda: _skipped_batches(folder)) - {step - 1}
        out = folder / "replay" / f"step-{step:08d}"
        from_rank_zero(lambda: _make_empty(out))
        session = Session(out, snapshot and _for_replay(snapshot, step), skip_batches=frozenset(skipped))
        parts = training_only(build_parts(resolved).keywords, replay=RecordStep(step, out))
        parts["train"] = replace(parts["train"], log_every=1, log_samples=False)
        try:
            TrainingRun(**parts)(session)
        except StepRecorded:
            return out
    raise ConfigError(Problem("command line", "--step", f"the run has no step {step}: it ends before"))


def _checkpoint_before(folder: Path, step: int) -> Snapshot | None:
    """Read the newest valid checkpoint before a step; None if there is none."""
    if step < 1:
        raise ConfigError(Problem("command line", "--step", f"steps are counted from 1, not {step}"))
    earlier = [path for path in list_checkpoints(folder / "checkpoints") if step_of(path) < step]
    for path in reversed(earlier):
        try:
            snapshot = read_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("invalid checkpoint: %s; trying the one before it", error)
            continue
        if snapshot.state["world_size"] != world_size():
            log.warning("the run had %d processes, this has %d", snapshot.state["world_size"], world_size())
        return snapshot
    log.info("there is no checkpoint before step %d: starting from the beginning", step)
    return None


def _skipped_batches(folder: Path) -> set[int]:
    """Return the batches that the run has skipped, according to its newest checkpoint."""
    newest = list_checkpoints(folder / "checkpoints")[-1:]
    try:
        return set(read_state(newest[0]).get("left_out", ())) if newest else set()
    except BadCheckpoint:
        return set()


def _make_empty(folder: Path) -> None:
    with disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _for_replay(snapshot: Snapshot, step: int) -> Snapshot:
    """Remove from a checkpoint what refers to files of the run, hooks that are still due, and the skip of this step."""
    state = dict(snapshot.state)
    hooks = {key: value for key, value in state["hooks"].items() if key != "save_best"}
    skipped = [batch for batch in state.get("left_out", ()) if batch != step - 1]
    state |= {"hooks": hooks, "left_out": skipped, "due": None, "journal": {"offset": 0, "pending": []}}
    return replace(snapshot, state=state)
