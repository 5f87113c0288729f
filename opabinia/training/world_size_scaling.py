"""Scaling of a recipe that was tuned for one number of ranks to another number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Task
from opabinia.runtime.elastic_agent import is_elastic
from opabinia.runtime.log import log
from opabinia.runtime.processes import world_size
from opabinia.training.run_folder import AUTO
from opabinia.training.settings import Training

_ITERATIONS = re.compile(r"(\d+)it")
_STEP_COUNTS = ("train.log_every", "ema.every")
"""Numbers of steps that are written without a unit."""


def auto_scale(config: Mapping[str, Any], world_size: int) -> tuple[dict[str, Any], list[str]]:
    """Scale a complete config from its ``train.reference_world_size`` to ``world_size`` ranks.

    Each rank keeps its share of the batch: batch size and learning rate grow in proportion (Goyal et al. 2017, section
    2.1), and everything counted in steps or batches shrinks, but not to 0. Epochs and hours stay. This is the rule of
    detectron2's ``auto_scale_workers``, rounding included (halves to even).

    Returns:
        The config, whose reference is now ``world_size``, and a line for each change.

    Raises:
        ConfigError: the batch size does not divide by the reference world size.

    Example: batch size 16, lr 0.1 and 5000it tuned for 8 ranks are batch size 6, lr 0.0375 and 13333it on 3.
    """
    reference = config["train"]["reference_world_size"]
    if reference is None or reference == world_size:
        return dict(config), []
    batch_size = config["data"]["batch_size"]
    if batch_size == AUTO:
        message = "auto is not tuned for any world size: remove train.reference_world_size and set train.lr_batch_size"
        raise ConfigError(Problem("", "data.batch_size", message))
    if batch_size % reference:
        message = f"a batch of {batch_size} does not divide over {reference} ranks: choose a multiple of {reference}"
        raise ConfigError(Problem("", "data.batch_size", message))
    changes: list[str] = []

    def scale(path: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: scale(f"{path}.{key}" if path else key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [scale(f"{path}.{index}", item) for index, item in enumerate(value)]
        scaled = _scaled(path, value, world_size / reference, bool(config["train"]["lr_batch_size"]))
        if scaled != value:
            changes.append(f"{path}: {value} -> {scaled}")
        return scaled

    result = scale("", config)
    result["train"]["reference_world_size"] = world_size
    return result, changes


def _scaled(path: str, value: Any, factor: float, lr_follows_batch_size: bool) -> Any:
    if path == "data.batch_size":
        return round(value * factor)
    if path == "optimizer.lr" and isinstance(value, int | float):
        return value if lr_follows_batch_size else float(f"{value * factor:.12g}")
    if isinstance(value, str) and (iterations := _ITERATIONS.fullmatch(value)):
        return f"{_fewer(int(iterations[1]), factor)}it"
    if path in _STEP_COUNTS or re.fullmatch(r"hooks\.[^.]+\.batches", path):
        return _fewer(value, factor)
    return value


def _fewer(count: int, factor: float) -> int:
    return max(1, round(count / factor)) if count else 0


def limit_micro_batch(
    train: Training, task: Task, batch_size: int, state: Mapping[str, Any] | None
) -> tuple[Training, int]:
    """Keep the memory of each rank within what it has needed, when fewer ranks share the global batch.

    In an elastic launch a share that is larger than before is computed in micro-batches (gradient accumulation), unless
    the losses compare all samples of a rank's batch with each other.

    Args:
        train: config section; its ``micro_batch_size`` is kept if it is set.
        task: the model.
        batch_size: samples over all ranks.
        state: state of the checkpoint to resume; None for a new run.

    Returns:
        The section, and the largest number of samples that a rank has computed at once.
    """
    rank_samples = -(-batch_size // world_size())
    if train.micro_batch_size is not None or state is None:
        return train, min(rank_samples, train.micro_batch_size or rank_samples)
    former = state.get("micro_batch_size") or -(-batch_size // max(1, state["world_size"]))
    if rank_samples <= former or not is_elastic():
        return train, max(rank_samples, former)
    if task.requires_full_batch:
        log.warning(
            "each rank computes %d samples at once, before it were %d: this needs more memory", rank_samples, former
        )
        return train, rank_samples
    return replace(train, micro_batch_size=former), former
