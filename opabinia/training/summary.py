"""The summary of a run that is logged before its first step: model, data, device, batch size and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from opabinia.contracts import Batch, DatasetInfo, Plan, Task
from opabinia.data import Data
from opabinia.data.sampling.batches import StagedPlan
from opabinia.runtime.durations import Duration
from opabinia.runtime.resources import cores
from opabinia.runtime.text import plural
from opabinia.training.flops import FlopCount, count_forward_flops
from opabinia.training.loaders import TrainingBatches
from opabinia.training.settings import Training


def run_title(recipe: str, task: Mapping[str, Any]) -> str:
    """Describe a run by its recipe, its task and the networks in it.

    Args:
        recipe: its name.
        task: the section ``task`` of its config.

    Example: ``run_title("digits", {"name": "video", "backbone": {"name": "timm", "model": "resnet18"}})`` is
    ``digits: video, backbone timm resnet18``; of a multi-task run ``scenes: multitask (boxes: detection, maps:
    segmentation), backbone timm resnet18``.
    """
    networks = [(key, task[key]) for key in ("backbone", "detector") if isinstance(task.get(key), Mapping)]
    names = [f"{key} {network['name']} {network.get('model') or ''}".rstrip() for key, network in networks]
    inner = ", ".join(f"{name}: {section['task']['name']}" for name, section in (task.get("tasks") or {}).items())
    kind = f"{task['name']} ({inner})" if inner else str(task["name"])
    return f"{recipe}: {', '.join([kind, *names])}"


def align_lines(texts: Mapping[str, str]) -> list[str]:
    """Format each item as ``name  text``, with the texts aligned."""
    width = max(map(len, texts))
    return [f"{name:<{width}}  {text}" for name, text in texts.items()]


# --- the model --------------------------------------------------------------------------------------------------------


def describe_model(model: Task, sample: Batch) -> str:
    """Describe parameters and FLOPs, such as ``25.6 M parameters, 8.2 GFLOP per sample (forward)``; for the FLOPs of a
    multi-task model see :func:`describe_streams`.

    Args:
        model: not sharded yet.
        sample: a batch of one sample in the form of an evaluation batch; if it is empty, without FLOPs.
    """
    flops = count_forward_flops(model, sample) if sample and "streams" not in sample else None
    return ", ".join([describe_parameters(model), *([describe_flops(flops)] if flops else [])])


def describe_parameters(model: nn.Module) -> str:
    """Count the parameters, and the trainable ones if not all are."""
    total = sum(param.numel() for param in model.parameters())
    trainable = sum(param.numel() for param in model.parameters() if param.requires_grad)
    suffix = "" if total == trainable else f", {format_si(trainable).rstrip()} of them trainable"
    return f"{format_si(total).rstrip()} parameters{suffix}"


def describe_flops(flops: FlopCount) -> str:
    """Format FLOPs, such as ``8.2 GFLOP per sample (forward)``; a head that costs ten times the backbone is named."""
    text = f"{'' if flops.complete else 'at least '}{format_si(flops.count)}FLOP per sample (forward)"
    if flops.backbone and flops.count - flops.backbone >= _HEAVY_HEAD * flops.backbone:
        text += (
            f", only {format_si(flops.backbone)}FLOP of them in the backbone: neck and head cost less with fewer"
            " channels (vars.channels=64 in starting recipes)"
        )
    return text


_HEAVY_HEAD = 10
"""A neck and head that cost this many times the backbone are named."""


def format_si(number: float) -> str:
    """Format a number with three digits and the prefix of its unit: ``25.6 M``, ``8.18 G``, ``312 ``."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 0.9995 * 10**power:
            return f"{number / 10**power:.3g} {prefix}"
    return f"{number:.3g} "


# --- data, device and length ------------------------------------------------------------------------------------------


def describe_data(data: Data, dataset_info: DatasetInfo) -> str:
    """Describe samples, classes and validation sets, such as ``1437 samples of 10 classes; val: 360``."""
    validation = [f"{stream.prefix}: {len(stream.source)}" for stream in data.validation]
    return "; ".join([describe_samples(dataset_info), *validation])


def describe_samples(dataset_info: DatasetInfo) -> str:
    """Describe samples and classes, such as ``1437 samples of 10 classes``."""
    word = "identities" if dataset_info.cameras or dataset_info.queries else "classes"
    classes = f" of {len(dataset_info.classes)} {word}" if dataset_info.classes else ""
    streams = f" in {plural(len(dataset_info.streams), 'stream')}" if dataset_info.streams else ""
    return f"{plural(dataset_info.samples, 'sample')}{classes}{streams}"


def describe_streams(batches: TrainingBatches, model: Task, sample: Batch) -> dict[str, str]:
    """Describe each stream of a run with several ones by its name, such as ``1600 samples of 10 classes, 8 of 16 in a
    batch, 1.2 epochs; 6.2 GFLOP per sample (forward)``, of all tasks of a multi-task run; empty for other runs.

    Args:
        batches: training batches of the run.
        model: not sharded yet.
        sample: a batch of one sample of each stream.
    """
    texts: dict[str, str] = {}
    for name, stream in batches.streams.items() if batches.is_joint else ():
        samples = describe_samples(stream.dataset_info)
        cycle, total = batches.cycle, batches.plan.total_steps
        turns = cycle.steps_before(name, len(cycle.steps)) / len(cycle.steps)
        amount = f"{stream.plan.global_batch(0).count} of {batches.data.batch_size} in a batch"
        amount = amount if turns == 1 else f"{turns:.0%} of the steps"
        epochs = f"{cycle.steps_before(name, total) / (stream.plan.steps_per_epoch or 1):.3g} epochs"
        of_tasks = {**sample, "streams": {name: sample["streams"][name]}} if batches.dataset_info.streams else None
        flops = count_forward_flops(model, of_tasks) if of_tasks else None
        described = [describe_flops(flops)] if flops else []
        texts[name or "labeled"] = "; ".join([f"{samples}, {amount}, {epochs}", *described])
    return texts


def describe_device(device: torch.device, training: Training, processes: int, threads: int, workers: int) -> str:
    """Describe the hardware and its use, such as ``cpu, fp32; 2 processes, each with 1 thread and 4 workers``; more
    workers than cores are pointed out."""
    name = f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    compiled = ", compiled" if training.compile else ""
    crowded = f" (data.num_workers; {plural(cores(), 'core')})" if workers > cores() else ""
    each = f"{plural(threads, 'thread')} and {plural(workers, 'worker')}{crowded}"
    all_processes = f"{plural(processes, 'process', 'es')}, {'each with ' if processes > 1 else ''}{each}"
    return f"{name}, {training.precision}{compiled}; {all_processes}"


def describe_length(
    length: Duration, plan: Plan, data: Data, dataset_info: DatasetInfo, processes: int, start: int
) -> str:
    """Describe the length, such as ``10ep: 1437 samples, 230 steps of 64 (23 per epoch); from step 0``."""
    epochs = [plan.epoch_start(epoch + 1) - plan.epoch_start(epoch) for epoch in range(plan.epochs)]
    # Incomplete batches at the ends of epochs are not counted.
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    sizes = _range([shape.samples for stage in stages for shape in stage.cycle] or [data.batch_size])
    per_process = f", {data.batch_size // processes} per process," if processes > 1 else ""
    steps = f"{plural(plan.total_steps, 'step')} of {sizes}{per_process} ({_range(epochs)} per epoch)"
    return f"{length}: {plural(dataset_info.samples, 'sample')}, {steps}; from step {start}"


def _range(numbers: Sequence[int]) -> str:
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))
