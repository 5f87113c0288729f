"""Distillation: a teacher beside any task (Hinton et al. 2015, Touvron et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Evaluator,
    Facts,
    Hook,
    NonNegative,
    Positive,
    Predictions,
    SchedulePart,
    Task,
)
from opabinia.models.backbones import Preprocessing, TimmBackbone
from opabinia.models.layers import Normalize
from opabinia.models.weights import fit, read_weights
from opabinia.optim.schedules import constant

PROJECTOR = "distill_projector"
"""Name of what is trained and saved beside the student, and is of no use without the teacher."""


@register.section(name="distill")
@dataclass(frozen=True, kw_only=True)
class Distill:
    """A teacher, and what is learned from it.

    Args:
        run: folder of a run whose model teaches.
        backbone: or a backbone that teaches, with its own classifier, such as a pretrained timm model.
        weights: a file with weights of that backbone and classifier.
        task_weight: multiplies the task's own losses.
        logits_weight: multiplies ``distill_logits_loss``.
        features_weight: multiplies ``distill_features_loss``.
        logits_loss: soft compares distributions at a temperature; hard takes the teacher's best class as label.
        features_loss: how vectors are compared: 1 - cosine, squared error, or Huber's.
        temperature: of the soft logits loss, which is multiplied by its square.
        temperature_schedule: multiplies the temperature over time.
        student_logits: module of the task whose output are its logits.
        teacher_logits: the same of the teacher.
        student_features: module of the task whose output are its features: vectors, tokens or maps.
        teacher_features: the same of the teacher.
    """

    run: Path | None = None
    backbone: BackbonePart | None = None
    weights: Path | None = None
    task_weight: NonNegative = 0.5
    logits_weight: NonNegative = 0.5
    features_weight: NonNegative = 0.0
    logits_loss: Literal["soft", "hard"] = "soft"
    features_loss: Literal["cosine", "mse", "smooth_l1"] = "cosine"
    temperature: Positive = 1.0
    temperature_schedule: SchedulePart = constant
    student_logits: str = "head"
    teacher_logits: str = "head"
    student_features: str = "backbone"
    teacher_features: str = "backbone"


# --- teachers -------------------------------------------------------------------------------------------------------


class Teacher(Protocol):
    """A module that takes a batch: a task, or an :class:`ImageTeacher`."""

    def predict(self, batch: Batch) -> Predictions: ...


class ImageTeacher(nn.Module):
    """A backbone and its classifier, which see images as they were trained to."""

    def __init__(self, backbone: nn.Module, head: nn.Module, preprocessing: Preprocessing, channels: int) -> None:
        super().__init__()
        self.normalize = Normalize(preprocessing.mean, preprocessing.std, channels)
        self.backbone = backbone
        self.head = head

    def predict(self, batch: Batch) -> Predictions:
        """``logits`` (B x K)."""
        return {"logits": self.head(self.backbone(self.normalize(batch["image"])))}
