"""Statistics of datasets: image sizes, boxes, video lengths, identities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opabinia.contracts import Indices, Source
from opabinia.data.check.datasets import annotated_images, concatenate
from opabinia.data.check.scan import VideoLength
from opabinia.data.sources.detection_base import AnnotatedImages, clip_boxes
from opabinia.data.sources.oriented_boxes import min_area_boxes

TINY = 2.0
"""Pixels: a box with a shorter side is called tiny."""

SIDES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Lower bounds of the histogram bins of shorter sides, in pixels."""

ASPECTS = (1 / 3, 1 / 2, 2 / 3, 4 / 5, 5 / 4, 3 / 2, 2.0, 3.0)
"""Bounds of the histogram bins of width by height."""

_RATIOS = ("1:3", "1:2", "2:3", "4:5", "5:4", "3:2", "2:1", "3:1")

Range = tuple[float, float, float]
"""Minimum, median and maximum."""


@dataclass(frozen=True)
class BoxStatistics:
    """Counts of annotated objects.

    Attributes:
        objects: number of objects to train on.
        per_class: number of objects of each class by name.
        crowds: objects that evaluation ignores.
        empty_images: images without objects to train on.
        tiny: objects with a side of less than :data:`TINY` pixels in the image.
        sides: histogram of the square root of the area in pixels.
    """

    objects: int
    per_class: dict[str, int]
    crowds: int
    empty_images: int
    tiny: int
    sides: dict[str, int]


@dataclass(frozen=True)
class MapStatistics:
    """Counts of pixels in the segmentation maps that were read.

    Attributes:
        pixels: number of pixels of each class by name.
        ignored: number of pixels without a label.
        images: number of maps with each class by name.
        empty: number of maps without a labeled pixel.
    """

    pixels: dict[str, int]
    ignored: int
    images: dict[str, int]
    empty: int


@dataclass(frozen=True)
class LengthStatistics:
    """Ranges of the number of frames, the duration in seconds and the frame rate of videos."""

    frames: Range
    seconds: Range
    fps: Range


@dataclass(frozen=True)
class SizeStatistics:
    """Sizes of the images or videos that were read.

    Attributes:
        smallest, largest: height and width of the one with the fewest and with the most pixels.
        sides: histogram of the shorter side in pixels.
        aspects: histogram of width to height.
    """

    smallest: tuple[int, int]
    largest: tuple[int, int]
    sides: dict[str, int]
    aspects: dict[str, int]


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel over all pixels of images in 0 to 1, for ``task.mean`` and
    ``task.std``; images count by their number, not by their size."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class IdentityStatistics:
    """Counts of identities.

    Attributes:
        identities: number of identities with images.
        images: range of the number of images of an identity.
        per_camera, per_view: number of images of each camera and viewpoint; empty if unknown.
        single_camera: identities seen by one camera only.
        queries: number of query images; None if there is no query set.
    """

    identities: int
    images: Range
    per_camera: dict[str, int]
    per_view: dict[str, int]
    single_camera: int
    queries: int | None


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of a dataset.

    Attributes:
        samples: number of images or videos, without those that the source has dropped as broken.
        read: number of samples that were read.
        is_video: whether the samples are videos.
        per_class: number of samples of each class by name; empty if there are no classes.
        boxes, maps, lengths, identities, sizes, channels: None if they do not apply.
    """

    samples: int
    read: int
    is_video: bool = False
    per_class: dict[str, int] = field(default_factory=dict)
    boxes: BoxStatistics | None = None
    maps: MapStatistics | None = None
    lengths: LengthStatistics | None = None
    identities: IdentityStatistics | None = None
    sizes: SizeStatistics | None = None
    channels: ChannelStatistics | None = None


def size_statistics(sizes: Sequence[tuple[int, int]]) -> SizeStatistics | None:
    """Return the statistics of (height, width) pairs; None if there are none."""
    if not sizes:
        return None
    ordered = sorted(sizes, key=math.prod)
    between = [f"{low} to {high}" for low, high in pairwise(_RATIOS)]
    names = [f"narrower than {_RATIOS[0]}", *between, f"wider than {_RATIOS[-1]}"]
    aspects = _histogram(names, np.searchsorted(ASPECTS, [width / height for height, width in sizes], "right"))
    return SizeStatistics(ordered[0], ordered[-1], side_histogram([min(size) for size in sizes]), aspects)


def channel_statistics(moments: Sequence[NDArray[np.float64]]) -> ChannelStatistics | None:
    """Return the statistics of channels; None if there are no images, or images with different channels.

    Args:
        moments: of each image, mean and mean of the squares of each channel (2 x C).
    """
    if len({image.shape for image in moments}) != 1:
        return None
    mean, square = np.mean(moments, 0)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return ChannelStatistics(*(tuple(values.round(4).tolist()) for values in (mean, std)))


def side_histogram(values: Sequence[float]) -> dict[str, int]:
    """Count values between those of :data:`SIDES`, from the first to the last nonempty bin."""
    names = [f"{low} to {high - 1}" for low, high in pairwise(SIDES)] + [f"{SIDES[-1]} or more"]
    return _histogram(names, np.searchsorted(SIDES, np.asarray(values), "right") - 1)


def _histogram(names: Sequence[str], bins: NDArray[np.int64]) -> dict[str, int]:
    counts = np.bincount(np.maximum(bins, 0), minlength=len(names))
    nonempty = np.flatnonzero(counts)
    return {names[i]: int(counts[i]) for i in range(nonempty[0], nonempty[-1] + 1)} if len(nonempty) else {}


def length_statistics(lengths: Sequence[VideoLength]) -> LengthStatistics | None:
    """Return the statistics of video lengths; None if there are none."""
    if not lengths:
        return None
    return LengthStatistics(*(_range([getattr(length, name) for length in lengths]) for name in VideoLength._fields))


def box_statistics(classes: Sequence[str], sources: Sequence[Source]) -> BoxStatistics | None:
    """Return the statistics of sources with annotated boxes; None if one has none."""
    detection = [annotated for source in sources if (annotated := annotated_images(source)) is not None]
    if not detection or len(detection) < len(sources):
        return None
    labels = concatenate(source.annotations.labels[source.annotations.trainable] for source in detection)
    sides = np.concatenate([box_sides(source) for source in detection])
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return BoxStatistics(
        objects=len(labels),
        per_class=dict(zip(map(str, classes), counts, strict=True)),
        crowds=sum(int(source.annotations.crowd.sum()) for source in detection),
        empty_images=sum(len(present) == 0 for source in detection for present in source.info.present or ()),
        tiny=int((sides.min(1, initial=math.inf) < TINY).sum()),
        sides=side_histogram(np.sqrt(sides.prod(1)).tolist()),
    )


def map_statistics(classes: Sequence[str], counts: Sequence[Indices]) -> MapStatistics | None:
    """Return the statistics of maps; None if there are none.

    Args:
        classes: their names.
        counts: pixels of each map with each value (int64, 256).
    """
    if not counts:
        return None
    table = np.stack(counts)
    labeled = table[:, : len(classes)]
    return MapStatistics(
        pixels=dict(zip(classes, labeled.sum(0).tolist(), strict=True)),
        ignored=int(table.sum() - labeled.sum()),
        images=dict(zip(classes, (labeled > 0).sum(0).tolist(), strict=True)),
        empty=int((labeled.sum(1) == 0).sum()),
    )


def box_sides(source: AnnotatedImages) -> NDArray[np.float64]:
    """Return width and height of the visible part of each object to train on, of oriented boxes those of all of it
    (M x 2)."""
    annotations = source.annotations.take(source.annotations.trainable)
    if annotations.corners is not None:
        return min_area_boxes(annotations.corners)[:, 2:4]
    corners = clip_boxes(annotations.boxes, np.asarray(source.info.sizes)[annotations.image_indices])
    return np.asarray(corners[:, 2:] - corners[:, :2], dtype=np.float64)


def identity_statistics(source: Source) -> IdentityStatistics | None:
    """Return the statistics of a source of identities; None for others."""
    info, labels = source.info, source.info.single_labels
    if labels is None or not info.identities:
        return None
    cameras = info.cameras
    _, counts = np.unique(labels, return_counts=True)
    seen = set() if cameras is None else set(zip(labels.tolist(), cameras.tolist(), strict=True))
    return IdentityStatistics(
        identities=len(counts),
        images=_range(counts.tolist()) if len(counts) else (0, 0, 0),
        per_camera={} if cameras is None else _count(cameras),
        per_view={} if info.views is None else _count(info.views),
        single_camera=sum(count == 1 for count in Counter(label for label, _ in seen).values()),
        queries=None if info.queries is None else int(info.queries.sum()),
    )


def _count(column: ArrayLike) -> dict[str, int]:
    return {str(number): count for number, count in enumerate(np.bincount(column).tolist())}


def _range(values: Sequence[float]) -> Range:
    return min(values), float(np.median(values)), max(values)
