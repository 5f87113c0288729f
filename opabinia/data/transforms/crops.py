"""Crops of images, with the annotations of the objects that they contain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional._geometry import _compute_resized_output_size

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Positive, Sample
from opabinia.contracts.rotated_boxes import box_areas, upright_boxes
from opabinia.data.decoding.images import Box, LazyImage, decode_sample, planar
from opabinia.data.decoding.resized import ResizedCrop, resize_pixels
from opabinia.data.sample_keys import has_annotations, ignore_value, map_keys
from opabinia.data.transforms.instances import (
    boxes_from_masks,
    drop_empty_objects,
    has_only_image,
    image_window,
    is_oriented,
    select_objects,
    visible_shares,
)
from opabinia.data.transforms.sizes import check_range, image_size, random_below, resize_masks

Pixel = Annotated[int, Interval(ge=0, le=255)]
CropKind = Literal["relative", "relative_range", "absolute", "absolute_range"]


@register.transform(name="random_crop")
class RandomCrop:
    """Crop a rectangle at a random position; objects outside are dropped (detectron2's RandomCrop).

    With masks, boxes become the tightest ones around the rest of each mask. ``kind: absolute`` with ``size: [1024,
    1024]`` gives tiles of large images.

    Args:
        kind: ``relative``: ``size`` is the crop's share of height and width; ``relative_range``: the minimum of these
            shares, the maximum is 1; ``absolute``: height and width in pixels; ``absolute_range``: minimum and maximum
            of both, in pixels. A crop is never larger than the image.
        size: two numbers (default: detectron2's).
        object_probability: probability that the crop is placed around an object, drawn at random, for images that are
            mostly empty; other crops lie anywhere.
        min_visible: objects are dropped if less than this share of their box, or mask, is in the crop. Of an oriented
            box the center must be in the crop, too.
        category_max_ratio: of segmentation maps: draw again, up to ten times, until the crop has several classes and
            none has this share of the labeled pixels or more (mmsegmentation uses 0.75).

    Raises:
        ValueError: a share above 1, pixels that are not integers, or a range whose minimum is above its maximum.

    Example: ``relative`` of (0.5, 0.25) crops 51 x 51 out of 101 x 203.
    """

    def __init__(
        self,
        *,
        kind: CropKind = "relative_range",
        size: tuple[Positive, Positive] = (0.9, 0.9),
        object_probability: Fraction = 0.0,
        min_visible: Fraction = 0.0,
        category_max_ratio: Fraction = 1.0,
    ) -> None:
        if kind.startswith("relative") and max(size) > 1:
            raise ValueError(f"size: {kind} takes shares of the image, at most 1, not {list(size)}")
        if kind.startswith("absolute") and not all(float(side).is_integer() for side in size):
            raise ValueError(f"size: {kind} takes whole pixels, not {list(size)}")
        if kind == "absolute_range":
            check_range("size", size)
        self._kind, self._size = kind, size
        self._object_probability, self._min_visible = object_probability, min_visible
        self._category_max_ratio = category_max_ratio

    def __call__(self, sample: Sample) -> Sample:
        """Return a random crop of the sample.

        Raises:
            ValueError: ``category_max_ratio`` is given and the sample has no map.
        """
        if self._category_max_ratio == 1:
            return _crop(sample, *self._draw(sample), self._min_visible)
        if "mask" not in sample:
            raise ValueError("category_max_ratio is for samples with a segmentation map")
        for _ in range(10):
            box = self._draw(sample)
            labels = F.crop(sample["mask"].as_subclass(Tensor), *box)
            pixels = labels[labels != ignore_value("mask")].long().bincount()
            if (pixels > 0).sum() > 1 and pixels.max() < self._category_max_ratio * pixels.sum():
                break
        return _crop(sample, *box, self._min_visible)

    def _draw(self, sample: Sample) -> tuple[int, int, int, int]:
        """Draw top, left, height and width of a crop."""
        height, width = image_size(sample)
        crop_height, crop_width = self.size(height, width)
        boxes = sample.get("boxes", ())
        if len(boxes) and self._object_probability and float(torch.rand(())) < self._object_probability:
            chosen = random_below(len(boxes))
            left, top, right, bottom = upright_boxes(boxes[chosen : chosen + 1])[0].round().int().tolist()
            place = _random_start(top, bottom, crop_height, height), _random_start(left, right, crop_width, width)
        else:
            place = random_below(height - crop_height + 1), random_below(width - crop_width + 1)
        return *place, crop_height, crop_width

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a crop of an image of this size, drawn where there is a range."""
        first, second = self._size
        if self._kind == "absolute":
            return min(int(first), height), min(int(second), width)
        if self._kind == "absolute_range":
            return _random_length(first, second, height), _random_length(first, second, width)
        if self._kind == "relative_range":
            first, second = (low + (1 - low) * float(torch.rand(())) for low in (first, second))
        return max(1, int(height * first + 0.5)), max(1, int(width * second + 0.5))


def _random_length(minimum: float, maximum: float, side: int) -> int:
    low, high = min(int(minimum), side), min(int(maximum), side)
    return low + random_below(high - low + 1)


def _random_start(low: int, high: int, length: int, side: int) -> int:
    """Draw the start of a crop of some length within 0 to ``side`` that contains ``low`` to ``high``, or lies within
    them if it is shorter."""
    first, last = sorted((max(0, high - length), min(low, side - length)))
    return first + random_below(last - first + 1)


@register.transform(name="fixed_size_crop")
def fixed_size_crop(sample: Sample, /, *, size: tuple[Count, Count] = (1024, 1024), fill: Pixel | None = 128) -> Sample:
    """Crop larger images at a random position and pad smaller ones at the right and bottom (detectron2's FixedSizeCrop,
    which crops on the diagonal only).

    With masks, boxes of a cropped image become the tightest ones around the rest of each mask.

    Args:
        size: height and width, in pixels.
        fill: value of padded pixels, 0 to 255 (default: detectron2's), of images in 0..1 a 255th of it; null does not
            pad: batches are padded anyway, and then with the mean color. Maps are padded with their ignore value.
    """
    (height, width), (wanted_height, wanted_width) = image_size(sample), size
    top, left = random_below(max(0, height - wanted_height) + 1), random_below(max(0, width - wanted_width) + 1)
    if height > wanted_height or width > wanted_width:
        sample = _crop(sample, top, left, min(height, wanted_height), min(width, wanted_width))
    if fill is None:
        return sample
    padding = [0, 0, max(0, wanted_width - width), max(0, wanted_height - height)]
    pixel = fill / 255 if sample["image"].is_floating_point() else fill
    fills: dict[str, Any] = {"image": [pixel], **{key: ignore_value(key) for key in map_keys(sample)}}
    return _apply(sample, lambda key, value: F.pad(value, padding, fill=fills.get(key, 0)))


def _crop(sample: Sample, top: int, left: int, height: int, width: int, min_visible: float = 0.0) -> Sample:
    cropped = _apply(sample, lambda _, value: F.crop(value, top, left, height, width))
    if min_visible and "boxes" in sample:
        cropped = select_objects(cropped, _object_areas(cropped) >= min_visible * _object_areas(sample))
    return boxes_from_masks(drop_empty_objects(cropped))


def _object_areas(sample: Sample) -> Tensor:
    """Return the areas of the masks, or else of the boxes within the image, of the N objects, in pixels (N)."""
    if "masks" in sample:
        masks: Tensor = sample["masks"].as_subclass(Tensor)
        return masks.flatten(1).sum(1)
    boxes: Tensor = sample["boxes"].as_subclass(Tensor)
    shares = visible_shares(boxes, image_window(sample["image"])) if is_oriented(boxes) else 1
    return box_areas(boxes) * shares


def _apply(sample: Sample, function: Callable[[str, Any], Any]) -> Sample:
    """Apply a function of (key, value) to the image and its annotations."""
    return {
        key: function(key, value) if isinstance(value, tv_tensors.TVTensor) else value for key, value in sample.items()
    }


class RandomResizedCrop(v2.RandomResizedCrop):  # type: ignore[misc]
    """Crop a rectangle of random area and aspect ratio and resize it (torchvision's, of Szegedy et al. 2015, Going
    deeper with convolutions, section 6). No more of a JPEG is decoded than the crop needs.

    Args:
        size: height and width, or one number for both.
        scale: minimum and maximum share of the image's area.
        ratio: minimum and maximum of width over height.
        interpolation: used to resize the crop.
        antialias: whether to average over the pixels that become one.
    """

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw the crop for the image among the values of a sample."""
        return self.random_box(*v2.query_size(flat_inputs))._asdict()

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """Crop and resize one value of a sample; masks and maps in step with the image."""
        if isinstance(value, tv_tensors.Mask):
            height, width = self.size
            return tv_tensors.Mask(resize_masks(F.crop(value, **params), (height, width)))
        return super().transform(value, params)

    def random_box(self, height: int, width: int) -> Box:
        """Draw a crop of an image of this size: torchvision's distribution, but with one draw per attempt, since a draw
        takes longer than the rest."""
        low, high = (math.log(end) for end in self.ratio)
        for _ in range(10):
            area, shape, down, across = torch.rand(4).tolist()
            pixels = height * width * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            aspect = math.exp(low + shape * (high - low))
            box_height, box_width = round(math.sqrt(pixels / aspect)), round(math.sqrt(pixels * aspect))
            if 0 < box_height <= height and 0 < box_width <= width:
                top, left = int(down * (height - box_height + 1)), int(across * (width - box_width + 1))
                return Box(top, left, box_height, box_width)
        # No attempt fits: as large as the aspect ratio allows, in the center.
        box_height = min(height, max(1, round(width / self.ratio[0])))
        box_width = min(width, max(1, round(height * self.ratio[1])))
        return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)

    def forward(self, sample: Sample) -> Sample:
        """Return a random crop of the sample."""
        if not has_only_image(sample):
            return super().forward(sample)  # type: ignore[no-any-return]
        image = sample["image"].as_subclass(Tensor)  # same result as torchvision, without its search through the sample
        top, left, height, width = self.random_box(*image.shape[-2:])
        crop = image[:, top : top + height, left : left + width]
        resized = planar(resize_pixels(crop, self.size, self.interpolation, self.antialias))
        return {**sample, "image": resized.as_subclass(tv_tensors.Image)}

    def of_encoded(self, sample: Sample) -> Sample:
        """Return the crop of an image that is not decoded yet, as a :class:`ResizedCrop` where possible; the same crop
        is drawn as for a decoded one. If it is resized to half its size or less, its edges are rounded as
        :meth:`opabinia.data.decoding.images.EncodedImage.crop` describes.

        Raises:
            ValueError: the image is broken.
        """
        image = sample["image"]
        if not _is_croppable(sample) or not self.antialias:
            return self(decode_sample(sample))  # type: ignore[no-any-return]
        crop = ResizedCrop(image, self.random_box(*image.size), tuple(self.size), self.interpolation)
        return {**sample, "image": crop}


class Resize(v2.Resize):  # type: ignore[misc]
    """Resize images with their annotations (torchvision's). JPEGs are decoded at the smallest sufficient resolution.

    Args:
        size: height and width; one number is the shorter side, and the longer one follows.
        interpolation: used to resize images.
        max_size: maximum of the longer side; the shorter one follows.
        antialias: whether to average over the pixels that become one.
    """

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        """Resize one value of a sample; masks and maps in step with the image."""
        if isinstance(value, tv_tensors.Mask):
            height, width = _compute_resized_output_size(tuple(value.shape[-2:]), self.size, self.max_size)
            return tv_tensors.Mask(resize_masks(value, (height, width)))
        return super().transform(value, params)

    def of_encoded(self, sample: Sample) -> Sample:
        """Resize an image that is not decoded yet, as a :class:`ResizedCrop` where possible.

        Raises:
            ValueError: the image is broken.
        """
        image = sample["image"]
        if not _is_croppable(sample) or not self.antialias:
            return self(decode_sample(sample))  # type: ignore[no-any-return]
        size = _compute_resized_output_size(image.size, self.size, self.max_size)
        return {**sample, "image": ResizedCrop(image, Box(0, 0, *image.size), tuple(size), self.interpolation)}


def _is_croppable(sample: Sample) -> bool:
    """Return whether a crop of the sample's image can be decoded alone, and no annotation depends on it."""
    image = sample["image"]
    return isinstance(image, LazyImage) and image.size is not None and not has_annotations(sample)


class RandomIoUCrop(v2.RandomIoUCrop):  # type: ignore[misc]
    """Crop a rectangle with a random overlap with an object, and drop objects whose center is outside (torchvision's,
    of Liu et al. 2016, SSD, section 2.2).

    Images without objects, or of few pixels, are unchanged.

    Args:
        min_scale: minimum share of the height, and of the width.
        max_scale: their maximum.
        min_aspect_ratio: minimum of width over height.
        max_aspect_ratio: maximum of width over height.
        sampler_options: IoU values of which one is drawn; the crop has at least this IoU with at least one object. 1
            leaves the image unchanged, and must be included, since no other value need be possible. null takes SSD's:
            0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: attempts before another IoU is drawn.

    Raises:
        ValueError: 1 is not among the IoU values.
    """

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: list[float] | None = None,
        trials: int = 40,
    ) -> None:
        if sampler_options is not None and max(sampler_options, default=0) < 1:
            raise ValueError(f"sampler_options: add 1.0 to {sampler_options}; the other IoUs may be impossible")
        super().__init__(min_scale, max_scale, min_aspect_ratio, max_aspect_ratio, sampler_options, trials)

    def forward(self, sample: Sample) -> Sample:
        """Return a random crop of the sample.

        Raises:
            ValueError: its boxes are oriented.
        """
        if "boxes" in sample and is_oriented(sample["boxes"]):
            raise ValueError("RandomIoUCrop takes upright boxes; random_crop takes oriented ones")
        empty = "boxes" in sample and not len(sample["boxes"])
        if empty or self.min_scale * min(image_size(sample)) < 1:
            return sample
        return super().forward(sample)  # type: ignore[no-any-return]
