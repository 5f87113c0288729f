"""Batches of several streams: their weights in a step, and the samples of a stream that have the labels of a task."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opabinia.contracts import Batch
from opabinia.runtime.processes import world_size


def stream_factors(batch: Batch) -> dict[str, float]:
    """Return the factor of each stream's mean loss with which a micro-batch, weighted by its share of all samples,
    contributes to the mean over the stream's samples in the global batch.

    Args:
        batch: see :data:`opabinia.contracts.Batch`.
    """
    counts = batch.get("counts") or {name: len(samples["id"]) for name, samples in batch["streams"].items()}
    total = sum(counts.values())
    if not total:  # only repeated samples, which count 0
        return dict.fromkeys(counts, 1.0)
    world = world_size()
    processed, batches = batch["global_batch"].num_processed(world), batch["global_batches"]
    return {name: count / batches[name].num_processed(world) * processed / total for name, count in counts.items()}


def batch_share(batch: Batch) -> float:
    """Return the samples of a micro-batch relative to those of an average process in the whole step, the weight of its
    losses in :class:`opabinia.engine.loop.step.StandardStep`.

    Args:
        batch: see :data:`opabinia.contracts.Batch`.
    """
    counts = batch.get("counts") or {name: len(samples["id"]) for name, samples in batch["streams"].items()}
    return float(sum(counts.values()) * world_size() / batch["global_batch"].num_processed(world_size()))


def use_first_view(batch: Batch) -> Batch:
    """Return a training batch in the form of an evaluation batch: the image alone, or the first of several views."""
    rest = {name: value for name, value in batch.items() if name != "views"}
    return {"image": batch["views"][0], **rest} if "views" in batch else batch


def labeled_samples(batch: Batch, keys: tuple[str, ...] | None) -> list[int] | None:
    """Return the positions of the samples that lack none of these labels, or no label at all; None: all of them."""
    lacking = [set(text.split()) for text in batch.get("missing", ())]
    rows = [row for row, missing in enumerate(lacking) if not (missing if keys is None else missing & set(keys))]
    return None if len(rows) == len(lacking) else rows


def select_samples(batch: Batch, rows: list[int], index: Tensor) -> Batch:
    """Return some samples of a batch.

    Args:
        batch: tensors, lists, and tuples of views.
        rows: positions of the samples.
        index: the same as a tensor on the device of the batch.
    """

    def column(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(column(view) for view in value)
        if isinstance(value, Tensor):
            return value[index]
        return [value[row] for row in rows]

    return {key: column(value) if isinstance(value, Tensor | list | tuple) else value for key, value in batch.items()}
