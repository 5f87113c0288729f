"""The embedded dataset for multi-object tracking: handwritten digits that meet and wait behind an occluder."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import FrameTracks, GroundTruth, RaggedArray, Sample, Source, SourceInfo, TrackGroundTruth
from opabinia.contracts.tracking import Role
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.detection_base import make_sample
from opabinia.data.sources.digit_rendering import Bytes
from opabinia.data.sources.digits import Arrays, Split, load_cached, load_digits, split_digits
from opabinia.runtime.seeds import hash32

SIDE, DIGIT, FRAMES, PAIRS = 128, 24, 60, 3
SEQUENCES: dict[Split, int] = {"train": 64, "val": 8}
WALL = (50, 78)
"""First and last column of the occluder, behind which a digit is hidden completely."""
ARRIVE, LEAVE = 26, 34
"""Frames in which the digits reach the middle, and leave it."""
MIN_VISIBLE = 0.3
"""A digit of which a smaller share is visible is not annotated."""

_INK = 96  # gray value from which on a pixel belongs to a digit
_KEY = hash32(1797, 13)  # fixed, so that a run's seed does not change the sequences
_VERSION = "digit_tracks-2"


@register.source
class DigitTracks(Source):
    """Multi-object tracking for trials and tests: frames of videos in which scikit-learn's handwritten digits move.

    64 sequences of 60 frames for training, 8 for validation, gray, 128 x 128, with six digits each (those of
    ``digits``, in the same split); the digit is the class, the handwritten sample the identity. The digits of a
    sequence are three pairs of the same class, one above the other. The two of a pair come from both sides, meet behind
    a gray occluder in the middle, and wait there. Then, by chance, they go on, or go back to where they came from: only
    their appearance tells which. Boxes include hidden parts; a digit is not annotated while less than 0.3 is visible.

    A sample is a frame with boxes, as in ``digit_scenes``, and their tracks. Frames of a sequence, such as ``val/03``,
    are counted from 1.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: train or val.
    """

    def __init__(self, *, split: Split = "train") -> None:
        arrays = load_sequences(split)
        self._split, self._images, self._rows = split, torch.from_numpy(arrays["images"]).unsqueeze(1), arrays["rows"]
        self._ends = np.searchsorted(self._rows[:, 0], np.arange(len(self._images)), "right")
        self.info = SourceInfo(
            channels=1,
            classes=tuple("0123456789"),
            sizes=np.full((len(self._images), 2), SIDE),
            boxes=True,
            category_ids=tuple(range(1, 11)),
            present=RaggedArray(np.unique(self._rows_of(index)[:, 2]) for index in range(len(self._images))),
            sequences=np.array([f"{split}/{index // FRAMES:02d}" for index in range(len(self._images))]),
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        ground_truth = self.ground_truth(index)
        return make_sample(self._images[index].clone(), self.id(index), ground_truth, ~ground_truth.crowd, None, ())

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the annotations of a frame."""
        rows, frame = self._rows_of(index), index % FRAMES + 1
        boxes, labels = rows[:, 3:7].astype(np.float64), rows[:, 2].copy()
        sides = boxes[:, 2:] - boxes[:, :2]
        frames, roles = np.full(len(rows), frame), np.full(len(rows), Role.COUNTED)
        truth = TrackGroundTruth(frames, rows[:, 1], boxes, labels, roles)
        return GroundTruth(
            image_id=index,
            size=(SIDE, SIDE),
            ids=np.arange(self._ends[index] - len(rows), self._ends[index]) + 1,
            boxes=np.concatenate([boxes[:, :2], sides], 1),
            labels=labels,
            areas=sides.prod(1),
            crowd=np.zeros(len(rows), dtype=bool),
            track=FrameTracks(f"{self._split}/{index // FRAMES:02d}", frame, None, truth),
        )

    def id(self, index: int) -> str:
        """Return a path-like name of a frame."""
        return f"{self._split}/{index // FRAMES:02d}/{index % FRAMES + 1:06d}.png"

    def fingerprint(self) -> str:
        """Return a text that changes with the frames."""
        return f"{_VERSION} {self._split}"

    def _rows_of(self, index: int) -> NDArray[np.int64]:
        return self._rows[self._ends[index - 1] if index else 0 : self._ends[index]]


# --- rendering --------------------------------------------------------------------------------------------------------


def load_sequences(split: Split) -> Arrays:
    """Return the frames of all sequences (``images``: uint8, N x 128 x 128) and the annotated boxes (``rows``: int64,
    M x 7: frame among all, track in its sequence, label, left, top, right, bottom) in order of frame and track, from
    the cache folder."""

    def render() -> Arrays:
        digits, labels = load_digits()
        numbers = split_digits(labels)[split]
        keys = [hash32(_KEY, list(SEQUENCES).index(split), number) for number in range(SEQUENCES[split])]
        sequences = [make_sequence(digits[numbers], labels[numbers], key) for key in keys]
        for number, (_, rows) in enumerate(sequences):
            rows[:, 0] += number * FRAMES
        return {
            "images": np.concatenate([images for images, _ in sequences]),
            "rows": np.concatenate([rows for _, rows in sequences]),
        }

    return load_cached(f"{_VERSION}-{split}.npz", render)


def make_sequence(digits: Bytes, labels: Bytes, key: int) -> tuple[Bytes, NDArray[np.int64]]:
    """Render a sequence in integers, the same on every machine: its frames (uint8, 60 x 128 x 128) and boxes.

    Args:
        digits: to choose from (uint8, N x 8 x 8).
        labels: their classes (uint8, N).
        key: of the random numbers, 32 bits.
    """
    images = (40 * uniform(hash32(key, 0), np.arange(FRAMES * SIDE * SIDE))).astype(np.uint8)
    images = images.reshape(FRAMES, SIDE, SIDE)
    covered = np.zeros((SIDE, SIDE), bool)
    covered[:, WALL[0] : WALL[1]] = True
    drawn = uniform(hash32(key, 1), np.arange(PAIRS * 6)).reshape(PAIRS, 6).tolist()
    rows = []
    for pair, (which, first, second, down, start, back) in enumerate(drawn):
        members = np.flatnonzero(labels == int(10 * which))
        one = int(first * len(members))
        other = (one + 1 + int(second * (len(members) - 1))) % len(members)
        top = 4 + pair * 42 + int(down * 12)
        for side, member in enumerate((one, other)):
            glyph = digits[members[member]].repeat(3, 0).repeat(3, 1)
            for frame, left in enumerate(_path(side, int(start * 16), returns=back < 0.5)):
                area = frame, slice(top, top + DIGIT), slice(left, left + DIGIT)
                images[area] = np.where(glyph >= _INK, np.maximum(glyph, images[area]), images[area])
                ink = np.argwhere(glyph >= _INK)
                visible = ~covered[ink[:, 0] + top, ink[:, 1] + left]
                if visible.mean() >= MIN_VISIBLE:
                    low, high = ink.min(0), ink.max(0) + 1
                    box = left + low[1], top + low[0], left + high[1], top + high[0]
                    rows.append([frame, 2 * pair + side, int(10 * which), *map(int, box)])
    images[:, covered] = 120
    return images, np.array(sorted(rows), dtype=np.int64)


def _path(side: int, start: int, *, returns: bool) -> list[int]:
    """Return the left edge of a digit in each frame: from its side to the middle, and after a while on or back."""
    middle, far = (SIDE - DIGIT) // 2, SIDE - DIGIT - start
    begin, end = (start, far) if side == 0 else (far, start)
    if returns:
        end = begin
    inward = [begin + (middle - begin) * frame // ARRIVE for frame in range(ARRIVE)]
    outward = [middle + (end - middle) * frame // (FRAMES - LEAVE) for frame in range(FRAMES - LEAVE)]
    return inward + [middle] * (LEAVE - ARRIVE) + outward
