"""Pictures with things in their boxes: what the sources for detection have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import GroundTruth, Indices, Sample
from opabinia.contracts.masks import decoded
from opabinia.data.decoding.images import read_image
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_arrays import Outlines, Ragged, Things
from opabinia.data.sources.annotation_errors import Broken, Case, Fault, Faults, judge
from opabinia.data.sources.file_names import Names
from opabinia.data.sources.image_headers import are_there
from opabinia.runtime.log import log

Empty = Literal["keep", "drop"]
"""What is done about pictures without things to learn; detectron2 drops them in training."""

CUT_SILENTLY = 1.0
"""Pixels that a box may reach out of its picture: rounding, not a mistake."""


MIDDLE = 0.5
"""Of a pixel: files tell the number of the pixel that a point is in, samples its place in the picture (detectron2)."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a file says, before anybody has judged it.

    Attributes:
        file: what errors name.
        root: the folder that names count from.
        names: of N pictures, as the file system has them.
        sizes: height and width of each (int64, N x 2); zeros where they cannot be told, as somebody has told.
        numbers: of the pictures in the file (int64, N); None where their names are all there is.
        things: what is in them, in any order.
        classes, category_ids, frequencies, keypoints: as in :class:`opabinia.contracts.DatasetInfo`.
        outlines: of the things; None where they are not read.
        absent, not_exhaustive: classes of each picture, as in :class:`opabinia.contracts.GroundTruth`; None: nobody tells.
        word: what a thing is called in errors.
    """

    file: Path
    root: Path
    names: Sequence[bytes]
    sizes: Indices
    things: Things
    classes: Sequence[str]
    category_ids: Sequence[int]
    numbers: Indices | None = None
    frequencies: Sequence[str] = ()
    keypoints: Sequence[str] = ()
    outlines: Outlines | None = None
    absent: Sequence[Sequence[int]] | None = None
    not_exhaustive: Sequence[Sequence[int]] | None = None
    word: str = "annotation"

    def with_pictures(self, kept: NDArray[np.bool_]) -> Listing:
        """Without the other pictures (bool, N), and what is in them."""
        if kept.all():
            return self
        inside = kept[self.things.pictures]
        things = self.things.take(inside)
        chosen = np.flatnonzero(kept).tolist()
        return replace(
            self,
            names=[self.names[number] for number in chosen],
            sizes=self.sizes[kept],
            numbers=None if self.numbers is None else self.numbers[kept],
            things=things._replace(pictures=(np.cumsum(kept) - 1)[things.pictures]),
            absent=None if self.absent is None else [self.absent[number] for number in chosen],
            not_exhaustive=None if self.not_exhaustive is None else [self.not_exhaustive[number] for number in chosen],
        )


class Annotated:
    """Pictures with things in their boxes (:class:`opabinia.contracts.Source`); made by :func:`annotated`.

    A sample holds ``image``, ``boxes`` (cut to the picture), ``labels``, ``masks`` and ``keypoints`` with ``visible``
    and ``mirror`` where they were asked for, ``id`` (the path below the root), ``original_size`` and ``ground_truth``, which is
    what the file says: boxes as they stand there, and crowds, too, which are not among the others.

    Args:
        listing: what there is, without mistakes.
        faults: what was wrong with it before.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Attributes:
        sizes: height and width of each picture (int64, N x 2).
        things: in the order of pictures.
        present: classes in each picture, each once (N arrays of int64); those of crowds do not count.
        faults: the mistakes that were mended.
        file, root, word: of the listing.
        has_boxes, has_masks, keypoints, category_ids, frequencies: as in :class:`opabinia.contracts.Source`.
    """

    has_boxes = True

    def __init__(self, listing: Listing, *, faults: Sequence[Fault] = (), channels: Literal[1, 3] = 3) -> None:
        things = listing.things
        self.file, self.root = listing.file, listing.root
        self.channels: Literal[1, 3] = channels
        self.classes, self.category_ids = tuple(listing.classes), tuple(listing.category_ids)
        self.frequencies, self.keypoints = tuple(listing.frequencies), tuple(listing.keypoints)
        self.has_masks = listing.outlines is not None
        self.sizes = listing.sizes
        self.things = things.take(np.argsort(things.pictures, kind="stable"))
        self.present = Ragged.grouped(things.pictures[things.learnt], things.labels[things.learnt], len(listing.names))
        self.faults = tuple(faults)
        self.word = listing.word
        self._names, self._numbers = Names(listing.names), listing.numbers
        self._outlines = listing.outlines
        self._ends = np.searchsorted(self.things.pictures, np.arange(len(listing.names)), "right")
        self._absent = None if listing.absent is None else Ragged(listing.absent)
        self._not_exhaustive = None if listing.not_exhaustive is None else Ragged(listing.not_exhaustive)
        self._mirror = mirrored(listing.keypoints)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        path, ground_truth = os.path.join(os.fsencode(self.root), self.name(index)), self.ground_truth(index)
        image = read_image(path, self.channels)
        if tuple(image.shape[-2:]) != ground_truth.size:
            found, said = (f"{width} x {height}" for height, width in (image.shape[-2:], ground_truth.size))
            raise ValueError(f"{os.fsdecode(path)} has {found} pixels, {self.file} says {said}")
        learnt = self._things(index).learnt
        sample: Sample = {
            "image": tv_tensors.Image(image),
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(cut(ground_truth.boxes[learnt], ground_truth.size).astype(np.float32)),
                format=tv_tensors.BoundingBoxFormat.XYXY,
                canvas_size=ground_truth.size,
            ),
            "labels": torch.from_numpy(ground_truth.labels[learnt]),
            "id": self.id(index),
            "original_size": ground_truth.size,
            "ground_truth": ground_truth,
        }
        if ground_truth.segments is not None:
            sample["masks"] = tv_tensors.Mask(
                torch.from_numpy(self._masks(ground_truth, ground_truth.segments, learnt))
            )
        if ground_truth.keypoints is not None:
            points = torch.from_numpy(ground_truth.keypoints[learnt])
            sample["keypoints"] = tv_tensors.KeyPoints(points[..., :2].float() + MIDDLE, canvas_size=ground_truth.size)
            sample["visible"] = points[..., 2].long()
            sample["mirror"] = list(self._mirror)
        return sample

    def id(self, index: int) -> str:
        """The path of a picture below the root."""
        return self.name(index).decode("utf-8", "backslashreplace")

    def name(self, index: int) -> bytes:
        """The path of a picture below the root, as the file system has it."""
        return self._names[index]

    def ground_truth(self, index: int) -> GroundTruth:
        """What the file says of a picture."""
        things = self._things(index)
        height, width = self.sizes[index].tolist()
        segments = None
        if self._outlines is not None and things.outlines is not None:
            segments = [self._outlines.segment(row, (height, width)) for row in things.outlines.tolist()]
        return GroundTruth(
            image_id=self.id(index) if self._numbers is None else int(self._numbers[index]),
            size=(height, width),
            ids=things.ids,
            boxes=things.boxes,
            labels=things.labels,
            areas=things.areas,
            crowd=things.crowd,
            segments=segments,
            keypoints=things.keypoints,
            absent=() if self._absent is None else tuple(self._absent[index].tolist()),
            not_exhaustive=() if self._not_exhaustive is None else tuple(self._not_exhaustive[index].tolist()),
        )

    def fingerprint(self) -> str:
        """Changes with the pictures, the classes, and everything that is known of the things."""
        content = blake2b(self._names.content(), digest_size=8)
        content.update("\0".join([*self.classes, *self.keypoints]).encode() + self.sizes.tobytes())
        for part in (self.things, self._outlines, self._absent, self._not_exhaustive):
            content.update(b"" if part is None else part.content())
        things = f"{len(self.things.ids)} things of {len(self.classes)} classes"
        return f"{len(self)} pictures with {things}, {content.hexdigest()}"

    def _things(self, index: int) -> Things:
        return self.things.take(slice(self._ends[index - 1] if index else 0, self._ends[index]))

    def _masks(
        self, ground_truth: GroundTruth, segments: Sequence[Any], learnt: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """Of those to learn (uint8, N x H x W)."""
        masks = np.zeros((int(learnt.sum()), *ground_truth.size), dtype=np.uint8)
        for mask, row in zip(masks, np.flatnonzero(learnt).tolist(), strict=True):
            try:
                mask[:] = decoded(segments[row], ground_truth.size)
            except ValueError as error:
                thing = f"picture {ground_truth.image_id}, {self.word} {ground_truth.ids[row]}"
                raise ValueError(f"{self.file}, {thing}: {error}") from error
        return masks


# --- what is wrong ----------------------------------------------------------------------------------------------------


def annotated(
    listing: Listing,
    told: Faults,
    *,
    broken: Broken = "error",
    empty: Empty = "keep",
    min_keypoints: int = 0,
    channels: Literal[1, 3] = 3,
) -> Annotated:
    """The source of what a file lists, once what is broken has been refused, mended or left out.

    A box that reaches out of its picture by up to a pixel is rounded, not broken: it is cut without a word.

    Args:
        listing: what a file says.
        told: what was found wrong while it was read; more is added.
        broken: ``error``; ``clip``: boxes and outlines are cut to the picture, what has no area there is left out;
            ``drop``: what is broken is left out, a thing or a picture.
        empty: ``drop`` leaves out pictures without things to learn.
        min_keypoints: leave out pictures with fewer visible ones.
        channels: of the images.

    Raises:
        ValueError: something is broken, and ``broken`` does not allow that; or no picture is left.
    """
    if not listing.names:
        raise ValueError(f"{listing.file} lists no picture")
    there = are_there(listing.root, listing.names)
    if not there.any():
        first = os.fsdecode(listing.names[0])
        raise ValueError(f"{listing.file}: none of its {len(there)} pictures is in {listing.root}, such as {first}")
    for number in np.flatnonzero(~there).tolist():
        told.add(kinds.MISSING, os.fsdecode(listing.names[number]), "", f"not in {listing.root}")
    listing = listing.with_pictures(there & (listing.sizes > 0).all(1))
    reaching, hopeless = _examined(listing, told)
    judge(listing.file, told.found(), broken)
    if broken == "clip":
        _cut_outlines(listing, reaching & ~hopeless)
    sound = ~hopeless if broken == "clip" else ~(hopeless | reaching)
    listing = replace(listing, things=listing.things.take(sound))
    listing = listing.with_pictures(_wanted(listing, empty, min_keypoints))
    if not listing.names:
        raise ValueError(f"{listing.file}: no picture is left to learn from")
    if not listing.things.learnt.any():
        log.warning("%s: there is nothing to find in its %d pictures", listing.file, len(listing.names))
    return Annotated(listing, faults=told.found(), channels=channels)


def cut(boxes: NDArray[np.float64], size: tuple[int, int] | Indices) -> NDArray[np.float64]:
    """Boxes (left, top, width, height, N x 4) as left, top, right, bottom within their pictures.

    Args:
        boxes: in pixels.
        size: height and width, of one picture or of each box (N x 2).
    """
    ends = np.asarray(size)[..., ::-1]
    corners = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    inside: NDArray[np.float64] = np.clip(corners, 0, ends.reshape(-1, 1, 2))
    return inside.reshape(-1, 4)


def mirrored(names: Sequence[str]) -> list[int]:
    """For each point the number of the one that it is in a mirror: left and right change places.

    Example: nose, left_eye, right_eye gives [0, 2, 1].
    """
    number = {name: place for place, name in enumerate(names)}
    return [number.get(_SIDE.sub(_other_side, name), place) for place, name in enumerate(names)]


_SIDE = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)


def _other_side(match: re.Match[str]) -> str:
    side = match[0]
    other = {"left": "right", "right": "left", "l": "r", "r": "l"}[side.lower()]
    return other.upper() if side.isupper() else other.capitalize() if side[0].isupper() else other


def chosen_classes(where: object, names: Sequence[str], classes: Sequence[str] | None) -> list[int]:
    """Places in ``names`` of the classes to take, in the order of their labels; all of them when not given.

    Raises:
        ValueError: a class is missing or listed twice, or there is none.
    """
    if not names:
        raise ValueError(f"{where} names no class")
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise ValueError(f"{where} names the class {twice!r} twice")
    for number, name in enumerate(classes or ()):
        if name not in names:
            near = get_close_matches(name, names, 1) or names[:5]
            raise ValueError(f"{where} has no class {name!r}; there is {', '.join(near)}")
        if classes and name in classes[:number]:
            raise ValueError(f"classes: {name!r} is listed twice")
    return [names.index(name) for name in (names if classes is None else classes)]


def _examined(listing: Listing, told: Faults) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell things whose box or outline is broken: which of them reach out of their picture, and which have nothing in
    it (bool, M)."""
    things = listing.things
    sizes, boxes = listing.sizes[things.pictures], things.boxes
    area: NDArray[np.bool_] = np.asarray((boxes[:, 2:] > 0).all(1))
    inner = cut(boxes, sizes)
    inside: NDArray[np.bool_] = area & np.asarray((inner[:, 2:] > inner[:, :2]).all(1))
    ends = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    reaching = inside & _reach(ends, sizes)

    def box(row: int) -> Case:
        return _case(listing, row, "left, top, width, height", boxes[row], ends[row])

    for kind, rows in (
        (kinds.FLAT_BOX, ~area),
        (kinds.LOST_BOX, area & ~inside),
        (kinds.CUT_BOX, reaching),
    ):
        told.add_all(kind, np.flatnonzero(rows).tolist(), box)
    if listing.outlines is not None and things.outlines is not None:
        bounds = listing.outlines.bounds()[things.outlines]
        wide = inside & _reach(bounds, sizes)

        def outline(row: int) -> Case:
            return _case(listing, row, "left, top, right, bottom", bounds[row], bounds[row])

        told.add_all(kinds.CUT_OUTLINE, np.flatnonzero(wide).tolist(), outline)
        reaching = reaching | wide
    return reaching, ~inside


def _reach(ends: NDArray[np.float64], sizes: Indices) -> NDArray[np.bool_]:
    """Which boxes (left, top, right, bottom) reach out of their pictures by more than a pixel."""
    far = (ends[:, :2] < -CUT_SILENTLY) | (ends[:, 2:] > sizes[:, ::-1] + CUT_SILENTLY)
    return np.asarray(far.any(1))


def _case(listing: Listing, row: int, names: str, values: NDArray[np.float64], corners: NDArray[np.float64]) -> Case:
    picture = int(listing.things.pictures[row])
    height, width = listing.sizes[picture]
    shown = ", ".join(f"{value:.6g}" for value in values)
    thing = f"{listing.word} {listing.things.ids[row]}"
    left, top, right, bottom = corners.tolist()
    value = f"{names} {shown} in {width} x {height} pixels"
    return Case(os.fsdecode(listing.names[picture]), thing, value, (left, top, right, bottom))


def _cut_outlines(listing: Listing, wanted: NDArray[np.bool_]) -> None:
    """Cut the outlines of some things (bool, M) to their pictures."""
    things = listing.things
    if listing.outlines is not None and things.outlines is not None:
        for row in np.flatnonzero(wanted).tolist():
            height, width = listing.sizes[things.pictures[row]].tolist()
            listing.outlines.cut(int(things.outlines[row]), (height, width))


def _wanted(listing: Listing, empty: Empty, min_keypoints: int) -> NDArray[np.bool_]:
    """Which pictures have enough in them (bool, N)."""
    things = listing.things
    count = len(listing.names)
    wanted = np.ones(count, dtype=bool)
    if empty == "drop":
        wanted &= np.bincount(things.pictures[things.learnt], minlength=count) > 0
    if min_keypoints:
        if things.keypoints is None:
            raise ValueError("min_keypoints counts keypoints; keypoints: true reads them")
        visible = (things.keypoints[..., 2] > 0).sum(1) * things.learnt
        wanted &= np.bincount(things.pictures, weights=visible, minlength=count) >= min_keypoints
    return wanted
