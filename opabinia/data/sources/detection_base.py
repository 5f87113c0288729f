"""Object detection: what sources of images with bounding boxes share.

A reader fills a :class:`DetectionListing`; :func:`build_source` checks and fixes it.
"""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import Channels, FrameTracks, GroundTruth, Indices, RaggedArray, Sample, SourceInfo
from opabinia.contracts.masks import decode_rle
from opabinia.data.decoding.images import read_image
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_arrays import AnnotationArrays, SegmentationArrays
from opabinia.data.sources.annotation_errors import Broken, ErrorCase, ErrorCollector, check_errors
from opabinia.data.sources.annotation_values import ROOT_HINT, errors_in, leaves_root
from opabinia.data.sources.file_names import FileNames, short_digest, sort_names
from opabinia.data.sources.image_headers import files_exist, read_sizes
from opabinia.data.sources.labels import select_classes
from opabinia.data.sources.named import NamedFiles
from opabinia.data.sources.oriented_boxes import min_area_boxes, surround
from opabinia.runtime.log import warn_once
from opabinia.runtime.text import plural

Empty = Literal["keep", "drop"]
"""Handling of images without objects to train on; detectron2 drops them in training."""

ROUNDING = 1.0
"""Pixels that a box may extend beyond its image: rounding, not an error."""

_ROUNDED_AREA = 1e-6
"""Square pixels that an oriented box of no area may have by rounding."""

PIXEL_CENTER = 0.5
"""Files have the index of a keypoint's pixel, samples its position in the image (detectron2's rule)."""


@dataclass(kw_only=True, eq=False)
class DetectionListing:
    """Images and objects of annotation files, not yet checked. A reader makes one and adds the objects.

    Attributes:
        file: the file, for messages.
        root: the folder that names are relative to.
        classes, category_ids, frequencies, keypoints: as in :class:`opabinia.contracts.DatasetInfo`; no classes: all of
            the objects, sorted; ids None: from 1.
        masks: keep the segmentations of objects.
        oriented: replace boxes by the rectangles of minimum area around segmentations; without ``masks``.
        image_ids: of the images in the file (int64, N); None if they only have names.
        absent, not_exhaustive: classes of each image, as in :class:`opabinia.contracts.GroundTruth`; None if unknown.
        tracks: frame and tracks of each image of a video; None of other images.
        flip_pairs: for each keypoint the index of its counterpart in a mirrored image; None: see :func:`flip_pairs`.
        noun: what messages call an object of this file.
        below_root: images outside ``root`` are errors.
        names: of N images, as the file system has them.
        errors: those found while files are read.
        segmentations: of the objects; None if they are not kept.
        annotations: the objects, in the order in which they were added; set by :func:`build_source`.
    """

    file: Path
    root: Path
    classes: Sequence[str] = ()
    masks: bool = False
    oriented: bool = False
    category_ids: Sequence[int] | None = None
    image_ids: Indices | None = None
    frequencies: Sequence[str] = ()
    keypoints: Sequence[str] = ()
    absent: Sequence[Sequence[int]] | None = None
    not_exhaustive: Sequence[Sequence[int]] | None = None
    tracks: Sequence[FrameTracks] | None = None
    flip_pairs: Sequence[int] | None = None
    noun: str = "annotation"
    below_root: bool = True
    names: list[bytes] = field(default_factory=list)
    errors: ErrorCollector = field(default_factory=ErrorCollector)
    segmentations: SegmentationArrays | None = field(init=False)
    annotations: AnnotationArrays = field(init=False)
    _annotated_sizes: list[tuple[int, int]] = field(default_factory=list)
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segmentations = SegmentationArrays() if self.masks else None

    def add_image(self, name: bytes, size: tuple[int, int] = (0, 0)) -> int:
        """Add an image of this height and width, 0 if they are not annotated; return its index."""
        self.names.append(name)
        self._annotated_sizes.append(size)
        return len(self.names) - 1

    @cached_property
    def sizes(self) -> Indices:
        """Height and width of each image (int64, N x 2); those that are not annotated are read from the images."""
        sizes = np.array(self._annotated_sizes, dtype=np.int64).reshape(-1, 2)
        unknown = np.flatnonzero((sizes <= 0).any(1))
        sizes[unknown] = read_sizes(self.root, [self.names[index] for index in unknown.tolist()], self.errors)
        return sizes

    def add(
        self,
        image: int,
        number: int,
        label: int | str,
        box: Sequence[float] | None = None,
        *,
        polygons: Sequence[Sequence[float]] = (),
        rle: bytes = b"",
        corners: Sequence[float] = (),
        area: float | None = None,
        crowd: bool = False,
        trainable: bool | None = None,
        keypoints: Sequence[float] = (),
    ) -> None:
        """Add an object.

        Args:
            image: index of its image.
            number: its annotation id, or its line in a file; unique in the image.
            label: its class, by number or name; objects of a name that is not among ``classes`` are dropped.
            box: left, top, width, height; None: that around the polygons or corners.
            polygons, rle: its segmentation, see :meth:`SegmentationArrays.add`.
            corners: x, y, x, y ... of an oriented box.
            area: in pixels; None: that of the box.
            crowd: evaluation ignores it.
            trainable: it is trained on; None: unless it is a crowd.
            keypoints: x, y, visibility ... of all keypoints.
        """
        if self.oriented and not corners:
            try:
                corners = surround(polygons, rle, self.sizes[image].tolist()).ravel().tolist()
            except ValueError as error:
                name = os.fsdecode(self.names[image])
                self.errors.add(kinds.BAD_SEGMENTATION, name, f"{self.noun} {number}", error)
                return
        if box is None:
            points = np.concatenate([np.reshape(part, (-1, 2)) for part in (*polygons, corners)])
            low, high = points.min(0), points.max(0)
            box = [*low.tolist(), *(high - low).tolist()]
        row = 0 if self.segmentations is None else self.segmentations.add(polygons, rle)
        trainable = not crowd if trainable is None else trainable
        self._rows.append((image, number, box, label, area, crowd, trainable, row, keypoints, corners))

    def make_arrays(self) -> None:
        """Set ``annotations`` to the objects that were added."""
        label_of: dict[Any, int] = {name: label for label, name in enumerate(self.classes)}
        label_of |= {label: label for label in range(len(self.classes))}
        rows = [row for row in self._rows if row[3] in label_of]
        columns = zip(*rows, strict=True) if rows else ((),) * 10
        images, ids, boxes, labels, areas, crowd, trainable, segmentations, keypoints, corners = columns
        annotations = AnnotationArrays(
            np.array(images, dtype=np.int64),
            np.array(ids, dtype=np.int64),
            np.array(boxes, dtype=np.float64).reshape(-1, 4),
            np.array([label_of[label] for label in labels], dtype=np.int64),
            np.array(areas, dtype=np.float64),
            np.array(crowd, dtype=bool),
            np.array(trainable, dtype=bool),
            None if self.segmentations is None else np.array(segmentations, dtype=np.int64),
            np.array(keypoints, dtype=np.float64).reshape(-1, len(self.keypoints), 3) if self.keypoints else None,
            np.array(corners, dtype=np.float64).reshape(-1, 4, 2) if self.oriented else None,
        )
        if annotations.corners is not None:
            low, high = annotations.corners.min(1), annotations.corners.max(1)
            upright, sides = np.concatenate([low, high - low], 1), min_area_boxes(annotations.corners)[:, 2:4]
            self.annotations = annotations._replace(boxes=upright, areas=sides.prod(1))
        else:
            with np.errstate(over="ignore"):  # boxes of any size; those beyond the image are errors
                box_areas = annotations.boxes[:, 2:].prod(1)
            unknown = np.isnan(annotations.areas)
            self.annotations = annotations._replace(areas=np.where(unknown, box_areas, annotations.areas))

    def select_images(self, kept: NDArray[np.bool_]) -> None:
        """Keep only some of the images (bool, N) and their objects."""
        annotations = self.annotations.take(kept[self.annotations.image_indices])
        self.annotations = annotations._replace(image_indices=(np.cumsum(kept) - 1)[annotations.image_indices])
        self.names, self.sizes = list(compress(self.names, kept)), self.sizes[kept]
        if self.image_ids is not None:
            self.image_ids = self.image_ids[kept]
        if self.absent is not None:
            self.absent = list(compress(self.absent, kept))
        if self.not_exhaustive is not None:
            self.not_exhaustive = list(compress(self.not_exhaustive, kept))
        if self.tracks is not None:
            self.tracks = list(compress(self.tracks, kept))


class AnnotatedImages(NamedFiles):
    """Images with bounding boxes, made by :func:`build_source`.

    A sample holds ``image``, ``boxes`` (upright ones clipped to the image), ``labels``, ``id`` (the path below the
    root), ``original_size``, ``ground_truth`` (the boxes as they are in the file, including crowds, which are not among
    the others) and, if requested, ``masks`` and ``keypoints`` with ``visibility`` and ``flip_pairs``.

    Args:
        listing: the content of a file, its errors fixed.
        channels: 3 for color, 1 for gray; images are converted.

    Attributes:
        annotations: in the order of images.
        tracks: frame and tracks of each image of a video; None of other images.
        file, noun: of the listing.
    """

    def __init__(self, listing: DetectionListing, *, channels: Channels = 3) -> None:
        annotations, count = listing.annotations, len(listing.names)
        trained = annotations.take(annotations.trainable)
        info = SourceInfo(
            channels=channels,
            classes=tuple(listing.classes),
            sizes=listing.sizes,
            errors=tuple(listing.errors.groups()),
            boxes=True,
            masks=listing.segmentations is not None,
            oriented=annotations.corners is not None,
            keypoints=tuple(listing.keypoints),
            category_ids=tuple(listing.category_ids or range(1, len(listing.classes) + 1)),
            frequencies=tuple(listing.frequencies),
            present=RaggedArray.group_unique(trained.image_indices, trained.labels, count),
            sequences=None if listing.tracks is None else np.array([frame.sequence for frame in listing.tracks]),
        )
        super().__init__(listing.root, listing.names, info)
        self.file, self.noun = listing.file, listing.noun
        self.annotations = annotations.take(np.argsort(annotations.image_indices, kind="stable"))
        self._image_ids = listing.image_ids
        self._sizes, self._segmentations = listing.sizes, listing.segmentations
        self._ends = np.searchsorted(self.annotations.image_indices, np.arange(count), "right")
        self._absent = None if listing.absent is None else RaggedArray(listing.absent)
        self._not_exhaustive = None if listing.not_exhaustive is None else RaggedArray(listing.not_exhaustive)
        self.tracks = listing.tracks
        self._flip_pairs = flip_pairs(listing.keypoints) if listing.flip_pairs is None else listing.flip_pairs

    def __getitem__(self, index: int) -> Sample:
        ground_truth = self.ground_truth(index)
        image = read_annotated(self.path(index), self.channels, ground_truth.size, self.file)
        trainable = self._annotations_of(index).trainable
        masks = None
        if ground_truth.segments is not None:
            masks = np.zeros((int(trainable.sum()), *ground_truth.size), dtype=np.uint8)
            for mask, row in zip(masks, np.flatnonzero(trainable).tolist(), strict=True):
                annotation = f"image {ground_truth.image_id}, {self.noun} {ground_truth.ids[row]}"
                with errors_in(f"{self.file}, {annotation}: "):
                    mask[:] = decode_rle(ground_truth.segments[row], ground_truth.size)
        return make_sample(image, self.id(index), ground_truth, trainable, masks, self._flip_pairs)

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the annotations of an image."""
        annotations = self._annotations_of(index)
        height, width = self._sizes[index].tolist()
        segments = None
        if self._segmentations is not None and annotations.segmentations is not None:
            rows = annotations.segmentations.tolist()
            segments = [self._segmentations.segment(row, (height, width)) for row in rows]
        return GroundTruth(
            image_id=self.id(index) if self._image_ids is None else int(self._image_ids[index]),
            size=(height, width),
            ids=annotations.ids,
            boxes=annotations.boxes,
            labels=annotations.labels,
            areas=annotations.areas,
            crowd=annotations.crowd,
            segments=segments,
            keypoints=annotations.keypoints,
            corners=annotations.corners,
            absent=() if self._absent is None else tuple(self._absent[index].tolist()),
            not_exhaustive=() if self._not_exhaustive is None else tuple(self._not_exhaustive[index].tolist()),
            track=None if self.tracks is None else self.tracks[index],
        )

    def fingerprint(self) -> str:
        """Return a text that changes with the images, the classes and all annotations."""
        arrays = (self.annotations, self._segmentations, self._absent, self._not_exhaustive)
        digest = short_digest(
            self.names.tobytes(),
            "\0".join([*self.classes, *self.info.keypoints]).encode() + self._sizes.tobytes(),
            *(array.tobytes() for array in arrays if array is not None),
            *(repr(frame[:3]).encode() for frame in self.tracks or ()),
            *(column.tobytes() for frame in self.tracks or () for column in frame.truth),
        )
        objects = f"{len(self.annotations.ids)} objects of {len(self.classes)} classes"
        return f"{len(self)} images with {objects}, {digest}"

    def relabeled(self, classes: tuple[str, ...], new_labels: Indices) -> AnnotatedImages:
        """Return the same images with other classes; their ``category_ids`` count from 1."""
        result = copy.copy(self)
        result.info = self.info.relabel(classes, new_labels)
        result.annotations = self.annotations._replace(labels=new_labels[self.annotations.labels])
        if self._not_exhaustive is not None:
            result._not_exhaustive = RaggedArray(np.unique(new_labels[labels]) for labels in self._not_exhaustive)
        if self._absent is not None:  # of merged classes all are
            merged = np.bincount(new_labels, minlength=len(classes))
            counts = (np.bincount(new_labels[labels], minlength=len(classes)) for labels in self._absent)
            result._absent = RaggedArray(np.flatnonzero((merged > 0) & (merged == count)) for count in counts)
        if self.tracks is not None:
            result.tracks = [frame.relabeled(new_labels) for frame in self.tracks]
        return result

    def select(self, indices: Indices) -> AnnotatedImages:
        """Return some of the images with their objects."""
        result = copy.copy(self)
        result.info, result._sizes = self.info.select(indices), self._sizes[indices]
        result.names = FileNames([self.names[index] for index in indices.tolist()])
        annotations = self.annotations.take(np.isin(self.annotations.image_indices, indices))
        new_indices = np.searchsorted(indices, annotations.image_indices)
        result.annotations = annotations._replace(image_indices=new_indices)
        result._ends = np.searchsorted(new_indices, np.arange(len(indices)), "right")
        if self._image_ids is not None:
            result._image_ids = self._image_ids[indices]
        if self._absent is not None:
            result._absent = self._absent.select(indices)
        if self._not_exhaustive is not None:
            result._not_exhaustive = self._not_exhaustive.select(indices)
        if self.tracks is not None:
            result.tracks = [self.tracks[index] for index in indices.tolist()]
        return result

    def _annotations_of(self, index: int) -> AnnotationArrays:
        return self.annotations.take(slice(self._ends[index - 1] if index else 0, self._ends[index]))


def read_label_file(folder: Path, name: str, errors: ErrorCollector) -> list[str] | None:
    """Return the lines of a text file with labels; None and an error if it cannot be read."""
    try:
        return (folder / name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        errors.add(kinds.BAD_LABELS, name, "", getattr(error, "strerror", None) or error)
        return None


def read_annotated(path: bytes, channels: Channels, size: tuple[int, int], file: Path) -> torch.Tensor:
    """Read an image (uint8, C x H x W) whose height and width are in an annotation file.

    Raises:
        ValueError: it cannot be read, or has another size.
    """
    image = read_image(path, channels)
    if tuple(image.shape[-2:]) != size:
        actual, annotated = (f"{width} x {height}" for height, width in (image.shape[-2:], size))
        raise ValueError(f"{os.fsdecode(path)} has {actual} pixels, {file} says {annotated}")
    return image


def make_sample(
    image: torch.Tensor,
    sample_id: str,
    ground_truth: GroundTruth,
    trainable: NDArray[np.bool_],
    masks: NDArray[np.uint8] | None,
    flip_pairs: Sequence[int],
) -> Sample:
    """Return a sample with the boxes, labels and keypoints of some annotations.

    Args:
        image: uint8, C x H x W.
        sample_id: its id.
        ground_truth: all annotations of the image.
        trainable: which of them to train on (bool, N).
        masks: the instance masks of these; None if masks are not read.
        flip_pairs: see :func:`flip_pairs`.
    """
    size = ground_truth.size
    if ground_truth.corners is None:
        boxes = tv_tensors.BoundingBoxes(
            clip_boxes(ground_truth.boxes[trainable], size), format="XYXY", canvas_size=size, dtype=torch.float32
        )
    else:  # torchvision would clip them to other boxes
        boxes = tv_tensors.BoundingBoxes(
            min_area_boxes(ground_truth.corners[trainable]),
            format="CXCYWHR",
            canvas_size=size,
            clamping_mode=None,
            dtype=torch.float32,
        )
    sample: Sample = {
        "image": tv_tensors.Image(image),
        "boxes": boxes,
        "labels": torch.from_numpy(ground_truth.labels[trainable]),
        "id": sample_id,
        "original_size": size,
        "ground_truth": ground_truth,
    }
    if masks is not None:
        sample["masks"] = tv_tensors.Mask(torch.from_numpy(masks))
    if ground_truth.keypoints is not None:
        points = torch.from_numpy(ground_truth.keypoints[trainable])
        sample["keypoints"] = tv_tensors.KeyPoints(points[..., :2].float() + PIXEL_CENTER, canvas_size=size)
        sample["visibility"] = points[..., 2].long()
        sample["flip_pairs"] = list(flip_pairs)
    return sample


# --- checks -----------------------------------------------------------------------------------------------------------


def build_source(
    listing: DetectionListing, *, broken: Broken, empty: Empty, min_keypoints: int = 0, channels: Channels
) -> AnnotatedImages:
    """Check a listing, raise or fix its errors, and return its source.

    A box that extends beyond its image by at most a pixel is rounded, not broken: it is clipped silently. Oriented
    boxes are not clipped; they may extend beyond their image, but their centers must be in it.

    Args:
        listing: the content of a file; more errors are added to it.
        broken: ``error``; ``clip``: boxes and segmentations are clipped to the image, objects without area are dropped;
            ``drop``: broken objects and images are dropped.
        empty: ``drop`` drops images without objects to train on.
        min_keypoints: drop images with fewer visible keypoints.
        channels: of the images.

    Raises:
        ValueError: there are errors that ``broken`` does not allow; or no image is left.
    """
    if not listing.classes:
        listing.classes = sort_names({row[3] for row in listing._rows})
    if not listing.names or not listing.classes:
        check_errors(listing.file, listing.errors.groups(), broken)
        raise ValueError(f"{listing.file} {'has no classes' if listing.names else 'lists no images'}")
    outside_root = np.array([listing.below_root and leaves_root(listing.root, name) for name in listing.names])
    for index in np.flatnonzero(outside_root).tolist():
        name = os.fsdecode(listing.names[index])
        listing.errors.add(kinds.OUTSIDE_ROOT, name, "", f"not below {listing.root}; {ROOT_HINT}")
    exist = files_exist(listing.root, listing.names) & ~outside_root
    if not exist.any() and not outside_root.any():
        first = os.fsdecode(listing.names[0])
        raise ValueError(
            f"{listing.file}: none of its {plural(len(exist), 'image')} is in {listing.root}, such as {first}"
        )
    for index in np.flatnonzero(~exist & ~outside_root).tolist():
        listing.errors.add(kinds.MISSING, os.fsdecode(listing.names[index]), "", f"not in {listing.root}")
    listing.make_arrays()
    listing.select_images(exist & (listing.sizes > 0).all(1))
    cut, outside = _find_broken(listing)
    check_errors(listing.file, listing.errors.groups(), broken)
    annotations = listing.annotations
    clips = broken in ("clip", "fix")
    if clips:
        if listing.segmentations is not None and annotations.segmentations is not None:
            for row in np.flatnonzero(cut & ~outside).tolist():
                height, width = listing.sizes[annotations.image_indices[row]].tolist()
                listing.segmentations.clip(int(annotations.segmentations[row]), (height, width))
        if annotations.keypoints is not None:
            annotations.keypoints[_outside_keypoints(listing)] = 0
    valid = ~outside if clips else ~(outside | cut)
    listing.annotations = annotations.take(valid)
    listing.select_images(_find_usable(listing, empty, min_keypoints))
    if not listing.names:
        raise ValueError(f"{listing.file}: no image is left to train on")
    if not listing.annotations.trainable.any():
        warn_once("%s: there are no objects in its %s", listing.file, plural(len(listing.names), "image"))
    return AnnotatedImages(listing, channels=channels)


def clip_boxes(boxes: NDArray[np.float64], size: tuple[int, int] | Indices) -> NDArray[np.float64]:
    """Return boxes (left, top, width, height, N x 4) as left, top, right, bottom, clipped to their images.

    Args:
        boxes: in pixels.
        size: height and width of one image, or of each box's image (N x 2).
    """
    limits = np.asarray(size)[..., ::-1]
    corners = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    clipped: NDArray[np.float64] = np.clip(corners, 0, limits.reshape(-1, 1, 2))
    return clipped.reshape(-1, 4)


def flip_pairs(names: Sequence[str]) -> list[int]:
    """Return for each keypoint the index of its counterpart in a mirrored image: left and right are swapped.

    Example: nose, left_eye, right_eye gives [0, 2, 1].
    """
    index_of = {name: index for index, name in enumerate(names)}
    side = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)
    return [index_of.get(side.sub(_other_side, name), index) for index, name in enumerate(names)]


def _other_side(match: re.Match[str]) -> str:
    side = match[0]
    other = {"left": "right", "right": "left", "l": "r", "r": "l"}[side.lower()]
    return other.upper() if side.isupper() else other.capitalize() if side[0].isupper() else other


def pick_classes(file: object, names: Sequence[str], classes: Sequence[str] | None) -> list[int]:
    """Return the indices in ``names``, the classes of a file, of the selected ones, in the order of their labels.

    Raises:
        ValueError: the file has no class or a duplicate one, or a selected class is unknown or listed twice.
    """
    if not names:
        raise ValueError(f"{file} has no classes")
    if duplicates := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{file} has two classes called {duplicates[0]!r}")
    return select_classes(file, names, classes)


def given_classes(file: object, classes: Sequence[str] | None) -> Sequence[str]:
    """Return the classes that a config gives, for a listing; none if it gives none.

    Raises:
        ValueError: the list is empty, or has a duplicate.
    """
    return () if classes is None else [classes[index] for index in pick_classes(file, classes, None)]


def check_not_both(masks: bool, oriented: bool) -> None:
    """Check that not both masks and oriented boxes are asked for: crops would make boxes upright ones of masks.

    Raises:
        ValueError: they are.
    """
    if masks and oriented:
        raise ValueError("oriented: oriented boxes have no masks; remove masks: true")


def _find_broken(listing: DetectionListing) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Add objects with broken boxes or segmentations to the errors. Return which of them extend beyond their image, and
    which have no area in it (bool, M)."""
    annotations = listing.annotations
    sizes, boxes = listing.sizes[annotations.image_indices], annotations.boxes
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    if annotations.corners is None:
        outside_kind, has_area = kinds.OUTSIDE_BOX, np.asarray((boxes[:, 2:] > 0).all(1))
        clipped = clip_boxes(boxes, sizes)
        inside = has_area & np.asarray((clipped[:, 2:] > clipped[:, :2]).all(1))
        cut = inside & _extends_beyond(corners, sizes)
    else:
        outside_kind, has_area = kinds.OUTSIDE_CENTER, annotations.areas > _ROUNDED_AREA
        centers = boxes[:, :2] + boxes[:, 2:] / 2
        inside = has_area & np.asarray(((centers >= 0) & (centers <= sizes[:, ::-1])).all(1))
        cut = np.zeros_like(inside)

    def make_case(names: str, values: NDArray[np.float64], corners: NDArray[np.float64], row: int) -> ErrorCase:
        height, width = sizes[row]
        value = f"{names} {', '.join(f'{value:.6g}' for value in values[row])} in {width} x {height} pixels"
        left, top, right, bottom = corners[row].tolist()
        name = os.fsdecode(listing.names[annotations.image_indices[row]])
        return ErrorCase(name, f"{listing.noun} {annotations.ids[row]}", value, (left, top, right, bottom))

    box_case = partial(make_case, "left, top, width, height", boxes, corners)
    for kind, rows in ((kinds.FLAT_BOX, ~has_area), (outside_kind, has_area & ~inside), (kinds.CUT_BOX, cut)):
        listing.errors.add_rows(kind, np.flatnonzero(rows).tolist(), box_case)
    if listing.segmentations is not None and annotations.segmentations is not None:
        bounds = listing.segmentations.bounds()[annotations.segmentations]
        cut_segmentation = inside & _extends_beyond(bounds, sizes)
        # Clipped to the image, or the box, these are empty. Bounds of RLE, which has the image's size, are 0.
        nothing = cut_segmentation & ~_intersect(bounds, np.pad(sizes[:, ::-1], ((0, 0), (2, 0))))
        other = inside & ~cut_segmentation & bounds.any(1) & ~_intersect(bounds, corners, ROUNDING)
        segmentation_case = partial(make_case, "left, top, right, bottom", bounds, bounds)
        listing.errors.add_rows(kinds.CUT_SEGMENTATION, np.flatnonzero(cut_segmentation).tolist(), segmentation_case)
        listing.errors.add_rows(kinds.OTHER_SEGMENTATION, np.flatnonzero(other).tolist(), segmentation_case)
        cut, inside = cut | cut_segmentation, inside & ~nothing & ~other
    if annotations.keypoints is not None:
        outside_points = _outside_keypoints(listing)
        rows = inside & outside_points.any(1)
        points = annotations.keypoints[np.arange(len(rows)), outside_points.argmax(1)]
        point_case = partial(make_case, "x, y, visibility", points, corners)
        listing.errors.add_rows(kinds.OUTSIDE_KEYPOINT, np.flatnonzero(rows).tolist(), point_case)
        cut = cut | rows
    return cut, ~inside


def _outside_keypoints(listing: DetectionListing) -> NDArray[np.bool_]:
    """Return which keypoints are labeled and more than :data:`ROUNDING` outside their image (bool, M x P)."""
    annotations = listing.annotations
    assert annotations.keypoints is not None
    positions, limits = annotations.keypoints[..., :2], listing.sizes[annotations.image_indices, None, ::-1]
    outside = ((positions < -ROUNDING) | (positions > limits + ROUNDING)).any(-1)
    return np.asarray(outside & (annotations.keypoints[..., 2] > 0))


def _intersect(first: NDArray[Any], second: NDArray[Any], margin: float = 0.0) -> NDArray[np.bool_]:
    """Return which boxes (left, top, right, bottom; N x 4) have an area, or at least a ``margin``, in common."""
    low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
    return np.asarray((high - low > -margin if margin else high > low).all(1))


def _extends_beyond(corners: NDArray[np.float64], sizes: Indices) -> NDArray[np.bool_]:
    """Return which boxes (left, top, right, bottom) extend beyond their images by more than :data:`ROUNDING`."""
    beyond = (corners[:, :2] < -ROUNDING) | (corners[:, 2:] > sizes[:, ::-1] + ROUNDING)
    return np.asarray(beyond.any(1))


def _find_usable(listing: DetectionListing, empty: Empty, min_keypoints: int) -> NDArray[np.bool_]:
    """Return which images have enough objects and keypoints (bool, N)."""
    annotations, count = listing.annotations, len(listing.names)
    usable = np.ones(count, dtype=bool)
    if empty == "drop":
        usable &= np.bincount(annotations.image_indices[annotations.trainable], minlength=count) > 0
    if min_keypoints:
        if annotations.keypoints is None:
            raise ValueError("min_keypoints needs keypoints: true")
        visible = (annotations.keypoints[..., 2] > 0).sum(1) * annotations.trainable
        usable &= np.bincount(annotations.image_indices, weights=visible, minlength=count) >= min_keypoints
    return usable
