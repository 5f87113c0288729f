"""A recipe found for some number of processes, on another number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.training.auto_values import AUTO

_STEPS = re.compile(r"(\d+)it")
_COUNTS = ("train.log_every", "ema.every")
"""Numbers of steps that are written without a unit."""


def auto_scale(config: Mapping[str, Any], processes: int) -> tuple[dict[str, Any], list[str]]:
    """A complete config for ``processes`` of them instead of the ``train.tuned_for`` that it was found for.

    Each process keeps its share of the batch: batch and learning rate grow in proportion (Goyal et al. 2017, section
    2.1), and all that is counted in steps or batches shrinks, but not to 0. What is counted in epochs or hours stays.
    The rule of detectron2's ``auto_scale_workers``, rounding included (halves to even).

    Returns:
        The config, which is then tuned for ``processes``, and a line for each change.

    Raises:
        ConfigError: the batch does not divide over the processes it was found for.

    Example: batch 16, lr 0.1 and 5000it found for 8 processes are batch 6, lr 0.0375 and 13333it on 3.
    """
    tuned = config["train"]["tuned_for"]
    if tuned is None or tuned == processes:
        return dict(config), []
    batch = config["data"]["batch_size"]
    if batch == AUTO:
        message = "auto is not found for any number of processes: leave train.tuned_for out, and say lr_batch_size"
        raise ConfigError(Problem("", "data.batch_size", message))
    if batch % tuned:
        message = f"a batch of {batch} does not divide over {tuned} processes: choose a multiple of {tuned}"
        raise ConfigError(Problem("", "data.batch_size", message))
    changes: list[str] = []

    def follow(path: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: follow(f"{path}.{key}" if path else key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [follow(f"{path}.{number}", item) for number, item in enumerate(value)]
        scaled = _scaled(path, value, processes / tuned, bool(config["train"]["lr_batch_size"]))
        if scaled != value:
            changes.append(f"{path}: {value} -> {scaled}")
        return scaled

    found = follow("", config)
    found["train"]["tuned_for"] = processes
    return found, changes


def _scaled(path: str, value: Any, factor: float, rate_follows_batch: bool) -> Any:
    if path == "data.batch_size":
        return round(value * factor)
    if path == "optimizer.lr" and isinstance(value, int | float):
        return value if rate_follows_batch else float(f"{value * factor:.12g}")
    if isinstance(value, str) and (steps := _STEPS.fullmatch(value)):
        return f"{_fewer(int(steps[1]), factor)}it"
    if path in _COUNTS or re.fullmatch(r"hooks\.[^.]+\.batches", path):
        return _fewer(value, factor)
    return value


def _fewer(count: int, factor: float) -> int:
    return max(1, round(count / factor)) if count else 0
