"""The embedded video dataset: handwritten digits that move; the class is the direction."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices, Sample, Source, SourceInfo
from opabinia.data.decoding.image_sequences import VideoInMemory
from opabinia.data.sampling.epoch_order import Permutation
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digit_rendering import Bytes, by_blocks
from opabinia.data.sources.digits import Arrays, Split, load_cached, load_digits, split_digits
from opabinia.runtime.seeds import hash32

SIDE, FRAMES, SHOTS = 32, 16, 2
MOVES = {
    "right": (0, 1),
    "lower right": (1, 1),
    "down": (1, 0),
    "lower left": (1, -1),
    "left": (0, -1),
    "upper left": (-1, -1),
    "up": (-1, 0),
    "upper right": (-1, 1),
}
"""Classes: pixels per frame (down, right) of the slower of the two speeds."""

_KEY = hash32(1797, 11)  # fixed, so that a run's seed does not change the videos
_VERSION = "moving_digits-1"


@register.source
class MovingDigits(Source):
    """Video classification for trials and tests: one of scikit-learn's handwritten digits moves over a noisy background
    with a dim digit that stands still; the class is one of eight directions of motion.

    Videos are gray, 16 frames of 32 x 32. The digit starts anywhere, moves by 1 or 2 pixels per frame and wraps around
    at the borders. So in each frame all positions are equally likely for every class, and a single frame has no
    information about it. Each digit is shown twice: 2,874 videos of 1,437 digits for training, 720 of 360 others for
    validation (those of ``digits``, in the same split). A horizontal flip changes the class, except up and down.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: train or val.
    """

    def __init__(self, *, split: Split = "train") -> None:
        arrays = load_videos(split)
        self.info = SourceInfo(channels=1, classes=tuple(MOVES), labels=arrays["labels"].astype(np.int64))
        self._videos = torch.from_numpy(arrays["videos"]).unsqueeze(2)
        self._split = split

    def __len__(self) -> int:
        return len(self._videos)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        label, sample_id = self.info.labels_of(index)["label"], self.id(index)
        video = VideoInMemory(self._videos[index], path=sample_id, fps=8.0)
        _, right = MOVES[self.classes[label]]
        return {"video": video, "label": label, "flip_changes_label": right != 0, "id": sample_id}

    def id(self, index: int) -> str:
        """Return the split, the index of the digit in it and the number of the video of this digit."""
        return f"{self._split}/{index // SHOTS:04d}_{index % SHOTS}"

    def fingerprint(self) -> str:
        """Return a text that changes with the videos."""
        return f"{_VERSION} {self._split}"


# --- rendering --------------------------------------------------------------------------------------------------------


def load_videos(split: Split) -> Arrays:
    """Return ``videos`` (uint8, N x 16 x 32 x 32) and ``labels`` (uint8, N) of a split, from the cache folder.

    Rendering takes some seconds, reading the cached file some milliseconds.
    """

    def render() -> Arrays:
        digits, labels = load_digits()
        numbers = split_digits(labels)[split]
        key = hash32(_KEY, ("train", "val").index(split))
        shown = np.repeat(np.arange(len(numbers)), SHOTS)
        # Balanced classes, independent of the digit.
        classes = Permutation(len(shown), key)(np.arange(len(shown))) % len(MOVES)
        return {"videos": move(digits[numbers], shown, classes, key), "labels": classes.astype(np.uint8)}

    return load_cached(f"{_VERSION}-{split}-videos.npz", render)


def move(digits: Bytes, shown: Indices, classes: Indices, key: int) -> Bytes:
    """Render one video per entry of ``shown`` (uint8, N x 16 x 32 x 32), in integers: the same on every machine.

    Args:
        digits: to choose from (uint8, M x 8 x 8).
        shown: indices of the moving digits (int64, N).
        classes: direction of each (int64, N).
        key: of the random numbers, 32 bits.
    """
    return by_blocks(lambda block: _render(digits, shown[block], classes[block], hash32(key, block.start)), len(shown))


def _render(digits: Bytes, shown: Indices, classes: Indices, key: int) -> Bytes:
    drawn = uniform(hash32(key, 0), np.arange(7 * len(shown))).reshape(7, -1)
    top, left, dim_top, dim_left = (drawn[:4] * SIDE).astype(np.int64)
    still = (drawn[4] * len(digits)).astype(np.int64)
    speed, brightness = 1 + (drawn[5] * 2).astype(np.int64), 200 + (drawn[6] * 56).astype(np.int64)
    steps = np.array(list(MOVES.values()))[classes] * speed[:, None]
    times = np.arange(FRAMES)
    tops, lefts = (start[:, None] + step[:, None] * times for start, step in ((top, steps[:, 0]), (left, steps[:, 1])))
    shape = (len(shown), FRAMES, SIDE, SIDE)
    background = (40 * uniform(hash32(key, 1), np.arange(np.prod(shape)))).astype(np.int64).reshape(shape)
    dim = _place(digits[still], dim_top[:, None], dim_left[:, None]) * 90 // 255
    ink = _place(digits[shown], tops, lefts) * brightness[:, None, None, None] // 255
    videos: Bytes = np.maximum(np.maximum(background, dim), ink).astype(np.uint8)
    return videos


def _place(digits: Bytes, tops: Indices, lefts: Indices) -> NDArray[np.int64]:
    """Return digits (N x 8 x 8), enlarged twice, at positions (N x T) of empty images that wrap around (N x T x 32 x
    32)."""
    large = np.zeros((len(digits), SIDE, SIDE), dtype=np.int64)
    large[:, :16, :16] = digits.repeat(2, 1).repeat(2, 2)
    rows, columns = ((np.arange(SIDE) - start[..., None]) % SIDE for start in (tops, lefts))
    videos = np.arange(len(digits)).reshape(-1, 1, 1, 1)
    frames: NDArray[np.int64] = large[videos, rows[..., :, None], columns[..., None, :]]
    return frames
