"""DINO (Caron et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    Backbone,
    BackbonePart,
    Batch,
    Clock,
    Count,
    DataMismatch,
    DatasetInfo,
    EvaluatorPart,
    Fraction,
    Hook,
    Positive,
    SchedulePart,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.losses.clustering import evenness
from opabinia.models.losses.self_distillation import dino, warmed_temperature
from opabinia.models.projectors import DinoHead
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes
from opabinia.tasks.selfsup.centering import Centre, MoveCentre
from opabinia.tasks.selfsup.freeze_first import FreezeAtFirst
from opabinia.tasks.selfsup.momentum_teacher import Follow, Teacher


@register.task(name="dino")
class DINO(SelfSupervised):
    """A student that sees any view of an image is to say what a teacher says of the large ones: its own slow copy.

    Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers. The first two views are the large
    ones; pairs in which both look at the same view are left out.

    Args:
        backbone: images to vectors. A vision transformer of timm takes views of several sizes with its option
            ``dynamic_img_size: true``.
        outputs: of the head, K.
        hidden: width of the head's hidden layers.
        bottleneck: width of what the head compares with its K directions.
        head_norm: batch norms in the head (the authors' ``use_bn_in_head``); without them, and with a narrow network of
            batch norms, vectors of different images may be too near to each other at first.
        norm_last_layer: keep these directions at length 1; false learns their lengths, too.
        freeze_last_layer: for so long they learn nothing.
        temperature: divides the student's logits.
        teacher_temperature: divides the teacher's behind the warm-up.
        first_teacher_temperature: at its beginning.
        teacher_warmup: how long the teacher's temperature goes from one to the other, along a line.
        centre_momentum: share of the centre of the teacher's outputs that a step keeps.
        momentum: share of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum``; a cosine takes the momentum to 1.
        hand_on: whose backbone is measured, extracted and handed on.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
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
        first_teacher_temperature: Positive = 0.04,
        teacher_warmup: Duration = Duration(30, "ep"),
        centre_momentum: Fraction = 0.9,
        momentum: Fraction = 0.996,
        momentum_schedule: SchedulePart = cosine,
        hand_on: Literal["teacher", "student"] = "teacher",
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        self.head = DinoHead(
            self.backbone.out_channels,
            outputs,
            hidden=hidden,
            bottleneck=bottleneck,
            norm_last_layer=norm_last_layer,
            norm=head_norm,
        )
        self.teacher = Teacher(backbone=self.backbone, head=self.head)
        self.centre = Centre(outputs, centre_momentum)
        self.temperature, self.momentum, self.momentum_schedule = temperature, momentum, momentum_schedule
        self.teacher_warmup = first_teacher_temperature, teacher_temperature, teacher_warmup
        self.freeze_last_layer, self.hand_on = freeze_last_layer, hand_on

    @property
    def trunk(self) -> Backbone:
        """The teacher's backbone, or the student's if ``hand_on`` says so."""
        return self.backbone if self.hand_on == "student" else cast(Backbone, self.teacher.get_submodule("backbone"))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and of the teacher ``std`` and ``entropy``, see :func:`signs`."""
        views = self.views(batch)
        with refusals(views):
            said = in_few_passes(self.teacher, views[:LARGE])
            answers = in_few_passes(lambda images: self.head(self.backbone(images)), views)
        with torch.no_grad():
            targets = self.centre(said, warmed(clock, *self.teacher_warmup), batch["id"])
        return {"loss": dino(answers, targets, self.temperature), **signs(said, targets)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """The teacher and its centre follow; the last layer waits."""
        return [
            FreezeAtFirst(self.head.last, self.freeze_last_layer),
            Follow(self.teacher, [self.backbone, self.head], self.momentum, self.momentum_schedule),
            MoveCentre(self.centre),
        ]


LARGE = 2
"""So many views, the first ones, go through the teacher."""


def warmed(clock: Clock, first: float, last: float, length: Duration) -> float:
    """A teacher's temperature now."""
    return warmed_temperature(clock.step, clock.steps(length), first, last)


@contextmanager
def refusals(views: Sequence[Tensor]) -> Iterator[None]:
    """Tells that a backbone does not take views of these sizes, if it does not.

    Raises:
        Unfit: it does not.
    """
    try:
        yield
    except AssertionError as error:  # how timm's layers refuse a size
        sizes = ", ".join(dict.fromkeys(f"{view.shape[2]} x {view.shape[3]}" for view in views))
        raise DataMismatch(
            f"the backbone does not take views of {sizes}: {error} Vision transformers of timm take several sizes with "
            "the backbone's options: {img_size: SIZE, dynamic_img_size: true}, SIZE being that of the large views"
        ) from error


@torch.no_grad()
def signs(said: Sequence[Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
    """What tells a collapse, of the images of this process.

    Args:
        said: a teacher's logits of each large view (B x K).
        targets: what became of them (B x K).

    Returns:
        ``std``, how far the logits are spread: 1 evenly, 0 all alike; ``entropy`` of the mean target over its largest
        value, log K: 1 where all outputs are used evenly, 0 where one is.
    """
    return {"std": spread(said[0]), "entropy": evenness(torch.cat(list(targets)).mean(0))}
