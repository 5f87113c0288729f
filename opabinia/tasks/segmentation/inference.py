"""Inference of segmentation: sliding windows, several scales and mirrored images, and maps of the original images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import IGNORE_LABEL, Count, Sizes
from opabinia.tasks.dense_base import TestTimeAugmentation, crop_windows, mirror

PixelLogits = Callable[[Tensor, Sizes], Tensor]
"""Maps a padded batch (B x C x H x W) and the sizes of its images to logits of its pixels (B x K x H x W)."""


@register.section(name="sliding_window")
@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Windows that cover each image; the logits of pixels in several of them are averaged.

    Args:
        size: height and width of the windows, in pixels of the image as the transforms give it; those of the training
            crops.
        overlap: of neighboring windows, as a share of their sides. mmsegmentation's stride of 341 for windows of 512 is
            0.334, its 513 for 769 is 0.333.
        batch_size: windows in a forward pass.
    """

    size: tuple[Count, Count]
    overlap: Annotated[float, Interval(ge=0, lt=1)] = 1 / 3
    batch_size: Count = 4


def slide(logits: PixelLogits, images: Tensor, sizes: Sizes, window: SlidingWindow, multiple: int) -> Tensor:
    """Return logits (B x K x H x W) of a padded batch, computed in windows; 0 in the padding.

    Args:
        logits: of a batch of windows, whose sides are padded to ``multiple``.
        images, sizes: the batch and the sizes of its images.
        window: settings.
        multiple: see above.
    """
    results = []
    for image, image_size in zip(images, sizes, strict=True):
        total: Tensor | None = None
        count = images.new_zeros(images.shape[-2:], dtype=torch.float32)
        windows = crop_windows(image, image_size, window.size, window.overlap, window.batch_size, multiple)
        for corners, crops, crop_sizes in windows:
            outputs = logits(crops, crop_sizes)
            if total is None:
                total = count.new_zeros(outputs.shape[1], *images.shape[-2:])
            for (top, left), (height, width), values in zip(corners, crop_sizes, outputs, strict=True):
                total[:, top : top + height, left : left + width] += values[:, :height, :width]
                count[top : top + height, left : left + width] += 1
        assert total is not None
        results.append(total / count.clamp(min=1))
    return torch.stack(results)


def average_views(
    logits: PixelLogits, images: Tensor, sizes: Sizes, augmentation: TestTimeAugmentation, multiple: int
) -> Tensor:
    """Return the log of the mean probability (B x K x H x W) over scaled and mirrored views of a padded batch.

    Args:
        logits: of a view, whose sides are padded to ``multiple``.
        images, sizes: the batch and the sizes of its images.
        augmentation: scales and mirroring.
        multiple: see above.
    """
    images = images if images.is_floating_point() else images.float() / 255
    height, width = images.shape[-2:]
    total: Tensor | None = None
    views = 0
    for scale in augmentation.scales:
        new = (max(1, round(height * scale)), max(1, round(width * scale)))
        inner = [(max(1, ceil(h * new[0] / height)), max(1, ceil(w * new[1] / width))) for h, w in sizes]
        view = F.interpolate(images, size=new, mode="bilinear", antialias=True) if scale != 1 else images
        view = F.pad(view, (0, -new[1] % multiple, 0, -new[0] % multiple))
        for flipped in (False, True) if augmentation.flip else (False,):
            outputs = logits(mirror(view, inner) if flipped else view, inner)
            outputs = (mirror(outputs, inner) if flipped else outputs)[..., : new[0], : new[1]]
            scores = F.interpolate(outputs.float(), size=(height, width), mode="bilinear").softmax(1)
            total, views = scores if total is None else total + scores, views + 1
    assert total is not None
    return (total / views).clamp(min=torch.finfo(total.dtype).tiny).log()


MAX_VALUES = 2**27
"""Logits of an original image that are in memory at once: 0.5 GB."""


def original_maps(logits: Tensor, sizes: Sizes, originals: Sizes) -> Tensor:
    """Return the class of each pixel of the original images, padded with 255 at the right and bottom to the largest of
    them (uint8, B x H x W).

    Args:
        logits: of the pixels of a padded batch (B x K x H x W).
        sizes: height and width of each image in it.
        originals: of the images that they were resized from.
    """
    shape = [max(sides) for sides in zip(*originals, strict=True)]
    maps = logits.new_full((len(logits), *shape), IGNORE_LABEL, dtype=torch.uint8)
    for values, (height, width), (rows, columns), row in zip(logits, sizes, originals, maps, strict=True):
        values = values[None, :, :height, :width].float()
        if (height, width) == (rows, columns):
            row[:rows, :columns] = values[0].argmax(0)
            continue
        highest, labels = values.new_full((rows, columns), -torch.inf), row[:rows, :columns].zero_()
        step = max(1, MAX_VALUES // (rows * columns))  # all classes at once, except for large images
        for first in range(0, values.shape[1], step):
            classes = values[:, first : first + step]
            resized = F.interpolate(classes, size=(rows, columns), mode="bilinear", align_corners=False)
            value, index = resized[0].max(0)
            labels.copy_(torch.where(value > highest, (first + index).to(torch.uint8), labels))
            highest = torch.maximum(highest, value)
    return maps


def nearest_maps(maps: Tensor, sizes: Sizes, originals: Sizes, fill: int) -> Tensor:
    """Return maps of a padded batch (B x H x W) as maps of the original images, each pixel as the nearest one, padded
    with ``fill`` at the right and bottom to the largest of them.

    Args:
        maps: classes or numbers of segments.
        sizes: height and width of each image in the batch.
        originals: of the images that they were resized from.
        fill: see above.
    """
    resized = maps.new_full((len(maps), *(max(sides) for sides in zip(*originals, strict=True))), fill)
    for pixels, (height, width), (rows, columns), row in zip(maps, sizes, originals, resized, strict=True):
        image = pixels[None, None, :height, :width].float()
        row[:rows, :columns] = F.interpolate(image, size=(rows, columns), mode="nearest-exact")[0, 0]
    return resized
