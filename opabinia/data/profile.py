"""The profile of a dataset: the facts from which a recipe is planned."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import GroundTruth, Indices, Source, are_8bit_images, channel_count
from opabinia.data.check.datasets import annotated_images, count_per_class, leaf_sources
from opabinia.data.check.image_hash import connect
from opabinia.data.check.scan import SampleScan
from opabinia.data.check.statistics import box_sides, channel_statistics, map_statistics
from opabinia.data.examination import LIMIT, Examination, examine
from opabinia.data.layouts.layout import TaskName
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.data.splitting import find_leaks

Quantiles = tuple[float, float, float, float, float]
"""Minimum, 10 %, median, 90 % and maximum."""


@dataclass(frozen=True, kw_only=True)
class DatasetProfile:
    """Facts about the training data and the size of the validation data. None and empty ones do not apply.

    Facts of annotation files and lists are those of all samples; facts of the files themselves are those of the ones
    that were read.

    Attributes:
        task: the task.
        samples, val_samples: number of images or videos.
        examined: number of training samples whose files were read, chosen by a seed if there are more.
        classes: names of the classes.
        per_class: number of training samples of each class; for detection of objects, for segmentation of the maps that
            were read with the class; empty without labels, and for identities.
        multi_label: a sample may have several classes.
        gray: all images that were read are gray.
        bits: bits of a channel, 8 or 16.
        channels: of images that are not 8-bit gray or color; 0 for those that are.
        mean, std: of each of these channels, in 0 to 1.
        short_sides, long_sides: of the images or videos, in pixels.
        aspects: width by height.
        objects_per_image: number of annotated objects.
        object_sides: square root of the area of the objects, in pixels.
        relative_object_sides: the same, divided by the square root of the area of their image.
        oriented, masks: the objects have these.
        keypoints: names of the keypoints of objects.
        pixel_shares: for segmentation, share of the labeled pixels of each class in the maps that were read.
        seconds, fps: of the videos.
        identities: number of identities to train on.
        images_per_identity: number of training images of an identity.
        cameras: number of cameras.
        duplicates: training samples that are a near-duplicate of an earlier one among those that were read.
        leaks: validation samples that training data repeats: identical files and frames of one recording, and
            near-duplicates among those that were read.
        leaked: what two splits have in common, each a sentence with examples.
        unreadable: training samples that cannot be read, at most 20 of those that were tried.
    """

    task: TaskName
    samples: int
    val_samples: int
    examined: int
    classes: tuple[str, ...] = ()
    per_class: tuple[int, ...] = ()
    multi_label: bool = False
    gray: bool = False
    bits: int = 8
    channels: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    short_sides: Quantiles | None = None
    long_sides: Quantiles | None = None
    aspects: Quantiles | None = None
    objects_per_image: Quantiles | None = None
    object_sides: Quantiles | None = None
    relative_object_sides: Quantiles | None = None
    oriented: bool = False
    masks: bool = False
    keypoints: tuple[str, ...] = ()
    pixel_shares: tuple[float, ...] = ()
    seconds: Quantiles | None = None
    fps: Quantiles | None = None
    identities: int = 0
    images_per_identity: Quantiles | None = None
    cameras: int = 0
    duplicates: int = 0
    leaks: int = 0
    leaked: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the profile as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


_MAX_UNREADABLE = 20
_OTHER_PART = 4
"""Of validation and test data this part of the limit is read."""
_MAX_READ_OBJECTS = 200
"""Samples whose objects are read, of sources that do not know their annotations."""


def profile_dataset(
    train: Source,
    val: Source | None,
    *,
    task: TaskName,
    test: Source | None = None,
    seed: int = 0,
    limit: int = LIMIT,
    examined: tuple[Examination, Examination] | None = None,
) -> DatasetProfile:
    """Return the facts about a dataset. Files that cannot be read are facts, too.

    Args:
        train: the training data.
        val: the validation data; None: there is none.
        task: the task.
        test: test data, of which only leaks are of interest; None: there is none.
        seed: of the draw of samples whose files are read.
        limit: number of training samples that are read.
        examined: examinations of both, if their files were read already; else they are read.

    Raises:
        WorkerDied: reading has killed a process.
    """
    examination = examined[0] if examined else examine(train, seed=seed, limit=limit)
    scans = [scan for scan in examination.scans if scan.error is None]
    sizes = _sizes(train, scans)
    splits = {"train": (train, examination)}
    for name, source in (("val", val), ("test", test)):
        if source is not None:
            known = examined[1] if examined and name == "val" else None
            splits[name] = source, known or examine(source, seed=seed, limit=limit // _OTHER_PART)
    leaks = find_leaks(splits)
    alike = connect(np.concatenate([examination.identical(), examination.near_duplicates()]), len(train))
    return DatasetProfile(
        task=task,
        samples=len(train),
        val_samples=0 if val is None else len(val),
        examined=len(examination.scans),
        **_class_facts(train, scans, task),
        **_object_facts(train, examination, task),
        gray=bool(scans) and all(scan.is_gray for scan in scans),
        bits=max((scan.bits for scan in scans), default=8),
        **_channel_facts(train, scans),
        short_sides=_quantiles(sizes.min(1)),
        long_sides=_quantiles(sizes.max(1)),
        aspects=_quantiles(sizes[:, 1] / np.maximum(sizes[:, 0], 1)),
        seconds=_quantiles([scan.length.seconds for scan in scans if scan.length is not None]),
        fps=_quantiles([scan.length.fps for scan in scans if scan.length is not None]),
        duplicates=len(train) - int(alike.max(initial=-1) + 1),
        leaks=sum(leak.count for leak in leaks if leak.splits == ("train", "val")),
        leaked=tuple(map(str, leaks)),
        unreadable=tuple(scan.id for scan in examination.scans if scan.error is not None)[:_MAX_UNREADABLE],
    )


def _quantiles(values: NDArray[Any] | Sequence[float]) -> Quantiles | None:
    """Return the quantiles of numbers, rounded to 6 digits; None if there are none."""
    if not len(values):
        return None
    low, few, middle, most, high = (
        float(f"{value:.6g}") for value in np.quantile(np.asarray(values), (0, 0.1, 0.5, 0.9, 1))
    )
    return low, few, middle, most, high


def _channel_facts(source: Source, scans: Sequence[SampleScan]) -> dict[str, Any]:
    """Return the facts about channels of images that are not 8-bit gray or color."""
    if are_8bit_images(source.channels):
        return {}
    known = channel_statistics([scan.moments for scan in scans if scan.moments is not None])
    return {"channels": channel_count(source.channels), **({} if known is None else asdict(known))}


def _sizes(source: Source, scans: Sequence[SampleScan]) -> Indices:
    """Return height and width of all images, or of those that were read (int64, N x 2)."""
    if source.info.sizes is not None:
        return np.asarray(source.info.sizes)
    return np.array([scan.size for scan in scans if scan.size is not None], dtype=np.int64).reshape(-1, 2)


def _class_facts(source: Source, scans: Sequence[SampleScan], task: TaskName) -> dict[str, Any]:
    """Return the facts about classes or identities."""
    info, labels = source.info, source.info.single_labels
    if task == "reid" and labels is not None:
        _, counts = np.unique(labels, return_counts=True)
        cameras = 0 if info.cameras is None else len(np.unique(info.cameras))
        return {"identities": len(counts), "images_per_identity": _quantiles(counts), "cameras": cameras}
    if task == "selfsup":
        return {}
    facts: dict[str, Any] = {"classes": tuple(map(str, source.classes)), "multi_label": info.multi_label}
    maps = map_statistics(source.classes, [scan.pixels for scan in scans if scan.pixels is not None])
    if maps is not None:
        pixels = np.array(list(maps.pixels.values()), dtype=np.float64)
        shares = pixels / max(pixels.sum(), 1)
        return facts | {"per_class": tuple(maps.images.values()), "pixel_shares": tuple(shares.round(6).tolist())}
    return facts | ({} if info.boxes else {"per_class": tuple(count_per_class(source).values())})


class _Objects(NamedTuple):
    """Objects to train on: their classes, their areas and those of their images in pixels; their number per image."""

    labels: Indices
    areas: NDArray[np.float64]
    image_areas: NDArray[np.float64]
    per_image: Indices


def _object_facts(source: Source, examination: Examination, task: TaskName) -> dict[str, Any]:
    """Return the facts about annotated objects; for detection the number of those of each class, too."""
    info = source.info
    if not info.boxes or task == "selfsup":
        return {}
    leaves = list(leaf_sources(source))
    annotated = [images for leaf in leaves if (images := annotated_images(leaf)) is not None]
    if len(annotated) == len(leaves):
        parts = [_annotated_objects(images) for images in annotated]
    else:
        parts = [_objects_of(source[index]["ground_truth"]) for index in _readable(examination)]
    labels, areas, image_areas, per_image = (
        np.concatenate(columns) for columns in zip(_NO_OBJECTS, *parts, strict=True)
    )
    facts: dict[str, Any] = {"oriented": info.oriented, "masks": info.masks, "keypoints": tuple(info.keypoints)}
    if not info.maps:
        facts["per_class"] = tuple(np.bincount(labels, minlength=len(source.classes)).tolist())
    return facts | {
        "objects_per_image": _quantiles(per_image),
        "object_sides": _quantiles(np.sqrt(areas)),
        "relative_object_sides": _quantiles(np.sqrt(areas / np.maximum(image_areas, 1))),
    }


_NO_OBJECTS = _Objects(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


def _readable(examination: Examination) -> list[int]:
    scanned = zip(examination.indices.tolist(), examination.scans, strict=True)
    return [index for index, scan in scanned if scan.error is None][:_MAX_READ_OBJECTS]


def _annotated_objects(source: AnnotatedImages) -> _Objects:
    """Return the objects in annotation files."""
    annotations = source.annotations.take(source.annotations.trainable)
    image_areas = np.asarray(source.info.sizes).prod(1)[annotations.image_indices]
    per_image = np.bincount(annotations.image_indices, minlength=len(source))
    return _Objects(annotations.labels, box_sides(source).prod(1), image_areas, per_image)


def _objects_of(objects: GroundTruth) -> _Objects:
    """Return the objects in an image."""
    kept = ~objects.crowd
    areas = objects.boxes[kept, 2:].prod(1)
    return _Objects(objects.labels[kept], areas, np.full(len(areas), math.prod(objects.size)), np.array([len(areas)]))
