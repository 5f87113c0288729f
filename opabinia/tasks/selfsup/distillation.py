"""Distillation without labels: a student learns the features of a frozen teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Hook, NonNegative, Task
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.distillation import FeaturesLoss, features_loss
from opabinia.models.projectors import PROJECTOR
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, view_size_errors
from opabinia.tasks.teachers import (
    CheckTeachers,
    FrozenTeacher,
    ImageFeatures,
    build_teacher,
    frozen_features,
    image_trunk,
    vectors_and_maps,
)


@register.task(name="distillation")
class Distillation(SelfSupervised):
    """Distillation without labels: match the features of a frozen teacher, projected to its width by a linear layer.

    The defaults are LightlyTrain's (distillation, version 2): the squared error of the feature maps of one image,
    resized to those of the teacher. LightlyTrain takes the last two blocks of the teacher, this the last one.

    It learns from the image itself (with ``data.mix``, if wanted), or from views: the teacher sees the first
    ``teacher_views``, the student all of them. Each view of the teacher is the target of the same view of the student
    and of all further ones, whose size may differ (VISSL's distillation of DINO and SwAV); feature maps are compared
    for the same view only.

    The teacher is neither trained nor saved. A resumed run builds it again and compares its digest; evaluation and
    export do not need it.

    Args:
        backbone: the student.
        teacher: the model of a run or a backbone with weights.
        teacher_views: number of views that the teacher sees.
        loss: comparison of features: 1 - cosine, mean squared error or smooth L1.
        pooled_weight: weight of ``pooled_loss``, which compares the vectors of images.
        dense_weight: weight of ``dense_loss``, which compares feature maps position by position.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: both weights are 0, the teacher does not fit (see :func:`opabinia.tasks.teachers.build_teacher`)
            or a network has no feature maps.
    """

    min_samples_per_rank = 1
    has_validation_loss = False  # until there is a teacher

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        teacher: FrozenTeacher,
        teacher_views: Count = 2,
        loss: FeaturesLoss = "mse",
        pooled_weight: NonNegative = 0.0,
        dense_weight: NonNegative = 1.0,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        if not (pooled_weight or dense_weight):
            raise ValueError("pooled_weight and dense_weight are both 0: nothing is learned from the teacher")
        self.teacher_views, self.loss = teacher_views, loss
        self.pooled_weight, self.dense_weight = pooled_weight, dense_weight
        self._settings = teacher
        self._teacher: ImageFeatures | None = None
        self._hooks: list[Hook] = []

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``pooled_loss`` and ``dense_loss``, weighted, if their weights are not 0, and ``std``, the spread of
        the student's vectors: 1 even, 0 collapsed."""
        views = self.images_or_views(batch)
        assert self._teacher is not None, "attach_teachers() comes first"
        with view_size_errors(views):
            targets = [self._teacher(view) for view in views[: self.teacher_views]]
            students = [vectors_and_maps(self.backbone, self.normalize(view), self.dense_weight > 0) for view in views]
        losses = {}
        if self.pooled_weight:
            pairs = [
                (self.get_submodule(f"{PROJECTOR}_pooled")(vectors), target)
                for number, (vectors, _) in enumerate(students)
                for target, _ in (targets[number : number + 1] or targets)
            ]
            losses["pooled_loss"] = self.pooled_weight * self._mean_loss(pairs)
        if self.dense_weight:
            pairs = [
                (self._project(maps, target), target.movedim(1, -1))
                for (_, maps), (_, target) in zip(students, targets, strict=False)
            ]
            losses["dense_loss"] = self.dense_weight * self._mean_loss(pairs)
        return {**losses, "std": spread(students[0][0])}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the check of the teacher of a resumed run."""
        return self._hooks

    def attach_teachers(self, load: Callable[[Path], Task]) -> None:
        """Build the teacher and the projections to its widths; see :meth:`opabinia.contracts.Task.attach_teachers`."""
        model = build_teacher(self._settings, self.dataset_info, load, logits=False)
        trunk = image_trunk(model)
        widths = {"pooled": (self.pooled_weight, "out_channels"), "dense": (self.dense_weight, "map_channels")}
        for kind, (weight, attribute) in widths.items():
            student_width, width = getattr(self.backbone, attribute), getattr(trunk, attribute)
            if weight and not (student_width and width):
                network = "teacher" if student_width else "backbone"
                raise ValueError(
                    f"dense_weight: the {network} has no feature maps; set pooled_weight: 1, dense_weight: 0"
                )
            if weight:
                layer = nn.Linear(student_width, width)
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
                self.add_module(f"{PROJECTOR}_{kind}", layer)
        self._teacher = frozen_features(model, maps=self.dense_weight > 0)
        self._hooks, self.has_validation_loss = [CheckTeachers([trunk])], True

    def _project(self, maps: Tensor, target: Tensor) -> Tensor:
        """Return the student's feature maps, projected and resized to those of the teacher (B x h x w x D)."""
        projected = self.get_submodule(f"{PROJECTOR}_dense")(maps.movedim(1, -1)).movedim(-1, 1)
        return F.interpolate(projected, target.shape[2:], mode="bilinear", align_corners=False).movedim(1, -1)

    def _mean_loss(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        return torch.stack([features_loss(student, target, self.loss) for student, target in pairs]).mean()
