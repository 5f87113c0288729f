"""Contents of a checkpoint: everything that a resumed run needs, collected from its parts and given back to them.

::

    model.safetensors        weights and buffers, running statistics averaged over processes
    optimizer.safetensors    optimizer state by parameter name, so that it survives another order and grouping
    statistics.safetensors   running statistics of every process, where they differ
    HOOK.safetensors         tensors of a hook, such as EMA weights
    state.json               position, scores, metrics log, plain optimizer state, step and hooks

:mod:`opabinia.engine.checkpointing.checkpoint` writes and reads these files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Clock, Plan, Run, Step
from opabinia.engine.checkpointing.checkpoint import Snapshot, WeightsMismatch, describe_mismatch
from opabinia.engine.checkpointing.sharded import distribute_like, is_sharded
from opabinia.engine.loggers.metrics_log import from_json_numbers, to_json_numbers
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.engine.loop.nonfinite import init_momentum_buffers
from opabinia.engine.loop.norm_statistics import mean_state_dict, running_statistics
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather, rank, world_size

_FILE = "statistics"
"""The file of a checkpoint with the running statistics of every process."""

_GROUP_PREFIX = "@"
"""Marks state that an optimizer keeps in a group (the step counter of timm's Lamb): it is saved for each parameter."""

_GROUP_KEYS = frozenset({"params", "param_names", "lr_factor"})
"""Keys of a group that are neither options of the optimizer nor state."""


def take_snapshot(
    run: Run,
    plan: Plan,
    step: Step,
    hooks: HookDispatcher,
    *,
    metadata: Mapping[str, Any],
    skip_batches: Collection[int],
) -> Snapshot:
    """Return everything that a resumed run needs, as of now. All processes must call it.

    Args:
        run: the task, metrics log, scores and clock.
        plan: all batches of the run.
        step: the step, with its optimizer.
        hooks: the hooks, and the position among them at which the checkpoint is saved.
        metadata: JSON values of the run, such as its seed.
        skip_batches: batches (by ``GlobalBatch.step``) that are not trained.
    """
    tensors, plain = optimizer_state(run.task, step.optimizer)
    epoch_start = plan.samples_before(plan.epoch_start(run.clock.epoch))
    state = {
        **metadata,
        "step": run.clock.step,
        "samples": run.clock.samples,
        "epoch": run.clock.epoch,
        "position": run.clock.samples - epoch_start,
        "due": list(hooks.active) if hooks.active else None,
        "scores": to_json_numbers(run.scores),
        "journal": run.metrics_log.state_dict(),
        "total_steps": run.clock.total_steps if run.ends_at is None else run.ends_at,
        "optimizer": plain,
        "optimizer_kind": optimizer_kind(step.optimizer),
        "train_step": step.state_dict(),
        "hooks": hooks.state_dict(),
        "left_out": sorted(skip_batches),
    }
    files = {"model": mean_state_dict(run.task), "optimizer": tensors, **hooks.tensors()}
    return Snapshot(run.clock.step, files | gather_statistics(run.models), state)


def restore_snapshot(snapshot: Snapshot, run: Run, plan: Plan, step: Step, hooks: HookDispatcher) -> None:
    """Restore the state of :func:`take_snapshot`; arguments see there.

    Raises:
        WeightsMismatch: the model's tensors have other names or shapes.
    """
    state, optimizer = snapshot.state, step.optimizer
    load_full_state_dict(run.task, snapshot.tensors["model"])
    saved, present = state["optimizer_kind"], optimizer_kind(optimizer)
    if saved == present:
        load_optimizer_state(run.task, optimizer, snapshot.tensors["optimizer"], state["optimizer"])
        init_momentum_buffers(optimizer)
    else:
        log.warning("the optimizer was %s and is %s now: it starts without state", saved, present)
    step.load_state_dict(state["train_step"])
    hooks.load_state_dict(state["hooks"])
    hooks.load_tensors(snapshot.tensors)
    load_statistics(run.models, snapshot.tensors)
    run.metrics_log.load_state_dict(state["journal"])
    run.clock = Clock.at(plan, snapshot.step)
    datasets = {name.rpartition("/")[0] for name in run.available_scores}
    restored = from_json_numbers(state["scores"])  # perhaps of datasets or EMA weights that are no longer evaluated
    run.scores |= {
        name: score for name, score in restored.items() if not datasets or name.rpartition("/")[0] in datasets
    }


def load_full_state_dict(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state dict of full tensors into a model that may be sharded.

    Raises:
        WeightsMismatch: the model's tensors have other names or shapes.
    """
    local = model.state_dict()
    if not is_sharded({"model": local}):
        try:
            model.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise WeightsMismatch(describe_mismatch(local, tensors) or str(error)) from error
        return
    if mismatch := describe_mismatch(local, tensors):
        raise WeightsMismatch(mismatch)
    with torch.no_grad():
        for name, value in local.items():
            value.copy_(distribute_like(tensors[name], value))


# --- optimizer state by parameter name --------------------------------------------------------------------------------


def optimizer_kind(optimizer: torch.optim.Optimizer) -> str:
    """Name what decides which state an optimizer keeps: its class, and the options that add tensors."""
    options = ("amsgrad", "centered", "momentum")
    return " with ".join([type(optimizer).__name__, *(name for name in options if optimizer.defaults.get(name))])


def optimizer_state(task: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (``<parameter>.<key>``) and the plain values of an optimizer's state.

    The options of its groups are not included: they are config, and a resumed run uses its config.
    """
    names = {id(param): name for name, param in task.named_parameters()}
    state = {
        f"{names[id(param)]}.{key}": value for param, values in optimizer.state.items() for key, value in values.items()
    }
    for group in optimizer.param_groups:
        keys = group.keys() - optimizer.defaults.keys() - _GROUP_KEYS
        for param in group["params"]:
            state |= {f"{names[id(param)]}.{_GROUP_PREFIX}{key}": group[key] for key in keys}
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors and value is not None}


def load_optimizer_state(
    task: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Restore :func:`optimizer_state`; parameters without saved state start without."""
    params = dict(task.named_parameters())
    names = {id(param): name for name, param in params.items()}
    saved = {**tensors, **plain}
    by_param: dict[str, dict[str, Any]] = {}
    for full_name, value in saved.items():
        name, key = full_name.rsplit(".", 1)
        if name in params and not key.startswith(_GROUP_PREFIX):
            by_param.setdefault(name, {})[key] = _match_layout(params[name], value)
    order = [names[id(param)] for group in optimizer.param_groups for param in group["params"]]
    state = {number: by_param[name] for number, name in enumerate(order) if name in by_param}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for group in optimizer.param_groups:
        prefix = f"{names[id(group['params'][0])]}.{_GROUP_PREFIX}"
        group.update({name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)})


def _match_layout(param: Tensor, value: Any) -> Any:
    """Copy a state tensor into the memory layout of its parameter, which fused kernels assume without a check."""
    if not isinstance(value, Tensor) or value.shape != param.shape:
        return value
    value = distribute_like(value, param.detach())
    return torch.empty_like(param, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


# --- running statistics of every process ------------------------------------------------------------------------------


def gather_statistics(models: Sequence[nn.Module]) -> dict[str, dict[str, Tensor]]:
    """Return the running statistics of every process where they differ (processes x values), by model number and name,
    as a file of a checkpoint; nothing if they are the same everywhere.

    A run resumed with the same number of processes is exact with them; with another number each starts with the mean.
    """
    if world_size() == 1:
        return {}
    local_buffers = _by_key(models)
    # Buffers that are the same everywhere may be large (a queue of features): only their digests are exchanged.
    digests = all_gather({key: _digest(buffer) for key, buffer in local_buffers.items()})
    differing = [key for key in local_buffers if any(digest[key] != digests[0][key] for digest in digests)]
    ranks = all_gather({key: local_buffers[key].detach().cpu().double() for key in differing})
    statistics = {key: torch.stack([values[key] for values in ranks]) for key in differing}
    return {_FILE: statistics} if statistics else {}


def load_statistics(models: Sequence[nn.Module], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Restore :func:`gather_statistics` with the same number of processes; with another number do nothing."""
    for key, buffer in _by_key(models).items():
        ranks = files.get(_FILE, {}).get(key)
        if ranks is not None and len(ranks) == world_size():
            buffer.copy_(ranks[rank()])


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def _by_key(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {
        f"{number}/{name}": buffer
        for number, model in enumerate(models)
        for name, buffer in running_statistics(model).items()
    }
