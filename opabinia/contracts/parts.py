"""Parts as parameters: the families of a config, and what each is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from opabinia.config import Part
from opabinia.contracts.clock import Clock, Schedule, Schedules
from opabinia.contracts.data import DatasetInfo, Mix, Sampler, Source, Transform
from opabinia.contracts.detectors import Detector, Neck
from opabinia.contracts.evaluation import Evaluator
from opabinia.contracts.models import Backbone, Head, Level
from opabinia.contracts.plans import BatchSchedule, RunSpec
from opabinia.contracts.training import Hook, Logger, ParallelTask, Step, StepOptions, Task

TaskPart = Annotated[Callable[[DatasetInfo], Task], Part("task")]

StepPart = Annotated[Callable[[Task | ParallelTask, torch.optim.Optimizer, Schedules, StepOptions], Step], Part("step")]

ParallelPart = Annotated[Callable[[Sequence[Task], torch.device], ParallelTask], Part("parallel")]
"""Spreads models over processes, in place, and returns what trains the first of them."""

BackbonePart = Annotated[Callable[[int], Backbone], Part("backbone")]

PoolingPart = Annotated[Callable[[int], nn.Module], Part("pooling")]
"""Built with M: feature maps (B x M x h x w) to one vector each (B x M)."""

HeadPart = Annotated[Callable[[int, int], Head], Part("head")]
"""Built with the width of the features and the number of classes."""

NeckPart = Annotated[Callable[[Sequence[Level]], Neck], Part("neck")]
"""Built with what the backbone gives."""

DetectorPart = Annotated[Callable[[Sequence[Level], DatasetInfo], Detector], Part("detector")]
"""Built with what the backbone gives, and the training data's facts."""

LossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("loss")]

MetricLossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("metric_loss")]
"""Of features (B x D) of the batch of all processes and their labels (B): how far alike are from unlike."""

EvaluatorPart = Annotated[Callable[[DatasetInfo], Evaluator], Part("evaluator")]

OptimizerPart = Annotated[Callable[[Iterable[Any]], torch.optim.Optimizer], Part("optimizer")]

SchedulePart = Annotated[Schedule, Part("schedule")]

SourcePart = Annotated[Source, Part("source")]

TransformPart = Annotated[Transform, Part("transform")]

MixPart = Annotated[Mix, Part("mix")]

SamplerPart = Annotated[Callable[[Source, int, int], Sampler], Part("sampler")]
"""Built with the source, the seed of the run and the size of a batch over all processes."""

ShapesPart = Annotated[Callable[[RunSpec], BatchSchedule], Part("shapes")]
"""From what a run knows of itself to all its batches: how many samples of which size, epoch by epoch."""

HookPart = Annotated[Hook, Part("hook")]

LoggerPart = Annotated[Callable[[Path, Clock], Logger], Part("writer")]
