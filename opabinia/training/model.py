"""The model of a run and its optimizer: built, checked, placed on the device and spread over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.contracts import Backbone, DatasetInfo, ParallelTask, Plan, Schedules, Step, StepOptions, Task
from opabinia.data import Data
from opabinia.models.layers import Normalize
from opabinia.models.norms import convert_sync_batch_norm, split_batch_norms
from opabinia.optim.groups import ParamGroups, apply_factors, parameter_groups
from opabinia.optim.optimizers import fuse
from opabinia.optim.schedules import scale_lr
from opabinia.runtime.device import choose_device, configure_backends
from opabinia.runtime.log import log, log_to_file
from opabinia.runtime.processes import world_size
from opabinia.runtime.seeds import INIT, hash32, seed_sample
from opabinia.training.settings import Training

if TYPE_CHECKING:  # predictions do without it
    from opabinia.tasks.wrapper_base import TaskWrapper

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by number of dimensions: weights of image and of video networks."""


@dataclass(frozen=True)
class Models:
    """The models of a training run, on their device.

    Attributes:
        task: the model being trained.
        ema: a copy that holds the exponential moving average of its weights; None without EMA.
        parallel: runs ``wrapper`` or ``task`` on several ranks; None on one.
        splits_norms: whether batch norms follow the batch schedule.
        wrapper: the task around it that a step calls instead; None without.
    """

    task: Task
    ema: Task | None = None
    parallel: ParallelTask | None = None
    splits_norms: bool = False
    wrapper: TaskWrapper | None = None


def set_up(train: Training) -> tuple[torch.device, int]:
    """Set numerics and threads for this process; return its device and the number of CPU threads.

    Raises:
        ConfigError: this machine has no such device, or settings exclude each other or the environment.
    """
    if train.deterministic and train.cudnn_benchmark:
        raise ConfigError(Problem("", "train.cudnn_benchmark", "cannot be true when train.deterministic is"))
    with errors_at("train.device"):
        device = choose_device(train.device)
    with errors_at("train.deterministic"):
        threads = configure_backends(
            device,
            deterministic=train.deterministic,
            cudnn_benchmark=train.cudnn_benchmark,
            matmul_precision=train.matmul_precision,
            threads=train.num_threads,
        )
    return device, threads


def make_task(task: Callable[[DatasetInfo], Task], dataset_info: DatasetInfo, seed: int) -> Task:
    """Build the model; its initial weights depend on ``seed`` alone."""
    seed_sample(hash32(INIT, seed))
    with errors_at("task"):
        return task(dataset_info)


def check_initial_weights(task: Task, init: Any) -> None:
    """Check that a new training has the weights that it needs.

    Args:
        task: the model.
        init: config section; None without.

    Raises:
        ConfigError: the task, or a backbone in it, cannot begin with its own weights, and there are no others.
    """
    parts = [module for module in task.modules() if isinstance(module, Task | Backbone) and module.needs_weights]
    if init is None and parts:
        raise ConfigError(Problem("", "task", parts[0].needs_weights))


MAX_STEPS = 10**9
"""Steps of a run: at a thousand in a second they take twelve days."""


def check_model(task: Task, train: Training, plan: Plan, data: Data) -> None:
    """Check that every rank can train the model on its share of each batch.

    Raises:
        ConfigError: a micro-batch or the share of a rank is too small for the losses of the task, or the run has no
            steps, or more than :data:`MAX_STEPS`.
    """
    if task.compares_samples_of_class and data.sampler is None:
        log.warning("data.sampler: losses compare samples of a class, of which a batch may hold few; see `identities`")
    rank_samples = -(-data.batch_size // world_size())
    if task.requires_full_batch and train.micro_batch_size is not None and train.micro_batch_size < rank_samples:
        message = (
            f"{train.micro_batch_size}: the losses of this task compare all {rank_samples} samples of a rank's batch "
            "with each other, so the batch cannot be split; train.activation_checkpointing saves memory, too"
        )
        raise ConfigError(Problem("", "train.micro_batch_size", message))
    if not plan.total_steps:
        raise ConfigError(Problem("", "train.length", f"{train.length} is a run without a single step"))
    if plan.total_steps > MAX_STEPS:
        raise ConfigError(Problem("", "train.length", f"more than {MAX_STEPS:,} steps cannot be meant"))
    epochs = {*range(0, plan.epochs, 1 + plan.epochs // 10_000), plan.epochs - 1}
    last_steps = {min(plan.epoch_start(epoch + 1), plan.total_steps) - 1 for epoch in epochs}
    smallest = min((plan.global_batch(step) for step in {0, *last_steps}), key=lambda global_batch: global_batch.count)
    rank_samples = min(len(smallest.rank_range(rank, world_size())) for rank in range(world_size()))
    if rank_samples < task.min_samples_per_rank:
        message = (
            f"{type(task).__name__} needs at least {task.min_samples_per_rank} samples per rank, and of the batch of "
            f"{smallest.count} at step {smallest.step + 1} a rank would get {rank_samples}: raise data.batch_size, or "
            "drop the incomplete batch of an epoch with data.drop_last"
        )
        raise ConfigError(Problem("", "data.batch_size", message))


def place_models(
    task: Task,
    train: Training,
    device: torch.device,
    *,
    ema: bool,
    splits_norms: bool,
    wrapper: TaskWrapper | None = None,
) -> Models:
    """Place the model, its EMA copy and its teachers on the device and spread them over the ranks.

    Args:
        task: the model.
        train: config section.
        device: device of this rank.
        ema: copy the model for an exponential moving average of its weights.
        splits_norms: batch norms follow the batch schedule.
        wrapper: the task around it that a step calls instead, if there is one.

    Raises:
        ConfigError: the task has no backbone for activation checkpointing, or cannot be parallelized as configured.
    """
    if splits_norms:
        split_batch_norms(task, 1)  # replaces modules, so it comes before anything holds on to them
    if train.activation_checkpointing:
        with errors_at("train.activation_checkpointing"):
            backbones = [module for module in task.modules() if isinstance(module, Backbone)]
            if not backbones:
                raise ValueError("this task has no backbone that could recompute its activations")
            for backbone in backbones:
                backbone.checkpoint_activations()
    place(task, train, device)
    ema_task = copy.deepcopy(task) if ema else None
    models = [task, *([ema_task] if ema_task else [])]
    if wrapper is not None:
        wrapper.to(device)
        models += [wrapper.average] if wrapper.average else []
    parallel = None
    if world_size() > 1:
        with errors_at("train.sync_batch_norm"):
            for model in models if train.sync_batch_norm else ():
                convert_sync_batch_norm(model)
        with errors_at("train.parallel"):
            parallel = train.parallel(wrapper or task, models, device)
    log_to_file("model", str(wrapper or task))
    return Models(task, ema_task, parallel, splits_norms, wrapper)


def place(task: Task, train: Training, device: torch.device) -> Task:
    """Move the model to its device in the memory format of training, so that evaluation computes the same digits."""
    task.to(device)
    if train.channels_last:
        for module in task.modules():
            if isinstance(module, Normalize):
                module.channels_last = True
        for tensor in (*task.parameters(), *task.buffers()):
            if tensor.ndim in CHANNELS_LAST:
                tensor.data = tensor.data.to(memory_format=CHANNELS_LAST[tensor.ndim])
    return task


def make_optimizer(
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
    task: Task,
    param_groups: ParamGroups | None,
    train: Training,
    batch_size: int,
) -> torch.optim.Optimizer:
    """Build the optimizer of the trainable parameters, with the learning rates of their groups and the batch size."""
    with errors_at("param_groups"):
        groups = parameter_groups(task, param_groups)
    if not groups:
        raise ConfigError(Problem("", "task", "none of its parameters is trainable"))
    with errors_at("optimizer"):
        built = optimizer(groups)
        fuse(built)
    tuned_for = train.lr_batch_size
    apply_factors(built, scale_lr(1.0, batch_size, tuned_for, train.lr_scaling) if tuned_for else 1.0)
    if tuned_for or param_groups:
        for group in built.param_groups:
            log.info(
                "%d parameters: lr %g, weight decay %g",
                *(len(group["params"]), group["lr"], group.get("weight_decay", 0.0)),
            )
    return built


def make_step(
    models: Models, optimizer: torch.optim.Optimizer, schedules: Schedules, train: Training, seed: int
) -> Step:
    """Build the step that turns batches into updates of ``models.task``."""
    with errors_at("train.step"):
        options = StepOptions(
            seed, train.precision, train.micro_batch_size, train.check_losses, train.on_nonfinite == "skip"
        )
        return train.step(models.parallel or models.wrapper or models.task, optimizer, schedules, options)
