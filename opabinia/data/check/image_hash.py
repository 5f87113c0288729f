"""Pictures that look alike: a hash of each finds candidates, a small copy of each confirms them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from opabinia.visualization.drawing import to_pil

SMALLEST = 64
"""Pixels: of pictures with a shorter side nearly alike ones are not looked for, since too many different ones are."""

_DOWN, _ACROSS = 32, 36
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_FLAT = 4.0
"""Of 255: with a smaller deviation there is nothing in a picture."""

_CORRELATION = 0.984
"""Between photographs of different shirts on the same ground (0.9825 at most) and one view through a microscope
that was taken twice (0.985). Compressed with quality 20, a picture has 0.995 or more with itself (31 of clothes)."""

_OTHER_SHADE = 8.0
_BLOCK = 4096
_FIRM = 1.0
"""Of 255: neighbours that differ by less count as equal, so that noise turns no bit."""


class Sketch(NamedTuple):
    """What a picture, or some frames of a film (F), look like.

    Attributes:
        hashes: the difference hash of each (uint64, F): 8 x 8 bits, one for each place where it gets darker to the
            right (Krawetz 2013, "Kind of like that").
        copies: of each, in colour (uint8, F x 864): 16 x 18 pixels.
    """

    hashes: NDArray[np.uint64]
    copies: NDArray[np.uint8]


def sketched(frames: Tensor) -> Sketch | None:
    """The sketch of frames (uint8, F x C x H x W); None where they are smaller than :data:`SMALLEST` or all of them
    empty."""
    if min(frames.shape[-2:]) < SMALLEST:
        return None
    small = np.stack([_shrunk(frame) for frame in frames])
    copies = small.reshape(len(small), 16, 2, 18, 2, 3).mean((2, 4)).reshape(len(small), -1)
    if (copies.std(1) < _FLAT).all():
        return None
    cells = (small @ _GREY).reshape(len(small), 8, 4, 9, 4).mean((2, 4))
    bits = (cells[:, :, :-1] - cells[:, :, 1:] > _FIRM).reshape(len(small), 64)
    return Sketch(np.packbits(bits, axis=1).view(np.uint64)[:, 0], copies.round().astype(np.uint8))


def _shrunk(frame: Tensor) -> NDArray[np.float32]:
    """Of C x H x W, in colour (32 x 36 x 3)."""
    small = to_pil(frame).resize((_ACROSS, _DOWN), Image.Resampling.BOX, reducing_gap=2.0)
    return np.asarray(small, dtype=np.float32)


def near_pairs(sketches: Sequence[Sketch], most: int) -> NDArray[np.int64]:
    """Pairs of pictures that look alike (P x 2, by their numbers).

    Two hashes of at most ``most`` different bits agree in one of ``most`` + 1 groups of bits (Norouzi et al. 2012,
    multi-index hashing). For each group they are sorted by its bits, and those with the same are compared. So the work
    grows with the number of pictures and of those that agree, not with all pairs.

    Args:
        sketches: of N pictures, or of N films with as many frames each.
        most: bits that may differ in a hash, from 0.
    """
    if len(sketches) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    hashes = np.stack([one.hashes for one in sketches])
    copies = np.stack([one.copies for one in sketches])
    found = np.concatenate([_candidates(hashes, group, most) for group in range(most + 1)])
    return _confirmed(copies, np.unique(np.sort(found, axis=1), axis=0))


def _candidates(hashes: NDArray[np.uint64], group: int, most: int) -> NDArray[np.int64]:
    """Pairs (P x 2) whose hashes (N x F) differ in ``most`` bits at most, and in none of a group of bits."""
    leading = hashes[:, hashes.shape[1] // 2]  # films begin and end with the same pictures more often
    keys = leading & np.uint64(sum(1 << bit for bit in range(group, 64, most + 1)))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    found = [np.zeros((0, 2), dtype=np.int64)]
    first, step = np.arange(len(order) - 1), 1
    while len(first := first[first + step < len(order)]):
        first = first[keys[first + step] == keys[first]]
        pairs = np.stack([order[first], order[first + step]], 1)
        bits = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).max(1, initial=0)
        found.append(pairs[bits <= most])
        step += 1
    return np.concatenate(found)


def _confirmed(copies: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The pairs whose copies (N x F x D) show the same."""
    blocks = (pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK))
    kept = [block[_alike(copies[block[:, 0]], copies[block[:, 1]])] for block in blocks]
    return np.concatenate([pairs[:0], *kept])


def _alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which pairs of copies (P x F x D) show the same in every frame: by their correlation, or both nothing, in the
    same shade."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    means, deviations = [one.mean(2) for one in (left, right)], [one.std(2) for one in (left, right)]
    product = ((left - means[0][..., None]) * (right - means[1][..., None])).mean(2)
    flat = np.minimum(*deviations) < _FLAT
    empty = (np.maximum(*deviations) < _FLAT) & (np.abs(means[0] - means[1]) < _OTHER_SHADE)
    same = product >= _CORRELATION * deviations[0] * deviations[1]
    return np.asarray(np.where(flat, empty, same).all(1))


def groups_of(pairs: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Numbers below ``count`` that hang together by pairs (P x 2), those that hang with others only."""
    ones = np.ones(len(pairs), dtype=bool)
    graph = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, of = connected_components(graph, directed=False)
    order = np.argsort(of, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if count else []
    return sorted((one for one in parts if len(one) > 1), key=lambda one: int(one[0]))
