"""The model and its optimizer, on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from opabinia.config import ConfigError, Problem
from opabinia.config.build import errors_at
from opabinia.contracts import Backbone, DatasetInfo, ParallelTask, Plan, Task
from opabinia.models.norms import synchronise
from opabinia.optim.groups import Groups, apply_factors, parameter_groups
from opabinia.optim.optimizers import fuse
from opabinia.optim.schedules import scaled
from opabinia.runtime.device import choose_device, set_arithmetic
from opabinia.runtime.log import log
from opabinia.runtime.processes import world_size
from opabinia.runtime.seeds import INIT, hash32, seed_sample
from opabinia.training.settings import Training


def set_up(train: Training) -> tuple[torch.device, int]:
    """The device, and the number of CPU threads.

    Raises:
        ConfigError: this machine has no such device, or two settings exclude each other.
    """
    if train.deterministic and train.cudnn_benchmark:
        raise ConfigError(Problem("", "train.cudnn_benchmark", "cannot be true when train.deterministic is"))
    with errors_at("train.device"):
        device = choose_device(train.device)
    threads = set_arithmetic(
        deterministic=train.deterministic, cudnn_benchmark=train.cudnn_benchmark, threads=train.threads
    )
    return device, threads


def make_task(task: Callable[[DatasetInfo], Task], dataset_info: DatasetInfo, seed: int) -> Task:
    """The model with the weights that ``seed`` gives."""
    seed_sample(hash32(INIT, seed))
    with errors_at("task"):
        return task(dataset_info)


def prepared(task: Task, train: Training, device: torch.device) -> Task:
    """The model on its device, as the settings want it there.

    Raises:
        ConfigError: nothing in it can compute its activations again.
    """
    if train.checkpoint_activations:
        with errors_at("train.checkpoint_activations"):
            backbones = [module for module in task.modules() if isinstance(module, Backbone)]
            if not backbones:
                raise ValueError("this task has no backbone that could compute its activations again")
            for backbone in backbones:
                backbone.checkpoint_activations()
    return placed(task, train, device)


def refuse_pieces(task: Task, train: Training, batch_size: int) -> None:
    """Refuse micro-batches where the losses compare the samples of a batch with each other.

    Raises:
        ConfigError: a process's share of the batch would go through in pieces.
    """
    share = -(-batch_size // world_size())
    if task.whole_batches and train.micro_batch is not None and train.micro_batch < share:
        message = f"{train.micro_batch}: the losses of this task compare the {share} samples of a process's batch with "
        remedy = "each other, so they cannot go through in pieces; train.checkpoint_activations saves memory, too"
        raise ConfigError(Problem("", "train.micro_batch", message + remedy))


def refuse_small_batches(task: Task, plan: Plan) -> None:
    """Refuse batches, such as what is left at the end of an epoch, that have too few samples for the task.

    Raises:
        ConfigError: a process would get too few of one.
    """
    ends = {min(plan.epoch_start(epoch + 1), plan.total_steps) - 1 for epoch in range(plan.epochs)}
    smallest = min((plan.row(step) for step in {0, *ends}), key=lambda row: row.count)
    share = min(len(smallest.share(rank, world_size())) for rank in range(world_size()))
    if share < task.least:
        message = (
            f"{type(task).__name__} learns from {task.least} samples or more for each process, and of the batch of "
            f"{smallest.count} at step {smallest.step + 1} one would get {share}: raise data.batch_size, or leave out "
            "the incomplete batch of an epoch with data.drop_last"
        )
        raise ConfigError(Problem("", "data.batch_size", message))


def spread(models: Sequence[Task], train: Training, device: torch.device) -> ParallelTask | None:
    """Spread models over processes and return what trains the first of them; nothing to do for one process."""
    if world_size() == 1:
        return None
    if train.sync_batch_norm:
        for model in models:
            synchronise(model)
    with errors_at("train.parallel"):
        return train.parallel(models, device)


def placed(task: Task, train: Training, device: torch.device) -> Task:
    """The model on its device in the memory layout of training, so that an evaluation computes the same digits."""
    task.to(device)
    if train.channels_last:
        for tensor in (*task.parameters(), *task.buffers()):
            if tensor.ndim in CHANNELS_LAST:
                tensor.data = tensor.data.to(memory_format=CHANNELS_LAST[tensor.ndim])
    return task


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions: of images, and of clips."""


def compile_modules(task: Task, device: torch.device) -> None:
    """Compile the modules a task is made of, in place; without a working compiler tell it and leave them."""
    try:
        torch.compile(torch.neg)(torch.ones(1, device=device))
    except Exception as error:  # many kinds: no compiler, no headers, a broken cache
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        log.warning("train.compile: this machine cannot compile (%s); going on without", reason)
        return
    for module in task.children():
        module.compile()


def make_optimizer(
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
    task: Task,
    groups: Groups | None,
    train: Training,
    batch_size: int,
) -> torch.optim.Optimizer:
    """The optimizer of the task's trainable parameters, with its rates as groups and batch want them."""
    with errors_at("groups"):
        found = parameter_groups(task, groups)
    if not found:
        raise ConfigError(Problem("", "task", "no parameter of it is to be trained"))
    with errors_at("optimizer"):
        made = optimizer(found)
        fuse(made)
    per = train.lr_batch_size
    apply_factors(made, scaled(1.0, batch_size, per, train.lr_scaling) if per else 1.0)
    if per or groups:
        for group in made.param_groups:
            log.info(
                "%d parameters: lr %g, weight decay %g",
                *(len(group["params"]), group["lr"], group.get("weight_decay", 0.0)),
            )
    return made
