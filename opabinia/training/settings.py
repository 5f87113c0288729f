"""The sections of a config that describe the run itself; the parts they hold are built by the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from opabinia.config import register
from opabinia.contracts import Count, EvaluatorPart, ParallelPart, Positive, StepPart
from opabinia.engine.loop.parallel import ddp
from opabinia.engine.loop.step import Standard
from opabinia.runtime.durations import Duration, Units

Seed = Annotated[int, Interval(ge=0, lt=2**63)]


@register.section
@dataclass(frozen=True, kw_only=True)
class Distributed:
    """How the processes of a run find each other, where no agent (``--nproc``, torchrun) sees to it.

    Args:
        init: ``env`` (``MASTER_ADDR`` and ``MASTER_PORT``, or SLURM's variables), ``tcp://host:port`` of the first
            process, or ``file:///path`` of a new file that all can write. ``RANK`` and ``WORLD_SIZE`` say which
            process is which.
        backend: ``auto`` takes NCCL for tensors on a GPU and gloo for all else.
        timeout: minutes that a process waits for the others before it gives up.
    """

    init: str = "env"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    timeout: Positive = 30


@register.section(name="train")
@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how to train.

    Args:
        length: of the run, such as ``90ep`` or ``5000it``.
        step: how a batch becomes an update.
        lr_batch_size: the batch for which the optimizer's learning rate was found; it is scaled to
            ``data.batch_size``. null: it is meant as it stands.
        lr_scaling: how: in proportion (Goyal et al. 2017), or with the square root (Krizhevsky 2014).
        micro_batch: samples of one process in one forward pass; a larger share of the batch goes through in pieces,
            with the gradient of the whole (batch norms see the pieces). null: no limit.
        precision: of forward passes; weights and updates stay in full precision.
        device: ``auto`` takes the GPU of the local rank if there is one, then Apple's.
        parallel: in which way several processes share the work; one process needs nothing.
        sync_batch_norm: batch norms over the samples of all processes, as if there were one; slower. Otherwise each
            process's own share of the batch is what they see.
        tuned_for: number of processes for which batch, learning rate, lengths and periods were found; on another number
            they are scaled (detectron2's ``REFERENCE_WORLD_SIZE``). null: they are meant as they stand.
        distributed: in which way processes find each other; null: by what torchrun, SLURM or ``--nproc`` say.
        channels_last: keep images and weights with the channels last in memory; often faster on GPUs.
        compile: compile the task's modules; without a compiler that is told, and the run goes on.
        checkpoint_activations: compute the backbone's activations again in the backward pass instead of keeping them.
        check_losses: look at every loss before it changes the weights. On a GPU the host then waits for every step;
            without it a bad loss is found when its line is due. On the CPU this is always done.
        on_nonfinite: what is done when a loss or a gradient is infinite or not a number: ``stop`` ends the run and says
            where; ``skip`` leaves that update out; ``rollback`` goes back to the last checkpoint and leaves that batch
            out.
        deterministic: only operations that give the same bits again; slower on GPUs.
        cudnn_benchmark: let cuDNN try which convolution is fastest; results may differ in the last bits.
        threads: CPU threads of each process; null leaves it to torch. Other numbers change last bits.
        log_every: steps in one line of the journal.
        log_by: what a line holds of its steps' values.
        log_samples: a line for every step, with the ids of its samples.
    """

    length: Duration
    step: StepPart = Standard
    lr_batch_size: Count | None = None
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    micro_batch: Count | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    parallel: ParallelPart = ddp
    sync_batch_norm: bool = False
    tuned_for: Count | None = None
    distributed: Distributed | None = None
    channels_last: bool = False
    compile: bool = False
    checkpoint_activations: bool = False
    check_losses: bool = False
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    deterministic: bool = False
    cudnn_benchmark: bool = False
    threads: Count | None = None
    log_every: Count = 20
    log_by: Literal["mean", "median"] = "mean"
    log_samples: bool = False

    def faster(self) -> list[str]:
        """Settings that are not taken and can make steps on a GPU shorter."""
        off = {
            "train.precision: bf16": self.precision == "fp32",
            "train.channels_last: true": not self.channels_last,
            "train.compile: true": not self.compile,
        }
        return [setting for setting, is_off in off.items() if is_off]


@register.section(name="measure")
@dataclass(frozen=True, kw_only=True)
class Measure:
    """An evaluator beside those that the task has, of its predictions or its features.

    Args:
        evaluator: who judges, such as ``knn`` or ``linear_probe``.
        every: the period; null takes that of the data set.
        on: the prefix of the validation set; null takes each of them.
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
        batch_size: samples of one forward pass; null takes ``data.batch_size``.
        weights: of which weights, when ``ema`` averages them; scores of the average are named ``val_ema/top1``.
        measures: further evaluators, by names of your own; null: none. Those that learn from the training data are
            given it as the validation set is read.
    """

    every: Duration = Duration(1, "ep")
    batch_size: Count | None = None
    weights: Literal["both", "raw", "ema"] = "both"
    measures: dict[str, Measure] | None = None


@register.section(name="checkpoint")
@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When to save, and what to keep.

    Args:
        every: the period, in hours too; the end of the run is always saved.
        keep: how many of the newest to keep; the best is kept beside them.
        best: the score that decides which is best; null takes the first score of the first validation set, of the
            averaged weights if they are evaluated.
    """

    every: Annotated[Duration, Units("ep", "it", "h")] = Duration(1, "ep")
    keep: Count = 2
    best: str | None = None
