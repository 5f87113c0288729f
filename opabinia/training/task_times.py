"""Computing time of each task of a multi-task run, and of the backbone that they share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from torch import Tensor

from opabinia.contracts import Batch, Clock, total_loss
from opabinia.engine.loop.step import split_micro_batches
from opabinia.runtime.device import autocast
from opabinia.tasks.multitask import Multitask
from opabinia.training.device_times import mark, synchronize
from opabinia.training.settings import Training


def time_tasks(model: Multitask, batch: Batch, clock: Clock, training: Training, times: int) -> dict[str, Any]:
    """Measure forward and backward passes of the backbone and of each task by itself, in one process.

    The device is waited for once per measurement, not per step.

    Args:
        model: a model in training; its gradients and batch norm statistics change.
        batch: with samples of every stream.
        clock: clock of the run.
        training: the config section, for the precision and the micro-batch size.
        times: number of passes of each.

    Returns:
        By stream: ``samples`` in a batch, seconds of the ``backbone`` (0 if each task has views of its own), and of
        each of the ``tasks`` beyond it.
    """
    device = next(model.parameters()).device
    parts = list(split_micro_batches(batch, training.micro_batch_size))
    first: dict[str, Batch] = parts[0][0]["streams"]

    def seconds(compute: Callable[[], Tensor]) -> float:
        """Return the median time of a forward and a backward pass over the whole batch."""
        marks = []
        for _ in range(times + 1):  # the first one does not count
            with autocast(device, training.precision):
                result = compute()
            if result.requires_grad:
                result.backward()  # type: ignore[no-untyped-call]
            marks.append(mark(device))
        synchronize(device)
        return median(start.seconds_to(end) for start, end in pairwise(marks)) * len(parts)

    def embeddings(stream: str) -> Tensor:
        return model.features(first[stream])["embedding"].sum()

    def loss(name: str, stream: str) -> Tensor:
        model.use_stream(stream)
        return total_loss(model.tasks[name](first[stream], clock))[0]

    streams = {}
    names_of = {stream: [name for name in model.tasks if model.stream_of(name) == stream] for stream in first}
    for stream, names in sorted(names_of.items(), key=lambda item: list(model.tasks).index(item[1][0])):
        backbone = seconds(partial(embeddings, stream)) if "image" in first[stream] else 0.0
        alone = {name: seconds(partial(loss, name, stream)) for name in names}
        streams[stream] = {
            "samples": len(batch["streams"][stream]["id"]),
            "backbone": backbone,
            "tasks": {name: max(0.0, total - backbone) for name, total in alone.items()},
        }
    return streams
