"""The batches that a run trains on, planned before the first step, and the loaders that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import SINGLE, Batch, DatasetInfo, GlobalBatch, Plan, Sampler, Task
from opabinia.data import Data, TrainingStream
from opabinia.data.decoding.cache import with_cache
from opabinia.data.device_transforms.apply import DeviceTransforms, describe_split, recording_reader
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.requests import Requests, training_requests
from opabinia.data.sources.file_names import short_digest
from opabinia.data.streams.batches import JointReader, join_batches, joint_requests
from opabinia.data.streams.order import StreamCycle, StreamShares
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank, world_size
from opabinia.runtime.seeds import FRESH, STREAM, hash32
from opabinia.runtime.text import plural
from opabinia.training.samples import first_samples

SizeMultiple = Callable[[str], int | None]
""":meth:`opabinia.contracts.Task.size_multiple_of` of a task."""


@dataclass(frozen=True)
class StreamBatches:
    """The training data of one stream and each batch of it, which are those of a run on it alone.

    Attributes:
        dataset: its samples, their transforms and order.
        data: the section ``data``, with the options for reading.
        dataset_info: describes the samples after their transforms.
        sampler: order of the samples in each epoch.
        plan: all global batches of the stream.
        seed: seed of the stream.
        task: the task that is evaluated, for validation data of a multi-task run.
    """

    dataset: TrainingStream
    data: Data
    dataset_info: DatasetInfo
    sampler: Sampler
    plan: ConstantPlan | StagedPlan
    seed: int
    task: str | None = None

    def requests(self) -> Requests:
        """Return the requests of this rank."""
        return training_requests(self.plan, self.sampler.order, rank(), world_size())

    def reader(self, size_multiple: int | None, cache_name: str = "train") -> BatchReader:
        """Return the reader of the requests.

        Args:
            size_multiple: as in :class:`opabinia.contracts.Task`.
            cache_name: name of the cached images.
        """
        data, source = self.data, self.dataset.source
        if data.cache is not None:
            with errors_at("data.cache"):
                source = with_cache(source, data.cache, data.cache_size, cache_name)
        return BatchReader(
            source,
            self.dataset.transforms,
            self.dataset.mix,
            self.dataset_info,
            seed=self.seed,
            rank=rank(),
            on_error="replace" if data.on_error == "skip" else "raise",
            size_multiple=size_multiple,
            ground_truth=False,
            reduced=data.decode == "reduced" or data.cache is not None,
            task=self.task,
        )

    def order_fingerprint(self) -> str:
        """Return a text that changes with the order of the samples at the beginning of the first two epochs."""
        positions = np.arange(min(1000, len(self.sampler)))
        content = b"".join(self.sampler.order(epoch)(positions).tobytes() for epoch in (0, 1))
        return f"{len(self.sampler)} positions, {blake2b(content, digest_size=8).hexdigest()}"


@dataclass(frozen=True)
class TrainingBatches:
    """The training data of a run and every global batch of it, known before the first step.

    Attributes:
        data: the config section.
        dataset_info: describes the training samples after their transforms.
        streams: the batches of each stream; that of a run of one task is named :data:`opabinia.contracts.SINGLE`.
        shares: rule by which streams share batches.
        cycle: streams that take part in each step.
        plan: all global batches.
        seed: seed of the run.
    """

    data: Data
    dataset_info: DatasetInfo
    streams: Mapping[str, StreamBatches]
    shares: StreamShares
    cycle: StreamCycle
    plan: ConstantPlan | StagedPlan
    seed: int

    @property
    def is_joint(self) -> bool:
        """Whether batches have several streams: of several tasks, or of labeled and unlabeled images."""
        return tuple(self.streams) != (SINGLE,)

    def datasets(self) -> dict[str, TrainingStream]:
        """Return the dataset of each stream."""
        return {name: stream.dataset for name, stream in self.streams.items()}

    def loader(self, device: torch.device, size_multiple: SizeMultiple = lambda name: None) -> DeviceLoader:
        """Return the loader of this rank's samples of the batches.

        Args:
            device: where the batches are put.
            size_multiple: :meth:`opabinia.contracts.Task.size_multiple_of` of the task.
        """
        readers = {
            name: stream.reader(size_multiple(name), f"train-{name}" if name else "train")
            for name, stream in self.streams.items()
        }
        transforms = None
        if self.data.augment_on == "device":
            transforms = DeviceTransforms(readers[SINGLE])
            readers[SINGLE] = recording_reader(readers[SINGLE])
        reader: Any = JointReader(readers)
        requests: Any = joint_requests(
            self.plan, self.cycle, {name: stream.requests() for name, stream in self.streams.items()}
        )
        workers, pin_memory = self.data.num_workers, device.type == "cuda"
        return DeviceLoader(Loader(reader, requests, num_workers=workers, pin_memory=pin_memory), device, transforms)

    def order_fingerprint(self) -> str:
        """Return a text that changes with the order of the samples and the streams of the steps."""
        if not self.is_joint:
            return self.streams[SINGLE].order_fingerprint()
        texts = [
            f"{name} {stream.plan.global_batch(0).count} {stream.order_fingerprint()}"
            for name, stream in self.streams.items()
        ]
        return "; ".join([*texts, short_digest(repr(self.cycle.steps).encode())])

    def data_fingerprint(self) -> str:
        """Return a text that changes with the samples, and with the streams, their order and shares."""
        texts = {name: stream.dataset.source.fingerprint() for name, stream in self.streams.items()}
        if not self.is_joint:
            return texts[SINGLE]
        parts = [f"{name} {self.shares.shares[name]:.6f} {text}" for name, text in texts.items()]
        rule = "steps" if self.shares.alternate else "batch"
        return f"{self.dataset_info.samples} samples, {short_digest('; '.join([rule, *parts]).encode())}"

    def first_samples(self, count: int, task: Task, *, shape: tuple[int, ...] | None = None) -> Batch:
        """Return the first samples of each stream as a batch, after the transforms.

        Args:
            count: number of samples, of each stream.
            task: task that trains on them.
            shape: as in :class:`opabinia.contracts.GlobalBatch`.

        Raises:
            DataError: one of them cannot be read; with ``data.on_error: skip``, none of the dataset can.
        """
        skip = self.data.on_error == "skip"
        batches = {
            name: first_samples(
                stream.dataset, count, skip=skip, size_multiple=task.size_multiple_of(name), shape=shape
            )
            for name, stream in self.streams.items()
        }
        global_batches = {name: GlobalBatch(0, 0, 0, len(batch["id"])) for name, batch in batches.items()}
        total = sum(global_batch.count for global_batch in global_batches.values())
        return join_batches(GlobalBatch(0, 0, 0, total), batches, global_batches) if self.is_joint else batches[SINGLE]

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
        validation = {stream.prefix: stream for stream in self.data.validation}
        if name != "train" and name not in validation:
            message = f"there is no dataset {name!r}; datasets: {listing(['train', *validation])}"
            raise ConfigError(Problem("", "hooks", message))
        seed, length = hash32(FRESH, self.seed), Duration(count, "it")
        if name == "train":
            datasets = self.datasets()
            names = (SINGLE,) if SINGLE in datasets else datasets  # of semi-supervised training the labeled images
            unmixed = {name: replace(datasets[name], mix=()) for name in names}
            batches = plan_streams(self.data, unmixed, self.shares, self.dataset_info, length, seed)
            return _first_batches(batches.loader(device, size_multiple), count)
        val_set = validation[name]
        dataset = TrainingStream(source=val_set.source, transforms=val_set.transforms, shuffle=False)
        data, size = replace(self.data, cache=None, cache_size=None), batch_size or self.data.batch_size
        sampler = EpochSampler(len(val_set.source), seed, shuffle=False)
        count = min(count, -(-len(sampler) // size))
        # Each rank reads a part of every batch: layers that communicate between ranks need as many batches on each.
        plan = ConstantPlan(len(sampler), size, Duration(count, "it"))
        stream = StreamBatches(dataset, data, self.dataset_info, sampler, plan, seed, val_set.task)
        shares = StreamShares({SINGLE: 1.0})
        batches = TrainingBatches(data, self.dataset_info, {SINGLE: stream}, shares, shares.cycle(seed), plan, seed)
        multiple = size_multiple(val_set.task or "")
        return _first_batches(batches.loader(device, lambda name: multiple), count)


def plan_streams(
    data: Data,
    datasets: Mapping[str, TrainingStream],
    shares: StreamShares,
    dataset_info: DatasetInfo,
    length: Duration,
    seed: int,
) -> TrainingBatches:
    """Plan batches of constant size.

    Args:
        data: the config section.
        datasets: dataset of each stream.
        shares: rule by which streams share batches.
        dataset_info: description of the streams.
        length: length of the run.
        seed: seed of the run; that of a stream follows from it and the stream's name.

    Raises:
        ConfigError: a stream has fewer samples than its part of a batch, or a sampler refuses the data.
    """
    if tuple(datasets) == (SINGLE,):
        with errors_at("data"):
            sampler = make_sampler(datasets[SINGLE], data.batch_size, seed)
            single = ConstantPlan(len(sampler), data.batch_size, length, data.drop_last)
        stream = StreamBatches(datasets[SINGLE], data, dataset_info, sampler, single, seed)
        return TrainingBatches(data, dataset_info, {SINGLE: stream}, shares, shares.cycle(seed), single, seed)
    with errors_at("data"):
        if dataset_info.samples < data.batch_size:
            message = f"the streams have {plural(dataset_info.samples, 'sample')} together, fewer than a batch"
            raise ValueError(f"batch_size: {message} of {data.batch_size}")
        plan = ConstantPlan(dataset_info.samples, data.batch_size, length, drop_last=True)
    with errors_at("data.batch_size"):
        sizes = shares.batch_sizes(data.batch_size)
    cycle, streams = shares.cycle(seed), dict[str, StreamBatches]()
    for name, dataset in datasets.items():
        size, stream_seed = sizes[name], hash32(STREAM, seed, *name.encode())
        steps = Duration(max(1, cycle.steps_before(name, plan.total_steps)), "it")
        with errors_at(dataset.place):
            sampler = make_sampler(dataset, size, stream_seed)
            if len(sampler) < size:
                message = f"{plural(len(sampler), 'sample')} cannot fill its part of a batch, {size}"
                raise ValueError(f"{message}: lower its batch_share or data.batch_size")
            stream_plan = ConstantPlan(len(sampler), size, steps, drop_last=True)
        info = dataset_info.streams.get(name) or replace(dataset_info, samples=len(dataset.source))
        streams[name] = StreamBatches(dataset, data, info, sampler, stream_plan, stream_seed)
    return TrainingBatches(data, dataset_info, streams, shares, cycle, plan, seed)


def splits_norms(plan: Plan, sync_batch_norm: bool) -> bool:
    """Return whether batch norms split a rank's share of the batch, or span several ranks, at some time of the run.

    Synchronized batch norms take their statistics over the whole batch instead.
    """
    stages = plan.stages if isinstance(plan, StagedPlan) else ()
    return not sync_batch_norm and any(stage.splits > 1 or stage.processes > 1 for stage in stages)


def make_sampler(dataset: TrainingStream, batch_size: int, seed: int) -> Sampler:
    """Build the sampler, which gives the order of the samples of a stream in each epoch."""
    if dataset.sampler is None:
        return EpochSampler(len(dataset.source), seed, dataset.shuffle)
    with errors_at("data.sampler"):
        return dataset.sampler(dataset.source, seed, batch_size)


def log_device_transforms(batches: TrainingBatches, size_multiple: int | None = None) -> None:
    """Log which transforms run on the device, if some do."""
    if batches.data.augment_on == "device":
        dataset = batches.streams[SINGLE].dataset
        reader = BatchReader(dataset.source, dataset.transforms, dataset.mix, size_multiple=size_multiple)
        log.info("data.augment_on: %s", describe_split(reader))


def _first_batches(loader: DeviceLoader, count: int) -> Iterator[Batch]:
    with closing(loader):
        for global_batch, batch in loader.iterate():
            if global_batch.step >= count:
                break
            yield batch
