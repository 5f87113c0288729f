"""Tiled inference in large images: detections in overlapping tiles are merged (SAHI: Akyon et al. 2022, Slicing Aided
Hyper Inference and Fine-tuning for Small Object Detection)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Count, Detections, Fraction, Sizes
from opabinia.contracts.rotated_boxes import move_boxes, upright_boxes
from opabinia.models.detectors.suppression import box_nms
from opabinia.runtime.device import move_tensor, true_indices
from opabinia.tasks.dense_base import crop_windows

CUT_WEIGHT = 0.5
"""Factor of the score of a box cut by a tile's border when it is ranked; the tile next to it may have all of it."""


@register.section(name="tiles")
@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Overlapping tiles of each image whose detections are merged.

    Args:
        size: side of the tiles, in pixels of the image as the transforms give it; about that of the training images.
        overlap: of neighboring tiles, as a share of their side. If it is wider than an object, one of the tiles shows
            the whole object.
        iou: of boxes of one class that overlap by more than this only the best is kept. A box cut by a tile's border is
            also dropped if a complete box of another tile covers more than this share of it.
        batch_size: tiles in a forward pass.
        max_detections: maximum number of detections per image.
    """

    size: Count
    overlap: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    iou: Fraction = 0.5
    batch_size: Count = 4
    max_detections: Count = 1000


def detect_tiled(
    detect: Callable[[Tensor, Sizes], list[Detections]], images: Tensor, sizes: Sizes, tiles: Tiles, multiple: int
) -> list[Detections]:
    """Return detections in each image of a padded batch (B x C x H x W), in pixels of the batch.

    Args:
        detect: returns the detections in a batch of tiles, whose sides are padded to ``multiple``.
        images, sizes: the batch and the sizes of its images.
        tiles: settings.
        multiple: see above.
    """
    detections = []
    for image, image_size in zip(images, sizes, strict=True):
        windows = crop_windows(image, image_size, (tiles.size, tiles.size), tiles.overlap, tiles.batch_size, multiple)
        moved = [
            move_to_image(tile_detections, (left, top), tile_size, image_size)
            for corners, crops, tile_sizes in windows
            for tile_detections, (top, left), tile_size in zip(
                detect(crops, tile_sizes), corners, tile_sizes, strict=True
            )
        ]
        detections.append(
            merge_tiles([tile_detections for tile_detections, _ in moved], [cut for _, cut in moved], tiles)
        )
    return detections


def move_to_image(
    rows: Detections, corner: tuple[int, int], tile_size: tuple[int, int], image_size: tuple[int, int]
) -> tuple[Detections, Tensor]:
    """Return D detections of a tile in pixels of the image, and which of them the tile's border cuts (bool, D): their
    box ends within 1/64 of the tile's side from a border that is not one of the image.

    Args:
        rows: in pixels of the tile; masks are relative to their box, which needs no change.
        corner: left and top of the tile in the image.
        tile_size, image_size: height and width.
    """
    boxes, points, margin = upright_boxes(rows.boxes), rows.keypoints, max(tile_size) / 64
    pairs = torch.tensor([corner, tile_size[::-1], image_size[::-1]], dtype=boxes.dtype)
    origin, end, image_end = move_tensor(pairs, boxes.device)
    cut = (boxes[:, :2] <= margin) & (origin > 0)
    cut |= (boxes[:, 2:] >= end - margin) & (origin + end < image_end)
    if points is not None:
        points = torch.cat([points[..., :2] + origin, points[..., 2:]], -1)
    return rows._replace(boxes=move_boxes(rows.boxes, origin), keypoints=points), cut.any(1)


def merge_tiles(by_tile: Sequence[Detections], cut_by_tile: Sequence[Tensor], tiles: Tiles) -> Detections:
    """Return the detections of all tiles without duplicates, best first.

    Suppression is per class, by the score, of cut boxes by :data:`CUT_WEIGHT` times their score. Then cut boxes that a
    complete box of another tile covers are dropped if they rank lower; of oriented boxes the upright boxes around them
    are compared.

    Args:
        by_tile: in pixels of the image.
        cut_by_tile: which boxes their tile's border cuts (bool, D each).
        tiles: settings.
    """
    merged = concat_detections(by_tile)
    boxes, scores, labels = upright_boxes(merged.boxes.float()), merged.scores, merged.labels
    cut = torch.cat(list(cut_by_tile))
    tile = torch.cat([torch.full_like(rows.labels, number) for number, rows in enumerate(by_tile)])
    ranks = scores.float() * torch.where(cut, CUT_WEIGHT, 1.0)
    kept = box_nms(merged.boxes, ranks, labels, tiles.iou)[: 2 * tiles.max_detections]  # bounds the memory of the pairs
    part, complete = (kept[rows] for rows in true_indices([cut[kept], ~cut[kept]]))
    part = part.unsqueeze(1)
    ends = torch.minimum(boxes[part, 2:], boxes[complete, 2:])
    intersections = (ends - torch.maximum(boxes[part, :2], boxes[complete, :2])).clamp(min=0).prod(2)
    covered = intersections > tiles.iou * (boxes[part, 2:] - boxes[part, :2]).prod(2)
    covered &= (labels[part] == labels[complete]) & (tile[part] != tile[complete]) & (ranks[part] < ranks[complete])
    kept = torch.cat([complete, part[~covered.any(1), 0]])
    kept = kept[scores[kept].argsort(descending=True, stable=True)][: tiles.max_detections]
    return select_detections(merged, kept)


def concat_detections(rows: Sequence[Detections]) -> Detections:
    """Return the detections of several rows, one after the other."""
    columns: list[Any] = [None if values[0] is None else torch.cat(values) for values in zip(*rows, strict=True)]
    return Detections(*columns)


def select_detections(detections: Detections, kept: Tensor) -> Detections:
    """Return the detections at some indices (int64, N)."""
    columns: list[Any] = [None if values is None else values[kept] for values in detections]
    return Detections(*columns)


def warn_of_single_tiles(sizes: Sizes, originals: Sizes, tiles: Tiles) -> None:
    """Warn if the transforms resize images that are larger than a tile so that a single one remains.

    Args:
        sizes: height and width of each image after the transforms.
        originals: before them.
        tiles: settings.
    """
    for size, original in zip(sizes, originals, strict=True):
        if max(size) <= tiles.size < max(original):
            warnings.warn(
                f"task.tiles: data.val.transforms resize {original[0]} x {original[1]} to {size[0]} x {size[1]}, a "
                "single tile; tile the original with data.val.transforms=[]",
                stacklevel=3,
            )
