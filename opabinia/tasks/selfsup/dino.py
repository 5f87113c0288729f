"""DINO (Caron et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, Hook, Positive, SchedulePart
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.clustering import normalized_entropy
from opabinia.models.losses.self_distillation import dino_loss, warmup_temperature
from opabinia.models.projectors import DinoHead
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size, view_size_errors
from opabinia.tasks.selfsup.centering import MeanCentering, UpdateCenter
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from opabinia.tasks.step_hooks import FreezeFirstSteps


@register.task(name="dino")
class DINO(SelfSupervised):
    """Self-distillation: a student sees any view of an image and predicts a momentum teacher's output for the global
    ones.

    Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers. The first two views are the global
    ones; pairs in which student and teacher see the same view do not count.

    Args:
        backbone: maps images to vectors. A vision transformer of timm takes views of several sizes with its option
            ``dynamic_img_size: true``.
        outputs: of the head, K.
        hidden: width of the head's hidden layers.
        bottleneck: width of the head's bottleneck before the last layer.
        head_norm: batch norms in the head (the authors' ``use_bn_in_head``); without them, and with a narrow backbone
            with batch norms, vectors of different images may be too similar at first.
        norm_last_layer: fix the norms of the last layer's weight vectors at 1; false learns them.
        freeze_last_layer: how long the last layer is frozen.
        temperature: divides the student's logits.
        teacher_temperature: divides the teacher's logits after the warmup.
        warmup_teacher_temperature: at the beginning of the warmup.
        teacher_warmup: length of the linear warmup of the teacher's temperature.
        center_momentum: fraction of the center of the teacher's outputs that a step keeps.
        momentum: fraction of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum``; a cosine takes the momentum to 1.
        export_backbone: the network that is evaluated, extracted and handed to other runs.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        outputs: Count = 65536,
        hidden: Count = 2048,
        bottleneck: Count = 256,
        head_norm: bool = False,
        norm_last_layer: bool = True,
        freeze_last_layer: Duration = Duration(1, "ep"),
        temperature: Positive = 0.1,
        teacher_temperature: Positive = 0.07,
        warmup_teacher_temperature: Positive = 0.04,
        teacher_warmup: Duration = Duration(30, "ep"),
        center_momentum: Fraction = 0.9,
        momentum: Fraction = 0.996,
        momentum_schedule: SchedulePart = cosine,
        export_backbone: Literal["teacher", "student"] = "teacher",
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.head = DinoHead(
            self.backbone.out_channels,
            outputs,
            hidden=hidden,
            bottleneck=bottleneck,
            norm_last_layer=norm_last_layer,
            norm=head_norm,
        )
        self.teacher = MomentumTeacher(momentum, momentum_schedule, backbone=self.backbone, head=self.head)
        self.center = MeanCentering(outputs, center_momentum)
        self.temperature = temperature
        self.teacher_warmup = warmup_teacher_temperature, teacher_temperature, teacher_warmup
        self.freeze_last_layer, self.export_backbone = freeze_last_layer, export_backbone

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``, and ``std`` and ``entropy`` of the teacher, see :func:`collapse_metrics`."""
        views = self.views(batch)
        with view_size_errors(views):
            teacher_logits = forward_by_size(self.teacher, views[:GLOBAL_VIEWS])
            student_logits = forward_by_size(lambda images: self.head(self.backbone(images)), views)
        with torch.no_grad():
            targets = self.center(teacher_logits, temperature_now(clock, *self.teacher_warmup), batch["id"])
        loss = dino_loss(student_logits, targets, self.temperature)
        return {"loss": loss, **collapse_metrics(teacher_logits, targets)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return hooks that freeze the last layer at first and update teacher and center."""
        return [
            FreezeFirstSteps(self.head.last, self.freeze_last_layer),
            *super().hooks(dataset_info),
            UpdateCenter(self.center),
        ]


GLOBAL_VIEWS = 2
"""Number of views, the first ones, that the teacher sees."""


def temperature_now(clock: Clock, first: float, last: float, length: Duration) -> float:
    """Return a teacher's temperature at this step of its warmup."""
    return warmup_temperature(clock.step, clock.steps(length), first, last)


@torch.no_grad()
def collapse_metrics(logits: Sequence[Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return metrics that reveal a collapse, over the images of this process.

    Args:
        logits: of the teacher, for each global view (B x K).
        targets: made of them (B x K).

    Returns:
        ``std``, the spread of the logits: 1 even, 0 all alike; ``entropy`` of the mean target divided by log K: 1 if
        all outputs are used equally, 0 if only one is.
    """
    return {"std": spread(logits[0]), "entropy": normalized_entropy(torch.cat(list(targets)).mean(0))}
