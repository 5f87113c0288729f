"""How a task is spread over processes. On one process none of this is used."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from opabinia.config import register
from opabinia.contracts import Batch, Clock, Count, Detector, ParallelTask, Positive, Task
from opabinia.runtime.processes import broadcast_from_rank_zero, world_size

DType = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@register.parallel
def ddp(
    models: Sequence[Task],
    device: torch.device,
    /,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    compression: Literal["fp16", "bf16"] | None = None,
    bucket_mb: Positive = 25.0,
) -> ParallelTask:
    """Every process holds the whole model; gradients are exchanged while the backward pass goes on (torch's DDP).

    Running statistics stay those of each process during training; what is evaluated and saved is their mean.

    Args:
        find_unused_parameters: look after every forward pass which parameters took part in it; needed when some did
            not, such as branches that are skipped by chance.
        static_graph: promise that every step uses the same parameters in the same order, which saves looking.
        compression: exchange gradients in half the bytes.
        bucket_mb: size of what is exchanged at once.
    """
    for model in models:
        broadcast_from_rank_zero([*model.parameters(), *model.buffers()])
    options = {
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
        "bucket_cap_mb": bucket_mb,
        "broadcast_buffers": False,
        "init_sync": False,
        "gradient_as_bucket_view": True,
    }
    return _Replicas(models[0], options, compression)


class UnusedParameters(Exception):
    """Some parameters had no part in the step before, and the other processes wait for their gradients."""

    exit_status = 2

    def __init__(self) -> None:
        super().__init__(
            "train.parallel: some parameters took no part in the step before; say "
            "{name: ddp, find_unused_parameters: true}, or freeze them (hooks: freeze)"
        )


class _Replicas:
    """See :class:`opabinia.contracts.ParallelTask`.

    DDP wants to know at its construction which parameters learn, and hooks may freeze and thaw some: it is made at the
    first forward pass and whenever that has changed.
    """

    sharded = False

    def __init__(self, task: Task, options: Mapping[str, Any], compression: str | None) -> None:
        self.module = task
        self._options, self._compression = options, compression
        self._parameters = list(task.parameters())
        self._learning: list[bool] = []
        self._ddp: DistributedDataParallel | None = None

    def __call__(self, batch: Batch, clock: Clock) -> Any:
        try:
            return self._current()(batch, clock)
        except RuntimeError as error:
            if "finished reduction" in str(error):
                raise UnusedParameters from error
            raise

    def no_sync(self) -> AbstractContextManager[Any]:
        """See :class:`opabinia.contracts.ParallelTask`."""
        if self._options["static_graph"]:
            return nullcontext()  # which cannot leave an exchange out; means of means are the mean
        return self._current().no_sync()

    def _current(self) -> DistributedDataParallel:
        learning = [parameter.requires_grad for parameter in self._parameters]
        if self._ddp is None or learning != self._learning:
            self._ddp = None  # the old one lets go of the parameters first
            self._ddp, self._learning = self._wrapped(), learning
        return self._ddp

    def _wrapped(self) -> DistributedDataParallel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has another name from torch 2.15 on
            model = DistributedDataParallel(self.module, **self._options)
        if self._compression is not None:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            model.register_comm_hook(None, getattr(default_hooks, f"{self._compression}_compress_hook"))
        return model


@register.parallel
def fsdp(
    models: Sequence[Task],
    device: torch.device,
    /,
    *,
    unit: Count = 1_000_000,
    param_dtype: DType | None = None,
    reduce_dtype: DType | None = None,
    reshard: bool = True,
) -> ParallelTask:
    """Every process holds a part of each parameter, of its gradient and of its optimizer state; a layer's are put
    together when it is their turn (torch's FSDP2; Zhao et al. 2023, PyTorch FSDP).

    Args:
        unit: parameters that a layer of a list of layers must have to be put together by itself; smaller ones are put
            together with what is around them.
        param_dtype: of parameters, and of activations, in forward and backward passes; null takes them as they are.
            ``train.precision`` is gentler: it leaves norms and losses in full precision.
        reduce_dtype: of gradients when they are added up; null takes them as they are.
        reshard: take parameters apart again after the forward pass; false keeps them until the backward pass: faster,
            and more memory.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    precision = MixedPrecisionPolicy(
        param_dtype=_DTYPES[param_dtype] if param_dtype else None,
        reduce_dtype=_DTYPES[reduce_dtype] if reduce_dtype else None,
    )
    wrong = next((name for name, one in models[0].named_parameters() if not one.is_contiguous()), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is not contiguous, and cannot be taken apart: fsdp excludes train.channels_last")
    mesh = init_device_mesh(device.type, (world_size(),))
    for model in models:
        broadcast_from_rank_zero([*model.parameters(), *model.buffers()])
        # At the border of a unit FSDP brings its inputs to the type of its parameters.
        children = [one for one in _children(model) if param_dtype and any(True for _ in one.parameters())]
        for part in [*_units(model, unit), *children, model]:
            policy = replace(precision, cast_forward_inputs=not _takes_boxes(part))
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        for part in (model, *children):
            for method in _FORWARD_METHODS:
                if hasattr(part, method):
                    register_fsdp_forward_method(part, method)
    return _Shards(models[0])


def _takes_boxes(part: nn.Module) -> bool:
    """Whether boxes are handed to it, which half precision would move by pixels; maps come to it in the right type."""
    return isinstance(part, Detector) or (isinstance(part, Task) and part.size_multiple is not None)


_FORWARD_METHODS = ("predict", "features", "maps", "levels", "pyramid", "losses", "detect", "describe")
"""Methods of tasks, backbones and detectors that use parameters, as ``forward`` does."""


class _Shards:
    """See :class:`opabinia.contracts.ParallelTask`."""

    sharded = True

    def __init__(self, task: Task) -> None:
        self.module = task

    def __call__(self, batch: Batch, clock: Clock) -> Any:
        return self.module(batch, clock)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See :class:`opabinia.contracts.ParallelTask`."""
        module: Any = self.module
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)


def _children(task: nn.Module) -> Iterator[nn.Module]:
    """What a task calls: its modules, and of a list, which nobody calls, those in it."""
    for child in task.children():
        yield from child.children() if isinstance(child, nn.ModuleList) else [child]


def _units(task: nn.Module, least: int) -> Iterator[nn.Module]:
    """Layers in lists of layers with ``least`` parameters or more that are in no smaller unit; inner ones first.

    Only of layers in a list it is certain that their parameters are used in their own forward pass.
    """
    taken: set[int] = set()
    listed = {
        id(layer)
        for module in task.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for layer in module.children()
    }
    for module in reversed(list(task.modules())):
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if id(module) in listed and sum(parameter.numel() for parameter in own) >= least:
            taken.update(map(id, own))
            yield module
