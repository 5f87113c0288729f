"""The two sides of transforms on the device: reading in the workers, applying on the device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields

from opabinia.contracts import Batch, GlobalBatch, Mix, Transform
from opabinia.data.device_transforms.batch_ops import BATCH_OPS, apply_ops, group_ops
from opabinia.data.device_transforms.recorded import RECORDED_OPS
from opabinia.data.device_transforms.split import split_transforms, with_recording
from opabinia.data.errors import part_name
from opabinia.data.reading import BatchReader
from opabinia.data.transforms.views import Views
from opabinia.runtime.seeds import preserve_generators


class RecordingReader(BatchReader):
    """Read batches whose transforms record (:func:`with_recording`), and group the operations; it does not resize or
    mix them."""

    def finish(self, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Replace the operations of each sample by those of the batch."""
        if RECORDED_OPS not in batch:
            return batch
        ops = batch[RECORDED_OPS]
        without_ops = {key: value for key, value in batch.items() if key != RECORDED_OPS}
        return {**without_ops, BATCH_OPS: [group_ops(view_ops) for view_ops in (ops if "views" in batch else [ops])]}


def recording_reader(reader: BatchReader) -> RecordingReader:
    """Return the reader for workers whose batches :class:`DeviceTransforms` completes."""
    arguments = {field.name: getattr(reader, field.name) for field in fields(reader)}
    if not runs_on_workers_only(reader):
        arguments["transforms"] = with_recording(reader.transforms)
    return RecordingReader(**arguments)


def runs_on_workers_only(reader: BatchReader) -> bool:
    """Return whether the workers apply all transforms: images differ in size, or have boxes."""
    return reader.size_multiple is not None or reader.source.info.boxes


def describe_split(reader: BatchReader) -> str:
    """Describe what runs in the workers and what on the device, for the log."""
    if runs_on_workers_only(reader):
        return "images differ in size or have boxes; " + _describe(reader.transforms, reader.mixes)
    last = reader.transforms[-1] if reader.transforms else None
    if isinstance(last, Views):
        views = (_describe(*split_transforms(transforms)) for transforms in last.each)
        return "; ".join(f"view {number}: {view}" for number, view in enumerate(views, 1))
    workers, batchable = split_transforms(reader.transforms)
    return _describe(workers, [*batchable, *reader.mixes])


def _describe(workers: Sequence[Transform], device: Sequence[Transform | Mix]) -> str:
    first, last = (", ".join(map(part_name, transforms)) or "nothing" for transforms in (workers, device))
    return f"workers run {first}, the device {last}"


@dataclass(frozen=True)
class DeviceTransforms:
    """Complete a batch of a :class:`RecordingReader` that is on its device.

    Attributes:
        reader: resizes and mixes batches.
    """

    reader: BatchReader

    def __call__(self, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Return the batch as a worker that does everything would have sent it.

        Raises:
            DataError: it cannot be resized or mixed.
        """
        ops = batch.pop(BATCH_OPS, None)
        if ops is not None and "views" in batch:
            batch["views"] = tuple(map(apply_ops, batch["views"], ops))
        elif ops is not None:
            batch["image"] = apply_ops(batch["image"], *ops)
        with preserve_generators() if self.reader.mixes else nullcontext():
            return self.reader.finish(batch, global_batch)
