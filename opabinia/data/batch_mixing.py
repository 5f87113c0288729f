"""Augmentations of a whole batch. They mix the samples of one process, never those of two processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval, MinLen
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from opabinia.config import register
from opabinia.contracts import Batch, DatasetInfo, Fraction, Mix, MixPart, NonNegative
from opabinia.runtime.device import move_tensor

Per = Literal["batch", "pair", "sample"]


@register.mix
def mixup(batch: Batch, dataset_info: DatasetInfo, /, *, alpha: NonNegative = 0.2, per: Per = "batch") -> Batch:
    """Blend each image, and its label, with those of another sample of the batch.

    Images become float32 in 0 to 1, labels float32, B x K. Zhang et al., mixup: Beyond Empirical Risk Minimization,
    ICLR 2018.

    Args:
        alpha: the weight is drawn from Beta(alpha, alpha): 0 does not mix, 1 draws it uniformly, 0.1 to 0.4 are usual
            on ImageNet.
        per: one weight for the ``batch``; for each ``pair`` of the first and the last sample, the second and the last
            but one ...; or for each ``sample``.

    Raises:
        ValueError: the samples have no class labels, or views instead of images.
    """
    images = _images(batch)
    labels = _soft_labels(batch, dataset_info, "mixup")
    weights = _draw_weights(len(images), alpha, per)
    partners = _draw_partners(len(images), per)
    return {**batch, "image": blend(float_images(images), partners, weights), "label": blend(labels, partners, weights)}


@register.mix
def mixup_images(batch: Batch, dataset_info: DatasetInfo, /, *, alpha: NonNegative = 1.0, per: Per = "batch") -> Batch:
    """Blend each image with that of another sample of the batch; labels stay. For distillation: a teacher's features of
    the blend are the targets (Beyer et al. 2022, Knowledge distillation: A good teacher is patient and consistent).

    Args:
        alpha: as in mixup; 1 draws the weight uniformly.
        per: as in mixup.

    Raises:
        ValueError: there are views instead of images.
    """
    images = _images(batch)
    weights = _draw_weights(len(images), alpha, per)
    return {**batch, "image": blend(float_images(images), _draw_partners(len(images), per), weights)}


@register.mix
def cutmix(batch: Batch, dataset_info: DatasetInfo, /, *, alpha: NonNegative = 1.0, per: Per = "batch") -> Batch:
    """Paste a rectangle of another sample's image into each image; labels are mixed by its area.

    Images keep their type, labels become float32, B x K. The rectangle lies anywhere and is clipped at the edges; the
    label's weight is the area that is left of it. Yun et al., CutMix, ICCV 2019.

    Args:
        alpha: the rectangle's share of the image is 1 - a weight drawn from Beta(alpha, alpha); 0 does not mix.
        per: as in mixup.

    Raises:
        ValueError: the samples have no class labels, or views instead of images.
    """
    images = _images(batch)
    labels = _soft_labels(batch, dataset_info, "cutmix")
    height, width = images.shape[-2:]
    count = len(images)
    boxes = _draw_boxes(_draw_weights(count, alpha, per), height, width, per)
    partners = _draw_partners(count, per)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    top, left, bottom, right = move_tensor(torch.from_numpy(boxes), images.device)[:, :, None]
    inside = ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]
    inside = inside.view(count, *[1] * (images.ndim - 3), height, width)
    weights = 1 - (boxes[2] - boxes[0]) * (boxes[3] - boxes[1]) / (height * width)
    mixed = torch.where(inside, images[move_tensor(partners, images.device)], images)
    return {**batch, "image": mixed, "label": blend(labels, partners, weights)}


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
    """Paste a rectangle of another image of the batch into an image: an occlusion by the data itself.

    Labels are unchanged. Zhou et al., Omni-Scale Feature Learning, ICCV 2019, and FastReID draw the rectangle from a
    pool of the last 50,000 that a worker has seen; here it comes from the batch alone, so that batches depend on
    nothing that was read before. The defaults are FastReID's.

    Args:
        probability: of pasting, for each image.
        area: minimum and maximum share of the image that the rectangle covers.
        ratio: minimum height of the rectangle over its width; the maximum is 1 / ratio. It is drawn uniformly between
            both, so that most rectangles are tall.
        flip: probability of mirroring the rectangle.

    Raises:
        ValueError: the minimum area is above the maximum, or there are views instead of images.
    """
    if area[0] > area[1]:
        raise ValueError(f"area: the minimum of {list(area)} is above the maximum; write [{area[1]}, {area[0]}]")
    images = _images(batch)
    count = len(images)
    patched = images.clone()
    for number in np.flatnonzero(np.random.random(count) < probability) if count > 1 else ():
        other = (number + np.random.randint(1, count)) % count
        size = _draw_patch_size(images.shape[-2], images.shape[-1], area, ratio)
        if size is not None:
            patch = _random_crop(images[other], *size)
            _random_crop(patched[number], *size).copy_(patch.flip(-1) if np.random.random() < flip else patch)
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
    """Apply one of several mixes, drawn for each batch: mixup or cutmix, for example.

    Args:
        mixes: to choose from.
        weights: probability of each, relative to the others; null chooses all equally often.
        probability: of applying any.

    Raises:
        ValueError: the number of weights is not that of the mixes, or none is above 0.

    Example: ``{name: one_of, mixes: [{name: mixup, alpha: 0.8}, cutmix], probability: 0.9}``
    """
    shares = weights or [1.0] * len(mixes)
    if len(shares) != len(mixes) or not sum(shares):
        raise ValueError(f"weights: {len(mixes)} mixes need as many weights, not all 0, instead of {shares}")
    if np.random.random() >= probability:
        return batch
    ends = np.cumsum(shares) / np.sum(shares)
    chosen: Mix = mixes[min(int(np.searchsorted(ends, np.random.random(), "right")), len(mixes) - 1)]
    return chosen(batch, dataset_info)


def _images(batch: Batch) -> Tensor:
    if "views" in batch:
        raise ValueError("the batch has views instead of images, which cannot be mixed; remove data.mix")
    images: Tensor = batch["image"]
    return images


def _soft_labels(batch: Batch, dataset_info: DatasetInfo, name: str) -> Tensor:
    if "label" not in batch or not dataset_info.classes:
        raise ValueError(
            f"{name} mixes the class labels of images, and this data has no 'label'; remove it from data.mix"
        )
    return soft_labels(batch["label"], len(dataset_info.classes))


# --- drawing ----------------------------------------------------------------------------------------------------------


def _draw_weights(count: int, alpha: float, per: Per) -> NDArray[np.float64]:
    """Return the weight of each sample itself (B)."""
    return _draw(count, per, lambda number: np.random.beta(alpha, alpha, number)) if alpha else np.ones(count)


def _draw(count: int, per: Per, draw: Callable[[int], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Draw numbers (... x n) for the batch, for each pair, or for each sample, and return those of each sample
    (... x B)."""
    if per == "batch":
        return np.repeat(draw(1), count, axis=-1)
    if per == "sample":
        return draw(count)
    half = draw((count + 1) // 2)
    return np.concatenate([half, half[..., : count // 2][..., ::-1]], axis=-1)


def _draw_partners(count: int, per: Per) -> Tensor:
    """Return the row that each sample is mixed with (int64, B); with pairs, the middle one of an odd batch with
    itself."""
    return torch.arange(count - 1, -1, -1) if per == "pair" else torch.randperm(count)


def _draw_boxes(weights: NDArray[np.float64], height: int, width: int, per: Per) -> NDArray[np.int64]:
    """Return top, left, bottom and right of each sample's rectangle (4 x B)."""
    centers = _draw(len(weights), per, lambda number: np.random.random((2, number)))
    halves = np.sqrt(1 - weights) / 2
    sizes = np.array([[height], [width]])
    low = np.clip(np.round((centers - halves) * sizes), 0, sizes)
    high = np.clip(np.round((centers + halves) * sizes), 0, sizes)
    return np.concatenate([low, high]).astype(np.int64)


def _draw_patch_size(height: int, width: int, area: tuple[float, float], ratio: float) -> tuple[int, int] | None:
    """Return height and width of a rectangle that is smaller than the image both ways; None if 100 attempts fail."""
    for _ in range(100):
        pixels = np.random.uniform(*area) * height * width
        shape = np.random.uniform(ratio, 1 / ratio)
        rows, columns = round((pixels * shape) ** 0.5), round((pixels / shape) ** 0.5)
        if 0 < rows < height and 0 < columns < width:
            return rows, columns
    return None


def _random_crop(image: Tensor, height: int, width: int) -> Tensor:
    """Return a rectangle at a random position, which shares memory with the image."""
    top = np.random.randint(image.shape[-2] - height + 1)
    left = np.random.randint(image.shape[-1] - width + 1)
    return image[..., top : top + height, left : left + width]


# --- mixing -----------------------------------------------------------------------------------------------------------


def blend(values: Tensor, partners: Tensor, weights: Sequence[float] | NDArray[np.float64]) -> Tensor:
    """Return weights (B) times the rows of ``values`` (B x ..., float) plus the rest times the rows ``partners``
    (B)."""
    others = values[move_tensor(partners, values.device)]
    if len(set(weights)) == 1:
        return values.lerp(others, 1 - float(weights[0]))
    rest = 1 - torch.as_tensor(np.asarray(weights), dtype=values.dtype).view(-1, *[1] * (values.ndim - 1))
    return values.lerp(others, move_tensor(rest, values.device))


def float_images(images: Tensor) -> Tensor:
    """Return images as float32 in 0 to 1, the range that tasks expect of float images."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def soft_labels(labels: Tensor, classes: int) -> Tensor:
    """Return labels (int64, B) as float32, B x K; labels that are B x K already are unchanged."""
    return labels if labels.is_floating_point() else one_hot(labels, classes).float()
