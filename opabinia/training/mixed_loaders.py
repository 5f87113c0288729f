"""The batches of a multi-task run: several training datasets, each with its own order, joined step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.contracts import DatasetInfo
from opabinia.data import Data, Stream
from opabinia.data.loader import Loader
from opabinia.data.mixed_batches import MixedReader, mixed_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.mixing import StreamCycle, alternating_cycle, divide, joint_cycle
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.sources import Mixture
from opabinia.data.sources.file_names import short_digest
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration
from opabinia.runtime.processes import world_size
from opabinia.runtime.seeds import STREAM, hash32
from opabinia.runtime.text import plural
from opabinia.training.loaders import SizeMultiple, TrainingBatches, make_sampler


@dataclass(frozen=True)
class MixedTrainingBatches(TrainingBatches):
    """The training data of a multi-task run; see :class:`opabinia.training.loaders.TrainingBatches`.

    Attributes:
        streams: the batches of each stream, as those of a run on it alone.
        cycle: which streams take part in a step.
    """

    streams: Mapping[str, TrainingBatches]
    cycle: StreamCycle

    def loader(self, device: torch.device, size_multiple: SizeMultiple = lambda name: None) -> DeviceLoader:
        """Return the loader of this rank's share of the batches."""
        readers = {name: stream.reader(size_multiple(name), f"train-{name}") for name, stream in self.streams.items()}
        streams = {name: stream.requests() for name, stream in self.streams.items()}
        reader: Any = MixedReader(readers)
        requests: Any = mixed_requests(self.plan, self.cycle, streams)
        workers, pin_memory = self.data.num_workers, device.type == "cuda"
        return DeviceLoader(Loader(reader, requests, num_workers=workers, pin_memory=pin_memory), device)

    def order_fingerprint(self) -> str:
        """Return a text that changes with the order of the samples and the mixture of the streams."""
        texts = [f"{name} {own.data.batch_size} {own.order_fingerprint()}" for name, own in self.streams.items()]
        return "; ".join([*texts, short_digest(repr(self.cycle.steps).encode())])

    def fresh(self, seed: int, count: int) -> MixedTrainingBatches:
        """Return ``count`` batches in another order, unmixed."""
        data = replace(self.data, mix=())
        batches = plan_mixed_training(data, self.dataset_info, Duration(count, "it"), seed)
        streams = {name: replace(stream, data=replace(stream.data, mix=())) for name, stream in batches.streams.items()}
        return replace(batches, streams=streams)


def plan_mixed_training(data: Data, dataset_info: DatasetInfo, length: Duration, seed: int) -> MixedTrainingBatches:
    """Plan the batches of a multi-task run.

    Args:
        data: the config section; its source is a :class:`opabinia.data.sources.mixture.Mixture`.
        dataset_info: of the streams.
        length: of the run.
        seed: of the run; that of a stream follows from it and the stream's name.

    Raises:
        ConfigError: a stream has fewer samples than its share of a batch, or an option of ``data`` belongs to streams.
    """
    mixture = data.train.source
    assert isinstance(mixture, Mixture)
    with errors_at("data"):
        _check_options(data)
        if len(mixture) < data.batch_size:
            message = f"the streams have {plural(len(mixture), 'sample')} together, fewer than a batch"
            raise ValueError(f"batch_size: {message} of {data.batch_size}")
        plan = ConstantPlan(len(mixture), data.batch_size, length, drop_last=True)
    with errors_at("data.batch_size"):
        joint = mixture.mixing == "batch"
        sizes = (
            dict.fromkeys(mixture.streams, data.batch_size) if not joint else divide(data.batch_size, mixture.shares)
        )
    cycle = joint_cycle(list(mixture.streams)) if joint else alternating_cycle(mixture.shares, seed)
    streams = {}
    for name, stream in mixture.streams.items():
        own = replace(
            data,
            train=Stream(source=stream.source, transforms=stream.transforms),
            val=None,
            batch_size=sizes[name],
            sampler=stream.sampler,
            shuffle=stream.shuffle,
            mix=stream.mix,
            drop_last=True,
        )
        own_seed = hash32(STREAM, seed, *name.encode())
        with errors_at(f"data.train.source.streams.{name}"):
            sampler = make_sampler(own, own_seed)
            steps = max(1, cycle.steps_before(name, plan.total_steps))
            if len(sampler) < sizes[name]:
                message = f"{plural(len(sampler), 'sample')} cannot fill its part of a batch, {sizes[name]}"
                raise ValueError(f"{message}: lower its share or data.batch_size")
            own_plan = ConstantPlan(len(sampler), sizes[name], Duration(steps, "it"), drop_last=True)
        streams[name] = TrainingBatches(own, dataset_info.streams[name], sampler, own_plan, own_seed)
    order = EpochSampler(len(mixture), seed, data.shuffle)
    return MixedTrainingBatches(data, dataset_info, order, plan, seed, streams, cycle)


def check_streams(task: Any, batches: TrainingBatches, micro_batch_size: int | None) -> None:
    """Check that every task of a multi-task run gets as many samples of its stream as it needs, in each micro-batch of
    each rank.

    Args:
        task: the model.
        batches: of the run.
        micro_batch_size: config value.

    Raises:
        ConfigError: it gets fewer.
    """
    if not isinstance(batches, MixedTrainingBatches):
        return
    world = world_size()
    largest = -(-batches.plan.row(0).num_processed(world) // world)
    parts = 1 if micro_batch_size is None else -(-largest // micro_batch_size)
    for name, own in task.tasks.items():
        row = batches.streams[task.stream_of(name)].plan.row(0)
        count = max(1, min(len(row.share(rank, world)) for rank in range(world)) // parts)
        if count < own.min_samples_per_rank:
            message = (
                f"it learns from {own.min_samples_per_rank} or more samples of a micro-batch per process, and has "
                f"{count}: raise data.batch_size, train.micro_batch_size, or the share of its images"
            )
            raise ConfigError(Problem("", f"task.tasks.{name}", message))


def _check_options(data: Data) -> None:
    """Check that no option is given that belongs to the streams.

    Raises:
        ValueError: one is.
    """
    if data.train.transforms:
        raise ValueError(
            "train.transforms: each stream of a mixture has its own (task.tasks.NAME.data.train.transforms)"
        )
    for name, given in {"sampler": data.sampler, "mix": data.mix, "shuffle": not data.shuffle}.items():
        if given:
            raise ValueError(f"{name}: each stream of a mixture has its own (task.tasks.NAME.data.{name})")
    if not data.drop_last:
        raise ValueError("drop_last: the streams of a mixture drop incomplete batches; set it to true")
    if data.augment_on == "device":
        raise ValueError("augment_on: the streams of a mixture are augmented by the workers")
