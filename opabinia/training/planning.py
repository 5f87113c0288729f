"""All batches of a run, planned before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import SINGLE, BatchSchedule, DatasetInfo, RunSpec
from opabinia.data import Data, TrainingStream
from opabinia.data.sampling.batches import StagedPlan
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import world_size
from opabinia.runtime.text import plural
from opabinia.training.loaders import TrainingBatches, plan_streams
from opabinia.training.samples import read_dataset_info
from opabinia.training.streams import TaskFactory, stream_sharing, training_streams, with_unlabeled

if TYPE_CHECKING:
    from opabinia.tasks.semi_supervised.task import SemiSupervised


def plan_training(
    task: TaskFactory,
    data: Data,
    length: Duration,
    shapes: Callable[[RunSpec], BatchSchedule] | None,
    seed: int,
    semi_supervised: SemiSupervised | None = None,
) -> TrainingBatches:
    """Read the description of the training data and plan all batches of the run.

    Args:
        task: section ``task`` of the config.
        data: the config section.
        length: length of the run.
        shapes: lays out batch sizes and image sizes over time; None: all batches are alike.
        seed: seed of the order of samples.
        semi_supervised: section of the config with the unlabeled images; None without.

    Raises:
        ConfigError: the data does not fit the sampler, the batch size or the schedule.
    """
    streams = with_unlabeled(training_streams(task, data), semi_supervised)
    if shapes is not None and tuple(streams) != (SINGLE,):
        raise ConfigError(Problem("", "shapes", "a run with several streams has no batch shapes over time"))
    shares = stream_sharing(task, streams, semi_supervised)
    batches = plan_streams(data, streams, shares, _dataset_info(streams, data.on_error == "skip"), length, seed)
    if shapes is None:
        return batches
    samples = batches.plan.samples
    with errors_at("shapes"):
        schedule = shapes(RunSpec(samples, data.batch_size, length, world_size(), data.drop_last))
        sizes = sorted({shape.samples for stage in schedule.stages for shape in stage.cycle} - {data.batch_size})
        if sizes and data.sampler is not None:
            log.warning(
                "data.sampler may group samples by data.batch_size (%d), but shapes has batches of %s",
                *(data.batch_size, listing([str(size) for size in sizes])),
            )
        plan = StagedPlan(samples, schedule.stages, schedule.length, data.drop_last, schedule.evaluations)
    return replace(batches, plan=plan, streams={SINGLE: replace(batches.streams[SINGLE], plan=plan)})


def _dataset_info(streams: Mapping[str, TrainingStream], skip: bool) -> DatasetInfo:
    """Describe the training data.

    Raises:
        ConfigError: a label is not one of the classes, a stream has no samples, or streams differ in channels.
    """
    if tuple(streams) == (SINGLE,):
        return read_dataset_info(streams[SINGLE], skip=skip)
    for stream in streams.values():
        if not len(stream.source):
            raise ConfigError(Problem("", stream.place, "it has no samples"))
    infos = {name: read_dataset_info(stream, skip=skip) for name, stream in streams.items()}
    counts = {name: info.channels for name, info in infos.items()}
    for channels in ({name: stream.source.channels for name, stream in streams.items()}, counts):
        (first, expected), *others = channels.items()
        for name, other in others:
            if other != expected:
                read = plural(other, "channel") if isinstance(other, int) else f"channels: {other}"
                message = f"its images have {read}, those of {first or 'data.train'} {expected}; they share a backbone"
                raise ConfigError(Problem("", streams[name].place, message))
    samples = sum(info.samples for info in infos.values())
    if SINGLE in infos:
        return replace(infos[SINGLE], samples=samples)
    return DatasetInfo(samples=samples, channels=next(iter(counts.values())), streams=infos)


def check_streams(task: Any, batches: TrainingBatches, micro_batch_size: int | None) -> None:
    """Check that a task gets as many samples of each stream as it needs, in each micro-batch of each rank.

    Args:
        task: the model.
        batches: training batches of the run.
        micro_batch_size: config value.

    Raises:
        ConfigError: it gets fewer.
    """
    if not batches.is_joint:
        return
    world = world_size()
    largest = -(-batches.plan.global_batch(0).num_processed(world) // world)
    parts = 1 if micro_batch_size is None else -(-largest // micro_batch_size)
    if batches.dataset_info.streams:
        readers = [(f"task.tasks.{name}", subtask, task.stream_of(name)) for name, subtask in task.tasks.items()]
    else:
        readers = [(stream.dataset.place, task, name) for name, stream in batches.streams.items()]
    for place, subtask, stream_name in readers:
        global_batch = batches.streams[stream_name].plan.global_batch(0)
        count = max(1, min(len(global_batch.rank_range(rank, world)) for rank in range(world)) // parts)
        if count < subtask.min_samples_per_rank:
            message = (
                f"it learns from {subtask.min_samples_per_rank} or more samples of a micro-batch per process, and has "
                f"{count}: raise data.batch_size, train.micro_batch_size, or the share of its images"
            )
            raise ConfigError(Problem("", place, message))
