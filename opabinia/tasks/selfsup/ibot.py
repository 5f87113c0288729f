"""iBOT (Zhou et al. 2022), with what DINOv2 (Oquab et al. 2023) adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

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
    NonNegative,
    Positive,
    SchedulePart,
)
from opabinia.models.losses.self_distillation import dino, hidden_patches, koleo
from opabinia.models.projectors import DinoHead
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes, of_all_processes
from opabinia.tasks.selfsup.centering import Centre, Even, MoveCentre
from opabinia.tasks.selfsup.dino import LARGE, refusals, signs, warmed
from opabinia.tasks.selfsup.freeze_first import FreezeAtFirst
from opabinia.tasks.selfsup.momentum_teacher import Follow, Teacher


@register.task(name="ibot")
class IBot(SelfSupervised):
    """DINO, and a student that is to say of the patches it does not see what its teacher says, who sees them.

    Zhou et al. 2022, iBOT: Image BERT Pre-Training with Online Tokenizer. The first two views are the large ones; their
    transforms end with ``block_patches``. DINOv2 (Oquab et al. 2023) has ``separate_heads: true``,
    ``centring: sinkhorn`` and ``koleo_weight: 0.1``.

    The logits of all patches of the large views are there at once, some times over, 4 bytes each: 206 MB for every 16
    images in 196 patches and 8,192 outputs.

    Args:
        backbone: a vision transformer of timm; it takes views of several sizes with its option
            ``dynamic_img_size: true``.
        outputs: of the head, K.
        patch_outputs: of the head for patches, where it is one of its own.
        separate_heads: let patches have a head of their own; otherwise images and patches share one, as in the paper.
        hidden: width of the heads' hidden layers.
        bottleneck: width of what a head compares with its K directions.
        norm_last_layer: keep these directions at length 1; false learns their lengths, too.
        freeze_last_layer: for so long they learn nothing.
        image_weight: of the loss of images, DINO's.
        patch_weight: of the loss of hidden patches.
        patches_from: until then nothing is hidden.
        koleo_weight: weight of what spreads the student's vectors of the large views; 0 leaves it out.
        centring: what keeps the teacher's outputs from being the same for all images: a ``centre`` (iBOT), or equal
            shares of all outputs by ``sinkhorn`` (DINOv2).
        temperature: divides the student's logits.
        teacher_temperature: divides the teacher's behind the warm-up.
        first_teacher_temperature: at its beginning.
        teacher_warmup: how long the teacher's temperature goes from one to the other, along a line.
        patch_temperature: as ``teacher_temperature``, for patches.
        first_patch_temperature: at the beginning of its warm-up.
        patch_warmup: how long it is.
        centre_momentum: share of the centre of the teacher's outputs that a step keeps.
        patch_centre_momentum: of that of patches.
        momentum: share of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum``; a cosine takes the momentum to 1.
        hand_on: whose backbone is measured, extracted and handed on.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: the backbone sees no patches.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        outputs: Count = 8192,
        patch_outputs: Count = 8192,
        separate_heads: bool = False,
        hidden: Count = 2048,
        bottleneck: Count = 256,
        norm_last_layer: bool = True,
        freeze_last_layer: Duration = Duration(1, "ep"),
        image_weight: NonNegative = 1.0,
        patch_weight: NonNegative = 1.0,
        patches_from: Duration = Duration(0, "ep"),
        koleo_weight: NonNegative = 0.0,
        centring: Literal["centre", "sinkhorn"] = "centre",
        temperature: Positive = 0.1,
        teacher_temperature: Positive = 0.07,
        first_teacher_temperature: Positive = 0.04,
        teacher_warmup: Duration = Duration(30, "ep"),
        patch_temperature: Positive = 0.07,
        first_patch_temperature: Positive = 0.04,
        patch_warmup: Duration = Duration(30, "ep"),
        centre_momentum: Fraction = 0.9,
        patch_centre_momentum: Fraction = 0.9,
        momentum: Fraction = 0.996,
        momentum_schedule: SchedulePart = cosine,
        hand_on: Literal["teacher", "student"] = "teacher",
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        channels = self.backbone.token_channels
        if not channels:
            raise ValueError("backbone: ibot hides patches, and this one sees none; take a vision transformer of timm")
        kinds = {"images": outputs} | ({"patches": patch_outputs} if separate_heads else {})
        self.heads = nn.ModuleDict(
            {
                kind: DinoHead(channels, count, hidden=hidden, bottleneck=bottleneck, norm_last_layer=norm_last_layer)
                for kind, count in kinds.items()
            }
        )
        self.hidden_token = nn.Parameter(torch.zeros(channels))
        self.teacher = Teacher(backbone=self.backbone, heads=self.heads)
        self.centre: Centre | Even = Even()
        self.patch_centre: Centre | Even = Even()
        if centring == "centre":
            self.centre = Centre(outputs, centre_momentum)
            self.patch_centre = Centre(kinds.get("patches", outputs), patch_centre_momentum)
        # These compare the images of a batch.
        self.whole_batches = centring == "sinkhorn" or koleo_weight > 0
        self.weights = {"image": image_weight, "patch": patch_weight, "koleo": koleo_weight}
        self.temperature = temperature
        self.image_warmup = first_teacher_temperature, teacher_temperature, teacher_warmup
        self.patch_warmup = first_patch_temperature, patch_temperature, patch_warmup
        self.momentum, self.momentum_schedule = momentum, momentum_schedule
        self.patches_from, self.freeze_last_layer = patches_from, freeze_last_layer
        self.hand_on = hand_on

    @property
    def trunk(self) -> Backbone:
        """The teacher's backbone, or the student's if ``hand_on`` says so."""
        return self.backbone if self.hand_on == "student" else cast(Backbone, self.teacher.get_submodule("backbone"))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``image_loss``, ``patch_loss`` and, where it counts, ``koleo_loss``, all weighted, and of the teacher ``std``
        and ``entropy``, see :func:`opabinia.tasks.selfsup.dino.signs`."""
        views = self.views(batch)
        large, small = views[:LARGE], views[LARGE:]
        masks = self._masks(batch, large, clock)
        with refusals(views):
            image_targets, patch_targets, said = self._targets(large, clock, batch["id"])
            seen = self.backbone.tokens(torch.cat(large), (torch.cat(masks), self.hidden_token))
            rest = in_few_passes(lambda images: self.backbone.tokens(images).first, small)
        vectors = [*seen.first.chunk(LARGE), *rest]
        answers = self.heads["images"](torch.cat(vectors)).chunk(len(vectors))
        filled = of_patches(self.heads)(seen.patches)
        patch_loss = hidden_patches(filled, torch.cat(patch_targets), torch.cat(masks), self.temperature)
        losses = {
            "image_loss": self.weights["image"] * dino(answers, image_targets, self.temperature),
            "patch_loss": self.weights["patch"] * patch_loss,
        }
        if self.weights["koleo"]:
            everybody = of_all_processes(vectors[:LARGE], batch["id"])
            losses["koleo_loss"] = self.weights["koleo"] * torch.stack([koleo(view) for view in everybody]).sum()
        return {**losses, **signs(said, image_targets)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """The teacher and its centres follow; the last layers wait."""
        return [
            *(FreezeAtFirst(cast(DinoHead, head).last, self.freeze_last_layer) for head in self.heads.values()),
            Follow(self.teacher, [self.backbone, self.heads], self.momentum, self.momentum_schedule),
            *(MoveCentre(one) for one in (self.centre, self.patch_centre) if isinstance(one, Centre)),
        ]

    @torch.no_grad()
    def _targets(
        self, large: Sequence[Tensor], clock: Clock, ids: Sequence[str]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What the teacher says of each large view (B x K) and of its patches (B x N x K), and its logits (B x K)."""
        backbone, heads = self.teacher.get_submodule("backbone"), self.teacher.get_submodule("heads")
        seen = cast(Backbone, backbone).tokens(torch.cat(list(large)))
        said = list(cast(nn.ModuleDict, heads)["images"](seen.first).chunk(LARGE))
        patches = of_patches(cast(nn.ModuleDict, heads))(seen.patches).chunk(LARGE)
        return (
            self.centre(said, warmed(clock, *self.image_warmup), ids),
            self.patch_centre(patches, warmed(clock, *self.patch_warmup), ids),
            said,
        )

    def _masks(self, batch: Batch, large: Sequence[Tensor], clock: Clock) -> list[Tensor]:
        """Which patches of each large view are hidden (bool, B x N).

        Raises:
            Unfit: that is not said, or of other patches than the backbone sees.
        """
        masks = batch.get("patch_masks", ())
        if len(masks) < LARGE:
            raise DataMismatch(
                f"IBot learns from {LARGE} views with masks, and {len(masks)} have one; the transforms of the first "
                f"{LARGE} views in data.train.transforms are to end with block_patches"
            )
        for view, mask in zip(large, masks, strict=False):
            height, width = view.shape[2:]
            down, across = self.backbone.grid((height, width))
            if mask.shape[1] != down * across:
                raise DataMismatch(
                    f"a patch_mask of {mask.shape[1]} patches, for views of {height} x {width}, in which the backbone "
                    f"sees {down} x {across}; its transform is to have the patch_size of the backbone, and to stand "
                    "behind those that change the size"
                )
        hides = clock.step >= clock.steps(self.patches_from)
        return [mask & hides for mask in masks[:LARGE]]


def of_patches(heads: nn.ModuleDict) -> nn.Module:
    """The head of patches, or the one that they share with images."""
    return heads["patches"] if "patches" in heads else heads["images"]
