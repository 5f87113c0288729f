"""General samplers: weighted, balanced, mixed, repeated, and subsets.

The order of an epoch is a pure function of (seed, epoch, position): any position can be looked up alone, on any
process, and a resumed run continues with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Interval, MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Count, Indices, NonNegative, Sampler, Source
from opabinia.data.sampling.epoch_order import Order, OrderSampler, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, SUBSET, hash32
from opabinia.runtime.text import first_of

Share = Annotated[float, Interval(gt=0, le=1)]


# --- drawn with replacement -------------------------------------------------------------------------------------------


@register.sampler
def weighted(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    weighting: Literal["inverse", "sqrt"] = "inverse",
    class_weights: dict[str, NonNegative] | None = None,
    length: Count | None = None,
) -> Sampler:
    """Samples drawn by the weight of their class, with replacement: in an epoch some come several times, some never.

    Args:
        source: has labels.
        seed: of the run.
        batch_size: not used.
        weighting: ``inverse``: all classes are equally frequent (FastReID's ImbalancedDatasetSampler); ``sqrt``: rare
            classes become more frequent, but not as frequent as the others (weights 1 / sqrt(n)).
        class_weights: by class name, instead of ``weighting``; a class that is not named has weight 1.
        length: samples per epoch; null takes the number of samples of the source.

    Raises:
        ValueError: the source has no labels, a class with a weight no samples or an unknown name, or all weights are 0.
    """
    ends = np.cumsum(sample_weights(source, weighting, class_weights))
    if not ends[-1]:
        raise ValueError("class_weights: all weights are 0")
    ends /= ends[-1]

    def order(epoch: int) -> Order:
        key = hash32(DRAW, seed, epoch)
        return lambda positions: np.searchsorted(ends, uniform(key, positions), "right").astype(np.int64)

    return OrderSampler(length or len(source), order)


def sample_weights(
    source: Source, weighting: str, class_weights: Mapping[str, float] | None = None
) -> NDArray[np.float64]:
    """Return the weight of each sample (N).

    Raises:
        ValueError: see :func:`weighted`.
    """
    labels = labels_of(source)
    counts = np.bincount(labels, minlength=len(source.classes))
    weights: NDArray[np.float64]
    if class_weights is None:
        remedy = "give it the weight 0 under class_weights, or remove it from the classes of the source"
        _check_not_empty(source, counts, remedy)
        weights = 1 / counts ** (0.5 if weighting == "sqrt" else 1)
    else:
        if unknown := sorted(class_weights.keys() - set(source.classes)):
            known = ", ".join(list(source.classes)[:10])
            raise ValueError(f"class_weights: there is no class {', '.join(map(repr, unknown))}; classes: {known}")
        weights = np.array([float(class_weights.get(name, 1.0)) for name in source.classes])
        _check_not_empty(source, np.where(weights, counts, 1), "give it the weight 0")
    return weights[labels]


def _check_not_empty(source: Source, counts: Indices, remedy: str) -> None:
    if not len(source):
        raise ValueError(f"{type(source).__name__} holds no sample to draw")
    if empty := [name for name, count in zip(source.classes, counts, strict=True) if not count]:
        raise ValueError(f"there is no sample of class {first_of(empty)}; {remedy}")


def uniform(key: int, positions: Indices) -> NDArray[np.float64]:
    """Return a random number in [0, 1) for each position, by splitmix64."""
    positions = np.asarray(positions)
    words = positions.ravel().astype(np.uint64) + np.uint64((key << 32) % 2**64)
    words = words * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    numbers: NDArray[np.float64] = ((words ^ (words >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers.reshape(positions.shape)


# --- fixed numbers from each group ------------------------------------------------------------------------------------


def _group_sampler(groups: Sequence[Indices], takes: Sequence[int], seed: int) -> Sampler:
    """Return a sampler that takes a fixed number of samples per epoch from each group (class, source), in shuffled
    passes over the group: no sample is repeated before all have come. Passes continue from one epoch to the next.

    The sequence of groups is drawn once, as a circle, and each epoch begins at another place of it: so the number of
    samples of a group before any position is known without counting.

    Args:
        groups: indices of the samples in each group.
        takes: samples per epoch from each.
        seed: of the run.
    """
    members = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
    sizes, counts = np.array([len(group) for group in groups]), np.asarray(takes, dtype=np.int64)
    starts, ends = np.cumsum(sizes) - sizes, np.cumsum(counts)
    length = int(ends[-1])
    circle = np.searchsorted(ends, Permutation(length, hash32(ORDER, seed))(np.arange(length)), "right")
    circle = circle.astype(np.int32)
    # The number of slots of the same group before each slot.
    by_group = np.argsort(circle, kind="stable")
    before = np.empty(length, dtype=np.int64)
    before[by_group] = np.arange(length) - (ends - counts)[circle[by_group]]

    def order(epoch: int) -> Order:
        start = hash32(ORDER, seed, epoch) % length
        skipped = np.bincount(circle[:start], minlength=len(counts))

        def look_up(positions: Indices) -> Indices:
            slots = (np.asarray(positions, dtype=np.int64) + start) % length
            group_of = circle[slots]
            drawn = (before[slots] - skipped[group_of]) % counts[group_of] + epoch * counts[group_of]
            indices = np.empty(slots.shape, dtype=np.int64)
            passes, within = np.divmod(drawn, sizes[group_of])
            # Few pairs: the samples of a batch belong to one or two passes of each group.
            for group, number in {*zip(group_of.ravel().tolist(), passes.ravel().tolist(), strict=True)}:
                here = (group_of == group) & (passes == number)
                permutation = Permutation(int(sizes[group]), hash32(DRAW, seed, group, number))
                indices[here] = members[starts[group] + permutation(within[here])]
            return indices

        return look_up

    return OrderSampler(length, order)


@register.sampler
def balanced(source: Source, seed: int, batch_size: int, /, *, length: Count | None = None) -> Sampler:
    """Every class equally often in each epoch (plus or minus one sample), in shuffled passes over its samples.

    Args:
        source: has labels.
        seed: of the run.
        batch_size: not used.
        length: samples per epoch; null takes the number of samples of the source.

    Raises:
        ValueError: the source has no labels, or a class no samples.
    """
    classes = _by_class(source)
    _check_not_empty(source, np.array([len(members) for members in classes]), "so classes cannot be balanced")
    return _group_sampler(classes, apportion(length or len(source), [1.0] * len(classes)), seed)


@register.sampler
def mixed_sources(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    weights: Annotated[list[NonNegative], MinLen(1)],
    length: Count | None = None,
) -> Sampler:
    """Several concatenated sources with given shares in each epoch, in shuffled passes over each.

    Args:
        source: a concatenation of sources.
        seed: of the run.
        batch_size: not used.
        weights: of its sources in their order, relative to each other.
        length: samples per epoch; null takes the number of samples of all sources.

    Raises:
        ValueError: the source is not a concatenation, or the weights do not fit.
    """
    starts = source.info.starts
    if starts is None:
        raise ValueError(f"mixed_sources weights concatenated sources; this is a {type(source).__name__}")
    if len(weights) != len(starts) or not sum(weights):
        raise ValueError(f"weights: {len(starts)} sources need as many, not all 0, instead of {weights}")
    groups = np.split(np.arange(len(source)), starts[1:])
    for number, group in enumerate(groups):
        if weights[number] and not len(group):
            raise ValueError(f"weights.{number} is {weights[number]}, but this source holds no sample; give it 0")
    return _group_sampler(groups, apportion(length or len(source), weights), seed)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Return integers with the sum ``total`` in proportion to ``weights``, by largest remainders.

    Example: 10 by [1, 1, 1] is [4, 3, 3].
    """
    exact = np.asarray(weights, dtype=float) * total / sum(weights)
    takes = np.floor(exact).astype(int)
    takes[np.argsort(takes - exact, kind="stable")[: total - int(takes.sum())]] += 1
    return [int(take) for take in takes]


# --- repeats and subsets ----------------------------------------------------------------------------------------------


@register.sampler
def repeated(
    source: Source, seed: int, batch_size: int, /, *, num_repeats: Count = 3, extend_epoch: bool = False
) -> Sampler:
    """Each sample several times in a row, so that a batch holds it with different augmentations: repeated augmentation
    (Hoffer et al. 2020, Berman et al. 2019).

    Args:
        source: any.
        seed: of the run.
        batch_size: not used.
        num_repeats: times that each sample is repeated.
        extend_epoch: whether an epoch holds all repeats; otherwise it has the length of the source, and a different
            part of the samples each time.
    """

    def order(epoch: int) -> Order:
        """Neighbors are the same sample, except at the end of an epoch that cuts its repeats off."""
        shuffled = Permutation(len(source), hash32(ORDER, seed, epoch))
        return lambda positions: shuffled(np.asarray(positions, dtype=np.int64) // num_repeats)

    return OrderSampler(len(source) * (num_repeats if extend_epoch else 1), order)


@register.sampler
def subset(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    fraction: Share = 0.1,
    num_samples: Count | None = None,
    stratified: bool = True,
    equal_classes: bool = False,
    subset_seed: int = 0,
) -> Sampler:
    """A part of the samples, the same in every epoch; the others are never used. For experiments with less data.

    Args:
        source: any; with labels, if stratified.
        seed: of the run.
        batch_size: not used.
        fraction: of the samples, above 0 to 1.
        num_samples: of the subset, instead of a fraction.
        stratified: take this fraction of every class, and at least one sample; with ``num_samples`` each class gets its
            share as nearly as integers allow.
        equal_classes: with ``num_samples``, take the same number of every class (VISSL's balanced subsets).
        subset_seed: chooses the samples; not the run's seed, so that runs are compared on the same samples.

    Raises:
        ValueError: it is stratified and the source has no labels, or the source has fewer than ``num_samples`` samples.
    """
    if num_samples is not None and num_samples > len(source):
        raise ValueError(f"num_samples: {num_samples} of {len(source)} samples")
    if equal_classes and num_samples is None:
        raise ValueError("equal_classes: it belongs to num_samples")
    if (stratified or equal_classes) and source.info.labels is None:
        key = "equal_classes" if equal_classes else "stratified"
        raise ValueError(f"{key}: {type(source).__name__} does not know the labels of its samples; set it to false")
    groups = _by_class(source) if stratified or equal_classes else [np.arange(len(source))]
    sizes = [len(group) for group in groups]
    if num_samples is None:
        takes = [min(size, max(1, round(size * fraction))) for size in sizes]
    elif equal_classes:
        takes = apportion(num_samples, [1] * len(sizes))
        if few := [source.classes[number] for number, size in enumerate(sizes) if takes[number] > size]:
            raise ValueError(f"equal_classes: classes have fewer than {max(takes)} samples: {', '.join(few[:5])}")
    else:
        takes = apportion(num_samples, sizes)
    chosen = [
        group[Permutation(len(group), hash32(SUBSET, subset_seed, number))(np.arange(take))]
        for number, (group, take) in enumerate(zip(groups, takes, strict=True))
    ]
    indices = np.sort(np.concatenate(chosen))

    def order(epoch: int) -> Order:
        shuffled = Permutation(len(indices), hash32(ORDER, seed, epoch))
        return lambda positions: indices[shuffled(positions)]

    return OrderSampler(len(indices), order)


def _by_class(source: Source) -> list[Indices]:
    """Return the indices of the samples of each class."""
    labels = labels_of(source)
    ends = np.cumsum(np.bincount(labels, minlength=len(source.classes)))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])


def labels_of(source: Source) -> Indices:
    """Return the class label of each sample (N).

    Raises:
        ValueError: the source does not know them, or its samples have several.
    """
    if source.info.labels is None:
        raise ValueError(f"{type(source).__name__} does not know the labels of its samples, which this sampler needs")
    labels = source.info.single_labels
    if labels is None:
        raise ValueError("this sampler needs samples with one label, and these have several")
    return labels.astype(np.int64)
