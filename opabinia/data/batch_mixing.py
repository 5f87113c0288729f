"""Changes to a whole batch. They work on what one process holds, so pairs never straddle two processes' slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval, MinLen
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from opabinia.config import register
from opabinia.contracts import Batch, DatasetInfo, Fraction, Mix, MixPart, NonNegative

Per = Literal["batch", "pair", "sample"]


@register.mix
def mixup(batch: Batch, dataset_info: DatasetInfo, /, *, alpha: NonNegative = 0.2, per: Per = "batch") -> Batch:
    """Blend each image, and its label, with that of another sample of the batch.

    Images become float32 in 0 to 1, labels float32, B x K. Zhang et al., mixup: Beyond Empirical Risk Minimization,
    ICLR 2018.

    Args:
        alpha: the weight is drawn from Beta(alpha, alpha): 0 leaves images as they are, 1 draws it evenly, 0.1 to 0.4
            are usual on ImageNet.
        per: one weight for the ``batch``; for each ``pair`` of the first with the last sample, the second with the last
            but one ...; or for each ``sample``.

    Raises:
        ValueError: the data has no classes, or views in the place of images.
    """
    images = _images(batch)
    weights = _weights(len(images), alpha, per)
    partners = _partners(len(images), per)
    return _labelled(batch, dataset_info, blend(float_images(images), partners, weights), partners, weights, "mixup")


@register.mix
def cutmix(batch: Batch, dataset_info: DatasetInfo, /, *, alpha: NonNegative = 1.0, per: Per = "batch") -> Batch:
    """Put a rectangle of another sample's image into each image; labels are mixed by its area.

    Images stay what they are, labels become float32, B x K. The rectangle lies anywhere and is cut off at the edges;
    the label's weight is that of what is left of it. Yun et al., CutMix, ICCV 2019.

    Args:
        alpha: the area's share is 1 - a weight drawn from Beta(alpha, alpha); 0 leaves images as they are.
        per: as in mixup.

    Raises:
        ValueError: the data has no classes, or views in the place of images.
    """
    images = _images(batch)
    height, width = images.shape[-2:]
    count = len(images)
    weights = _weights(count, alpha, per)
    boxes = _boxes(weights, height, width, per)
    partners = _partners(count, per)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    top, left, bottom, right = _beside(torch.from_numpy(boxes), images)[:, :, None]
    inside = ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]
    inside = inside.view(count, *[1] * (images.ndim - 3), height, width)
    kept = 1 - (boxes[2] - boxes[0]) * (boxes[3] - boxes[1]) / (height * width)
    others = images[_beside(partners, images)]
    return _labelled(batch, dataset_info, torch.where(inside, others, images), partners, kept, "cutmix")


@register.mix
def random_patch(
    batch: Batch,
    dataset_info: DatasetInfo,
    /,
    *,
    probability: Fraction = 0.5,
    area: tuple[Fraction, Fraction] = (0.01, 0.5),
    ratio: Annotated[float, Interval(gt=0, le=1)] = 0.1,
    flip: Fraction = 0.5,
) -> Batch:
    """Paste a rectangle of another picture of the batch into an image: an occlusion by what there is in the data.

    Labels stay. Zhou et al., Omni-Scale Feature Learning, ICCV 2019, and FastReID draw the rectangle from a pool of
    50,000 that a worker has seen so far; here it comes from the batch alone, which so depends on nothing that was read
    before it. The defaults are FastReID's.

    Args:
        probability: how often an image gets one.
        area: least and largest share of the picture that the rectangle takes.
        ratio: least height of the rectangle over its width; the largest is 1 / ratio. It is drawn evenly between both,
            so that most rectangles are tall.
        flip: how often the rectangle is mirrored.

    Raises:
        ValueError: the least area is above the largest, or there are views in the place of images.
    """
    if area[0] > area[1]:
        raise ValueError(f"area: [{area[0]}, {area[1]}] begins above its end; write [{area[1]}, {area[0]}]")
    images = _images(batch)
    count = len(images)
    patched = images.clone()
    for number in np.flatnonzero(np.random.random(count) < probability) if count > 1 else ():
        other = (number + np.random.randint(1, count)) % count
        size = _patch_size(images.shape[-2], images.shape[-1], area, ratio)
        if size is not None:
            patch = _random_place(images[other], *size)
            _random_place(patched[number], *size).copy_(patch.flip(-1) if np.random.random() < flip else patch)
    return {**batch, "image": patched}


@register.mix
def one_of(
    batch: Batch,
    dataset_info: DatasetInfo,
    /,
    *,
    mixes: Annotated[list[MixPart], MinLen(1)],
    weights: list[NonNegative] | None = None,
    probability: Fraction = 1.0,
) -> Batch:
    """One of several changes, drawn anew for each batch: mixup or cutmix, say.

    Args:
        mixes: to choose from.
        weights: how often each is chosen, relative to the others; null chooses all as often.
        probability: how often there is any change at all.

    Raises:
        ValueError: not as many weights as mixes, or none above 0.

    Example: ``{name: one_of, mixes: [{name: mixup, alpha: 0.8}, cutmix], probability: 0.9}``
    """
    shares = weights or [1.0] * len(mixes)
    if len(shares) != len(mixes) or not sum(shares):
        raise ValueError(f"weights: {len(mixes)} mixes need as many weights, not all 0; there are {shares}")
    if np.random.random() >= probability:
        return batch
    ends = np.cumsum(shares) / np.sum(shares)
    chosen: Mix = mixes[min(int(np.searchsorted(ends, np.random.random(), "right")), len(mixes) - 1)]
    return chosen(batch, dataset_info)


def _images(batch: Batch) -> Tensor:
    if "views" in batch:
        raise ValueError("views stand in the place of the images that are mixed; leave out data.mix")
    images: Tensor = batch["image"]
    return images


# --- drawing ----------------------------------------------------------------------------------------------------------


def _weights(count: int, alpha: float, per: Per) -> NDArray[np.float64]:
    """Each sample's own weight (B)."""
    if not alpha:
        return np.ones(count)
    if per == "batch":
        return np.full(count, np.random.beta(alpha, alpha))
    if per == "sample":
        return np.random.beta(alpha, alpha, count)
    half = np.random.beta(alpha, alpha, (count + 1) // 2)
    return np.concatenate([half, half[: count // 2][::-1]])


def _partners(count: int, per: Per) -> Tensor:
    """With whom each sample is mixed (int64, B); of pairs in an odd batch the middle one with itself."""
    return torch.arange(count - 1, -1, -1) if per == "pair" else torch.randperm(count)


def _boxes(weights: NDArray[np.float64], height: int, width: int, per: Per) -> NDArray[np.int64]:
    """Top, left, bottom and right of each sample's rectangle (4 x B)."""
    count = len(weights)
    drawn = {"batch": 1, "pair": (count + 1) // 2, "sample": count}[per]
    centres = np.random.random((2, drawn))
    if per == "batch":
        centres = np.repeat(centres, count, axis=1)
    elif per == "pair":
        centres = np.concatenate([centres, centres[:, : count // 2][:, ::-1]], axis=1)
    halves = np.sqrt(1 - weights) / 2
    sizes = np.array([[height], [width]])
    low = np.clip(np.round((centres - halves) * sizes), 0, sizes)
    high = np.clip(np.round((centres + halves) * sizes), 0, sizes)
    return np.concatenate([low, high]).astype(np.int64)


def _patch_size(height: int, width: int, area: tuple[float, float], ratio: float) -> tuple[int, int] | None:
    """Height and width of a rectangle that is smaller than the picture both ways; None if none of 100 is."""
    for _ in range(100):
        pixels = np.random.uniform(*area) * height * width
        shape = np.random.uniform(ratio, 1 / ratio)
        rows, columns = round((pixels * shape) ** 0.5), round((pixels / shape) ** 0.5)
        if 0 < rows < height and 0 < columns < width:
            return rows, columns
    return None


def _random_place(image: Tensor, height: int, width: int) -> Tensor:
    """A view of a rectangle anywhere in the image."""
    top = np.random.randint(image.shape[-2] - height + 1)
    left = np.random.randint(image.shape[-1] - width + 1)
    return image[..., top : top + height, left : left + width]


# --- mixing -----------------------------------------------------------------------------------------------------------


def _labelled(
    batch: Batch, dataset_info: DatasetInfo, images: Tensor, partners: Tensor, weights: NDArray[np.float64], who: str
) -> Batch:
    if not dataset_info.classes:
        raise ValueError(f"{who} blends labels, and this data has no classes")
    return {
        **batch,
        "image": images,
        "label": blend(soft_labels(batch["label"], len(dataset_info.classes)), partners, weights),
    }


def blend(values: Tensor, partners: Tensor, weights: Sequence[float] | NDArray[np.float64]) -> Tensor:
    """Of each row of ``values`` (B x ..., float) its weight (B), the rest of the row that ``partners`` (B) names."""
    others = values[_beside(partners, values)]
    if len(set(weights)) == 1:
        return values.lerp(others, 1 - float(weights[0]))
    rest = 1 - torch.as_tensor(np.asarray(weights), dtype=values.dtype).view(-1, *[1] * (values.ndim - 1))
    return values.lerp(others, _beside(rest, values))


def _beside(drawn: Tensor, values: Tensor) -> Tensor:
    """What was drawn on the host, where ``values`` are; nobody waits for it."""
    return drawn.to(values.device, non_blocking=True)


def float_images(images: Tensor) -> Tensor:
    """Images as float32 in 0 to 1, the range that tasks expect of float images."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def soft_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels (int64, B) as float32, B x K; labels that are B x K already stay as they are."""
    return labels if labels.is_floating_point() else one_hot(labels, classes).float()
