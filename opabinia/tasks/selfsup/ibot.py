"""iBOT (Zhou et al. 2022), with what DINOv2 (Oquab et al. 2023) adds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, Unpack, cast

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
    Fraction,
    Hook,
    NonNegative,
    Positive,
    SchedulePart,
)
from opabinia.models.losses.self_distillation import dino_loss, koleo, masked_patch_loss
from opabinia.models.projectors import DinoHead
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size, gather_views, view_size_errors
from opabinia.tasks.selfsup.centering import MeanCentering, SinkhornCentering, UpdateCenter
from opabinia.tasks.selfsup.dino import GLOBAL_VIEWS, collapse_metrics, temperature_now
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from opabinia.tasks.step_hooks import FreezeFirstSteps


@register.task(name="ibot")
class IBot(SelfSupervised):
    """DINO with masked image modeling: the student also predicts the teacher's outputs for patches that are masked.

    Zhou et al. 2022, iBOT: Image BERT Pre-Training with Online Tokenizer. The first two views are the global ones;
    their transforms end with ``block_patch_mask``. DINOv2 (Oquab et al. 2023) has ``separate_heads: true``,
    ``centering: sinkhorn`` and ``koleo_weight: 0.1``.

    The logits of all patches of the global views are in memory at once, several times, 4 bytes each: 206 MB for every
    16 images in 196 patches and 8,192 outputs.

    Args:
        backbone: a vision transformer of timm; it takes views of several sizes with its option
            ``dynamic_img_size: true``.
        outputs: of the head, K.
        patch_outputs: of the patch head, if it is separate.
        separate_heads: patches have a head of their own; otherwise images and patches share one, as in the paper.
        hidden: width of the heads' hidden layers.
        bottleneck: width of the heads' bottleneck before the last layer.
        norm_last_layer: fix the norms of the last layer's weight vectors at 1; false learns them.
        freeze_last_layer: how long the last layers are frozen.
        image_weight: of the loss of images, DINO's.
        patch_weight: of the loss of masked patches.
        masking_start: before this time no patch is masked.
        koleo_weight: of the loss that spreads the student's vectors of the global views; 0 omits it.
        centering: prevents equal outputs for all images: a running mean, ``center`` (iBOT), or equal
            shares of all outputs by ``sinkhorn`` (DINOv2).
        temperature: divides the student's logits.
        teacher_temperature: divides the teacher's logits after the warmup.
        warmup_teacher_temperature: at the beginning of the warmup.
        teacher_warmup: length of the linear warmup of the teacher's temperature.
        patch_temperature: as ``teacher_temperature``, for patches.
        warmup_patch_temperature: at the beginning of its warmup.
        patch_warmup: length of that warmup.
        center_momentum: fraction of the center of the teacher's outputs that a step keeps.
        patch_center_momentum: the same for patches.
        momentum: fraction of the teacher that a step keeps, at first.
        momentum_schedule: multiplies ``1 - momentum``; a cosine takes the momentum to 1.
        export_backbone: the network that is evaluated, extracted and handed to other runs.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: the backbone has no patches.
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
        masking_start: Duration = Duration(0, "ep"),
        koleo_weight: NonNegative = 0.0,
        centering: Literal["center", "sinkhorn"] = "center",
        temperature: Positive = 0.1,
        teacher_temperature: Positive = 0.07,
        warmup_teacher_temperature: Positive = 0.04,
        teacher_warmup: Duration = Duration(30, "ep"),
        patch_temperature: Positive = 0.07,
        warmup_patch_temperature: Positive = 0.04,
        patch_warmup: Duration = Duration(30, "ep"),
        center_momentum: Fraction = 0.9,
        patch_center_momentum: Fraction = 0.9,
        momentum: Fraction = 0.996,
        momentum_schedule: SchedulePart = cosine,
        export_backbone: Literal["teacher", "student"] = "teacher",
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        channels = self.backbone.token_channels
        if not channels:
            raise ValueError("backbone: ibot masks patches, and this one has none; take a vision transformer of timm")
        head = partial(DinoHead, channels, hidden=hidden, bottleneck=bottleneck, norm_last_layer=norm_last_layer)
        self.heads = nn.ModuleDict({"images": head(outputs)})
        if separate_heads:
            self.heads["patches"] = head(patch_outputs)
        self.hidden_token = nn.Parameter(torch.zeros(channels))
        self.teacher = MomentumTeacher(momentum, momentum_schedule, backbone=self.backbone, heads=self.heads)
        self.center: MeanCentering | SinkhornCentering = SinkhornCentering()
        self.patch_center: MeanCentering | SinkhornCentering = SinkhornCentering()
        if centering != "sinkhorn":
            self.center = MeanCentering(outputs, center_momentum)
            self.patch_center = MeanCentering(patch_outputs if separate_heads else outputs, patch_center_momentum)
        # Both compare the images of a batch.
        self.requires_full_batch = centering == "sinkhorn" or koleo_weight > 0
        self.weights = {"image": image_weight, "patch": patch_weight, "koleo": koleo_weight}
        self.temperature = temperature
        self.image_warmup = warmup_teacher_temperature, teacher_temperature, teacher_warmup
        self.patch_warmup = warmup_patch_temperature, patch_temperature, patch_warmup
        self.masking_start, self.freeze_last_layer = masking_start, freeze_last_layer
        self.export_backbone = export_backbone

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``image_loss``, ``patch_loss`` and, if it is on, ``koleo_loss``, all weighted, and ``std`` and
        ``entropy`` of the teacher, see :func:`opabinia.tasks.selfsup.dino.collapse_metrics`."""
        views = self.views(batch)
        global_views, local_views = views[:GLOBAL_VIEWS], views[GLOBAL_VIEWS:]
        masks = self._masks(batch, global_views, clock)
        with view_size_errors(views):
            image_targets, patch_targets, teacher_logits = self._targets(global_views, clock, batch["id"])
            tokens = self.backbone.tokens(torch.cat(global_views), (torch.cat(masks), self.hidden_token))
            local_vectors = forward_by_size(lambda images: self.backbone.tokens(images).first, local_views)
        vectors = [*tokens.first.chunk(GLOBAL_VIEWS), *local_vectors]
        image_logits = self.heads["images"](torch.cat(vectors)).chunk(len(vectors))
        patch_logits = patch_head(self.heads)(tokens.patches)
        patch_loss = masked_patch_loss(patch_logits, torch.cat(patch_targets), torch.cat(masks), self.temperature)
        losses = {
            "image_loss": self.weights["image"] * dino_loss(image_logits, image_targets, self.temperature),
            "patch_loss": self.weights["patch"] * patch_loss,
        }
        if self.weights["koleo"]:
            gathered = gather_views(vectors[:GLOBAL_VIEWS], batch["id"])
            losses["koleo_loss"] = self.weights["koleo"] * torch.stack([koleo(view) for view in gathered]).sum()
        return {**losses, **collapse_metrics(teacher_logits, image_targets)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return hooks that freeze the last layers at first and update teacher and centers."""
        centers = (self.center, self.patch_center)
        return [
            *(FreezeFirstSteps(cast(DinoHead, head).last, self.freeze_last_layer) for head in self.heads.values()),
            *super().hooks(dataset_info),
            *(UpdateCenter(center) for center in centers if isinstance(center, MeanCentering)),
        ]

    @torch.no_grad()
    def _targets(
        self, views: Sequence[Tensor], clock: Clock, ids: Sequence[str]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return the teacher's targets for each view (B x K) and its patches (B x N x K), and its logits (B x K)."""
        backbone, heads = self.teacher.get_submodule("backbone"), self.teacher.get_submodule("heads")
        tokens = cast(Backbone, backbone).tokens(torch.cat(list(views)))
        logits = list(cast(nn.ModuleDict, heads)["images"](tokens.first).chunk(GLOBAL_VIEWS))
        patch_logits = patch_head(cast(nn.ModuleDict, heads))(tokens.patches).chunk(GLOBAL_VIEWS)
        return (
            self.center(logits, temperature_now(clock, *self.image_warmup), ids),
            self.patch_center(patch_logits, temperature_now(clock, *self.patch_warmup), ids),
            logits,
        )

    def _masks(self, batch: Batch, views: Sequence[Tensor], clock: Clock) -> list[Tensor]:
        """Return which patches of each global view are masked (bool, B x N).

        Raises:
            DataMismatch: there are no masks, or their patches are not those of the backbone.
        """
        masks = batch.get("patch_masks", ())
        if len(masks) < GLOBAL_VIEWS:
            raise DataMismatch(
                f"IBot learns from {GLOBAL_VIEWS} views with masks, and {len(masks)} have one; the transforms of the "
                f"first {GLOBAL_VIEWS} views in data.train.transforms must end with block_patch_mask"
            )
        for view, mask in zip(views, masks, strict=False):
            height, width = view.shape[2:]
            rows, columns = self.backbone.grid((height, width))
            if mask.shape[1] != rows * columns:
                raise DataMismatch(
                    f"a patch_mask has {mask.shape[1]} patches, but views of {height} x {width} have {rows} x "
                    f"{columns} in the backbone; its transform needs the patch_size of the backbone and must "
                    "follow those that change the size"
                )
        is_masking = clock.step >= clock.steps(self.masking_start)
        return [mask & is_masking for mask in masks[:GLOBAL_VIEWS]]


def patch_head(heads: nn.ModuleDict) -> nn.Module:
    """Return the head for patches, or the one that they share with images."""
    return heads["patches"] if "patches" in heads else heads["images"]
