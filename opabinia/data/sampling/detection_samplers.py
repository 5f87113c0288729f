"""Which pictures of things make up an epoch, and which of them share a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices, Sampler, SamplerPart, Source
from opabinia.data.sampling.permutation import EachOnce, Order, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, hash32

# --- wide or tall -----------------------------------------------------------------------------------------------------


@register.sampler
class WideOrTall:
    """Batches of pictures that are all wide, or all tall, so that little of a padded batch is padding (detectron2's
    aspect-ratio grouping, which keeps what fills no batch back for ever).

    What is left of both kinds fills the last batches of an epoch together: no picture is lost.

    Args:
        source: tells the ``sizes`` of its pictures.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        sampler: which pictures make up an epoch; null takes each once.

    Raises:
        ValueError: the source does not tell the sizes.

    Example:
        7 wide pictures and 6 tall ones in batches of 4: one batch of wide and one of tall ones, in any order; then one
        of 3 wide ones and a tall one, and the last tall one.
    """

    def __init__(self, source: Source, seed: int, batch_size: int, /, *, sampler: SamplerPart | None = None) -> None:
        sizes = getattr(source, "sizes", None)
        if sizes is None:
            raise ValueError(
                f"{type(source).__name__} does not tell the sizes of its pictures, which wide_or_tall needs; "
                "sources of pictures with boxes do"
            )
        sizes = np.asarray(sizes).reshape(-1, 2)
        self._wide = sizes[:, 1] > sizes[:, 0]
        self._inner: Sampler = EachOnce(len(source), seed) if sampler is None else sampler(source, seed, batch_size)
        self._seed, self._batch_size = seed, batch_size

    def __len__(self) -> int:
        return len(self._inner)

    def order(self, epoch: int) -> Order:
        """Whole batches of each kind, shuffled among each other; then what is left."""
        drawn = self._inner.order(epoch)(np.arange(len(self)))
        wide = self._wide[drawn]
        kinds = [drawn[wide], drawn[~wide]]
        whole = [len(kind) // self._batch_size * self._batch_size for kind in kinds]
        batches = np.concatenate([kind[:end] for kind, end in zip(kinds, whole, strict=True)])
        batches = batches.reshape(-1, self._batch_size)
        shuffled = batches[Permutation(len(batches), hash32(ORDER, self._seed, epoch, 1))(np.arange(len(batches)))]
        left = [kind[end:] for kind, end in zip(kinds, whole, strict=True)]
        indices = np.concatenate([shuffled.ravel(), *left])
        return lambda positions: indices[np.asarray(positions)]


# --- rare classes more often ------------------------------------------------------------------------------------------


@register.sampler
def repeat_factor(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    threshold: Annotated[float, Interval(gt=0, le=1)] = 0.001,
    sqrt: bool = True,
) -> Sampler:
    """Pictures of rare classes several times an epoch (Gupta et al. 2019, LVIS, section 5.1).

    A picture's factor is that of its rarest class (:func:`repeat_factors`). In each epoch it comes as often as the
    factor says, rounded up or down, and as often up as its fraction says. All epochs have the same length.

    Args:
        source: tells which classes are ``present`` in each picture.
        seed: of the run.
        batch_size: plays no part here.
        threshold: share of the pictures below which a class is rare (the paper's, for LVIS).
        sqrt: dampen the factor by a square root, as the paper does; without it a class below the threshold comes about
            as often as if it were at the threshold.

    Raises:
        ValueError: the source does not tell the classes.
    """
    present = getattr(source, "present", None)
    if present is None:
        raise ValueError(
            f"{type(source).__name__} does not tell which classes are in its pictures, which repeat_factor needs; "
            "sources of pictures with boxes do"
        )
    return Rounded(repeat_factors(present, len(source.classes), threshold, sqrt), seed)


class Rounded:
    """Each sample in an epoch as often as its factor says, rounded up or down at random.

    Args:
        factors: how often, at least 0 (float64, N).
        seed: of the run.
    """

    def __init__(self, factors: NDArray[np.float64], seed: int) -> None:
        self._times = np.floor(factors).astype(np.int64)
        fractions = factors - self._times
        self._more = round(float(fractions.sum()))
        self._chances = with_sum(fractions, self._more)
        self._seed = seed

    def __len__(self) -> int:
        return int(self._times.sum()) + self._more

    def order(self, epoch: int) -> Order:
        """All of them shuffled."""
        key = hash32(DRAW, self._seed, epoch)
        samples = Permutation(len(self._times), key)(np.arange(len(self._times)))
        # One of them comes once more wherever the sum of their chances passes another whole number.
        ends = np.minimum(np.cumsum(self._chances[samples]), self._more)
        ends[-1:] = self._more
        passed: Indices = np.floor(ends + hash32(key) / 2**32).astype(np.int64)
        times = self._times.copy()
        times[samples] += passed - np.concatenate([[0], passed[:-1]])
        indices = np.repeat(np.arange(len(times)), times)
        shuffled = Permutation(len(indices), hash32(ORDER, self._seed, epoch))
        return lambda positions: indices[shuffled(positions)]


def repeat_factors(
    present: Sequence[Indices], classes: int, threshold: float, sqrt: bool = True
) -> NDArray[np.float64]:
    """How often each picture is to come in an epoch (float64, N): max(1, sqrt(threshold / share)) of its rarest class,
    the share being that of pictures with the class; 1 for pictures in which there is nothing.

    Args:
        present: the classes in each picture (N arrays of int64, each class once).
        classes: how many there are.
        threshold: share from which on a class is not repeated.
        sqrt: take the square root; otherwise threshold / share itself.

    Example: at a threshold of 0.1 classes in 0.99, 0.09 and 0.01 of the pictures have 1, 1.054 and 3.162.
    """
    counts = [len(one) for one in present]
    found = np.concatenate([np.empty(0, np.int64), *present]).astype(np.int64)
    shares = np.bincount(found, minlength=classes) / max(1, len(counts))
    # A class that is nowhere is never looked up.
    factors = np.maximum(1, (threshold / np.where(shares, shares, 1)) ** (0.5 if sqrt else 1.0))
    largest = np.ones(len(counts))
    np.maximum.at(largest, np.repeat(np.arange(len(counts)), counts), factors[found])
    return largest


def with_sum(chances: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Chances (0 to below 1) with this whole sum, next to the one they have; 0 stays 0 and none is above 1.

    Example: 0.5, 0.5, 0.7 with the sum 2 are 0.615, 0.615, 0.769: what lacks to 1 is scaled.
    """
    now = float(chances.sum())
    if total <= now:
        return chances * (total / now if now else 0.0)
    lacking = np.where(chances > 0, 1 - chances, 0)
    some = int((chances > 0).sum())
    return np.where(chances > 0, 1 - lacking * ((some - total) / (some - now)), 0)
