"""What a run says of itself before its first step: model, data, device, batch and length, in aligned lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from opabinia.contracts import Batch, DatasetInfo, Plan, Task
from opabinia.data import Data
from opabinia.data.sampling.batches import StagedPlan
from opabinia.runtime.durations import Duration
from opabinia.training.flops import Flops, forward_flops
from opabinia.training.settings import Training

_NETWORKS = ("backbone", "detector")
"""Keys of a task's section that say which network it trains."""


def titled(recipe: str, task: Mapping[str, Any]) -> str:
    """A run in words: its recipe, its task and the networks in it.

    Args:
        recipe: its name.
        task: the section ``task`` of its config.

    Example: ``titled("digits", {"name": "video", "backbone": {"name": "timm", "model": "resnet18"}})`` is
    ``digits: video, backbone timm resnet18``.
    """
    networks = [(key, task[key]) for key in _NETWORKS if isinstance(task.get(key), Mapping)]
    named = [f"{key} {one['name']} {one.get('model') or ''}".rstrip() for key, one in networks]
    return f"{recipe}: {', '.join([str(task['name']), *named])}"


def lines_of(said: Mapping[str, str]) -> list[str]:
    """``name  text`` a line, the texts below each other."""
    width = max(map(len, said))
    return [f"{name:<{width}}  {text}" for name, text in said.items()]


# --- the model --------------------------------------------------------------------------------------------------------


def told_model(model: Task, sample: Batch) -> str:
    """Its parameters and what a forward pass costs, such as ``25.6 M parameters, 8.2 GFLOP a sample forward``.

    Args:
        model: not sharded yet.
        sample: a batch of one sample, see :func:`one_sample`; empty: no operations are told.
    """
    flops = forward_flops(model, sample) if sample else None
    return ", ".join([told_parameters(model)] + ([told_flops(flops)] if flops else []))


def told_parameters(model: nn.Module) -> str:
    """How many there are, and how many of them learn if that is not all."""
    every = sum(one.numel() for one in model.parameters())
    learning = sum(one.numel() for one in model.parameters() if one.requires_grad)
    more = "" if every == learning else f", {scaled(learning).rstrip()} of them trained"
    return f"{scaled(every).rstrip()} parameters{more}"


def told_flops(flops: Flops) -> str:
    """Such as ``8.2 GFLOP a sample forward``."""
    return f"{'' if flops.whole else 'at least '}{scaled(flops.count)}FLOP a sample forward"


def scaled(number: float) -> str:
    """Three digits and the unit's prefix: ``25.6 M``, ``8.18 G``, ``312 ``."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 0.9995 * 10**power:
            return f"{number / 10**power:.3g} {prefix}"
    return f"{number:.3g} "


def one_sample(batch: Batch) -> Batch:
    """A batch of training as evaluation would see it: of several views the first."""
    return {**batch, "image": batch["views"][0]} if "views" in batch and "image" not in batch else batch


# --- the rest ---------------------------------------------------------------------------------------------------------


def told_data(data: Data, dataset_info: DatasetInfo) -> str:
    """Samples, classes and the sets to evaluate on, such as ``1437 samples of 10 classes; val: 360``."""
    word = "identities" if dataset_info.cameras or dataset_info.queries else "classes"
    classes = f" of {len(dataset_info.classes)} {word}" if dataset_info.classes else ""
    sets = [f"{one.prefix}: {len(one.source)}" for one in data.validation]
    return "; ".join([f"{dataset_info.samples} samples{classes}", *sets])


def told_device(device: torch.device, training: Training, processes: int, threads: int, workers: int) -> str:
    """Where and how it is computed, such as ``cpu, fp32; 2 processes, each with 1 thread and 4 workers``."""
    name = f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    compiled = ", compiled" if training.compile else ""
    here = f"{_counted(threads, 'thread')} and {_counted(workers, 'worker')}"
    shared = f"{_counted(processes, 'process', 'es')}, {'each with ' if processes > 1 else ''}{here}"
    return f"{name}, {training.precision}{compiled}; {shared}"


def _counted(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else plural}"


def told_length(length: Duration, plan: Plan, data: Data, dataset_info: DatasetInfo, processes: int, first: int) -> str:
    """Such as ``10ep: 1437 samples, 230 steps of 64 (23 an epoch); from step 0``."""
    share = f", {data.batch_size // processes} a process," if processes > 1 else ""
    steps = (
        f"{plan.total_steps} steps of {batch_sizes(plan, data.batch_size)}{share} ({steps_per_epoch(plan)} an epoch)"
    )
    return f"{length}: {dataset_info.samples} samples, {steps}; from step {first}"


def steps_per_epoch(plan: Plan) -> str:
    """Steps of an epoch, for people; the least and the most where epochs differ."""
    return _span([plan.epoch_start(epoch + 1) - plan.epoch_start(epoch) for epoch in range(plan.epochs)])


def batch_sizes(plan: Plan, batch_size: int) -> str:
    """Samples of a step, for people, likewise; the incomplete ones at the ends of epochs do not count."""
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    return _span([one.samples for stage in stages for one in stage.cycle] or [batch_size])


def _span(numbers: Sequence[int]) -> str:
    return " to ".join(str(one) for one in sorted({min(numbers), max(numbers)}))
