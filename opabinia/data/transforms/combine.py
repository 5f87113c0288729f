"""Transforms that make one sample of several; the others come from the source, changed by the transforms before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple, NoReturn

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Fraction, NonNegative, Positive, Sample
from opabinia.data.collate import OF_THINGS
from opabinia.data.transforms.instances import tidied
from opabinia.data.transforms.sizes import masks_at

Things = dict[str, Tensor]
"""What a sample says of its things (``boxes``, ``labels`` ...): tensors with a row for each."""


class _OfSeveral:
    """What all of them have in common: they take things in boxes, and keep the first sample's own keys.

    ``id``, ``original_size`` and ``ground_truth`` stay those of the first sample: only evaluations read them, which take
    pictures as they are.
    """

    def __init__(self, probability: float) -> None:
        self._probability = probability

    def __call__(self, sample: Sample) -> NoReturn:
        """Refuses: there are no others.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{type(self).__name__} makes one sample of several, so it belongs into the list data.train.transforms "
            "itself, neither into another transform nor into an evaluation"
        )

    def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        """The sample with others, or as it is.

        Raises:
            ValueError: the data does not tell what is needed of things.
        """
        for key in self.needs:
            if key not in sample:
                raise ValueError(f"{type(self).__name__} needs {key} of things, which this data does not tell")
        return self._combined(sample, another) if np.random.random() < self._probability else sample

    needs: Sequence[str] = ("boxes",)

    def _combined(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        raise NotImplementedError


@register.transform(name="mosaic")
class Mosaic(_OfSeveral):
    """Put four pictures around a point, each in a corner, and take a piece of that: things smaller and in new company.

    Bochkovskiy et al., YOLOv4, 2020, with the rule and the defaults of Ultralytics' YOLO: each picture is enlarged or
    reduced until its longer side is ``size``. On a canvas of twice that, the point where they meet lies in the middle
    half both ways, and what of a picture lies outside of the canvas is cut off. The canvas is then scaled about its
    middle, moved, and cut to ``size``. All of this is one resize of each picture here. Things of which too little is
    left are taken out. Where there are masks, the box of a thing that was cut is that of its mask.

    Args:
        size: height and width of the result, in pixels.
        scale: the canvas is scaled by 1 - ``scale`` to 1 + ``scale``, drawn evenly; 0 leaves it.
        shift: its middle is moved by up to this share of ``size`` both ways.
        fill: what is seen where no picture is, 0 to 255.
        least_side: in pixels; things narrower or lower are taken out.
        least_area: things of whose box no greater share is left are taken out.
        probability: how often; otherwise the sample stays as it is, in its own size.

    Example: of a 480 x 640 picture, ``size`` 640 and a drawn scale of 0.5, at most 240 x 320 pixels are seen.
    """

    def __init__(
        self,
        *,
        size: Count = 640,
        scale: Annotated[float, Interval(ge=0, lt=1)] = 0.5,
        shift: Fraction = 0.1,
        fill: Annotated[int, Interval(ge=0, le=255)] = 114,
        least_side: NonNegative = 2.0,
        least_area: Fraction = 0.1,
        probability: Fraction = 1.0,
    ) -> None:
        super().__init__(probability)
        self._size, self._scale, self._shift, self._fill = size, scale, shift, fill
        self._least_side, self._least_area = least_side, least_area

    def _combined(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        size, gain = self._size, np.random.uniform(1 - self._scale, 1 + self._scale)
        middle = size * (0.5 + np.random.uniform(-self._shift, self._shift, 2))  # of the canvas, in the result
        meet = np.round(middle + gain * size * np.random.uniform(-0.5, 0.5, 2)).astype(int).tolist()
        low = np.clip(np.round(middle - gain * size), 0, size).astype(int).tolist()
        high = np.clip(np.round(middle + gain * size), 0, size).astype(int).tolist()
        canvas = _Canvas(sample["image"], (size, size), self._fill, (*low, *high))
        parts = []
        for corner, one in enumerate([sample, another(), another(), another()]):
            longer = max(one["image"].shape[-2:])
            height, width = (max(1, round(gain * size * side / longer)) for side in one["image"].shape[-2:])
            top, left = meet[0] - height * (corner < 2), meet[1] - width * (corner % 2 == 0)
            things, share = canvas.put(one, (height, width), (top, left))
            sides = things["boxes"][:, 2:] - things["boxes"][:, :2]
            parts.append(_chosen(things, (sides > self._least_side).all(1) & (share > self._least_area)))
        return _sample(sample, canvas.image, parts)


@register.transform(name="mixup_boxes")
class MixupBoxes(_OfSeveral):
    """Blend two pictures and keep the things of both (mixup for detection).

    Zhang et al., Bag of Freebies for Training Object Detection Neural Networks, 2019: pictures are not resized; they
    lie on each other at their upper left corners, and the result is as high and wide as the larger one, black where
    neither is. All things count fully, however faint their picture is (as in YOLOX and Ultralytics' YOLO; the paper
    weights their losses).

    Args:
        alpha: the weight of the first picture is drawn from Beta(alpha, alpha). 1.5 is the paper's; 32, nearly always
            half and half, is that of Ultralytics, after a mosaic.
        probability: how often.
    """

    def __init__(self, *, alpha: Positive = 1.5, probability: Fraction = 1.0) -> None:
        super().__init__(probability)
        self._alpha = alpha

    def _combined(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        weight = float(np.random.beta(self._alpha, self._alpha))
        both = [sample, another()]
        sizes = [one["image"].shape[-2:] for one in both]
        height, width = (max(sides) for sides in zip(*sizes, strict=True))
        canvases = [_Canvas(one["image"], (height, width)) for one in both]
        parts = [canvas.put(one, size)[0] for canvas, one, size in zip(canvases, both, sizes, strict=True)]
        first, second = (canvas.image.float() for canvas in canvases)
        blended = second.lerp(first, weight).round().to(sample["image"].dtype)
        return _sample(sample, blended, parts)


@register.transform(name="copy_paste")
class CopyPaste(_OfSeveral):
    """Paste things of another picture into this one, each by its mask, where they are in their own.

    Ghiasi et al., Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation, CVPR 2021, whose
    pictures have gone through large-scale jitter before and are not blurred at the seams. Of another picture of another
    size, what lies outside of this one is cut off. What is covered is taken from the masks; boxes of things that lose
    pixels become those of their masks, points that are covered are hidden (visible: 1).

    Args:
        share: how likely each thing of the other picture is pasted; the paper takes a random subset. With 0.5 all
            subsets are as likely.
        least_seen: things of whose mask no greater share is left are taken out; 0 takes out those that are wholly
            hidden, as in the paper.
        probability: how often.
    """

    needs = ("boxes", "masks")

    def __init__(self, *, share: Fraction = 0.5, least_seen: Fraction = 0.0, probability: Fraction = 1.0) -> None:
        super().__init__(probability)
        self._share, self._least_seen = share, least_seen

    def _combined(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        other = another()
        chosen = torch.from_numpy(np.random.random(len(other["labels"])) < self._share)
        size = sample["image"].shape[-2:]
        canvas = _Canvas(other["image"], size)
        pasted, _ = canvas.put({**other, **_chosen(_things(other), chosen)}, other["image"].shape[-2:])
        cover = pasted["masks"].bool().any(0)
        image = torch.where(cover, canvas.image, sample["image"].as_subclass(Tensor))
        return _sample(sample, image, [self._covered(_things(sample), cover), pasted])

    def _covered(self, things: Things, cover: Tensor) -> Things:
        """What is left of things below ``cover`` (bool, H x W)."""
        masks = things["masks"] * ~cover
        before, after = things["masks"].flatten(1).sum(1), masks.flatten(1).sum(1)
        covered = after < before
        found = {**things, "masks": masks, "boxes": _refitted(things["boxes"], masks, covered)}
        if "visible" in things:
            columns, rows = (
                things["keypoints"][..., axis].long().clamp(0, cover.shape[1 - axis] - 1) for axis in (0, 1)
            )
            found["visible"] = torch.where(cover[rows, columns], things["visible"].clamp(max=1), things["visible"])
        return _chosen(found, ~covered | (after > self._least_seen * before))


# --- putting pictures on a canvas -------------------------------------------------------------------------------------


class _Window(NamedTuple):
    top: int
    left: int
    bottom: int
    right: int


class _Canvas:
    """An image onto which pictures are put, with what is known of their things.

    Args:
        like: an image with its channels and type.
        size: height and width.
        fill: its value before.
        window: the only part on which anything is put; top, left, bottom, right. All of it if it is not given.
    """

    def __init__(
        self, like: Tensor, size: tuple[int, int], fill: int = 0, window: tuple[int, int, int, int] | None = None
    ) -> None:
        self.image = like.new_full((like.shape[0], *size), fill).as_subclass(Tensor)
        self._window = _Window(*(window or (0, 0, *size)))

    def put(self, sample: Sample, size: tuple[int, int], place: tuple[int, int] = (0, 0)) -> tuple[Things, Tensor]:
        """Put a picture of this size (height, width) with its upper left corner at ``place`` (row, column).

        Returns:
            its things on the canvas, clipped, and the share of each box that is left (float32, N).
        """
        (height, width), (top, left), window = size, place, self._window
        here = slice(max(top, window.top), min(top + height, window.bottom))
        across = slice(max(left, window.left), min(left + width, window.right))
        there = slice(here.start - top, here.stop - top), slice(across.start - left, across.stop - left)
        seen = here.stop > here.start and across.stop > across.start
        scale = torch.tensor([width, height]) / torch.tensor(sample["image"].shape[:-3:-1])
        offset = torch.tensor([left, top])
        if seen:
            self.image[:, here, across] = _resized(sample["image"], size)[:, *there]
        things = _things(sample)
        boxes = things["boxes"] * scale.repeat(2) + offset.repeat(2)
        low, high = torch.tensor([window.left, window.top]), torch.tensor([window.right, window.bottom])
        clipped = torch.cat([boxes[:, :2].clamp(low, high), boxes[:, 2:].clamp(low, high)], dim=1)
        things["boxes"] = clipped
        if "masks" in things:
            masks = things["masks"].new_zeros(len(boxes), *self.image.shape[-2:])
            if seen:
                masks[:, here, across] = masks_at(things["masks"], size)[:, *there]
            things["masks"] = masks
            things["boxes"] = _refitted(clipped, masks, (clipped != boxes).any(1))
        if "keypoints" in things:
            points = things["keypoints"] * scale + offset
            things["keypoints"] = points
            things["visible"] = things["visible"] * ((points >= low) & (points <= high)).all(2)
        return things, _areas(clipped) / _areas(boxes)


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    found: Tensor = F.resize(image.as_subclass(Tensor), list(size), F.InterpolationMode.BILINEAR, antialias=True)
    return found


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).prod(1)


def _refitted(boxes: Tensor, masks: Tensor, which: Tensor) -> Tensor:
    """``boxes``, those that are told (bool, N) become the smallest around their masks (N x H x W); of masks without a
    pixel they become empty."""
    rows, columns = masks[which].amax(2), masks[which].amax(1)
    low = torch.stack([columns.argmax(1), rows.argmax(1)], dim=1)
    size = torch.tensor([masks.shape[2], masks.shape[1]])
    high = size - torch.stack([columns.flip(1).argmax(1), rows.flip(1).argmax(1)], dim=1)
    found = boxes.clone()
    found[which] = torch.cat([low, high * rows.amax(1, keepdim=True)], dim=1).to(boxes.dtype)
    return found


# --- samples and their things -----------------------------------------------------------------------------------------


def _things(sample: Sample) -> Things:
    return {key: sample[key].as_subclass(Tensor) for key in OF_THINGS if key in sample}


def _chosen(things: Things, which: Tensor) -> Things:
    return {key: value[which] for key, value in things.items()}


def _sample(first: Sample, image: Tensor, parts: Iterable[Things]) -> Sample:
    """``first`` with another image, and the things of all parts that are to be seen there."""
    parts = list(parts)
    for part in parts:
        if missing := parts[0].keys() ^ part.keys():
            raise ValueError(f"{', '.join(sorted(missing))}: told of things in some of the pictures, but not in all")
    size = (image.shape[-2], image.shape[-1])
    things = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    found = {**first, **things, "image": tv_tensors.Image(image)}
    found["boxes"] = tv_tensors.BoundingBoxes(things["boxes"], format="XYXY", canvas_size=size)
    if "masks" in things:
        found["masks"] = tv_tensors.Mask(things["masks"])
    if "keypoints" in things:
        found["keypoints"] = tv_tensors.KeyPoints(things["keypoints"], canvas_size=size)
    return tidied(found)
