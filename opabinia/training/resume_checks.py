"""The course of a run: what is odd about it, and what must not change when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Clock, Plan, Schedule
from opabinia.data.sampling.batches import StagedPlan
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.training.settings import Training


def splits_norms(plan: Plan, train: Training) -> bool:
    """Whether batch norms are to see a process's share of the batch in parts, or with those of other processes, at some
    time of the run. Those that are synchronised take their statistics over the whole batch."""
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    return not train.sync_batch_norm and any(stage.splits > 1 or stage.processes > 1 for stage in stages)


def warn_of_odd_lengths(plan: Plan, schedule: Schedule, batch_size: int, samples: int) -> None:
    """What can be meant, as in a short trial of a long recipe, but seldom is."""
    if batch_size > samples:
        log.warning("data.batch_size is %d, but there are %d samples: a batch is all of them", batch_size, samples)
    warmup = getattr(schedule, "keywords", {}).get("warmup")
    if isinstance(warmup, Duration) and Clock.at(plan, 0).steps(warmup) >= plan.total_steps > 0:
        log.warning("schedule.warmup (%s) is not over before the run is: lr never reaches its peak", warmup)


def check_same_run(snapshot: Snapshot, about: Mapping[str, Any], plan: Plan) -> None:
    """What must not change between a checkpoint and its continuation, because the order of the data hangs on it.

    Raises:
        ConfigError: seed, batches or data differ, or the run would be over before.
    """
    keys = {
        "seed": "seed",
        "global_batch_size": "data.batch_size",
        "data": "data.train.source",
        "shuffle": "data.shuffle",
    }
    if all(snapshot.state.get(key) == about[key] for key in keys):
        keys = {"order": "data.sampler"}
    problems = [
        Problem(
            "", path, f"a resumed run keeps its course: the checkpoint has {snapshot.state.get(key)!r}, the config "
            f"gives {about[key]!r}; go on with the former or begin a new run"
        )
        for key, path in keys.items()
        if snapshot.state.get(key) != about[key]
    ]  # fmt: skip
    clock = Clock.at(plan, min(snapshot.step, plan.total_steps))
    if clock.step < snapshot.step:
        message = f"the checkpoint is at step {snapshot.step}, and the run would end at step {plan.total_steps}"
        problems.append(Problem("", "train.length", message))
    elif not problems and (clock.epoch, clock.samples) != (snapshot.state["epoch"], snapshot.state["samples"]):
        message = f"step {snapshot.step} would not be where it was in the data: the batches of an epoch are others"
        problems.append(Problem("", "data", message))
    if problems:
        raise ConfigError(problems)
    for key in ("world_size", "threads", "versions"):
        if snapshot.state[key] != about[key]:
            log.warning("%s: %s when saved, %s now; the last bits may differ", key, snapshot.state[key], about[key])
