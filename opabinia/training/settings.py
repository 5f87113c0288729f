"""The sections of a config that describe the run itself: ``train``, ``evaluate`` and ``checkpoint``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from opabinia.config import register
from opabinia.contracts import Count, EvaluatorPart, ParallelPart, Positive, StepPart
from opabinia.engine.loop.parallel import ddp
from opabinia.engine.loop.step import StandardStep
from opabinia.runtime.device import MatmulPrecision
from opabinia.runtime.durations import Duration, Units

Seed = Annotated[int, Interval(ge=0, lt=2**63)]


@register.section
@dataclass(frozen=True, kw_only=True)
class Distributed:
    """Rendezvous of the ranks, for runs not started by ``--nproc`` or torchrun.

    Args:
        init: ``env`` (``MASTER_ADDR`` and ``MASTER_PORT``, or SLURM's variables), ``tcp://host:port`` of rank 0, or
            ``file:///path`` of a new file that all ranks can write. ``RANK`` and ``WORLD_SIZE`` number the ranks.
        backend: ``auto`` takes NCCL for tensors on a GPU and gloo for all others; ``gloo`` for all is slower on GPUs.
        timeout: minutes that a rank waits for the others before it gives up.
    """

    init: str = "env"
    backend: Literal["auto", "gloo"] = "auto"
    timeout: Positive = 30


@register.section(name="train")
@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how to train.

    Args:
        length: length of the run, such as ``90ep`` (epochs) or ``5000it`` (iterations).
        step: turns the gradients of a batch into an update; gradient clipping is configured here.
        lr_batch_size: batch size for which the optimizer's learning rate was tuned; the rate is scaled to
            ``data.batch_size``. null: no scaling.
        lr_scaling: linear (Goyal et al. 2017) or with the square root (Krizhevsky 2014).
        micro_batch_size: gradient accumulation: samples per rank in one forward pass. The gradient is that of the
            whole batch (batch norms see one micro-batch at a time). null: no limit.
        precision: precision of forward passes (automatic mixed precision); weights and updates stay in full precision.
        device: ``auto`` takes the GPU of the local rank if there is one, then Apple's.
        parallel: strategy for training on several ranks: ``ddp`` or ``fsdp``.
        sync_batch_norm: synchronized batch norm: statistics over the samples of all ranks; slower. Otherwise each
            rank normalizes over its own share of the batch.
        reference_world_size: number of ranks for which batch size, learning rate, lengths and periods were tuned;
            on another number they are scaled (detectron2's ``REFERENCE_WORLD_SIZE``). null: no scaling.
        distributed: rendezvous of the ranks; null: from the variables of torchrun, SLURM or ``--nproc``.
        channels_last: keep images and weights in the channels-last memory format; often faster on GPUs.
        compile: compile the task's modules with torch.compile, for GPUs: on the CPU steps become slower. The log names
            what the first step ran as compiled code and what not. Without a compiler the run warns and continues.
        activation_checkpointing: recompute the backbone's activations in the backward pass instead of keeping them.
        check_losses: check every loss before it changes the weights. On a GPU the host then waits for every step;
            otherwise a non-finite loss is found when its log line is due. On the CPU losses are always checked.
        on_nonfinite: reaction to a loss or gradient that is infinite or NaN: ``stop`` raises an error that names it;
            ``skip`` omits that update; ``rollback`` restarts from the last checkpoint and skips that batch.
        deterministic: use deterministic algorithms only; slower on GPUs.
        cudnn_benchmark: let cuDNN choose the fastest convolution; the last bits of results may differ. It measures
            again for every shape, so it suits images of one size.
        matmul_precision: precision of float32 products, as in ``torch.set_float32_matmul_precision``: ``high`` uses
            TF32 on GPUs that have it (10 bits of each factor's fraction), ``medium`` may use bfloat16, and ``highest``
            neither, also in convolutions. null: torch's defaults, TF32 in convolutions only.
        num_threads: CPU threads per rank; null leaves it to torch. Other numbers change the last bits of results.
        log_every: steps in one line of the metrics log.
        log_samples: write a line for every step, with the ids of its samples.
    """

    length: Duration
    step: StepPart = StandardStep
    lr_batch_size: Count | None = None
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    micro_batch_size: Count | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    parallel: ParallelPart = ddp
    sync_batch_norm: bool = False
    reference_world_size: Count | None = None
    distributed: Distributed | None = None
    channels_last: bool = False
    compile: bool = False
    activation_checkpointing: bool = False
    check_losses: bool = False
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    deterministic: bool = False
    cudnn_benchmark: bool = False
    matmul_precision: MatmulPrecision | None = None
    num_threads: Annotated[int, Interval(ge=1, le=1024)] | None = None
    log_every: Count = 20
    log_samples: bool = False

    def faster_options(self) -> list[str]:
        """Return the settings that are off and may make steps on a GPU faster."""
        off = {
            "train.precision: bf16": self.precision == "fp32",
            "train.channels_last: true": not self.channels_last,
            "train.compile: true": not self.compile,
            "train.matmul_precision: high": self.precision == "fp32" and self.matmul_precision in (None, "highest"),
            "train.cudnn_benchmark: true": not (self.cudnn_benchmark or self.deterministic),
        }
        return [setting for setting, is_off in off.items() if is_off]


@register.section(name="evaluator_run")
@dataclass(frozen=True, kw_only=True)
class EvaluatorRun:
    """An evaluator in addition to those of the task, over its predictions or features.

    Args:
        evaluator: such as ``knn`` or ``linear_probe``.
        every: the period; null takes that of the validation set.
        on: prefix of the validation set; null means each of them.
    """

    evaluator: EvaluatorPart
    every: Duration | None = None
    on: str | None = None


@register.section(name="evaluate")
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """When and how to evaluate during training.

    Args:
        every: the period; the end of the run is always evaluated, and 0ep means only that.
        batch_size: samples in one forward pass; null takes ``data.batch_size``.
        weights: weights to evaluate when there is an EMA of them; its scores are named ``val_ema/top1``.
        evaluators: additional evaluators by a name of your choice; null: none. Those that learn from the training
            data (kNN, probes) see it read in the same way as the validation set.
    """

    every: Duration = Duration(1, "ep")
    batch_size: Count | None = None
    weights: Literal["both", "raw", "ema"] = "both"
    evaluators: dict[str, EvaluatorRun] | None = None


@register.section(name="checkpoint")
@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When to save a checkpoint, and which to keep.

    Args:
        every: the period, in hours too (``1.5h``); the end of the run is always saved.
        keep: number of newest checkpoints to keep; the best one is kept in addition.
        best: the score that selects the best checkpoint, or a weighted sum: ``0.5*val/rank1 + 0.5*val/mAP``; null
            takes the first score of the first validation set, of the EMA weights if they are evaluated.
        upload: URL of remote storage, such as ``s3://bucket/runs``, below which the run folder is copied in the
            background, as ``<recipe>/<name>``; a resume on another machine begins there. null: nowhere.
    """

    every: Annotated[Duration, Units("ep", "it", "h")] = Duration(1, "ep")
    keep: Count = 2
    best: str | None = None
    upload: str | None = None
