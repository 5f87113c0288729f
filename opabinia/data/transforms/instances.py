"""Annotations of objects (boxes, masks, keypoints) kept consistent when an image is transformed.

After every transform all annotations of a sample have the same rows: objects whose box or mask became empty are
dropped, and keypoints outside the image are marked unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Fraction, Sample, Transform
from opabinia.contracts.rotated_boxes import box_areas, intersection_areas
from opabinia.data.decoding.images import decode_sample
from opabinia.data.decoding.resized import ResizedCrop
from opabinia.data.sample_keys import ignore_value, map_keys, object_tensors


def select_objects(sample: Sample, kept: Tensor) -> Sample:
    """Return the sample with those of its N objects for which ``kept`` (bool, N) is True."""
    rows = {key: value[kept] for key, value in object_tensors(sample).items()}
    return sample | {key: tv_tensors.wrap(value, like=sample[key]) for key, value in rows.items()}


def drop_empty_objects(sample: Sample) -> Sample:
    """Drop objects whose box has no area or whose mask has no pixel, and mark keypoints outside the image unknown
    (detectron2's rules). Oriented boxes, which are not clipped, are dropped if their center is outside the image."""
    if "boxes" not in sample:
        return sample
    if "keypoints" in sample:
        keypoints = sample["keypoints"].as_subclass(Tensor)
        height, width = sample["image"].shape[-2:]
        inside = ((keypoints >= 0) & (keypoints <= keypoints.new_tensor([width, height]))).all(-1)
        sample = sample | {"visibility": sample["visibility"] * inside}
    boxes = sample["boxes"].as_subclass(Tensor)
    if is_oriented(boxes):
        kept = _contains_centers(image_window(sample["image"]), boxes)
    else:
        kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    if "masks" in sample:
        kept &= sample["masks"].as_subclass(Tensor).flatten(1).amax(1) > 0  # for uint8 twice as fast as any()
    return sample if kept.all() else select_objects(sample, kept)


# --- oriented boxes ---------------------------------------------------------------------------------------------------

Window = tuple[int, int, int, int]
"""Part of an image: left, top, right, bottom."""


def is_oriented(boxes: Tensor) -> bool:
    """Return whether boxes are oriented: N x 5 (``CXCYWHR``) instead of N x 4."""
    return boxes.shape[1] == 5


def image_window(image: Tensor) -> Window:
    """Return the whole image (... x H x W) as a window."""
    return 0, 0, image.shape[-1], image.shape[-2]


def visible_shares(boxes: Tensor, window: Window) -> Tensor:
    """Return the share of each oriented box (N x 5; N) that is in a window, 0 if its center is not."""
    left, top, right, bottom = window
    corners = boxes.new_tensor([[left, top], [right, top], [right, bottom], [left, bottom]])
    return intersection_areas(corners, boxes) / box_areas(boxes) * _contains_centers(window, boxes)


def _contains_centers(window: Window, boxes: Tensor) -> Tensor:
    centers = boxes[:, :2]
    return ((centers >= centers.new_tensor(window[:2])) & (centers <= centers.new_tensor(window[2:]))).all(1)


# --- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DropEmptyObjects:
    """Apply a transform, then :func:`drop_empty_objects` if it changed the boxes. Pixels of maps that it
    fills get their ignore value instead of 0.

    Attributes:
        transform: returns boxes that it does not change as the same object.
    """

    transform: Transform

    @property
    def __name__(self) -> str:
        return type(self.transform).__name__

    @property
    def of_encoded(self) -> Transform | None:
        """The transform's method for samples whose image is not decoded yet, if it has one."""
        return getattr(self.transform, "of_encoded", None)

    def __call__(self, sample: Sample) -> Sample:
        maps = {key: ignore_value(key) for key in map_keys(sample)}
        result = self.transform(sample | {key: _shift(sample[key], -ignored) for key, ignored in maps.items()})
        result |= {key: _shift(result[key], ignored) for key, ignored in maps.items()}
        return result if result.get("boxes") is sample.get("boxes") else drop_empty_objects(result)


def _shift(values: Tensor, offset: int) -> Tensor:
    """Add to the values of a map; those of uint8 wrap around."""
    shifted: Tensor = tv_tensors.wrap(values.as_subclass(Tensor) + offset, like=values)
    return shifted


@register.transform(name="boxes_from_masks")
def boxes_from_masks(sample: Sample, /) -> Sample:
    """Replace boxes by the tightest ones around the masks: after a rotation the boxes are too large.

    Samples without masks are unchanged.
    """
    if "masks" not in sample:
        return sample
    boxes = tight_boxes(sample["masks"].as_subclass(Tensor)).to(sample["boxes"].dtype)
    return drop_empty_objects(sample | {"boxes": tv_tensors.wrap(boxes, like=sample["boxes"])})


def tight_boxes(masks: Tensor) -> Tensor:
    """Return the tightest boxes around masks (uint8 of 0 and 1, N x H x W) as int64, N x 4; 0 for empty masks."""
    (left, right), (top, bottom) = _extent(masks.amax(1)), _extent(masks.amax(2))
    return torch.stack([left, top, right, bottom], 1)


def _extent(used: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the first 1 of each row of 0 and 1 (uint8, N x L) begins and the last one ends; 0, 0 without any."""
    end = used.shape[1] - used.flip(1).argmax(1)
    return used.argmax(1), end * used.amax(1)


class SanitizeBoundingBoxes(v2.SanitizeBoundingBoxes):  # type: ignore[misc]
    """Drop objects whose box is too small or not within the image (torchvision's, for all annotations of objects); of
    oriented boxes those whose center is outside.

    Args:
        min_size: minimum width and height, in pixels, at least 1.
        min_area: minimum area, in pixels, at least 1.
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        super().__init__(min_size, min_area, labels_getter=None)

    def forward(self, sample: Sample) -> Sample:
        """Return the sample without these objects.

        Raises:
            ValueError: it has no boxes.
        """
        if "boxes" not in sample:
            raise ValueError("the sample has no boxes")
        boxes = sample["boxes"]
        if is_oriented(boxes):
            plain = boxes.as_subclass(Tensor)
            kept = (plain[:, 2:4] >= self.min_size).all(1) & (box_areas(plain) >= self.min_area)
            return drop_empty_objects(select_objects(sample, kept))
        _, kept = F.sanitize_bounding_boxes(boxes, min_size=self.min_size, min_area=self.min_area)
        return select_objects(sample, kept)


def has_only_image(sample: Sample) -> bool:
    """Return whether the image is the only value of the sample that geometric transforms change."""
    return all(
        type(value) is tv_tensors.Image if key == "image" else type(value) in (int, str, float, Tensor)
        for key, value in sample.items()
    )


class RandomHorizontalFlip(v2.RandomHorizontalFlip):  # type: ignore[misc]
    """Mirror images left to right; keypoints of the left side become those of the right side.

    Args:
        p: probability.
    """

    def __init__(self, p: Fraction = 0.5) -> None:
        super().__init__(p)

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """Mirror one value of a sample."""
        return _flip_from_edge(super().transform(value, params), 0)

    def forward(self, sample: Sample) -> Sample:
        """Return the sample or its mirror image."""
        if has_only_image(sample):  # same result as torchvision, without its search through the sample
            if torch.rand(1).item() >= self.p:
                return sample
            mirrored = sample["image"].as_subclass(Tensor).flip(-1)
            return {**sample, "image": mirrored.as_subclass(tv_tensors.Image)}
        result: Sample = super().forward(sample)
        if "keypoints" not in sample or result["keypoints"] is sample["keypoints"]:
            return result
        order = sample["flip_pairs"]
        keypoints = tv_tensors.wrap(result["keypoints"][:, order], like=result["keypoints"])
        return result | {"keypoints": keypoints, "visibility": sample["visibility"][:, order]}

    def of_encoded(self, sample: Sample) -> Sample:
        """Return the sample, whose image is not decoded yet, or its mirror image.

        Raises:
            ValueError: the image is broken.
        """
        image = sample["image"]
        if not isinstance(image, ResizedCrop):
            return self(decode_sample(sample))  # type: ignore[no-any-return]
        return {**sample, "image": image.mirror()} if torch.rand(1).item() < self.p else sample


class RandomVerticalFlip(v2.RandomVerticalFlip):  # type: ignore[misc]
    """Flip images upside down; keypoints of the left side stay those of the left side.

    Args:
        p: probability.
    """

    def __init__(self, p: Fraction = 0.5) -> None:
        super().__init__(p)

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """Flip one value of a sample."""
        return _flip_from_edge(super().transform(value, params), 1)


def _flip_from_edge(value: Any, axis: int) -> Any:
    """Correct flipped keypoints by one pixel. torchvision flips them as pixel indices (x becomes width - 1 - x),
    although its boxes, and its rotation of keypoints, measure from the image edge (x becomes width - x)."""
    if not isinstance(value, tv_tensors.KeyPoints):
        return value
    keypoints = value.as_subclass(Tensor).clone()
    keypoints[..., axis] += 1
    return tv_tensors.wrap(keypoints, like=value)
