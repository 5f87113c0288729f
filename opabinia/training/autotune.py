"""Short measurements before a run: the largest batch that fits (``data.batch_size: auto``), the faster place for
augmentation (``data.augment_on: auto``), and as few workers as keep up (``data.num_workers: auto``).

Each rank tries alone, with a model that is discarded afterwards, so that one that runs out of memory leaves no other
waiting; then all agree on the smallest batch, and on the most workers that one of them needs. Only these values reach
the run: its weights and random numbers come from its seed, its samples from their positions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from opabinia.config import ConfigError, Problem
from opabinia.contracts import SINGLE, Batch, Clock, GlobalBatch, ParallelTask, Run, Scalars, Step, Task
from opabinia.data import TrainingStream
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.engine.hooks.bottleneck import workers_needed
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather, single_process, world_size
from opabinia.runtime.resources import available_memory, cores, peak_memory, processes_per_machine, reset_peak_memory
from opabinia.runtime.seeds import preserve_generators
from opabinia.training.batch_size_search import Attempts, largest_fitting
from opabinia.training.loaders import make_sampler
from opabinia.training.measurement import Measurement, MeasurementDone, run_measurement
from opabinia.training.run_folder import AUTO
from opabinia.training.streams import training_streams, with_unlabeled

CPU_SHARE = 0.7
"""Share of the free host memory that a measurement may fill; the rest is for workers, evaluation and checkpoints."""
COMPILE_SPEEDUP = 2.0
"""Assumed speedup of a compiled step: measurements compile nothing."""
_MEASURED_SIZES: tuple[int, ...] = (32, *range(33, 129), *range(31, 0, -1))
"""Batch sizes to read in a measurement: the first that the sampler accepts."""
_MAX_SIZES = 256
"""Batch sizes that are offered to a sampler before giving up."""
_GB = 2**30


class RankMeasurement(NamedTuple):
    """The measurements of one rank.

    Attributes:
        samples: number of samples of its part of the batch; 0: not even the smallest fits.
        memory: peak bytes of a step with them.
        budget: bytes that it may hold.
        read: seconds to read and transform a sample.
        step: seconds to train on a sample.
        limit: reason why no larger batch was tried.
        finish: seconds to augment a sample on the device.
    """

    samples: int
    memory: float
    budget: float
    read: float
    step: float
    limit: str = ""
    finish: float = 0.0


def autotune(data: Mapping[str, Any], build: Callable[..., partial[Any]]) -> dict[str, int | str]:
    """Return the values for ``auto``: ``batch_size`` over all ranks, ``augment_on``, ``num_workers`` of this rank.

    To be called by all ranks; where there is no ``auto`` nothing is tried.

    Args:
        data: section ``data`` of a complete config, scaled for the present world size.
        build: :func:`opabinia.training.run_folder.build_parts` of that config, called with values for ``auto``.

    Raises:
        ConfigError: nothing fits, no batch size suits the sampler, or the config cannot be tuned.
    """
    wanted = [key for key in ("batch_size", "augment_on", "num_workers") if data.get(key) == AUTO]
    if not wanted:
        return {}
    build = partial(build, batch_size=_MEASURED_SIZES[0], num_workers=0)
    parts = build(augment_on="workers").keywords
    if "batch_size" in wanted and parts["shapes"] is not None:
        message = "auto is one number, but with shapes batches of several sizes must fit: give a number"
        raise ConfigError(Problem("", "data.batch_size", message))
    reset_peak_memory()
    budget = min(all_gather(peak_memory() + CPU_SHARE * available_memory() / processes_per_machine()))
    rank_samples = None if "batch_size" in wanted else -(-data["batch_size"] // world_size())
    measurements: Sequence[RankMeasurement] = all_gather(_try(parts, rank_samples, budget))
    values: dict[str, int | str] = {}
    if "batch_size" in wanted:
        values["batch_size"] = size = _agree_on_batch_size(parts, measurements)
        rank_samples = -(-size // world_size())
    assert rank_samples is not None
    if "augment_on" in wanted:
        on_device: list[RankMeasurement] = all_gather(_try(build(augment_on="device").keywords, rank_samples, budget))
        workers = cores() if "num_workers" in wanted else int(data["num_workers"])
        values["augment_on"], measurements = agree_on_augmentation(workers, measurements, on_device)
    if "num_workers" in wanted:
        values["num_workers"] = _agree_on_workers(rank_samples, measurements)
    return values


# --- agreement between ranks ------------------------------------------------------------------------------------------


def _agree_on_batch_size(parts: Mapping[str, Any], measurements: Sequence[RankMeasurement]) -> int:
    """The largest batch over all ranks that fits on each of them and suits the sampler."""
    smallest, world = min(measurements, key=lambda measured: measured.samples), len(measurements)
    if not smallest.samples:
        message = f"auto: not even the smallest batch fits into {smallest.budget / _GB:.1f} GB"
        raise ConfigError(Problem("", "data.batch_size", f"{message}; try train.micro_batch_size or smaller images"))
    data = parts["data"]
    dataset = training_streams(parts["task"], data)[SINGLE]
    size = suitable_batch_size(dataset, smallest.samples * world, world, drop_last=data.drop_last)
    log.info(
        "data.batch_size: %d (auto: %s; %d samples take %.2f of the %.2f GB available to a rank)",
        *(size, smallest.limit, smallest.samples, smallest.memory / _GB, smallest.budget / _GB),
    )
    return size


def suitable_batch_size(dataset: TrainingStream, max_size: int, world: int, *, drop_last: bool = False) -> int:
    """Return the largest batch size of at most ``max_size`` that the sampler accepts.

    It is the number of samples if that is not larger; otherwise it divides by the number of ranks ``world``, and on
    each of them by 8 if there are enough.

    Raises:
        ConfigError: the sampler accepts none of those that were tried.
    """
    unit = world * 8 if max_size >= 16 * world else min(world, max_size)
    samples = len(dataset.source)
    sizes = list(range(min(max_size, samples) // unit * unit, 0, -unit))
    problem: Exception | None = None
    for size in ([samples, *sizes] if samples <= max_size else sizes)[:_MAX_SIZES]:
        try:
            sampler = make_sampler(dataset, size, 0)
            ConstantPlan(len(sampler), size, Duration(1, "ep"), drop_last)
            return size
        except (ValueError, ConfigError) as error:
            problem = error
    raise ConfigError(Problem("", "data.batch_size", f"auto: no batch of up to {max_size} suits: {problem}"))


def _agree_on_workers(rank_samples: int, measurements: Sequence[RankMeasurement]) -> int:
    """As many workers as the slowest rank needs, but at most its cores."""
    slowest = max(measurements, key=lambda measured: measured.read / (measured.step + measured.finish))
    training = slowest.step + slowest.finish
    needed, available = workers_needed(slowest.read, training), cores()
    log.info(
        "data.num_workers: %d (auto: reading a batch of %d takes %.2g s, training on it %.2g s; %d would keep up, and "
        "each rank has %d cores)",
        *(min(needed, available), rank_samples),
        *(slowest.read * rank_samples, training * rank_samples, needed, available),
    )
    return min(needed, available)


def agree_on_augmentation(
    workers: int, on_workers: Sequence[RankMeasurement], on_device: Sequence[RankMeasurement]
) -> tuple[str, Sequence[RankMeasurement]]:
    """Return where augmentation is faster for the slowest rank, and the measurements with that setting.

    The device is chosen if a sample takes a tenth less time there.

    Args:
        workers: loader workers of a rank; 0: it reads in the main process.
        on_workers, on_device: the measurements of all ranks with either.
    """
    seconds_workers, seconds_device = (
        max(_seconds_per_sample(measured, workers) for measured in measurements)
        for measurements in (on_workers, on_device)
    )
    faster = seconds_device < 0.9 * seconds_workers
    place, measurements = ("device", on_device) if faster else ("workers", on_workers)
    log.info(
        "data.augment_on: %s (auto: a sample takes %.2g s with augmentation on workers, %.2g s on the device)",
        *(place, seconds_workers, seconds_device),
    )
    return place, measurements


def _seconds_per_sample(measured: RankMeasurement, workers: int) -> float:
    training = measured.step + measured.finish
    return max(measured.read / workers, training) if workers else measured.read + training


# --- the measurement of one rank --------------------------------------------------------------------------------------


def _try(parts: Mapping[str, Any], rank_samples: int | None, host_budget: float) -> RankMeasurement:
    """Measure a run as if this were the only rank; ``rank_samples``: samples of a step, None to search for the most."""
    training, data = parts["train"], parts["data"]
    streams = with_unlabeled(training_streams(parts["task"], data), parts["semi_supervised"])
    if tuple(streams) == (SINGLE,):
        size = _measured_batch_size(streams[SINGLE], drop_last=data.drop_last)
        samples = len(make_sampler(streams[SINGLE], size, 0))
    else:
        assert rank_samples is not None  # auto is not for several streams
        size, samples = rank_samples, sum(len(stream.source) for stream in streams.values())
    measurement = _Measurement(rank_samples, samples, host_budget)
    changed = {
        **parts,
        "data": replace(data, batch_size=size, num_workers=0),
        "init": None,
        "schedule": lambda clock: 0.0,  # constant weights cannot diverge
    }
    length = Duration(2, "it") if parts["shapes"] is None else training.length
    with single_process(), preserve_generators():
        run_measurement(changed, measurement, length=length, compile=False)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if measurement.result is None:
        raise ConfigError(Problem("", "train.length", "auto: a run of two steps is too short to tune; give numbers"))
    result = measurement.result
    return result._replace(step=result.step / (COMPILE_SPEEDUP if training.compile else 1.0))


def _measured_batch_size(dataset: TrainingStream, *, drop_last: bool) -> int:
    for size in _MEASURED_SIZES:
        with suppress(ValueError, ConfigError):
            make_sampler(dataset, size, 0)
            return size
    return suitable_batch_size(dataset, len(dataset.source), 1, drop_last=drop_last)


@dataclass
class _Measurement(Measurement):
    """Measures a run from within, in the place of its step.

    The first batch passes, because it pays for one-time costs; the second one is measured.

    Attributes:
        rank_samples: samples of a step; None: as many as fit.
        samples: number of samples of the dataset.
        host_budget: bytes that a run on the CPU may hold.
        result: None until it is measured.
    """

    rank_samples: int | None
    samples: int
    host_budget: float
    result: RankMeasurement | None = field(default=None, init=False)
    read: float = field(default=0.0, init=False)
    device_seconds: Callable[[], float] = field(default=lambda: 0.0, init=False)
    is_first: bool = field(default=True, init=False)

    def make_step(self, make: Callable[..., Step], task: Task | ParallelTask, *others: Any) -> Step:
        assert isinstance(task, Task)  # a measurement has one rank
        self.task, self.step = task, make(task, *others)
        self.optimizer = self.step.optimizer
        return self

    def before_step(self, run: Run, batch: Batch) -> None:
        """Record the time per sample of the loader."""
        if isinstance(run.loader, DeviceLoader):
            samples, loader = max(1, len(batch["id"])), run.loader
            self.read = loader.seconds / samples
            self.device_seconds = lambda: loader.time_transform() / samples

    def __call__(
        self, batch: Batch, global_batch: GlobalBatch, clock: Clock, after_backward: Callable[[], None]
    ) -> Scalars:
        """Search for the number of samples, if it is not given, and time a step with it.

        Raises:
            MeasurementDone: everything is measured.
        """
        if self.is_first:
            self.is_first = False
            return {}
        attempt = Attempts(self.step, batch, global_batch, clock, next(self.task.parameters()).device)
        budget = attempt.budget(self.host_budget)
        # A norm over a single sample may have no variance.
        smallest = min(max(2, self.task.min_samples_per_rank), self.samples)
        smallest = len(batch["id"]) if "streams" in batch else smallest
        fit = [attempt(smallest), attempt(smallest)][1]  # twice: the first allocates the optimizer's state
        limit = ""
        if self.rank_samples is not None:
            fit = fit._replace(samples=self.rank_samples)
        elif fit.memory > budget:
            fit = fit._replace(samples=0)
        else:
            fit, limit = largest_fitting(attempt, budget, fit, self.samples)
        seconds = min(attempt(fit.samples).seconds for _ in range(3)) if fit.samples else 0.0
        per_sample = seconds / max(1, fit.samples)
        self.result = RankMeasurement(
            fit.samples, fit.memory, budget, self.read, per_sample, limit, self.device_seconds()
        )
        del self.task, self.step, self.optimizer  # frees the model
        raise MeasurementDone
