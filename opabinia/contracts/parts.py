"""Types of parameters that are parts: the families of a config, with the runtime arguments of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from opabinia.config import Part
from opabinia.contracts.balance import LossBalance
from opabinia.contracts.clock import Clock, Schedule, Schedules
from opabinia.contracts.data import DatasetInfo, Mix, Sampler, Transform
from opabinia.contracts.detectors import Detector, Neck
from opabinia.contracts.evaluation import Evaluator
from opabinia.contracts.logging import Logger
from opabinia.contracts.models import Backbone, Head, Level
from opabinia.contracts.plans import BatchSchedule, RunSpec
from opabinia.contracts.pseudo_labels import PseudoLabeler
from opabinia.contracts.segmentation import SegmentationDecoder
from opabinia.contracts.sources import Source
from opabinia.contracts.tracking import Tracker
from opabinia.contracts.training import Hook, ParallelTask, Step, StepOptions, Task

TaskPart = Annotated[Callable[[DatasetInfo], Task], Part("task")]

StepPart = Annotated[Callable[[Task | ParallelTask, torch.optim.Optimizer, Schedules, StepOptions], Step], Part("step")]

ParallelPart = Annotated[Callable[[Task, Sequence[Task], torch.device], ParallelTask], Part("parallel")]
"""Distributes models over ranks, in place, and returns the parallel version of the first one."""

BackbonePart = Annotated[Callable[[int], Backbone], Part("backbone")]

PoolingPart = Annotated[Callable[[int], nn.Module], Part("pooling")]
"""Built with M; maps feature maps (B x M x h x w) to vectors (B x M)."""

HeadPart = Annotated[Callable[[int, int], Head], Part("head")]
"""Built with the number of features and the number of classes."""

NeckPart = Annotated[Callable[[Sequence[Level]], Neck], Part("neck")]
"""Built with the levels of the backbone."""

DetectorPart = Annotated[Callable[[Sequence[Level], DatasetInfo], Detector], Part("detector")]
"""Built with the levels of the neck and the dataset info of the training data."""

DecoderPart = Annotated[Callable[[Sequence[Level], int], SegmentationDecoder], Part("decoder")]
"""Built with the levels of the backbone and the number of classes."""

LossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("loss")]

SegmentationLossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("segmentation_loss")]
"""A loss of logits (B x K x H x W) and classes of pixels (int64, B x H x W; 255 is ignored); 0-d."""

MetricLossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("metric_loss")]
"""A loss of features (B x D) and labels (B) of the batch of all ranks."""

BalancePart = Annotated[Callable[[Sequence[str]], LossBalance], Part("balance")]
"""Built with the names of the tasks of a multi-task run."""

PseudoLabelsPart = Annotated[Callable[[Task, Source], PseudoLabeler], Part("pseudo_labels")]
"""Built with the task and the unlabeled samples."""

EvaluatorPart = Annotated[Callable[[DatasetInfo], Evaluator], Part("evaluator")]

OptimizerPart = Annotated[Callable[[Iterable[Any]], torch.optim.Optimizer], Part("optimizer")]

SchedulePart = Annotated[Schedule, Part("schedule")]

SourcePart = Annotated[Source, Part("source")]

TransformPart = Annotated[Transform, Part("transform")]

MixPart = Annotated[Mix, Part("mix")]

SamplerPart = Annotated[Callable[[Source, int, int], Sampler], Part("sampler")]
"""Built with the source, the seed of the run and the global batch size."""

ShapesPart = Annotated[Callable[[RunSpec], BatchSchedule], Part("shapes")]
"""Plans the batch sizes and shapes of a run, epoch by epoch."""

TrackerPart = Annotated[Tracker, Part("tracker")]

HookPart = Annotated[Hook, Part("hook")]

LoggerPart = Annotated[Callable[[Path, Clock], Logger], Part("logger")]
