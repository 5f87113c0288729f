"""Reading a batch: its samples are read, transformed, collated, resized and mixed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, count
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from opabinia.contracts import (
    Batch,
    CombiningTransform,
    DatasetInfo,
    GlobalBatch,
    Mix,
    Sample,
    Source,
    Transform,
)
from opabinia.data.collate import collate, is_clip_shape, resize_batch
from opabinia.data.decoding.images import DeferredImage, decode_sample, read_encoded
from opabinia.data.decoding.resized import decode_large
from opabinia.data.errors import DataError, data_error, errors_in
from opabinia.data.sample_keys import GROUND_TRUTH_KEYS
from opabinia.data.sampling.requests import Request
from opabinia.runtime.local_copies import fetch_all
from opabinia.runtime.seeds import ANOTHER, MIX, REPLACEMENT, SAMPLE, hash32, preserve_generators, seed_sample
from opabinia.runtime.storage import StorageError

_HINT = "; `opabinia data check` lists all samples that cannot be read, data.on_error=skip omits them"
"""End of the error of a sample that cannot be read."""


class LoadedBatch(NamedTuple):
    """A batch as a worker sends it.

    Attributes:
        global_batch: the global batch.
        batch: None if none of its samples could be read.
        skipped: error messages of samples that were skipped or replaced.
        seconds: duration of reading.
    """

    global_batch: GlobalBatch
    batch: Batch | None
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0

    def pin_memory(self) -> LoadedBatch:
        """Return it with its tensors in pinned memory. The DataLoader's thread calls this, too, so that batches are the
        same with and without workers."""
        return self._replace(batch=_pinned(self.batch))


def _pinned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if isinstance(value, dict):
        return {key: _pinned(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_pinned, value))
    return value


class Failure(NamedTuple):
    """Sent by a worker instead of a batch: exceptions do not survive the way to the main process unchanged."""

    message: str
    traceback: str


_MAX_REPLACEMENTS = 20


@dataclass(frozen=True)
class BatchReader(Dataset[LoadedBatch | Failure]):
    """Read the batch of a request: read, transform, collate, resize, mix. A pure function of seed and request.

    If there are no transforms, the source is asked for the whole batch.

    Attributes:
        source: of the samples.
        transforms: applied to each sample, in order.
        mixes: applied to the collated batch, in order.
        dataset_info: of the training data, for the mixes.
        seed: of the run.
        rank: of this process, so that processes mix differently.
        on_error: for a sample that cannot be made: ``raise`` ends the run; ``replace`` takes another one, of the same
            label if there is one, chosen by seed, epoch, position and attempt; ``skip`` makes the batch smaller.
        size_multiple: images may differ in size (:func:`opabinia.data.collate.collate`).
        reduced: let the first transform decode only the crop that it takes, at the lowest sufficient resolution, if it
            and the source support this.
        task: in a multi-task run, the name of the task that is evaluated; it is added to each batch.
        ground_truth: keep what only evaluators read (:data:`opabinia.data.sample_keys.GROUND_TRUTH_KEYS`).
    """

    source: Source
    transforms: Sequence[Transform] = ()
    mixes: Sequence[Mix] = ()
    dataset_info: DatasetInfo = DatasetInfo(samples=0)
    seed: int = 0
    rank: int = 0
    on_error: Literal["raise", "replace", "skip"] = "raise"
    size_multiple: int | None = None
    reduced: bool = False
    task: str | None = None
    ground_truth: bool = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: what is derived from them cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getitem__(self, request: Request) -> LoadedBatch | Failure:
        start = time.perf_counter()
        if not self.mixes and request.global_batch.shape is None and not self.task:
            # Nothing is drawn and nothing computed, so the generators need no care.
            batch = self._whole_batch(request)
            if batch is not None:
                return LoadedBatch(request.global_batch, batch, (), time.perf_counter() - start)
        try:
            with preserve_generators(), _one_thread():
                return self.read(request)._replace(seconds=time.perf_counter() - start)
        except DataError as error:
            return Failure(str(error), traceback.format_exc())

    def _whole_batch(self, request: Request) -> Batch | None:
        """Return the batch of a source that returns whole batches; None: read one by one, the samples show which of
        them is at fault, if any."""
        if not self.transforms:
            with suppress(Exception):
                return self.source.batch(request.indices)
        return None

    def batch(self, request: Request) -> Batch:
        """Return the batch of a request with at least one readable sample. Seeds and uses the global generators.

        Raises:
            DataError: a sample could not be read or transformed, or the samples do not form a batch.
        """
        batch = self.read(request).batch
        if batch is None:
            raise DataError(f"step {request.global_batch.step}: none of its samples can be read")
        return batch

    def read(self, request: Request) -> LoadedBatch:
        """Return the batch of a request with the messages of skipped samples."""
        batch, skipped = self._collate(request)
        return LoadedBatch(request.global_batch, batch and self.finish(batch, request.global_batch), tuple(skipped))

    def finish(self, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Resize a collated batch to the shape of its global batch, and mix it. Seeds and uses the global generators.

        Raises:
            DataError: it cannot be resized or mixed.
        """
        if global_batch.shape is not None:
            with errors_in(f"step {global_batch.step}", resize_batch):
                batch = resize_batch(batch, global_batch.shape)
        if self.mixes:
            seed_sample(hash32(MIX, self.seed, global_batch.step, self.rank))
            for mix in self.mixes:
                with errors_in(f"step {global_batch.step}", mix):
                    batch = mix(batch, self.dataset_info)
        return {**batch, "task": self.task} if self.task else batch

    def _collate(self, request: Request, deferred: bool = True) -> tuple[Batch | None, list[str]]:
        """Return the batch and the messages of skipped samples; ``deferred`` as in :meth:`_transformed_sample`."""
        global_batch, deferred = request.global_batch, deferred and self._defers
        batch = self._whole_batch(request)
        if batch is not None:
            return batch, []
        with errors_in(f"step {global_batch.step}", self.source):
            fetch_all(chain.from_iterable(map(self.source.paths, request.indices.tolist())))
        skipped: list[str] = []
        samples = []
        for position, index in zip(request.positions.tolist(), request.indices.tolist(), strict=True):
            sample = self._sample(global_batch, position, index, skipped, deferred)
            if sample is not None:
                dropped = () if self.ground_truth else GROUND_TRUTH_KEYS
                samples.append({name: value for name, value in sample.items() if name not in dropped})
        if not samples:
            return None, skipped
        try:
            with errors_in(f"step {global_batch.step}", collate):
                return collate(samples, self.size_multiple), skipped
        except DataError:
            if not any(isinstance(sample.get("image"), DeferredImage) for sample in samples):
                raise
        return self._collate(request, deferred=False)  # decoded one by one, the samples show which of them is broken

    def _sample(
        self, global_batch: GlobalBatch, position: int, index: int, skipped: list[str], deferred: bool
    ) -> Sample | None:
        """Return a transformed sample, or its replacement, or None if it is skipped; append errors to ``skipped``."""
        shape = global_batch.shape if global_batch.shape is not None and is_clip_shape(global_batch.shape) else None
        key = hash32(SAMPLE, self.seed, global_batch.epoch, position)
        tried = [index]
        for attempt in range(_MAX_REPLACEMENTS):
            try:
                return self._transformed_sample(index, key, shape, deferred)
            except DataError as error:
                # A sample that storage does not give is not broken, and without it the run would be another one.
                if self.on_error == "raise" or isinstance(error.__cause__, StorageError):
                    raise
                skipped.append(str(error))
                if self.on_error == "skip":
                    return None
                index = self._replacement(tried, hash32(REPLACEMENT, self.seed, global_batch.epoch, position, attempt))
                tried.append(index)
        raise DataError(f"{_MAX_REPLACEMENTS} samples in a row could not be read; the last: {skipped[-1]}")

    def _replacement(self, tried: list[int], draw: int) -> int:
        """Return another index than those tried: of the first one's label, since samplers rely on it; else any."""
        labels = self.source.info.single_labels
        if labels is not None:
            same_label = np.setdiff1d(np.flatnonzero(labels == labels[tried[0]]), tried)
            if same_label.size:
                return int(same_label[draw % same_label.size])
        return draw % len(self.source)

    def _transformed_sample(
        self, index: int, key: int, shape: tuple[int, ...] | None, deferred: bool = False, stop: int | None = None
    ) -> Sample:
        """Read a sample and apply the transforms (the first ``stop`` of them), whose random numbers come from ``key``.

        Transforms of clips see the wanted ``shape`` in the sample, so that they decode no frames in vain. With
        ``deferred`` the image may be a :class:`ResizedCrop`, which the batch decodes.
        """
        transforms = self.transforms[:stop]
        if transforms:  # sources draw no random numbers
            seed_sample(key)
        part: object = self.source
        sample: Sample | None = None
        try:  # one handler for all parts: a context manager for each takes as long as a small transform
            sample = _check_sample(self._read_source(index))
            if shape is not None:
                sample = {**sample, "shape": shape}
            for number, part in enumerate(transforms):
                if isinstance(sample.get("image"), DeferredImage):
                    sample = _check_sample(part.of_encoded(sample))  # type: ignore[attr-defined]
                    sample = decode_large(sample) if deferred else decode_sample(sample)
                elif self._combines[number]:
                    others = self._other_samples(key, shape, number)
                    sample = _check_sample(part.combine(sample, others))  # type: ignore[attr-defined]
                else:
                    sample = _check_sample(part(sample))
        except Exception as error:
            name = "" if sample is None else f" ({sample.get('id', 'without id')})"
            unread = sample is None or isinstance(sample.get("image"), DeferredImage)
            hint = _HINT if unread and self.on_error == "raise" and not isinstance(error, StorageError) else ""
            raise data_error(f"sample {index}{name}", part, error, hint) from error
        if shape is not None:
            sample.pop("shape", None)
        return sample

    @cached_property
    def _combines(self) -> list[bool]:
        """Whether each transform is a combination; ``isinstance`` of a protocol takes 15 us."""
        return [isinstance(transform, CombiningTransform) for transform in self.transforms]

    @cached_property
    def _defers(self) -> bool:
        """Whether images may stay encoded through all transforms, until their batch is collated."""
        return self.size_multiple is None and all(map(_takes_encoded, self.transforms))

    @cached_property
    def _read_source(self) -> Callable[[int], Sample]:
        """Returns a sample by index; with its image still encoded if the first transform decodes it."""
        decodes = bool(self.transforms) and _takes_encoded(self.transforms[0])
        if self.reduced and decodes and self.source.info.encoded:
            encoded = self.source.encoded
            return lambda index: read_encoded(encoded(index))
        return self.source.__getitem__

    def _other_samples(self, key: int, shape: tuple[int, ...] | None, stop: int) -> Callable[[], Sample]:
        """Return a function whose calls give the additional samples for a combination, one after the other."""
        keys = (hash32(ANOTHER, key, stop, number) for number in count())

        def another() -> Sample:
            other_key = next(keys)
            with preserve_generators():
                return self._transformed_sample(other_key % len(self.source), other_key, shape, stop=stop)

        return another


def _takes_encoded(transform: Transform) -> bool:
    return getattr(transform, "of_encoded", None) is not None


def _check_sample(sample: Any) -> Sample:
    if not isinstance(sample, dict):
        raise TypeError(f"returned a {type(sample).__name__}, not a sample (dict)")
    return sample


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, as in a worker: with more threads sums (a mean in ColorJitter) have other last bits. Costs less
    than 1 us."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
