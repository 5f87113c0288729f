"""Transforms that combine several samples into one; the additional ones went through the transforms before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NoReturn

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import box_area
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Fraction, NonNegative, Positive, Sample
from opabinia.contracts.rotated_boxes import move_boxes, scale_boxes
from opabinia.data.sample_keys import map_keys, object_tensors
from opabinia.data.transforms.instances import drop_empty_objects, is_oriented, tight_boxes, visible_shares
from opabinia.data.transforms.sizes import resize_masks

Objects = dict[str, Tensor]
"""Annotations of the objects in a sample (``boxes``, ``labels`` ...): tensors with a row for each object."""


class _CombiningTransform:
    """Base class: a transform of annotated objects that keeps all other keys of the first sample.

    ``id``, ``original_size`` and ``ground_truth`` stay those of the first sample: only evaluations read them, and they
    do not combine samples.

    Attributes:
        required_keys: keys that samples must have.
        combines_maps: whether it combines maps, too.
    """

    required_keys: ClassVar[Sequence[str]] = ("boxes",)
    combines_maps: ClassVar[bool] = False
    probability: float

    def __call__(self, sample: Sample) -> NoReturn:
        """Raise: there are no additional samples.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{type(self).__name__} combines several samples into one, so it belongs into the list "
            "data.train.transforms itself, neither into another transform nor into an evaluation"
        )

    def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        """Return the sample, combined with others or unchanged.

        Raises:
            ValueError: the samples lack a required annotation, or have maps, which would not follow.
        """
        for key in self.required_keys:
            if key not in sample:
                raise ValueError(f"{type(self).__name__} needs {key} of the objects, which this data does not have")
        if (maps := map_keys(sample)) and not self.combines_maps:
            raise ValueError(f"{type(self).__name__} does not combine maps such as {maps[0]!r}")
        return self._combine(sample, another) if np.random.random() < self.probability else sample

    def _combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        raise NotImplementedError


@register.transform(name="mosaic")
@dataclass(frozen=True, kw_only=True)
class Mosaic(_CombiningTransform):
    """Combine four images around a point, each in a corner, and crop the result: smaller objects in new contexts.

    Bochkovskiy et al., YOLOv4, 2020, with the rule and the defaults of Ultralytics' YOLO: each image is resized until
    its longer side is ``size``. On a canvas of twice that, the point where they meet is drawn from the middle half both
    ways, and images are clipped at the canvas. The canvas is then scaled about its center, translated, and cropped to
    ``size``. Here all of this is one resize of each image. Objects of which too little is left are dropped. With masks,
    the box of a clipped object is that of its mask.

    Args:
        size: height and width of the result, in pixels.
        scale: the canvas is scaled by 1 - ``scale`` to 1 + ``scale``, drawn uniformly; 0 does not scale.
        shift: maximum translation both ways, as a share of ``size``.
        fill: pixel value where there is no image, 0 to 255; of images in 0..1 a 255th of it.
        min_side: objects with a width or height of at most this are dropped, in pixels.
        min_area: objects are dropped if at most this share of their box is left.
        probability: of combining; otherwise the sample is unchanged, with its own size.

    Example: of a 480 x 640 image, with ``size`` 640 and a drawn scale of 0.5, at most 240 x 320 pixels are visible.
    """

    size: Count = 640
    scale: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    shift: Fraction = 0.1
    fill: Annotated[int, Interval(ge=0, le=255)] = 114
    min_side: NonNegative = 2.0
    min_area: Fraction = 0.1
    probability: Fraction = 1.0

    def _combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        size, gain = self.size, np.random.uniform(1 - self.scale, 1 + self.scale)
        # In pixels of the result: the center of the canvas, the point where the images meet, the edges of the canvas.
        center = size * (0.5 + np.random.uniform(-self.shift, self.shift, 2))
        meeting = np.round(center + gain * size * np.random.uniform(-0.5, 0.5, 2)).astype(int).tolist()
        low = np.clip(np.round(center - gain * size), 0, size).astype(int).tolist()
        high = np.clip(np.round(center + gain * size), 0, size).astype(int).tolist()
        canvas = _Canvas(sample["image"], (size, size), self.fill, (*low, *high))
        of_images = []
        for corner, tile in enumerate([sample, another(), another(), another()]):
            longer = max(tile["image"].shape[-2:])
            height, width = (max(1, round(gain * size * side / longer)) for side in tile["image"].shape[-2:])
            top, left = meeting[0] - height * (corner < 2), meeting[1] - width * (corner % 2 == 0)
            objects, share = canvas.paste(tile, (height, width), (top, left))
            boxes = objects["boxes"]
            sides = boxes[:, 2:4] if is_oriented(boxes) else boxes[:, 2:] - boxes[:, :2]
            of_images.append(_select(objects, (sides > self.min_side).all(1) & (share > self.min_area)))
        return _join(sample, canvas.image, of_images)


@register.transform(name="mixup_boxes")
@dataclass(frozen=True, kw_only=True)
class MixupBoxes(_CombiningTransform):
    """Blend two images and keep the objects of both (mixup for detection).

    Zhang et al., Bag of Freebies for Training Object Detection Neural Networks, 2019: images are not resized; they are
    aligned at their upper left corners, and the result has the height and width of the larger one, black where neither
    is. All objects count fully, however faint their image is (as in YOLOX and Ultralytics' YOLO; the paper weights
    their losses).

    Args:
        alpha: the weight of the first image is drawn from Beta(alpha, alpha). 1.5 is the paper's; 32, nearly always
            0.5, is that of Ultralytics, after a mosaic.
        probability: of blending.
    """

    alpha: Positive = 1.5
    probability: Fraction = 1.0

    def _combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        weight = float(np.random.beta(self.alpha, self.alpha))
        both = [sample, another()]
        sizes = [image["image"].shape[-2:] for image in both]
        height, width = (max(sides) for sides in zip(*sizes, strict=True))
        canvases = [_Canvas(image["image"], (height, width)) for image in both]
        of_images = [canvas.paste(image, size)[0] for canvas, image, size in zip(canvases, both, sizes, strict=True)]
        first, second = (canvas.image.float() for canvas in canvases)
        blended = second.lerp(first, weight)
        image = blended if sample["image"].is_floating_point() else blended.round().to(sample["image"].dtype)
        return _join(sample, image, of_images)


@register.transform(name="copy_paste")
@dataclass(frozen=True, kw_only=True)
class CopyPaste(_CombiningTransform):
    """Paste objects of another image into this one by their masks, at the same position.

    Ghiasi et al., Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation, CVPR 2021, whose
    images went through large-scale jitter before and are not blurred at the seams. If the images differ in size, what
    lies outside this one is clipped. Covered pixels are removed from the masks; objects that lose pixels get the box of
    their mask, and covered keypoints become hidden (visibility 1). Segmentation maps get the labels of pasted objects.

    Args:
        paste_probability: of each object of the other image; the paper takes a random subset, and with 0.5 all subsets
            are equally likely.
        min_visible: objects are dropped if at most this share of their mask is left; 0 drops those that are completely
            hidden, as in the paper.
        probability: of pasting anything.
    """

    required_keys: ClassVar[Sequence[str]] = ("boxes", "masks")
    combines_maps: ClassVar[bool] = True

    paste_probability: Fraction = 0.5
    min_visible: Fraction = 0.0
    probability: Fraction = 1.0

    def _combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        other = another()
        chosen = torch.from_numpy(np.random.random(len(other["labels"])) < self.paste_probability)
        canvas = _Canvas(other["image"], sample["image"].shape[-2:])
        pasted, _ = canvas.paste({**other, **_select(object_tensors(other), chosen)}, other["image"].shape[-2:])
        cover = pasted["masks"].bool().any(0)
        image = torch.where(cover, canvas.image, sample["image"].as_subclass(Tensor))
        maps = {key: self._paste_map(sample[key], other[key], cover) for key in map_keys(sample)}
        return _join(sample | maps, image, [self._cover(object_tensors(sample), cover), pasted])

    def _paste_map(self, values: Tensor, other: Tensor, cover: Tensor) -> Tensor:
        """Return a map (H x W) with the values of another one, of any size, where ``cover`` (bool, H x W) is True."""
        aligned = F.crop(other, 0, 0, *cover.shape).as_subclass(Tensor)
        pasted: Tensor = tv_tensors.wrap(torch.where(cover, aligned, values.as_subclass(Tensor)), like=values)
        return pasted

    def _cover(self, objects: Objects, cover: Tensor) -> Objects:
        """Return the visible rest of objects below ``cover`` (bool, H x W)."""
        masks = objects["masks"] * ~cover
        before, after = objects["masks"].flatten(1).sum(1), masks.flatten(1).sum(1)
        covered = after < before
        result = {**objects, "masks": masks, "boxes": _fit_to_masks(objects["boxes"], masks, covered)}
        if "visibility" in objects:
            keypoints = objects["keypoints"].long()
            columns, rows = (keypoints[..., axis].clamp(0, cover.shape[1 - axis] - 1) for axis in (0, 1))
            visibility = objects["visibility"]
            result["visibility"] = torch.where(cover[rows, columns], visibility.clamp(max=1), visibility)
        return _select(result, ~covered | (after > self.min_visible * before))


# --- pasting images on a canvas ---------------------------------------------------------------------------------------


class _Canvas:
    """An image onto which images are pasted with their annotations.

    Args:
        like: an image with its channels and type.
        size: height and width.
        fill: initial pixel value, 0 to 255.
        window: pasted images are clipped to this part: top, left, bottom, right; by default all of the canvas.
    """

    def __init__(
        self, like: Tensor, size: tuple[int, int], fill: int = 0, window: tuple[int, int, int, int] | None = None
    ) -> None:
        value = fill / 255 if like.is_floating_point() else fill
        self.image = like.new_full((like.shape[0], *size), value).as_subclass(Tensor)
        self._window = window or (0, 0, *size)

    def paste(self, sample: Sample, size: tuple[int, int], corner: tuple[int, int] = (0, 0)) -> tuple[Objects, Tensor]:
        """Resize an image to ``size`` (height, width) and paste it with its upper left corner at ``corner`` (row,
        column).

        Returns:
            its objects on the canvas, clipped, and the share of each box that is left (float32, N). Oriented boxes are
            not clipped; their share is 0 if their center is outside the window.
        """
        (height, width), (top, left) = size, corner
        first_row, first_column, end_row, end_column = self._window
        rows = slice(max(top, first_row), min(top + height, end_row))
        columns = slice(max(left, first_column), min(left + width, end_column))
        inside = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
        visible = rows.stop > rows.start and columns.stop > columns.start
        scale = torch.tensor([width, height]) / torch.tensor(sample["image"].shape[:-3:-1])
        offset = torch.tensor([left, top])
        if visible:
            image = sample["image"].as_subclass(Tensor)
            resized = F.resize(image, list(size), F.InterpolationMode.BILINEAR, antialias=True)
            self.image[:, rows, columns] = resized[:, *inside]
        objects = object_tensors(sample)
        objects["boxes"] = boxes = move_boxes(scale_boxes(objects["boxes"], scale), offset)
        if is_oriented(boxes):
            return objects, visible_shares(boxes, (first_column, first_row, end_column, end_row))
        low, high = torch.tensor([first_column, first_row]), torch.tensor([end_column, end_row])
        objects["boxes"] = clipped = boxes.clamp(low.repeat(2), high.repeat(2))
        if "masks" in objects:
            masks = objects["masks"].new_zeros(len(boxes), *self.image.shape[-2:])
            if visible:
                masks[:, rows, columns] = resize_masks(objects["masks"], size)[:, *inside]
            objects["masks"] = masks
            objects["boxes"] = _fit_to_masks(clipped, masks, (clipped != boxes).any(1))
        if "keypoints" in objects:
            keypoints = objects["keypoints"] * scale + offset
            objects["keypoints"] = keypoints
            objects["visibility"] = objects["visibility"] * ((keypoints >= low) & (keypoints <= high)).all(2)
        return objects, box_area(clipped) / box_area(boxes)


def _fit_to_masks(boxes: Tensor, masks: Tensor, which: Tensor) -> Tensor:
    """Replace the boxes for which ``which`` (bool, N) is True by the tightest ones around their masks (N x H x W);
    empty masks give empty boxes."""
    result = boxes.clone()
    result[which] = tight_boxes(masks[which]).to(boxes.dtype)
    return result


def _select(objects: Objects, which: Tensor) -> Objects:
    return {key: value[which] for key, value in objects.items()}


def _join(first: Sample, image: Tensor, of_images: Sequence[Objects]) -> Sample:
    """Return ``first`` with another image and the visible objects of several images."""
    for objects in of_images:
        if missing := of_images[0].keys() ^ objects.keys():
            raise ValueError(f"{', '.join(sorted(missing))}: annotated in some of the images, but not in all")
    size = (image.shape[-2], image.shape[-1])
    merged = {key: torch.cat([objects[key] for objects in of_images]) for key in of_images[0]}
    joined = {**first, **merged, "image": tv_tensors.Image(image)}
    joined["boxes"] = tv_tensors.wrap(merged["boxes"], like=first["boxes"], canvas_size=size)
    if "masks" in merged:
        joined["masks"] = tv_tensors.Mask(merged["masks"])
    if "keypoints" in merged:
        joined["keypoints"] = tv_tensors.KeyPoints(merged["keypoints"], canvas_size=size)
    return drop_empty_objects(joined)
