"""The batches that a run trains on, planned before the first step, and the loaders that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import numpy as np
import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import Batch, DatasetInfo, Plan, Sampler
from opabinia.data import Data, ValidationStream
from opabinia.data.decoding.cache import with_cache
from opabinia.data.device_transforms.apply import DeviceTransforms, describe_split, recording_reader
from opabinia.data.loader import BatchReader, Loader, Requests, training_requests
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.runtime.seeds import FRESH, hash32

SizeMultiple = Callable[[str], int | None]
""":meth:`opabinia.contracts.Task.size_multiple_of` of a task."""


@dataclass(frozen=True)
class TrainingBatches:
    """The training data of a run and every global batch of it, known before the first step.

    Attributes:
        data: the config section.
        dataset_info: describes the training samples after their transforms.
        sampler: order of the samples in each epoch.
        plan: all global batches.
        seed: of the run.
    """

    data: Data
    dataset_info: DatasetInfo
    sampler: Sampler
    plan: ConstantPlan | StagedPlan
    seed: int

    def loader(self, device: torch.device, size_multiple: SizeMultiple = lambda name: None) -> DeviceLoader:
        """Return the loader of this rank's share of the batches.

        Args:
            device: where the batches are put.
            size_multiple: :meth:`opabinia.contracts.Task.size_multiple_of` of the task.
        """
        data, reader = self.data, self.reader(size_multiple(""))
        load = partial(Loader, requests=self.requests(), num_workers=data.num_workers, pin_memory=device.type == "cuda")
        if data.augment_on == "workers":
            return DeviceLoader(load(reader), device)
        return DeviceLoader(load(recording_reader(reader)), device, DeviceTransforms(reader))

    def requests(self) -> Requests:
        """Return the requests of this rank."""
        return training_requests(self.plan, self.sampler.order, rank(), world_size())

    def reader(self, size_multiple: int | None, cache_name: str = "train") -> BatchReader:
        """Return the reader of the requests.

        Args:
            size_multiple: as in :class:`opabinia.contracts.Task`.
            cache_name: of the cached images.
        """
        data, source = self.data, self.data.train.source
        if data.cache is not None:
            with errors_at("data.cache"):
                source = with_cache(source, data.cache, data.cache_size, cache_name)
        return BatchReader(
            *(source, data.train.transforms, data.mix, self.dataset_info, self.seed, rank()),
            on_error="replace" if data.on_error == "skip" else "raise",
            size_multiple=size_multiple,
            ground_truth=False,
            reduced=data.decode == "reduced" or data.cache is not None,
            task=data.train.task if isinstance(data.train, ValidationStream) else None,
        )

    def order_fingerprint(self) -> str:
        """Return a text that changes with the order of the samples at the beginning of the first two epochs."""
        positions = np.arange(min(1000, len(self.sampler)))
        content = b"".join(self.sampler.order(epoch)(positions).tobytes() for epoch in (0, 1))
        return f"{len(self.sampler)} positions, {blake2b(content, digest_size=8).hexdigest()}"

    def extra_batches(
        self, device: torch.device, batch_size: int | None, size_multiple: SizeMultiple, name: str, count: int
    ) -> Iterator[Batch]:
        """Yield batches of this rank that belong to no epoch, the same ones at every call.

        Batches of ``train`` are unmixed and in an order of their own; those of a validation set are its first ones.

        Args:
            device: where the batches are put.
            batch_size: samples over all ranks of a validation batch; None takes that of training.
            size_multiple: :meth:`opabinia.contracts.Task.size_multiple_of` of the task.
            name: ``train`` or the prefix of a validation set.
            count: number of batches over all ranks, at most as many as the validation set has.

        Raises:
            ConfigError: there is no such dataset; raised before the first batch is requested.
        """
        streams = {stream.prefix: stream for stream in self.data.validation}
        if name != "train" and name not in streams:
            message = f"there is no dataset {name!r}; datasets: {listing(['train', *streams])}"
            raise ConfigError(Problem("", "hooks", message))
        seed = hash32(FRESH, self.seed)
        if name == "train":
            return _first_batches(self.fresh(seed, count).loader(device, size_multiple), count)
        data = replace(self.data, mix=(), train=streams[name], drop_last=False, cache=None, cache_size=None)
        sampler, size = EpochSampler(len(data.train.source), seed, False), batch_size or data.batch_size
        count = min(count, -(-len(sampler) // size))
        # Shares of whole batches: layers that communicate between ranks need as many on each of them.
        plan = ConstantPlan(len(sampler), size, Duration(count, "it"))
        batches = TrainingBatches(data, self.dataset_info, sampler, plan, seed)
        multiple = size_multiple(streams[name].task or "")
        return _first_batches(batches.loader(device, lambda name: multiple), count)

    def fresh(self, seed: int, count: int) -> TrainingBatches:
        """Return ``count`` batches in another order, unmixed."""
        data = replace(self.data, mix=())
        sampler = make_sampler(data, seed)
        plan = ConstantPlan(len(sampler), data.batch_size, Duration(count, "it"), data.drop_last)
        return TrainingBatches(data, self.dataset_info, sampler, plan, seed)


def splits_norms(plan: Plan, sync_batch_norm: bool) -> bool:
    """Return whether batch norms split a rank's share of the batch, or span several ranks, at some time of the run.

    Synchronized batch norms take their statistics over the whole batch instead.
    """
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    return not sync_batch_norm and any(stage.splits > 1 or stage.processes > 1 for stage in stages)


def make_sampler(data: Data, seed: int) -> Sampler:
    """Build the sampler, which gives the order of the samples in each epoch."""
    if data.sampler is None:
        return EpochSampler(len(data.train.source), seed, data.shuffle)
    with errors_at("data.sampler"):
        return data.sampler(data.train.source, seed, data.batch_size)


def log_device_transforms(data: Data, size_multiple: int | None = None) -> None:
    """Log which transforms run on the device, if some do."""
    if data.augment_on == "device":
        reader = BatchReader(data.train.source, data.train.transforms, data.mix, size_multiple=size_multiple)
        log.info("data.augment_on: %s", describe_split(reader))


def _first_batches(loader: DeviceLoader, count: int) -> Iterator[Batch]:
    with closing(loader):
        for row, batch in loader.iterate():
            if row.step >= count:
                break
            yield batch
