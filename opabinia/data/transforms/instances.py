"""The things in a picture, their boxes, masks and points, kept in order under changes.

Where samples have things (see :data:`opabinia.contracts.Sample`), after every transform each key of them has the same
rows; what has nothing left in the picture is gone, and points that lie outside are unknown.
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
from opabinia.data.collate import OF_THINGS


def chosen(sample: Sample, kept: Tensor) -> Sample:
    """The sample with those of its N things that are kept (bool, N)."""
    rows = {key: sample[key].as_subclass(Tensor)[kept] for key in OF_THINGS if key in sample}
    return sample | {key: tv_tensors.wrap(value, like=sample[key]) for key, value in rows.items()}


def tidied(sample: Sample) -> Sample:
    """The sample after its things may have moved: those whose box has no area or whose mask no pixel are gone, points
    outside the image are unknown (detectron2's rules)."""
    if "boxes" not in sample:
        return sample
    if "keypoints" in sample:
        points = sample["keypoints"].as_subclass(Tensor)
        height, width = sample["image"].shape[-2:]
        inside = ((points >= 0) & (points <= points.new_tensor([width, height]))).all(-1)
        sample = sample | {"visible": sample["visible"] * inside}
    boxes = sample["boxes"].as_subclass(Tensor)
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    if "masks" in sample:
        kept &= sample["masks"].as_subclass(Tensor).flatten(1).amax(1) > 0  # of bytes twice as fast as any()
    return sample if kept.all() else chosen(sample, kept)


@dataclass(frozen=True)
class Tidied:
    """A transform that leaves things in order (:func:`tidied`), made of one that may not.

    Attributes:
        transform: hands boxes that it does not move on as they are.
    """

    transform: Transform

    @property
    def __name__(self) -> str:
        return type(self.transform).__name__

    @property
    def of_encoded(self) -> Transform | None:
        """What the transform makes of samples whose picture is not decoded yet, if it has a way of its own."""
        return getattr(self.transform, "of_encoded", None)

    def __call__(self, sample: Sample) -> Sample:
        found = self.transform(sample)
        return found if found.get("boxes") is sample.get("boxes") else tidied(found)


@register.transform(name="boxes_from_masks")
def boxes_from_masks(sample: Sample, /) -> Sample:
    """The smallest boxes around the masks in place of those there are: after a rotation these are too wide.

    Samples without masks stay as they are.
    """
    if "masks" not in sample:
        return sample
    masks = sample["masks"].as_subclass(Tensor)
    (left, right), (top, bottom) = _ends(masks.amax(1)), _ends(masks.amax(2))
    boxes = torch.stack([left, top, right, bottom], 1).to(sample["boxes"].dtype)
    return tidied(sample | {"boxes": tv_tensors.wrap(boxes, like=sample["boxes"])})


def _ends(used: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row of 0 and 1 (uint8, N x L) where the first 1 begins and the last one ends; 0, 0 without any."""
    end = used.shape[1] - used.flip(1).argmax(1)
    return used.argmax(1), end * used.amax(1)


class SanitizeBoundingBoxes(v2.SanitizeBoundingBoxes):  # type: ignore[misc]
    """Take out things with a small box, or one that is not within the image (torchvision's, for all keys of things).

    Args:
        min_size: of the width and of the height, in pixels, at least 1.
        min_area: in pixels, at least 1.
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        super().__init__(min_size, min_area, labels_getter=None)

    def forward(self, sample: Sample) -> Sample:
        """The sample without these things.

        Raises:
            ValueError: it has no boxes.
        """
        if "boxes" not in sample:
            raise ValueError("the sample has no boxes")
        _, kept = F.sanitize_bounding_boxes(sample["boxes"], min_size=self.min_size, min_area=self.min_area)
        return chosen(sample, kept)


def only_image(sample: Sample) -> bool:
    """Whether a sample has one image, and nothing else that changes with it."""
    return all(
        type(value) is tv_tensors.Image if key == "image" else type(value) in (int, str, float, Tensor)
        for key, value in sample.items()
    )


class RandomHorizontalFlip(v2.RandomHorizontalFlip):  # type: ignore[misc]
    """Mirror images, so that left becomes right; points on the left become those on the right, too.

    Args:
        p: how often.
    """

    def __init__(self, p: Fraction = 0.5) -> None:
        super().__init__(p)

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """The mirror image of one value of a sample."""
        return _by_edges(super().transform(value, params), 0)

    def forward(self, sample: Sample) -> Sample:
        """The sample, or its mirror image."""
        if only_image(sample):  # as torchvision does it, without a search for more
            if torch.rand(1).item() >= self.p:
                return sample
            mirrored = sample["image"].as_subclass(Tensor).flip(-1)
            return {**sample, "image": mirrored.as_subclass(tv_tensors.Image)}
        found: Sample = super().forward(sample)
        if "keypoints" not in sample or found["keypoints"] is sample["keypoints"]:
            return found
        order = sample["mirror"]
        points = tv_tensors.wrap(found["keypoints"][:, order], like=found["keypoints"])
        return found | {"keypoints": points, "visible": sample["visible"][:, order]}


class RandomVerticalFlip(v2.RandomVerticalFlip):  # type: ignore[misc]
    """Turn images upside down, so that the top becomes the bottom; left points stay left ones.

    Args:
        p: how often.
    """

    def __init__(self, p: Fraction = 0.5) -> None:
        super().__init__(p)

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """One value of a sample upside down."""
        return _by_edges(super().transform(value, params), 1)


def _by_edges(value: Any, axis: int) -> Any:
    """Undo what torchvision does when it flips points, and nowhere else: it counts their places from the middle of the
    first pixel (x becomes width - 1 - x), where boxes and its own rotation of points count from its edge."""
    if not isinstance(value, tv_tensors.KeyPoints):
        return value
    points = value.as_subclass(Tensor).clone()
    points[..., axis] += 1
    return tv_tensors.wrap(points, like=value)
