"""The embedded films: handwritten digits that move, and whose class is where to."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices, Sample
from opabinia.data.decoding.video import VideoInMemory
from opabinia.data.sampling.permutation import Permutation
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digits import Arrays, cached, load_digits, split_digits
from opabinia.data.sources.videos import directed_classes
from opabinia.runtime.seeds import hash32

Split = Literal["train", "val"]
Bytes = NDArray[np.uint8]

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
"""Classes: pixels down and to the right, a frame, of the slower ones."""

_KEY = hash32(1797, 11)  # a seed of its own, so that no run's seed changes the films
_VERSION = "moving_digits-1"


@register.source
class MovingDigits:
    """Films for trying things and for tests: one of scikit-learn's handwritten digits moves over a noisy ground, on
    which a dim one stands still; the class is in which of eight directions it moves.

    Films are grey, 16 frames of 32 x 32. The digit starts anywhere, moves by 1 or 2 pixels a frame, and what leaves the
    picture comes in at the other side. So at each frame all places are as likely for every class, and a single frame
    tells nothing. Each digit is shown twice: 2,874 films of 1,437 digits for training, 720 of 360 others for validation
    (those of ``digits``, in the same split). A mirror changes the classes, which ``directed`` tells.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: which part.
    """

    channels = 1
    classes = tuple(MOVES)

    def __init__(self, *, split: Split = "train") -> None:
        arrays = load_films(split)
        self.labels = arrays["labels"].astype(np.int64)
        self._films = torch.from_numpy(arrays["films"]).unsqueeze(2)
        self._split = split
        self._directed = directed_classes([name for name, (_, right) in MOVES.items() if right], self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        index, label = range(len(self))[index], int(self.labels[index])
        film = VideoInMemory(self._films[index], path=self.id(index), fps=8.0)
        return {"video": film, "label": label, "directed": bool(self._directed[label]), "id": self.id(index)}

    def id(self, index: int) -> str:
        """Which digit of its part a film shows, and for the how many-th time."""
        return f"{self._split}/{index // SHOTS:04d}_{index % SHOTS}"

    def fingerprint(self) -> str:
        """Changes with the films."""
        return f"{_VERSION} {self._split}"


# --- making them ------------------------------------------------------------------------------------------------------


def load_films(split: Split) -> Arrays:
    """All films of a part (uint8): ``films`` (N x 16 x 32 x 32) and ``labels`` (N), kept in the cache folder.

    Making them takes some seconds, reading the cached file some milliseconds.
    """
    return cached(f"{_VERSION}-{split}.npz", lambda: _all_films(split))


def _all_films(split: Split) -> Arrays:
    digits, labels = load_digits()
    numbers = split_digits(labels)[split]
    key = hash32(_KEY, ("train", "val").index(split))
    shown = np.repeat(np.arange(len(numbers)), SHOTS)
    # As many of each class, whatever the digit is.
    classes = Permutation(len(shown), key)(np.arange(len(shown))) % len(MOVES)
    return {"films": move(digits[numbers], shown, classes, key), "labels": classes.astype(np.uint8)}


def move(digits: Bytes, shown: Indices, classes: Indices, key: int) -> Bytes:
    """A film of each digit that is shown (uint8, N x 16 x 32 x 32), in whole numbers: the same on every machine.

    Args:
        digits: to choose from (uint8, M x 8 x 8).
        shown: numbers of those that move (int64, N).
        classes: where each moves to (int64, N).
        key: of the random numbers, 32 bits.
    """
    few = [slice(start, start + _TOGETHER) for start in range(0, len(shown), _TOGETHER)]
    return np.concatenate([_moved(digits, shown[one], classes[one], hash32(key, one.start)) for one in few])


_TOGETHER = 64
"""So many are made at once that numbers on the way stay few."""


def _moved(digits: Bytes, shown: Indices, classes: Indices, key: int) -> Bytes:
    drawn = uniform(hash32(key, 0), np.arange(7 * len(shown))).reshape(7, -1)
    top, left, dim_top, dim_left = (drawn[:4] * SIDE).astype(np.int64)
    still = (drawn[4] * len(digits)).astype(np.int64)
    speed, bright = 1 + (drawn[5] * 2).astype(np.int64), 200 + (drawn[6] * 56).astype(np.int64)
    steps = np.array(list(MOVES.values()))[classes] * speed[:, None]
    times = np.arange(FRAMES)
    tops, lefts = (start[:, None] + step[:, None] * times for start, step in ((top, steps[:, 0]), (left, steps[:, 1])))
    shape = (len(shown), FRAMES, SIDE, SIDE)
    ground = (40 * uniform(hash32(key, 1), np.arange(np.prod(shape)))).astype(np.int64).reshape(shape)
    dim = _placed(digits[still], dim_top[:, None], dim_left[:, None]) * 90 // 255
    ink = _placed(digits[shown], tops, lefts) * bright[:, None, None, None] // 255
    found: Bytes = np.maximum(np.maximum(ground, dim), ink).astype(np.uint8)
    return found


def _placed(digits: Bytes, tops: Indices, lefts: Indices) -> NDArray[np.int64]:
    """Digits (N x 8 x 8) at twice their size at places (N x T) of an empty picture without borders, N x T x 32 x 32."""
    large = np.zeros((len(digits), SIDE, SIDE), dtype=np.int64)
    large[:, :16, :16] = digits.repeat(2, 1).repeat(2, 2)
    places = np.arange(SIDE)
    rows, columns = ((places - start[..., None]) % SIDE for start in (tops, lefts))
    films = np.arange(len(digits)).reshape(-1, 1, 1, 1)
    found: NDArray[np.int64] = large[films, rows[..., :, None], columns[..., None, :]]
    return found
