"""Distillation losses between a student and a teacher."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import DataMismatch

LogitsLoss = Literal["soft", "symmetric", "binary", "hard", "mse"]
FeaturesLoss = Literal["cosine", "mse", "smooth_l1"]


def logits_loss(student: Tensor, teacher: Tensor, kind: LogitsLoss, temperature: float = 1.0) -> Tensor:
    """Distillation loss of logits (B x K); no gradient flows to the teacher.

    Args:
        student: B x K.
        teacher: B x K.
        kind: ``soft``: KL divergence of the teacher's distribution from the student's (Hinton et al. 2015);
            ``symmetric``: the mean of it and of its reverse (FastReID); ``binary``: the same for each class separately,
            for multi-label data; ``hard``: cross entropy with the teacher's best class (Touvron et al. 2021); ``mse``:
            mean squared error.
        temperature: divides logits for soft, symmetric and binary, whose losses are multiplied by its square.

    Raises:
        DataMismatch: the shapes differ.
    """
    _check_shapes(student, teacher, "logits")
    student, teacher = student.float(), teacher.detach().float()
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(1))
    if kind == "mse":
        return F.mse_loss(student, teacher)
    if kind == "binary":
        targets = (teacher / temperature).sigmoid()
        entropy = F.binary_cross_entropy_with_logits(teacher / temperature, targets)  # subtracted: 0 means equal
        return (F.binary_cross_entropy_with_logits(student / temperature, targets) - entropy) * temperature**2
    student_logs, teacher_logs = (student / temperature).log_softmax(1), (teacher / temperature).log_softmax(1)
    loss = F.kl_div(student_logs, teacher_logs, reduction="batchmean", log_target=True)
    if kind == "symmetric":
        loss = (loss + F.kl_div(teacher_logs, student_logs, reduction="batchmean", log_target=True)) / 2
    return loss * temperature**2


def features_loss(student: Tensor, teacher: Tensor, kind: FeaturesLoss) -> Tensor:
    """Distillation loss of features (... x D): 1 - cosine, mean squared error, or smooth L1.

    Raises:
        DataMismatch: the shapes differ.
    """
    _check_shapes(student, teacher, "features")
    student, teacher = student.float(), teacher.detach().float()
    if kind == "cosine":
        return 1 - F.cosine_similarity(student, teacher, dim=-1).mean()
    return F.mse_loss(student, teacher) if kind == "mse" else F.smooth_l1_loss(student, teacher)


def _check_shapes(student: Tensor, teacher: Tensor, kind: str) -> None:
    if student.shape != teacher.shape:
        shapes = f"shape {tuple(student.shape)}, the teacher's of shape {tuple(teacher.shape)}"
        raise DataMismatch(f"distill: the student's {kind} are of {shapes}")
