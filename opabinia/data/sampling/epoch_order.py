"""Order of an epoch: a function from positions (0 to n - 1, in the order of training) to indices of the source.

A shuffled order is a keyed permutation computed by arithmetic: any position can be looked up alone, no array has the
length of the dataset, and all processes agree without communication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices
from opabinia.runtime.seeds import ORDER, hash32

Order = Callable[[Indices], Indices]
"""Maps positions (int64, any shape) to indices of the source, of the same shape."""

_Words = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, as in splitmix64
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(_GOLDEN), np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)

_SMALL = 2**16
_ROUNDS_SMALL, _ROUNDS = 24, 8


class Permutation:
    """A permutation of 0 to n - 1 chosen by ``key``, for n from 0 to 2**62.

    A generalized Feistel network over Z_a x Z_b with a * b >= n, applied again while the result is outside of 0 to n -
    1 (cycle walking; Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). For shuffling, not for
    cryptography.

    Small domains get more rounds: the distance from the uniform distribution over all n! orders halves with every two
    rounds (exact computation for n <= 7), and with 8 it would be noticeable.

    >>> sorted(Permutation(5, key=7)(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n <= 2**62:
            raise ValueError(f"a permutation of {n} items: the number must lie between 0 and 2**62")
        self.n = n
        # One side is even: with two odd ones every round is an even permutation, and half of all orders are impossible.
        a = max(2, isqrt(n) // 2 * 2)
        self._sides = np.uint64(a), np.uint64(max(1, -(-n // a)))
        rounds = _ROUNDS_SMALL if n < _SMALL else _ROUNDS
        self._keys = [np.uint64(_mix64(key + i * _GOLDEN)) for i in range(1, rounds + 1)]

    def __call__(self, positions: Indices) -> Indices:
        """Return the indices at these positions (int64, any shape).

        Raises:
            IndexError: a position is negative or not below n.
        """
        positions = check_positions(positions, self.n)
        indices = self._once(positions.ravel().astype(np.uint64))
        while (outside := np.flatnonzero(indices >= np.uint64(self.n))).size:
            indices[outside] = self._once(indices[outside])
        return indices.astype(np.int64).reshape(positions.shape)

    def _once(self, numbers: _Words) -> _Words:
        a, b = self._sides
        left: _Words
        left, right = np.divmod(numbers, b)
        for key_left, key_right in zip(self._keys[::2], self._keys[1::2], strict=True):
            left = _add(left, _draw(right, key_left, a), a)
            right = _add(right, _draw(left, key_right, b), b)
        return left * b + right


def check_positions(positions: Indices, n: int) -> Indices:
    """Return positions in an order of ``n`` as int64.

    Raises:
        IndexError: a position is negative or not below n.
    """
    positions = np.asarray(positions, dtype=np.int64)
    if positions.size and not (positions.min() >= 0 and positions.max() < n):
        raise IndexError(f"positions {positions.min()} to {positions.max()} of an order of {n}")
    return positions


def _add(x: _Words, y: _Words, modulus: np.uint64) -> _Words:
    total: _Words = x + y
    # For a total below the modulus the difference wraps around to a huge number, so the minimum is the remainder.
    remainder: _Words = np.minimum(total, total - modulus)
    return remainder


def _draw(x: _Words, key: np.uint64, size: np.uint64) -> _Words:
    """Return a keyed pseudo-random number from 0 to size - 1 for each x; size is at most 2**32."""
    h: _Words = (x ^ key) * _MULTIPLIER_1
    h ^= h >> _HALF
    h *= _MULTIPLIER_2
    h >>= _HALF
    h *= size
    h >>= _HALF
    return h


def _mix64(x: int) -> int:
    """Apply the finalizer of splitmix64 to 64 bits."""
    mask = 2**64 - 1
    x &= mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def epoch_order(seed: int, epoch: int, n: int, shuffle: bool) -> Order:
    """Return the order of an epoch over n samples: shuffled by (seed, epoch), or that of the source."""
    return Permutation(n, hash32(ORDER, seed, epoch)) if shuffle else lambda positions: positions


@dataclass(frozen=True)
class OrderSampler:
    """A sampler (:class:`opabinia.contracts.Sampler`) whose orders are returned by a function.

    Attributes:
        samples: positions in an epoch.
        order: returns the order of an epoch.
    """

    samples: int
    order: Callable[[int], Order]

    def __len__(self) -> int:
        return self.samples


@dataclass(frozen=True)
class EpochSampler:
    """The default sampler (:class:`opabinia.contracts.Sampler`): every sample once per epoch.

    Attributes:
        samples: number of samples.
        seed: of the run.
        shuffle: a new order for each epoch; otherwise the order of the source.
    """

    samples: int
    seed: int
    shuffle: bool = True

    def __len__(self) -> int:
        return self.samples

    def order(self, epoch: int) -> Order:
        """See :func:`epoch_order`."""
        return epoch_order(self.seed, epoch, self.samples, self.shuffle)
