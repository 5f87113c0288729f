"""Names of weights that go from a multi-task run to a run of one of its tasks, and back.

A multi-task model has ``backbone.*`` and ``tasks.NAME.*``, and batch norms of its backbone may have the statistics of
each stream of images as ``streams.NAME.*``; a task by itself has ``backbone.*`` and the names after ``tasks.NAME.``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from torch import Tensor

PREFIX = "tasks."
_BACKBONE = "backbone."
_STREAM = re.compile(r"\.streams\.([^.]+)(?=\.[^.]+$)")


def rename_tasks(
    weights: Mapping[str, Tensor], model: Mapping[str, Tensor], *, source: str, target: str, path: Path
) -> dict[str, Tensor]:
    """Return weights with the names of the model, if one of the two is a multi-task model or a task of it is chosen.

    Args:
        weights: tensors of the file.
        model: the state dict of the model.
        source: ``tasks.NAME`` of the file; empty: the task with most tensors of the model's names and shapes.
        target: likewise, of the model.
        path: path of the weights; the config of their run has the streams of the tasks.

    Raises:
        ValueError: the file has no such task, or several tasks fit equally well.
    """
    renamed, names, source = dict(weights), _tasks(weights), source.removeprefix(PREFIX)
    target = target.removeprefix(PREFIX)
    if source and source not in names:
        raise ValueError(f"source_prefix: the file has no task {source!r}; its tasks: {', '.join(names) or 'none'}")
    if names and (source or target or not _tasks(model)):
        single = {name: _single_task(weights, name, path) for name in names}
        chosen = source or (target if target in names else _fitting(single, model, "source_prefix"))
        renamed = single.get(chosen, _without_tasks(weights))
    if (names := _tasks(model)) and not _tasks(renamed):
        within = {name: _within_multitask(renamed, name) for name in names}
        renamed = within.get(target or _fitting(within, model, "target_prefix"), renamed)
    return renamed


def part_of(name: str) -> str:
    """Return the part of a model that a tensor belongs to: ``backbone.``, ``tasks.boxes.``."""
    return "".join(f"{word}." for word in name.split(".")[: 2 if name.startswith(PREFIX) else 1])


def without_stream(name: str) -> str:
    """Return the name of a batch norm's statistics of one stream without the stream; other names unchanged.

    Example: ``bn1.streams.boxes.running_mean`` becomes ``bn1.running_mean``.
    """
    return _STREAM.sub("", name)


def _tasks(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.split(".")[1] for name in names if name.startswith(PREFIX)))


def _without_tasks(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor for name, tensor in weights.items() if not name.startswith(PREFIX) and not _STREAM.search(name)
    }


def _single_task(weights: Mapping[str, Tensor], task: str, path: Path) -> dict[str, Tensor]:
    """Return the weights of a task, with the batch norm statistics of its stream."""
    prefix, stream = f"{PREFIX}{task}.", _stream_of(task, path)
    task_weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    statistics = {
        without_stream(name): tensor
        for name, tensor in weights.items()
        if (found := _STREAM.search(name)) and found[1] == stream
    }
    return {**_without_tasks(weights), **statistics, **task_weights}


def _stream_of(task: str, path: Path) -> str:
    """Return the stream of a task: its own, or the one that the config of the run names."""
    config = next((file for folder in (path, *path.parents[:3]) if (file := folder / "config.yaml").is_file()), None)
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) if config else {}
    subtask = settings.get("task", {}).get("tasks", {}).get(task, {})
    return str(subtask.get("stream") or task)


def _within_multitask(weights: Mapping[str, Tensor], task: str) -> dict[str, Tensor]:
    return {
        name if name.startswith(_BACKBONE) else f"{PREFIX}{task}.{name}": tensor for name, tensor in weights.items()
    }


def _fitting(candidates: Mapping[str, Mapping[str, Tensor]], model: Mapping[str, Tensor], key: str) -> str:
    """Return the task with which most tensors beside the backbone fit; empty: none does.

    Raises:
        ValueError: several fit equally well.
    """
    counts = {
        task: sum(
            name in model and model[name].shape == tensor.shape
            for name, tensor in weights.items()
            if not name.startswith(_BACKBONE)
        )
        for task, weights in candidates.items()
    }
    best = max(counts.values())
    winners = [task for task, count in counts.items() if count == best]
    if best and len(winners) > 1:
        raise ValueError(f"it fits in several ways: set {key} to {' or '.join(PREFIX + task for task in winners)}")
    return winners[0] if best else ""
