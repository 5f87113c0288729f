"""One step of a run, once more: the same samples, the same random numbers, the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.engine.checkpointing.checkpoint import BadCheckpoint, Snapshot, listed, read_checkpoint
from opabinia.engine.hooks.record_step import Record, Recorded
from opabinia.runtime.durations import Duration
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.process_group import joined_process_group
from opabinia.runtime.processes import from_rank_zero, world_size
from opabinia.training.run_folder import build_parts, holds_run, process_group_options, resolve
from opabinia.training.session import Session, train


def replay(folder: Path, step: int) -> Path:
    """Do one step of a run again, from the nearest checkpoint before it on, and write down what happened in it.

    The run itself is left as it is. What changes a run between its steps (hooks) acts as it did; nothing is evaluated
    and nothing saved. On as many processes as then, the numbers are the same to the last bit.

    Args:
        folder: the run.
        step: the optimizer step, from 1 on.

    Returns:
        The folder ``replay/step-N`` in the run's: ``batch.safetensors``, ``batch.json``, ``step.json`` (losses, and
        the norm of each parameter's gradient); see :class:`opabinia.engine.hooks.record_step.Record`.

    Raises:
        ConfigError: there is no such run or step.
        NonFinite: the step went wrong, as it did then; its batch and gradients are written.
    """
    if not holds_run(folder):
        raise ConfigError(Problem("command line", "", f"{folder} holds no run"))
    resolved = resolve(folder)
    with joined_process_group(**process_group_options(resolved.config)), logging_to(None):
        snapshot = from_rank_zero(lambda: _before(folder, step))
        left_out = from_rank_zero(lambda: _left_out(folder)) - {step - 1}
        where = folder / "replay" / f"step-{step:08d}"
        from_rank_zero(lambda: _emptied(where))
        session = Session(where, snapshot and _bare(snapshot, step), left_out=frozenset(left_out))
        parts = build_parts(resolved).keywords
        try:
            train(session, **_quiet(parts, Record(step, where)))
        except Recorded:
            return where
    raise ConfigError(Problem("command line", "--step", f"the run has no step {step}: it ends before"))


def _before(folder: Path, step: int) -> Snapshot | None:
    """The newest whole checkpoint before a step; None when the run's beginning is nearer."""
    if step < 1:
        raise ConfigError(Problem("command line", "--step", f"steps are counted from 1 on, not {step}"))
    for path in reversed(listed(folder / "checkpoints")):
        if int(path.name.removeprefix("step-")) >= step:
            continue
        try:
            snapshot = read_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("refused: %s; trying the checkpoint before it", error)
            continue
        if snapshot.state["world_size"] != world_size():
            log.warning("the run had %d processes, this is %d", snapshot.state["world_size"], world_size())
        return snapshot
    log.info("there is no checkpoint before step %d: beginning at the beginning", step)
    return None


def _left_out(folder: Path) -> set[int]:
    """The batches that the run has left out, as its newest checkpoint says."""
    newest = listed(folder / "checkpoints")[-1:]
    try:
        return set(json.loads((newest[0] / "state.json").read_text(encoding="utf-8"))["left_out"]) if newest else set()
    except (OSError, ValueError, KeyError):
        return set()


def _emptied(folder: Path) -> None:
    with disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _bare(snapshot: Snapshot, step: int) -> Snapshot:
    """The checkpoint without what belongs to the files of the run, or was still to be done there."""
    state = dict(snapshot.state)
    hooks = {key: value for key, value in state["hooks"].items() if key != "best"}
    left_out = [one for one in state.get("left_out", ()) if one != step - 1]
    state |= {"hooks": hooks, "left_out": left_out, "due": None, "journal": {"offset": 0, "pending": []}}
    return replace(snapshot, state=state)


def _quiet(parts: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The parts of a run that trains, and does nothing else."""
    never = Duration(0, "ep")
    train, data = parts["train"], parts["data"]
    on_nonfinite = "skip" if train.on_nonfinite == "skip" else "stop"
    return {
        **parts,
        "train": replace(train, log_every=1, log_samples=False, on_nonfinite=on_nonfinite),
        "evaluate": replace(parts["evaluate"], every=never),
        "data": replace(data, val=[replace(one, every=None) for one in data.validation] or None),
        "checkpoint": replace(parts["checkpoint"], every=never, best=None),
        "hooks": {**(parts["hooks"] or {}), "replay": record},
        "writers": [],
    }
