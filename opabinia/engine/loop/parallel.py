"""Multi-GPU and multi-node training: DDP and FSDP. With one process none of this is used."""

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
from opabinia.contracts import Backbone, Batch, Clock, Count, Detector, ParallelTask, Positive, Task
from opabinia.models.projectors import PROJECTOR
from opabinia.runtime.processes import broadcast_from_rank_zero, world_size

DType = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@register.parallel(name="ddp")
def ddp(
    task: Task,
    models: Sequence[Task],
    device: torch.device,
    /,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    compression: Literal["fp16", "bf16"] | None = None,
    bucket_cap_mb: Positive = 25.0,
) -> ParallelTask:
    """Data parallelism (torch's DDP): every process holds the whole model, and gradients are all-reduced during the
    backward pass.

    Running statistics of batch norm stay per process during training; their mean is evaluated and saved.

    Args:
        find_unused_parameters: search for unused parameters after every forward pass; needed if some parameters take no
            part in a step, such as branches that are skipped at random.
        static_graph: promise that every step uses the same parameters in the same order, which saves that search.
        compression: all-reduce gradients in half precision.
        bucket_cap_mb: size of an all-reduce bucket, in MB.
    """
    for model in models:
        broadcast_from_rank_zero([*model.parameters(), *model.buffers()])
    options = {
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
        "bucket_cap_mb": bucket_cap_mb,
        "broadcast_buffers": False,
        "init_sync": False,
        "gradient_as_bucket_view": True,
    }
    return _DataParallel(task, options, compression)


class UnusedParametersError(Exception):
    """Parameters took no part in the previous step, and the other processes wait for their gradients."""

    exit_status = 2


class _DataParallel:
    """See :class:`opabinia.contracts.ParallelTask`.

    DDP reads at its construction which parameters require gradients, and hooks may freeze and unfreeze some: it is
    built at the first forward pass and rebuilt whenever that has changed.
    """

    sharded = False

    def __init__(self, task: Task, options: Mapping[str, Any], compression: str | None) -> None:
        self.module = task
        self._options, self._compression = options, compression
        self._parameters = list(task.parameters())
        self._trainable: list[bool] = []
        self._ddp: DistributedDataParallel | None = None

    def __call__(self, batch: Batch, clock: Clock) -> Any:
        try:
            return self._current()(batch, clock)
        except RuntimeError as error:
            if "finished reduction" in str(error):
                raise UnusedParametersError(
                    "train.parallel: some parameters took no part in the previous step; use "
                    "{name: ddp, find_unused_parameters: true}, or freeze them (hooks: freeze)"
                ) from error
            raise

    def no_sync(self) -> AbstractContextManager[Any]:
        """See :class:`opabinia.contracts.ParallelTask`."""
        if self._options["static_graph"]:
            # A static graph cannot skip an all-reduce; all-reducing every micro-batch gives the same mean.
            return nullcontext()
        return self._current().no_sync()

    def _current(self) -> DistributedDataParallel:
        trainable = [param.requires_grad for param in self._parameters]
        if self._ddp is None or trainable != self._trainable:
            self._ddp = None  # the old one must release the parameters first
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has another name from torch 2.15 on
                self._ddp = DistributedDataParallel(self.module, **self._options)
            if self._compression is not None:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

                self._ddp.register_comm_hook(None, getattr(default_hooks, f"{self._compression}_compress_hook"))
            self._trainable = trainable
        return self._ddp


@register.parallel(name="fsdp")
def fsdp(
    task: Task,
    models: Sequence[Task],
    device: torch.device,
    /,
    *,
    min_num_params: Count = 1_000_000,
    param_dtype: DType | None = None,
    reduce_dtype: DType | None = None,
    reshard_after_forward: bool = True,
) -> ParallelTask:
    """Fully sharded data parallelism (torch's FSDP2): every process holds a shard of each parameter, of its gradient
    and of its optimizer state; a layer's parameters are all-gathered when it computes (Zhao et al. 2023, PyTorch FSDP).

    Args:
        min_num_params: layers in a list of layers are sharded separately if they have at least this many parameters;
            smaller ones are sharded together with the module around them.
        param_dtype: data type of parameters and activations in forward and backward passes; null leaves them as they
            are. ``train.precision`` is more careful: it keeps norms and losses in full precision.
        reduce_dtype: data type of gradients in the reduce-scatter; null leaves them as they are.
        reshard_after_forward: free the all-gathered parameters after the forward pass; false keeps them until the
            backward pass, which is faster and needs more memory.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    precision = MixedPrecisionPolicy(
        param_dtype=_DTYPES[param_dtype] if param_dtype else None,
        reduce_dtype=_DTYPES[reduce_dtype] if reduce_dtype else None,
    )
    for name, param in models[0].named_parameters():
        if not param.is_contiguous():
            raise ValueError(f"{name} is not contiguous and cannot be sharded: fsdp excludes train.channels_last")
    mesh = init_device_mesh(device.type, (world_size(),))
    for model in models:
        broadcast_from_rank_zero([*model.parameters(), *model.buffers()])
        # FSDP casts inputs to param_dtype at the boundary of a sharded module: shard all that the task calls.
        children = [child for child in _called_modules(model) if param_dtype and any(True for _ in child.parameters())]
        if not param_dtype:  # a distillation calls them after the task
            children = [child for name, child in model.named_children() if name.startswith(PROJECTOR)]
        for module in [*_large_layers(model, min_num_params), *children, model]:
            policy = replace(precision, cast_forward_inputs=not _receives_boxes(module))
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
        for module in (model, *children):
            for method in _FORWARD_METHODS:
                if hasattr(module, method.__name__):
                    register_fsdp_forward_method(module, method.__name__)
    return _ShardedTask(task, models[0])


def _receives_boxes(module: nn.Module) -> bool:
    """Return whether boxes are among the module's inputs: half precision would move them by pixels. Its feature maps
    already have the right type."""
    return isinstance(module, Detector) or (isinstance(module, Task) and module.size_multiple is not None)


_FORWARD_METHODS = (
    *(Backbone.feature_maps, Backbone.pyramid_features, Backbone.all_features),
    *(Detector.pyramid, Detector.losses, Detector.detect, Detector.describe),
    *(Task.predict, Task.features),
)
"""Methods that use parameters like ``forward``: FSDP must gather the parameters for them, too."""


class _ShardedTask:
    """See :class:`opabinia.contracts.ParallelTask`."""

    sharded = True

    def __init__(self, task: Task, model: Any) -> None:
        self.module, self._model = task, model

    def __call__(self, batch: Batch, clock: Clock) -> Any:
        return self.module(batch, clock)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See :class:`opabinia.contracts.ParallelTask`."""
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)


def _called_modules(task: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a task calls: its children, and instead of a ModuleList or ModuleDict the modules in
    it."""
    for child in task.children():
        yield from child.children() if isinstance(child, nn.ModuleList | nn.ModuleDict) else [child]


def _large_layers(task: nn.Module, min_num_params: int) -> Iterator[nn.Module]:
    """Yield layers in lists of layers with at least ``min_num_params`` parameters beside those of smaller yielded
    layers, inner ones first.

    Only of layers in a list it is certain that their parameters are used in their own forward pass.
    """
    taken: set[int] = set()
    in_lists = {
        id(layer)
        for module in task.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for layer in module.children()
    }
    for module in reversed(list(task.modules())):
        remaining = [param for param in module.parameters() if id(param) not in taken]
        if id(module) in in_lists and sum(param.numel() for param in remaining) >= min_num_params:
            taken.update(map(id, remaining))
            yield module
