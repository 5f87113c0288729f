"""Which samples make up an epoch, where it is not each one once.

Each is a pure function of (seed, epoch, position): any position can be asked for alone, on any process, and a resumed
run goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Interval, MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Count, Indices, NonNegative, Sampler, Source
from opabinia.data.sampling.permutation import Order, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, SUBSET, hash32

Share = Annotated[float, Interval(gt=0, le=1)]


# --- drawn with replacement -------------------------------------------------------------------------------------------


@register.sampler
class Weighted:
    """Draws samples by the weight of their class, with replacement: some come several times in an epoch, some never.

    Args:
        source: has labels.
        seed: of the run.
        batch_size: plays no part here.
        by: ``inverse``: all classes come as often (FastReID's ImbalancedDatasetSampler); ``sqrt``: the rare ones more
            often than they are, but less than the others (weights 1 / sqrt(n)).
        classes: or weights of the classes by name, in place of it; a class that is not named has weight 1.
        length: samples of an epoch; null takes as many as there are.

    Raises:
        ValueError: the source has no labels, a class with a weight no samples or an unknown name, or all weights are 0.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        batch_size: int,
        /,
        *,
        by: Literal["inverse", "sqrt"] = "inverse",
        classes: dict[str, NonNegative] | None = None,
        length: Count | None = None,
    ) -> None:
        weights = class_weights(source, by, classes)
        ends = np.cumsum(weights)
        if not ends[-1]:
            raise ValueError("classes: all weights are 0")
        self._ends, self._seed, self._length = ends / ends[-1], seed, length or len(source)

    def __len__(self) -> int:
        return self._length

    def order(self, epoch: int) -> Order:
        """Each position draws on its own."""
        key = hash32(DRAW, self._seed, epoch)
        return lambda positions: np.searchsorted(self._ends, uniform(key, positions), "right").astype(np.int64)


def class_weights(source: Source, by: str, classes: Mapping[str, float] | None = None) -> NDArray[np.float64]:
    """The weight of each sample (N).

    Raises:
        ValueError: see :class:`Weighted`.
    """
    labels = labels_of(source)
    counts = np.bincount(labels, minlength=len(source.classes))
    if classes is None:
        _refuse_empty(source, counts, "weigh it with 0 under classes, or leave it out of the source's classes")
        per_class = 1 / counts ** (0.5 if by == "sqrt" else 1)
        found: NDArray[np.float64] = per_class[labels]
        return found
    if unknown := sorted(classes.keys() - set(source.classes)):
        known = ", ".join(list(source.classes)[:10])
        raise ValueError(f"classes: there is no class {', '.join(map(repr, unknown))}; classes: {known}")
    weights = np.array([float(classes.get(name, 1.0)) for name in source.classes])
    _refuse_empty(source, np.where(weights, counts, 1), "give it the weight 0")
    given: NDArray[np.float64] = weights[labels]
    return given


def _refuse_empty(source: Source, counts: Indices, remedy: str) -> None:
    if not len(source):
        raise ValueError(f"{type(source).__name__} holds no sample to draw")
    if empty := [name for name, count in zip(source.classes, counts, strict=True) if not count]:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise ValueError(f"there is no sample of class {', '.join(empty[:5])}{more}; {remedy}")


def uniform(key: int, positions: Indices) -> NDArray[np.float64]:
    """A number in [0, 1) for each position, by splitmix64."""
    positions = np.asarray(positions)
    words = positions.ravel().astype(np.uint64) + np.uint64((key << 32) % 2**64)
    words = words * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    drawn: NDArray[np.float64] = ((words ^ (words >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn.reshape(positions.shape)


# --- in passes --------------------------------------------------------------------------------------------------------


class _Passes:
    """Parts of the source (classes, say) from which an epoch takes given numbers of samples, each part in shuffled
    passes: none of its samples comes again before all have come. Passes go on from one epoch to the next.

    How the parts follow each other is drawn once, and each epoch begins at another place of this circle: so the number
    of samples of a part before any position is known without counting.

    Args:
        parts: the indices of each part.
        takes: how many an epoch takes from each.
        seed: of the run.
    """

    def __init__(self, parts: Sequence[Indices], takes: Sequence[int], seed: int) -> None:
        self._members = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        self._sizes = np.array([len(part) for part in parts])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._takes = np.asarray(takes, dtype=np.int64)
        self._seed = seed
        ends = np.cumsum(self._takes)
        length = int(ends[-1])
        slots = Permutation(length, hash32(ORDER, seed))(np.arange(length))
        self._circle = np.searchsorted(ends, slots, "right").astype(np.int32)
        # How many of the same part come before, in the circle.
        by_part = np.argsort(self._circle, kind="stable")
        self._before = np.empty(length, dtype=np.int64)
        self._before[by_part] = np.arange(length) - (ends - self._takes)[self._circle[by_part]]

    def __len__(self) -> int:
        return len(self._circle)

    def order(self, epoch: int) -> Order:
        """The parts are shuffled among each other."""
        start = hash32(ORDER, self._seed, epoch) % len(self)
        passed = np.bincount(self._circle[:start], minlength=len(self._takes))

        def indices(positions: Indices) -> Indices:
            slots = (np.asarray(positions, dtype=np.int64) + start) % len(self)
            parts = self._circle[slots]
            drawn = (self._before[slots] - passed[parts]) % self._takes[parts] + epoch * self._takes[parts]
            found = np.empty(slots.shape, dtype=np.int64)
            passes, within = np.divmod(drawn, self._sizes[parts])
            # Few pairs: a batch touches each part in one pass or two.
            for part, number in {*zip(parts.ravel().tolist(), passes.ravel().tolist(), strict=True)}:
                here = (parts == part) & (passes == number)
                order = Permutation(int(self._sizes[part]), hash32(DRAW, self._seed, part, number))
                found[here] = self._members[self._starts[part] + order(within[here])]
            return found

        return indices


@register.sampler
def balanced(source: Source, seed: int, batch_size: int, /, *, length: Count | None = None) -> Sampler:
    """Every class as often in each epoch (give or take one sample), in shuffled passes over its samples.

    Args:
        source: has labels.
        seed: of the run.
        batch_size: plays no part here.
        length: samples of an epoch; null takes as many as there are.

    Raises:
        ValueError: the source has no labels, or a class no samples.
    """
    parts = _by_class(source)
    _refuse_empty(source, np.array([len(part) for part in parts]), "no epoch can have it as often as the others")
    return _Passes(parts, parted(length or len(source), [1.0] * len(parts)), seed)


@register.sampler
def mixed(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    weights: Annotated[list[NonNegative], MinLen(1)],
    length: Count | None = None,
) -> Sampler:
    """Several sources joined, in given shares in each epoch, in shuffled passes over each.

    Args:
        source: the source ``joined``.
        seed: of the run.
        batch_size: plays no part here.
        weights: of its sources in their order, relative to each other.
        length: samples of an epoch; null takes as many as there are.

    Raises:
        ValueError: the source is not a joined one, or the weights do not fit.
    """
    starts = getattr(source, "starts", None)
    if starts is None:
        raise ValueError(f"mixed weighs the sources of 'joined'; this is a {type(source).__name__}")
    if len(weights) != len(starts) or not sum(weights):
        raise ValueError(f"weights: {len(starts)} sources need as many, not all 0; there are {weights}")
    ends = [*starts[1:], len(source)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if weights[number] and start == end:
            raise ValueError(f"weights.{number} is {weights[number]}, but this source holds no sample; give it 0")
    parts = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    return _Passes(parts, parted(length or len(source), weights), seed)


def parted(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers with the sum ``total`` in proportion to ``weights``; what is left goes to the largest remainders.

    Example: 10 by [1, 1, 1] is [4, 3, 3].
    """
    exact = np.asarray(weights, dtype=float) * total / sum(weights)
    takes = np.floor(exact).astype(int)
    for part in np.argsort(takes - exact, kind="stable")[: total - int(takes.sum())]:
        takes[part] += 1
    return [int(take) for take in takes]


@register.sampler
class Repeated:
    """Each sample several times in a row, so that a batch holds it under different augmentations (Hoffer et al. 2020,
    Berman et al. 2019).

    Args:
        source: any.
        seed: of the run.
        batch_size: plays no part here.
        times: how often.
        longer: whether the epoch has all the repeats; otherwise it is as long as without them, and sees another share
            of the samples each time.
    """

    def __init__(
        self, source: Source, seed: int, batch_size: int, /, *, times: Count = 3, longer: bool = False
    ) -> None:
        self._samples, self._seed, self._times, self._longer = len(source), seed, times, longer

    def __len__(self) -> int:
        return self._samples * (self._times if self._longer else 1)

    def order(self, epoch: int) -> Order:
        """Neighbours in the order are the same sample, except where an epoch cuts them apart."""
        shuffled = Permutation(self._samples, hash32(ORDER, self._seed, epoch))
        return lambda positions: shuffled(np.asarray(positions, dtype=np.int64) // self._times)


@register.sampler
class Subset:
    """A part of the samples, the same in every epoch; the others are never seen. For trials with less data.

    Args:
        source: any; with labels, if the classes are to keep their shares.
        seed: of the run.
        batch_size: plays no part here.
        share: of the samples, from 0 to 1.
        count: so many samples, in place of a share.
        keep_classes: take this share of every class, and one sample at least; of a ``count`` each class gets its share
            as nearly as whole numbers allow.
        subset_seed: chooses which; not the run's seed, so that runs are compared on the same samples.

    Raises:
        ValueError: the classes are to be kept and the source has no labels, or it has fewer than ``count`` samples.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        batch_size: int,
        /,
        *,
        share: Share = 0.1,
        count: Count | None = None,
        keep_classes: bool = True,
        subset_seed: int = 0,
    ) -> None:
        self._seed = seed
        if count is not None and count > len(source):
            raise ValueError(f"count: {count} of {len(source)} samples")
        if keep_classes and getattr(source, "labels", None) is None:
            raise ValueError(
                f"keep_classes: {type(source).__name__} does not tell the labels of its samples; false takes the part "
                "from all of them"
            )
        groups = _by_class(source) if keep_classes else [np.arange(len(source))]
        sizes = [len(group) for group in groups]
        takes = [_some(size, share) for size in sizes] if count is None else parted(count, sizes)
        chosen = [
            group[Permutation(len(group), hash32(SUBSET, subset_seed, number))(np.arange(take))]
            for number, (group, take) in enumerate(zip(groups, takes, strict=True))
        ]
        self._indices = np.sort(np.concatenate(chosen))

    def __len__(self) -> int:
        return len(self._indices)

    def order(self, epoch: int) -> Order:
        """Each of them once."""
        shuffled = Permutation(len(self), hash32(ORDER, self._seed, epoch))
        return lambda positions: self._indices[shuffled(positions)]


def _some(count: int, share: float) -> int:
    return min(count, max(1, round(count * share))) if count else 0


def _by_class(source: Source) -> list[Indices]:
    """The indices of the samples of each class."""
    labels = labels_of(source)
    ends = np.cumsum(np.bincount(labels, minlength=len(source.classes)))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])


def labels_of(source: Source) -> Indices:
    """Class numbers (N).

    Raises:
        ValueError: the source does not tell them, or its samples have several.
    """
    labels = getattr(source, "labels", None)
    if labels is None:
        raise ValueError(f"{type(source).__name__} does not tell the labels of its samples, which this sampler needs")
    found = np.asarray(labels)
    if found.ndim != 1:
        raise ValueError("samples with several labels belong to no one class, which this sampler needs")
    return found.astype(np.int64)
