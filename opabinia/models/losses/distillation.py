"""How far a student is from its teacher."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import DataMismatch

LogitsLoss = Literal["soft", "symmetric", "binary", "hard", "mse"]
FeaturesLoss = Literal["cosine", "mse", "smooth_l1"]


def logits_loss(student: Tensor, teacher: Tensor, kind: LogitsLoss, temperature: float = 1.0) -> Tensor:
    """How far logits (B x K) are from the teacher's, over which no gradient flows.

    Args:
        student: B x K.
        teacher: B x K.
        kind: ``soft``: KL divergence of the teacher's distribution from the student's (Hinton et al. 2015);
            ``symmetric``: the mean of it and of its reverse (FastReID); ``binary``: the same for each class on its own,
            whether it is there, for several labels an image; ``hard``: cross entropy with the teacher's best
            class (Touvron et al. 2021); ``mse``: mean squared difference.
        temperature: divides logits before soft, symmetric and binary, which are multiplied by its square.

    Raises:
        ValueError: the shapes differ.
    """
    _check_same(student, teacher, "logits")
    student, teacher = student.float(), teacher.detach().float()
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(1))
    if kind == "mse":
        return F.mse_loss(student, teacher)
    if kind == "binary":
        theirs = (teacher / temperature).sigmoid()
        own = F.binary_cross_entropy_with_logits(teacher / temperature, theirs)  # so that 0 means equal
        return (F.binary_cross_entropy_with_logits(student / temperature, theirs) - own) * temperature**2
    ours, theirs = (student / temperature).log_softmax(1), (teacher / temperature).log_softmax(1)
    loss = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
    if kind == "symmetric":
        loss = (loss + F.kl_div(theirs, ours, reduction="batchmean", log_target=True)) / 2
    return loss * temperature**2


def features_loss(student: Tensor, teacher: Tensor, kind: FeaturesLoss) -> Tensor:
    """How far vectors (... x D) are from the teacher's: 1 - cosine, mean squared difference, or Huber's.

    Raises:
        ValueError: the shapes differ.
    """
    _check_same(student, teacher, "features")
    student, teacher = student.float(), teacher.detach().float()
    if kind == "cosine":
        return 1 - F.cosine_similarity(student, teacher, dim=-1).mean()
    return F.mse_loss(student, teacher) if kind == "mse" else F.smooth_l1_loss(student, teacher)


def _check_same(student: Tensor, teacher: Tensor, what: str) -> None:
    if student.shape != teacher.shape:
        ours, theirs = tuple(student.shape), tuple(teacher.shape)
        raise DataMismatch(f"distill: the student's {what} are of shape {ours}, the teacher's of shape {theirs}")
