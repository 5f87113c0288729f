"""All batches of a run, planned before the first step."""

from __future__ import annotations

from collections.abc import Callable

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import BatchSchedule, RunSpec
from opabinia.data import Data
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sources import Mixture
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import world_size
from opabinia.training.loaders import TrainingBatches, make_sampler
from opabinia.training.mixed_loaders import plan_mixed_training
from opabinia.training.samples import read_dataset_info


def plan_training(
    data: Data, length: Duration, shapes: Callable[[RunSpec], BatchSchedule] | None, seed: int
) -> TrainingBatches:
    """Read the description of the training data and plan all batches of the run.

    Args:
        data: the config section.
        length: of the run.
        shapes: lays out batch sizes and image sizes over time; None: all batches are alike.
        seed: of the order of samples.

    Raises:
        ConfigError: the data does not fit the sampler, the batch size or the schedule.
    """
    dataset_info = read_dataset_info(data.train, skip=data.on_error == "skip")
    if isinstance(data.train.source, Mixture):
        if shapes is not None:
            raise ConfigError(Problem("", "shapes", "a multi-task run has no batch shapes over time"))
        return plan_mixed_training(data, dataset_info, length, seed)
    with errors_at("data"):
        sampler = make_sampler(data, seed)
        plan: ConstantPlan | StagedPlan = ConstantPlan(len(sampler), data.batch_size, length, data.drop_last)
    if shapes is not None:
        with errors_at("shapes"):
            schedule = shapes(RunSpec(len(sampler), data.batch_size, length, world_size(), data.drop_last))
            sizes = sorted({shape.samples for stage in schedule.stages for shape in stage.cycle} - {data.batch_size})
            if sizes and data.sampler is not None:
                log.warning(
                    "data.sampler may group samples by data.batch_size (%d), but shapes has batches of %s",
                    *(data.batch_size, listing([str(size) for size in sizes])),
                )
            plan = StagedPlan(len(sampler), schedule.stages, schedule.length, data.drop_last, schedule.evaluations)
    return TrainingBatches(data, dataset_info, sampler, plan, seed)
