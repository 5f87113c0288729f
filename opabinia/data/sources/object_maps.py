"""Segmentation maps made from instance masks: polygons of annotation tools, embedded scenes, any annotated objects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import (
    IGNORE_LABEL,
    GroundTruth,
    GroundTruthMap,
    Indices,
    RaggedArray,
    Sample,
    SourceInfo,
    SourcePart,
)
from opabinia.contracts.masks import decode_rle
from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.data.sources.digits import Split
from opabinia.data.sources.labels import class_indices, select_classes
from opabinia.data.sources.wrapper import Wrapper, select_samples
from opabinia.data.transforms.instances import select_objects


@register.source
class ObjectMaps(Wrapper):
    """Semantic or panoptic segmentation of annotated objects: a pixel has the class of the last object whose instance
    mask covers it. The source is ``labelme``, ``cvat``, ``coco``, ``yolo`` ... with ``masks: true``.

    Args:
        source: images with instance masks.
        background: name of the class of pixels outside all objects, label 0; the classes of the source follow. null:
            such pixels have no label.
        panoptic: samples keep their objects (``boxes``, ``labels``, ``masks``), and the ground truth has the segments:
            each visible object, and the background as one.
        stuff: classes of panoptic data without countable objects, such as road: they are not among the objects, and an
            image has one segment of each.

    Raises:
        ValueError: the source has no instance masks, or too many classes; or a class in ``stuff`` is unknown.
    """

    def __init__(
        self,
        *,
        source: SourcePart,
        background: str | None = "background",
        panoptic: bool = False,
        stuff: list[str] | None = None,
    ) -> None:
        info = source.info
        if not info.masks:
            raise ValueError(f"source: {type(source).__name__} has no instance masks; does it need masks: true?")
        self._first = int(background is not None)
        classes = (*([background] if background is not None else []), *info.classes)
        class_indices(classes)  # checks that the background is not one of them
        if len(classes) > IGNORE_LABEL:
            raise ValueError(f"source: {len(classes)} classes; segmentation maps have at most {IGNORE_LABEL}")
        uncountable = select_classes("stuff: the source", info.classes, stuff or [])
        if stuff and (not panoptic or len(uncountable) == len(info.classes)):
            raise ValueError("stuff: some classes of panoptic data, not all; does it need panoptic: true?")
        countable = [label for label in range(len(info.classes)) if label not in uncountable] if panoptic else []
        changed = SourceInfo(
            channels=info.channels,
            classes=classes,
            sizes=info.sizes,
            present=None if info.present is None else RaggedArray(labels + self._first for labels in info.present),
            errors=info.errors,
            boxes=panoptic,
            masks=panoptic,
            category_ids=tuple(range(1, len(classes) + 1)) if panoptic else (),
            maps=True,
            thing_labels=tuple(self._first + label for label in countable),
        )
        super().__init__(source, changed)

    def convert(self, sample: Sample, index: int) -> Sample:
        objects: GroundTruth = sample["ground_truth"]
        ground_truth = self._draw(objects, _all_masks(sample))
        mask = tv_tensors.Mask(torch.from_numpy(ground_truth.labels.copy()))  # a transform may work in place
        result: Sample = {key: sample[key] for key in ("image", "id", "original_size")}
        result |= {"mask": mask, "ground_truth_map": ground_truth}
        if not self.info.thing_labels:
            return result
        labels = sample["labels"] + self._first
        sample = select_objects({**sample, "labels": labels}, torch.isin(labels, torch.tensor(self.info.thing_labels)))
        return {**sample, **result, "ground_truth": self._countable(objects)}

    def _countable(self, objects: GroundTruth) -> GroundTruth:
        labels = objects.labels + self._first
        kept = np.isin(labels, self.info.thing_labels)
        rows = {name: getattr(objects, name)[kept] for name in ("ids", "boxes", "areas", "crowd")}
        segments = [segment for segment, is_kept in zip(objects.segments or (), kept, strict=True) if is_kept]
        return replace(objects, **rows, labels=labels[kept], segments=segments, keypoints=None)

    def _draw(self, objects: GroundTruth, masks: Sequence[NDArray[np.uint8]]) -> GroundTruthMap:
        """Draw all objects, later ones over earlier ones; of panoptic data number the visible ones from 1."""
        owners = np.zeros(objects.size, dtype=np.int64)
        labels = np.array([0 if self._first else IGNORE_LABEL, *(objects.labels + self._first)])
        first_of: dict[int, int] = {}  # stuff of a class is one segment
        for number, mask in enumerate(masks, 1):
            label = int(labels[number])
            owners[mask.astype(bool)] = (
                number if label in self.info.thing_labels else first_of.setdefault(label, number)
            )
        ground_truth = GroundTruthMap(objects.image_id, labels[owners].astype(np.uint8))
        if not self.info.thing_labels:
            return ground_truth
        pixels = np.bincount(owners.ravel(), minlength=len(labels))
        segments = np.roll(np.flatnonzero(pixels), -int(pixels[0] > 0))  # the background is the last one
        segments = segments[segments >= 1 - self._first]
        numbers = np.zeros(len(labels), dtype=np.int32)
        numbers[segments] = np.arange(1, len(segments) + 1)
        crowd = np.array([False, *objects.crowd])[segments]
        return replace(ground_truth, segments=numbers[owners], segment_labels=labels[segments], crowd=crowd)

    def select(self, indices: Indices) -> ObjectMaps:
        """Return the maps of some of the images."""
        result = copy.copy(self)
        result.source, result.info = select_samples(self.source, indices), self.info.select(indices)
        return result

    def fingerprint(self) -> str:
        """Return the source's, with the kind of maps."""
        classes = self.classes[: self._first]
        return f"{self.source.fingerprint()}, maps with {classes} and objects {self.info.thing_labels}"


def _all_masks(sample: Sample) -> Sequence[NDArray[np.uint8]]:
    """Return the masks of all objects (uint8 of 0 and 1, N x H x W), also of those that are not trained on."""
    objects: GroundTruth = sample["ground_truth"]
    if len(sample["labels"]) == len(objects.labels):
        return sample["masks"].numpy()  # type: ignore[no-any-return]
    return [decode_rle(segment, objects.size) for segment in objects.segments or ()]


@register.source
def digit_maps(*, split: Split = "train", panoptic: bool = False) -> ObjectMaps:
    """Segmentation for trials and tests: the images of ``digit_scenes`` (gray, 128 x 128; 1,600 for training, 400 for
    validation) with the class of each pixel: background, or one of ten digits.

    Args:
        split: train or val.
        panoptic: samples also have the digits as objects, and the ground truth their segments.
    """
    return ObjectMaps(source=DigitScenes(split=split, masks=True), panoptic=panoptic)
