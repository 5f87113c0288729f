"""Frozen teachers: the models of runs, or backbones with weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, BackbonePart, Batch, DataMismatch, DatasetInfo, Hook, Predictions, Task
from opabinia.models.layers import build_normalization
from opabinia.models.weights.init import load_matching, read_translated


@register.section(name="frozen_teacher")
@dataclass(frozen=True, kw_only=True)
class FrozenTeacher:
    """A teacher: the model of a run, or a backbone.

    Args:
        run: folder of a run whose model is the teacher.
        backbone: a backbone, such as a pretrained timm model.
        weights: file with weights of that backbone; names of other systems are translated as in ``init``.
        mean: channel means of images in 0..1 for that backbone; null takes those of its pretraining.
        std: channel standard deviations, likewise.
    """

    run: Path | None = None
    backbone: BackbonePart | None = None
    weights: Path | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


class ImageTeacher(nn.Sequential):
    """A backbone and its classifier (``head``), after the normalization that they were trained with."""

    def predict(self, batch: Batch) -> Predictions:
        """Return ``logits`` (B x K)."""
        return {"logits": self(batch["image"])}


def build_teacher(
    teacher: FrozenTeacher, dataset_info: DatasetInfo, load: Callable[[Path], nn.Module], *, logits: bool
) -> nn.Module:
    """Build the model of a teacher.

    Args:
        teacher: its config.
        dataset_info: of the student's training data.
        load: returns the model of a run; passed in because tasks cannot read configs.
        logits: whether its logits are used.

    Raises:
        ValueError: the teacher has two definitions or none, has no trained weights, or has other classes or channels
            than the data.
    """
    if (teacher.backbone is None) == (teacher.run is None):
        raise ValueError("give either a run or a backbone as the teacher; list further ones under teachers")
    if teacher.run is not None:
        unused = [key for key in ("weights", "mean", "std") if getattr(teacher, key) is not None]
        if unused:
            raise ValueError(f"{unused[0]}: belongs to a teacher that is a backbone; a run has its own")
        model = load(teacher.run)
        channels = getattr(getattr(model, "dataset_info", None), "channels", dataset_info.channels)
        if channels != dataset_info.channels:
            raise ValueError(
                f"run: {teacher.run} takes images with {channels} channels, the data's have {dataset_info.channels}"
            )
        return model
    return _build_image_teacher(teacher, teacher.backbone, dataset_info, logits)


def _build_image_teacher(teacher: FrozenTeacher, build: Any, dataset_info: DatasetInfo, logits: bool) -> ImageTeacher:
    backbone = build(dataset_info.channels)
    preprocessing, classes = backbone.preprocessing, len(dataset_info.classes)
    if teacher.weights is None and preprocessing is None:
        raise ValueError("backbone: this teacher has no trained weights; give it weights, or pretrained: true")
    if teacher.weights is None and logits and backbone.trained_classes != classes:
        raise ValueError(
            f"backbone: the teacher's classifier has {backbone.trained_classes} classes, the data {classes}; "
            "give weights that fit, or logits_weight: 0"
        )
    head = backbone.make_head(classes) if logits else nn.Identity()
    normalize = build_normalization(preprocessing, dataset_info.channels, teacher.mean, teacher.std)
    model = ImageTeacher(OrderedDict(normalize=normalize, backbone=backbone, head=head))
    if teacher.weights is not None:
        weights = read_translated(teacher.weights).weights
        try:
            report = load_matching(model, weights)
        except ValueError as error:
            raise ValueError(f"weights: {teacher.weights}: {error}") from error
        if report.missing or report.other_shape:
            raise ValueError(f"weights: they do not fill the teacher; {teacher.weights}: {report}")
    return model


ImageFeatures = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps images (B x C x H x W) to vectors (B x D) and feature maps (B x M x h x w)."""


def image_trunk(model: nn.Module) -> Backbone:
    """Return the backbone of images of a task or an :class:`ImageTeacher`.

    Raises:
        ValueError: there is none.
    """
    trunk = model.trunk if isinstance(model, Task) else model.get_submodule("backbone")
    if not isinstance(trunk, Backbone) or trunk.clips:
        raise ValueError(f"run: the trunk of {type(model).__name__} gives no features of images")
    return trunk


def frozen_features(model: nn.Module, *, maps: bool) -> ImageFeatures:
    """Return the features of images by a frozen model, as a function.

    A task that has such a function as an attribute does not contain the model: it is no submodule, so it is neither
    trained, averaged nor saved with the task, and copies of the task call the same function. The model is moved to the
    device of the images when it is called.

    Args:
        model: a task or an :class:`ImageTeacher`.
        maps: see :func:`vectors_and_maps`.
    """
    trunk, normalize = image_trunk(model), model.get_submodule("normalize")
    model.eval().requires_grad_(False)

    @torch.no_grad()
    def features(images: Tensor) -> tuple[Tensor, Tensor]:
        if normalize.get_buffer("mean").device != images.device:
            if images.is_meta:
                raise RuntimeError("the teacher keeps its weights: it does not move to the meta device")
            model.to(images.device)
        return vectors_and_maps(trunk, normalize(images), maps)

    return features


def vectors_and_maps(backbone: Backbone, images: Tensor, maps: bool) -> tuple[Tensor, Tensor]:
    """Return vectors of normalized images, and feature maps if ``maps`` is true, otherwise the vectors again."""
    if maps:
        return backbone.vectors_and_maps(images)
    vectors = backbone(images)
    return vectors, vectors


class CheckTeachers(Hook):
    """Check that a resumed run has the teachers that it began with: checkpoints hold a digest of their weights.

    Args:
        teachers: frozen models.
    """

    def __init__(self, teachers: Sequence[nn.Module]) -> None:
        digest = blake2b(digest_size=8)
        for name, tensor in (item for teacher in teachers for item in teacher.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        self._digest = digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Return the digest."""
        return {"teachers": self._digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the digest of a checkpoint.

        Raises:
            DataMismatch: it differs.
        """
        if state.get("teachers") != self._digest:
            raise DataMismatch(
                "the teacher has other weights than when the checkpoint was saved; restore them, or begin a new run"
            )
