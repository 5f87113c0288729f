"""Videos with tracks in the layout of MOTChallenge: frames for detection, crops for re-identification, ground truth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Channels, Count, Fraction, FrameTracks, InputPath, Sample
from opabinia.contracts.tracking import Role
from opabinia.data.decoding.images import read_image
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_values import shortened
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source
from opabinia.data.sources.mot_files import MotSequence, read_sequences
from opabinia.data.sources.named import NamedSamples
from opabinia.data.sources.reid_base import OpenSplit, ReidImage, identity_info, open_split

DISTRACTORS = ["person on vehicle", "static person", "distractor", "reflection"]
"""Classes of MOT17 that a detector may find or not."""


@register.source
def mot(
    *,
    root: InputPath,
    sequences: list[str] | None = None,
    exclude: list[str] | None = None,
    classes: list[str] | None = None,
    distractors: list[str] | None = None,
    names: list[str] | None = None,
    first_pixel: int = 1,
    min_visibility: Fraction = 0.0,
    every: Count = 1,
    empty: Empty = "keep",
    broken: Broken = "clip",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Frames with bounding boxes and tracks of videos in the layout of MOTChallenge (also CVAT's "MOT 1.1"): a folder
    for each sequence, with ``img1``, ``gt/gt.txt`` and perhaps ``seqinfo.ini`` and ``gt/labels.txt``.

    Neighboring frames are nearly copies, so training and validation need different sequences. A sample's id is its path
    below the root.

    Args:
        root: the folder with the folders of the sequences.
        sequences: names of the sequences; all of them when not given.
        exclude: sequences that are not read, such as those of validation.
        classes: names in the order of their labels; those of ``gt/labels.txt``, or ``pedestrian``, when not given.
        distractors: classes that are not trained on and ignored in evaluation; those of MOT17 when not given.
        names: names of the class numbers 1, 2 ... in place of ``gt/labels.txt`` or those of MOTChallenge.
        first_pixel: coordinate of the first pixel in the files: 1 in MOTChallenge's, 0 in most others.
        min_visibility: objects that are less visible are not trained on, and ignored in evaluation.
        every: read each n-th frame of a sequence only.
        empty: ``drop`` drops frames without objects to train on.
        broken: handling of boxes that extend beyond the image: ``error`` raises; ``clip`` clips them; ``drop`` drops
            them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a file is missing or damaged, or a name is unknown; the text names file and line.
    """
    found = read_sequences(root, sequences, exclude or [], names, first_pixel)
    chosen, ignored = _chosen_classes(root, found, classes, distractors)
    listing = DetectionListing(file=root, root=root, classes=chosen, noun="line")
    tracks: list[FrameTracks] = []
    for sequence in found:
        numbers = sorted(sequence.images)[::every]
        images = {
            number: listing.add_image(os.fsencode(sequence.images[number]), sequence.info.size) for number in numbers
        }
        truth = sequence.ground_truth(chosen, ignored)
        tracks += sequence.frames(truth, numbers)
        for row in np.flatnonzero(np.isin(sequence.rows.frames, numbers) & (truth.roles != Role.EXCLUDED)).tolist():
            left, top, right, bottom = truth.boxes[row].tolist()
            counted = truth.roles[row] == Role.COUNTED and sequence.rows.visibility[row] >= min_visibility
            listing.add(
                images[int(sequence.rows.frames[row])],
                int(sequence.rows.lines[row]),
                chosen[max(int(truth.labels[row]), 0)],
                (left, top, right - left, bottom - top),
                crowd=not counted,
            )
    listing.tracks = tracks
    return build_source(listing, broken=broken, empty=empty, channels=channels)


@register.source
class MotIdentities(NamedSamples):
    """Crops of tracked objects for re-identification, of videos in the layout of MOTChallenge (:func:`mot`): an
    identity is a track of a sequence.

    In training, the sequences are the cameras. The crops of a test identity are all of one sequence, so there cameras
    are unknown: each crop is searched among all others. A sample's id is ``<sequence>/<track>/<frame>``.

    Args:
        root: the folder with the folders of the sequences.
        split: ``train``, ``test`` or ``all``: what the crops are for; the sequences are chosen by ``sequences`` and
            ``exclude``.
        sequences: names of the sequences; all of them when not given.
        exclude: sequences that are not read, such as those of validation.
        classes: classes of the objects; those of ``gt/labels.txt``, or ``pedestrian``, when not given.
        names: names of the class numbers 1, 2 ... in place of ``gt/labels.txt`` or those of MOTChallenge.
        first_pixel: coordinate of the first pixel in the files: 1 in MOTChallenge's, 0 in most others.
        min_visibility: smallest visible share of an object.
        min_size: smallest width and height in pixels.
        min_gap: frames between two crops of a track at least: neighboring frames are nearly copies.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a file is missing or damaged, a name is unknown, or there are too few identities.
    """

    def __init__(
        self,
        *,
        root: InputPath,
        split: OpenSplit = "train",
        sequences: list[str] | None = None,
        exclude: list[str] | None = None,
        classes: list[str] | None = None,
        names: list[str] | None = None,
        first_pixel: int = 1,
        min_visibility: Fraction = 0.3,
        min_size: Count = 16,
        min_gap: Count = 10,
        channels: Channels = 3,
    ) -> None:
        found = read_sequences(root, sequences, exclude or [], names, first_pixel)
        chosen, _ = _chosen_classes(root, found, classes, [])
        self._root = root
        self._crops: list[tuple[str, tuple[int, int, int, int]]] = []
        images = []
        for camera, sequence in enumerate(found):
            for row in _distant_rows(sequence, chosen, min_visibility, min_size, min_gap):
                identity = f"{sequence.name}/{sequence.rows.ids[row]}"
                frame = int(sequence.rows.frames[row])
                images.append(ReidImage(f"{identity}/{frame}".encode(), identity, camera))
                left, top = np.floor(sequence.rows.boxes[row, :2]).clip(0).astype(int).tolist()
                right, bottom = np.ceil(sequence.rows.boxes[row, 2:]).astype(int).tolist()
                self._crops.append((sequence.images[frame], (left, top, right, bottom)))
        cameras = 0 if split == "test" else len(found)
        info = identity_info(open_split(root, split, images), cameras=cameras, channels=channels)
        super().__init__([image.name for image in images], info)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        left, top, right, bottom = self._crops[index][1]
        image = read_image(self.paths(index)[0], self.channels)[:, top:bottom, left:right]
        if 0 in image.shape:
            path = os.fsdecode(self.paths(index)[0])
            raise ValueError(
                f"{path}: the box {left}, {top}, {right}, {bottom} of {self.id(index)} is outside the image"
            )
        return self.sample(tv_tensors.Image(image.clone()), index)

    def paths(self, index: int) -> Sequence[bytes]:
        return (os.fsencode(self._root / self._crops[index][0]),)


def _distant_rows(
    sequence: MotSequence, classes: list[str], min_visibility: float, min_size: int, min_gap: int
) -> list[int]:
    """Return boxes of each track that are large and visible, with a gap of frames between them, in order of track and
    frame."""
    sides = sequence.rows.boxes[:, 2:].clip(0) - sequence.rows.boxes[:, :2].clip(0)
    good = (sequence.labels(classes) >= 0) & sequence.rows.counted & (sequence.rows.visibility >= min_visibility)
    good &= np.asarray((sides >= min_size).all(1))
    rows = []
    last: tuple[int, int] | None = None
    for row in np.lexsort((sequence.rows.frames, sequence.rows.ids)):
        track, frame = int(sequence.rows.ids[row]), int(sequence.rows.frames[row])
        if good[row] and (last is None or track != last[0] or frame - last[1] >= min_gap):
            rows.append(int(row))
            last = track, frame
    return rows


def _chosen_classes(
    root: Path, sequences: Sequence[MotSequence], classes: list[str] | None, distractors: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the classes in the order of their labels, and the distractors.

    Raises:
        ValueError: a name is unknown, or given twice or as both.
    """
    known = list(dict.fromkeys(name for sequence in sequences for name in sequence.names))
    chosen = classes if classes is not None else ["pedestrian"] if "pedestrian" in known else known
    ignored = [name for name in DISTRACTORS if name in known] if distractors is None else distractors
    for option, values in (("classes", chosen), ("distractors", ignored)):
        for name in values:
            if name not in known:
                raise ValueError(f"{option}: {root} has no class {shortened(name)}; it has {', '.join(known[:15])}")
            if values.count(name) > 1:
                raise ValueError(f"{option}: {shortened(name)} is given twice")
    if not chosen:
        raise ValueError("classes: at least one is needed")
    if distractors and (both := [name for name in distractors if name in chosen]):
        raise ValueError(f"distractors: {both[0]} is one of the classes")
    return chosen, [name for name in ignored if name not in chosen]
