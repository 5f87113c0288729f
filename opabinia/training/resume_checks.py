"""Checks that a resumed run continues the run it was, and the values that a checkpoint stores for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Channels, Clock, Pixels, Plan
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.runtime.environment import library_versions
from opabinia.runtime.log import log
from opabinia.runtime.processes import world_size
from opabinia.training.loaders import TrainingBatches

_FIXED = {
    "seed": "seed",
    "global_batch_size": "data.batch_size",
    "data": "data.train.source",
    "shuffle": "data.shuffle",
}
"""Values of a checkpoint that determine the order of the samples, and the config keys they come from."""


def describe_run(batches: TrainingBatches, threads: int) -> dict[str, Any]:
    """Return the values that every checkpoint of a run stores, as JSON types.

    Args:
        batches: the training data and its order.
        threads: CPU threads of each process.
    """
    data = batches.data
    return {
        "seed": batches.seed,
        "global_batch_size": data.batch_size,
        "data": batches.data_fingerprint(),
        "shuffle": data.shuffle,
        "order": batches.order_fingerprint(),
        "facts": asdict(batches.dataset_info),
        "source_channels": _plain(next(iter(batches.streams.values())).dataset.source.channels),
        "world_size": world_size(),
        "threads": threads,
        "versions": library_versions(),
    }


def _plain(channels: Channels) -> int | dict[str, Any]:
    """Return ``channels`` as JSON types."""
    return asdict(channels) if isinstance(channels, Pixels) else channels


def check_same_run(snapshot: Snapshot, description: Mapping[str, Any], plan: Plan) -> None:
    """Check that nothing changed on which the order of the samples depends, and warn of what may change last bits.

    Args:
        snapshot: the checkpoint to resume.
        description: :func:`describe_run` of the resumed run.
        plan: all batches of the resumed run.

    Raises:
        ConfigError: seed, batch size, data or their order differ, or the run would end before the checkpoint.
    """
    keys = _FIXED
    if all(snapshot.state.get(key) == description[key] for key in keys):
        keys = {"order": "data.sampler"}
    problems = [
        Problem(
            "", path, f"a resumed run cannot change this: the checkpoint has {snapshot.state.get(key)!r}, the config "
            f"gives {description[key]!r}; use the value of the checkpoint or begin a new run"
        )
        for key, path in keys.items()
        if snapshot.state.get(key) != description[key]
    ]  # fmt: skip
    clock = Clock.at(plan, min(snapshot.step, plan.total_steps))
    if clock.step < snapshot.step:
        message = f"the checkpoint is at step {snapshot.step}, and the run would end at step {plan.total_steps}"
        problems.append(Problem("", "train.length", message))
    elif not problems and (clock.epoch, clock.samples) != (snapshot.state["epoch"], snapshot.state["samples"]):
        message = f"step {snapshot.step} would be at another position in the data: the batches of an epoch differ"
        problems.append(Problem("", "data", message))
    if problems:
        raise ConfigError(problems)
    for key in ("world_size", "threads", "versions"):
        if snapshot.state[key] != description[key]:
            log.warning(
                "%s: %s when saved, %s now; the last bits may differ", key, snapshot.state[key], description[key]
            )
