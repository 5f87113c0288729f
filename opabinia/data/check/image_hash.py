"""Near duplicates of images: a hash finds candidates, a thumbnail confirms them."""

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

NEAR_BITS = 4
"""Bits that may differ in the hashes of nearly identical images."""

MIN_SIDE = 64
"""Pixels: smaller images are not compared, because too many different ones look alike."""

_HEIGHT, _WIDTH = 32, 36
_GRAY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_MIN_DEVIATION = 4.0
"""In units of 1/255: an image with a smaller standard deviation counts as uniform."""

_MIN_CORRELATION = 0.984
"""Between photographs of different shirts on the same background (0.9825 at most) and one microscope view that was
captured twice (0.985). An image compressed with quality 20 has 0.995 or more with itself (31 images of clothes)."""

_MAX_SHADE_DIFFERENCE = 8.0
"""In units of 1/255: uniform images are duplicates if their means differ by less."""

_BLOCK = 4096
"""Pairs that are compared at once."""

_MIN_STEP = 1.0
"""In units of 1/255: neighbors that differ by less count as equal, so that noise changes no bit."""


class ImageHash(NamedTuple):
    """Hashes and thumbnails of an image, or of F frames of a video.

    Attributes:
        hashes: the difference hash of each (uint64, F): 8 x 8 bits, one for each position that is brighter than its
            right neighbor (Krawetz 2013, "Kind of like that").
        thumbnails: of each, in color (uint8, F x 864): 16 x 18 pixels.
    """

    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]


def compute_hash(frames: Tensor) -> ImageHash | None:
    """Hash frames (uint8, F x C x H x W); None if they are smaller than :data:`MIN_SIDE` or all are uniform."""
    if min(frames.shape[-2:]) < MIN_SIDE:
        return None
    resized = [to_pil(frame).resize((_WIDTH, _HEIGHT), Image.Resampling.BOX, reducing_gap=2.0) for frame in frames]
    small = np.stack([np.asarray(frame, dtype=np.float32) for frame in resized])
    thumbnails = small.reshape(len(small), 16, 2, 18, 2, 3).mean((2, 4)).reshape(len(small), -1)
    if (thumbnails.std(1) < _MIN_DEVIATION).all():
        return None
    cells = (small @ _GRAY).reshape(len(small), 8, 4, 9, 4).mean((2, 4))
    bits = (cells[:, :, :-1] - cells[:, :, 1:] > _MIN_STEP).reshape(len(small), 64)
    return ImageHash(np.packbits(bits, axis=1).view(np.uint64)[:, 0], thumbnails.round().astype(np.uint8))


def find_near_pairs(hashes: Sequence[ImageHash | None], max_bits: int = NEAR_BITS) -> NDArray[np.int64]:
    """Return the index pairs of images that look alike (P x 2).

    Two hashes that differ in at most ``max_bits`` bits agree in one of ``max_bits`` + 1 groups of bits (Norouzi et al.
    2012, multi-index hashing). For each group the hashes are sorted by its bits, and equal ones are compared. So the
    work grows with the number of images and of equal groups, not with all pairs.

    Args:
        hashes: of N images, or of N videos with the same number of frames each; None: never a pair.
        max_bits: bits that may differ in a hash, from 0.
    """
    known = np.array([index for index, image in enumerate(hashes) if image is not None], dtype=np.int64)
    if len(known) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    bits = np.stack([image.hashes for image in hashes if image is not None])
    thumbnails = np.stack([image.thumbnails for image in hashes if image is not None])
    candidates = np.concatenate([_find_candidates(bits, group, max_bits) for group in range(max_bits + 1)])
    pairs = np.unique(np.sort(candidates, axis=1), axis=0)
    blocks = (pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK))
    kept = [block[_look_alike(thumbnails[block[:, 0]], thumbnails[block[:, 1]])] for block in blocks]
    near: NDArray[np.int64] = known[np.concatenate([pairs[:0], *kept])]
    return near


def _find_candidates(hashes: NDArray[np.uint64], group: int, max_bits: int) -> NDArray[np.int64]:
    """Return pairs (P x 2) whose hashes (N x F) differ in at most ``max_bits`` bits, and in none of a group of bits."""
    middle = hashes[:, hashes.shape[1] // 2]  # different videos often begin and end with the same frames
    keys = middle & np.uint64(sum(1 << bit for bit in range(group, 64, max_bits + 1)))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    candidates = [np.zeros((0, 2), dtype=np.int64)]
    first, step = np.arange(len(order) - 1), 1
    while len(first := first[first + step < len(order)]):
        first = first[keys[first + step] == keys[first]]
        pairs = np.stack([order[first], order[first + step]], 1)
        differing = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).max(1, initial=0)
        candidates.append(pairs[differing <= max_bits])
        step += 1
    return np.concatenate(candidates)


def _look_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which pairs of thumbnails (P x F x D) match in every frame: they correlate, or both are uniform in the
    same shade."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    means, deviations = [image.mean(2) for image in (left, right)], [image.std(2) for image in (left, right)]
    product = ((left - means[0][..., None]) * (right - means[1][..., None])).mean(2)
    any_uniform = np.minimum(*deviations) < _MIN_DEVIATION
    both_uniform = np.maximum(*deviations) < _MIN_DEVIATION
    same_shade = both_uniform & (np.abs(means[0] - means[1]) < _MAX_SHADE_DIFFERENCE)
    correlated = product >= _MIN_CORRELATION * deviations[0] * deviations[1]
    return np.asarray(np.where(any_uniform, same_shade, correlated).all(1))


def connect(pairs: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the number of the connected component of each of ``count`` nodes (int64); ``pairs`` (P x 2) are edges."""
    graph = coo_array((np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    components: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return components


def members_of(components: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the nodes of each component, given that of each node."""
    order = np.argsort(components, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(components[order])) + 1) if len(order) else []


def connected_groups(pairs: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Return the connected components with two or more of ``count`` nodes; ``pairs`` (P x 2) are the edges."""
    groups = members_of(connect(pairs, count))
    return sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0]))
