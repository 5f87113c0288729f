"""Batches of P identities with K images each, for losses that compare the samples of a batch.

An identity is a class of the source. Batches are drawn in passes over the identities, and passes continue from one
epoch to the next. A whole pass is drawn at once, from the seed and its number alone: so any batch of any epoch is found
by division, and only the latest pass is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import gcd
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Count, Indices, Sampler, Source
from opabinia.data.sampling.epoch_order import Order, OrderSampler
from opabinia.data.sampling.samplers import labels_of, uniform
from opabinia.runtime.seeds import DRAW, ORDER, hash32

SmallIdentities = Literal["repeat", "drop"]
Domain = Literal["source", "camera"]

# --- the samplers -----------------------------------------------------------------------------------------------------


@register.sampler
def identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    instances: Count = 4,
    small_identities: SmallIdentities = "repeat",
    length: Count | None = None,
) -> Sampler:
    """Batches of P = batch_size / K different identities with K images each.

    An identity with n images comes n // K times in a pass, each time with other images (FastReID's
    NaiveIdentitySampler; its passes omit more images, these have as many batches as can be filled).

    Args:
        source: has labels.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        instances: K, images of an identity in a batch (default: FastReID's).
        small_identities: for identities with fewer than K images: ``repeat`` repeats some of them, ``drop`` never
            trains on these identities.
        length: samples per epoch, rounded down to whole batches, at least one; null takes the number of samples of the
            source.

    Raises:
        ValueError: the source has no labels or too few identities, or K does not divide the batch.

    Example:
        18 images of identities with 5, 4, 2, 6 and 1 images, in batches of 8: a pass has two batches of two identities,
        and one identity waits for the next pass.
    """
    images, per_batch = _images_and_identities(labels_of(source), batch_size, instances, small_identities)
    return _batch_sampler([_pass_by_size(images, per_batch, instances)], instances, seed, length or len(source))


@register.sampler
def balanced_identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    instances: Count = 4,
    small_identities: SmallIdentities = "repeat",
    length: Count | None = None,
) -> Sampler:
    """Batches in which every identity comes once per pass, regardless of its number of images, from as many cameras as
    possible: one image, and K - 1 from other cameras as long as there are any (FastReID's BalancedIdentitySampler).

    Identities that fill no batch at the end of a pass are dropped from it; they are others each time.

    Args:
        source: has labels and ``cameras``.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        instances: K, images of an identity in a batch (default: FastReID's).
        small_identities: for identities with fewer than K images: ``repeat`` repeats some of them, ``drop`` never
            trains on these identities.
        length: samples per epoch, rounded down to whole batches, at least one; null takes the number of samples of the
            source.

    Raises:
        ValueError: the source has no labels, no cameras or too few identities, or K does not divide the batch.

    Example:
        An identity has the images a and b of camera 0, c and d of camera 1. If a comes first, four images are a, c, d,
        b or a, d, c, b.
    """
    cameras = _cameras_of(source)
    images, per_batch = _images_and_identities(labels_of(source), batch_size, instances, small_identities)
    one_pass = _pass_by_camera(images, per_batch, instances, cameras[images.members])
    return _batch_sampler([one_pass], instances, seed, length or len(source))


@register.sampler
def mixed_identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    weights: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)],
    domain: Domain = "source",
    instances: Count = 4,
    small_identities: SmallIdentities = "repeat",
    length: Count | None = None,
) -> Sampler:
    """Like ``identities``, with a fixed number of identities from each camera, or each source of a concatenation, in
    every batch (the intention of FastReID's SetReWeightSampler).

    With cameras, all K images of an identity are from one camera. An identity seen by several cameras may come from two
    of them in one batch, with K images each.

    Args:
        source: has labels, and ``cameras`` or is a concatenation of sources.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        weights: of the sources or cameras in their order, relative to each other: of 16 identities [3, 1] takes 12 and
            4. They must divide the identities of a batch without remainder.
        domain: whether the weights are those of each ``source`` or each ``camera``.
        instances: K, images of an identity in a batch (default: FastReID's).
        small_identities: for identities with fewer than K images there: ``repeat`` repeats some of them, ``drop`` never
            trains on these identities.
        length: samples per epoch, rounded down to whole batches, at least one; null takes the number of samples of the
            source.

    Raises:
        ValueError: the source lacks labels, cameras or sources, the weights do not fit to it or to the batch, or a
            source or camera has too few identities.
    """
    labels = labels_of(source)
    domains, count = _domains_of(source, domain)
    if len(weights) != count or not sum(weights):
        raise ValueError(f"weights: {count} {domain}s need as many weights, not all 0, instead of {weights}")
    takes = _identity_counts(_identities_per_batch(batch_size, instances), weights, instances)
    _check_several(len(np.unique(labels)))
    passes = []
    for number, per_batch in enumerate(takes):
        if not per_batch:
            continue
        images = _Images.of(labels, np.flatnonzero(domains == number), instances, small_identities)
        if (available := len(images.sizes)) < per_batch:
            message = (
                f"weights.{number}: each batch takes {per_batch} identities of this {domain}, which has {available}"
            )
            remedy = "give it a smaller weight or take a smaller batch_size"
            raise ValueError(f"{message}{_condition(instances, small_identities)}; {remedy}")
        passes.append(_pass_by_size(images, per_batch, instances))
    return _batch_sampler(passes, instances, seed, length or len(labels))


# --- checks -----------------------------------------------------------------------------------------------------------


def _identities_per_batch(batch_size: int, instances: int) -> int:
    if batch_size % instances:
        message = f"instances: a batch of {batch_size} cannot hold {instances} images of each of its identities; "
        raise ValueError(message + _suggest_batch_size(batch_size, instances))
    return batch_size // instances


def _identity_counts(identities: int, weights: Sequence[int], instances: int) -> list[int]:
    """Return the identities of a batch, divided by weights."""
    whole = sum(weights)
    if any(identities * weight % whole for weight in weights):
        message = f"weights: {identities} identities of a batch cannot be divided as {':'.join(map(str, weights))}; "
        raise ValueError(message + _suggest_batch_size(identities * instances, whole // gcd(*weights) * instances))
    return [identities * weight // whole for weight in weights]


def _suggest_batch_size(batch_size: int, step: int) -> str:
    below = batch_size // step * step
    return f"batch_size {f'{below} or ' if below else ''}{below + step} would do"


def _images_and_identities(
    labels: Indices, batch_size: int, instances: int, small_identities: SmallIdentities
) -> tuple[_Images, int]:
    """Return all images to draw from, and P."""
    per_batch = _identities_per_batch(batch_size, instances)
    images = _Images.of(labels, np.arange(len(labels)), instances, small_identities)
    available, condition = len(images.sizes), _condition(instances, small_identities)
    _check_several(available, condition)
    if available < per_batch:
        raise ValueError(
            f"a batch of {batch_size} with {instances} images each has {per_batch} identities, and there are "
            f"{available}{condition}; batch_size {available * instances} would do"
        )
    return images, per_batch


def _check_several(identities: int, condition: str = "") -> None:
    if identities < 2:
        raise ValueError(f"identities: only {identities}{condition}: there is nothing to compare with each other")


def _condition(instances: int, small_identities: SmallIdentities) -> str:
    """Return which identities count, for messages."""
    return "" if small_identities == "repeat" else f" with {instances} images or more (small_identities: drop)"


def _cameras_of(source: Source) -> Indices:
    if source.info.cameras is None:
        raise ValueError(f"{type(source).__name__} does not know the cameras of its images, which this sampler needs")
    return np.asarray(source.info.cameras, dtype=np.int64)


def _domains_of(source: Source, domain: Domain) -> tuple[Indices, int]:
    """Return the number of each image's camera or source (N), and how many there are."""
    if domain == "camera":
        cameras = _cameras_of(source)
        return cameras, int(cameras.max(initial=-1)) + 1
    starts = source.info.starts
    if starts is None:
        raise ValueError(f"domain: source is for concatenated sources; this is a {type(source).__name__}")
    return np.searchsorted(starts, np.arange(len(source)), "right").astype(np.int64) - 1, len(starts)


@dataclass(frozen=True)
class _Images:
    """Images sorted by identity.

    Attributes:
        members: their indices in the source (n).
        owners: numbers of their identities (n), ascending from 0.
        sizes: number of images of each identity (I).
        starts: the first image of each identity (I).
    """

    members: Indices
    owners: Indices
    sizes: Indices
    starts: Indices

    @classmethod
    def of(cls, labels: Indices, members: Indices, instances: int, small_identities: SmallIdentities) -> _Images:
        """Return the images with these indices; ``labels`` are those of the whole source."""
        if small_identities != "repeat":
            members = members[np.bincount(labels[members])[labels[members]] >= instances]
        members = members[np.argsort(labels[members], kind="stable")]
        _, starts, owners, sizes = np.unique(
            labels[members], return_index=True, return_inverse=True, return_counts=True
        )
        return cls(members, owners.astype(np.int64), sizes.astype(np.int64), starts.astype(np.int64))

    def sorted_by(self, *keys: NDArray[np.generic]) -> Indices:
        """Return the images of each identity sorted, by the last key first (n)."""
        return np.lexsort((*keys, self.owners)).astype(np.int64)


# --- passes -----------------------------------------------------------------------------------------------------------


class _Pass(NamedTuple):
    """Rule for a pass over identities.

    Attributes:
        identities: number of identities that it contributes to a batch.
        batches: number of batches in a pass.
        draw: returns the samples of the pass with this key (indices of the source, batches x identities x K).
    """

    identities: int
    batches: int
    draw: Callable[[int], Indices]


def _pass_by_size(images: _Images, identities: int, instances: int) -> _Pass:
    """Return passes in which an identity comes as often as its images allow. The identities that are left over are
    random."""
    times = np.maximum(1, images.sizes // instances)
    batches = max_batches(times, identities)
    times = np.minimum(times, batches)

    def draw(key: int) -> Indices:
        drawn = shuffled_range(len(images.sizes), hash32(DRAW, key, 0))
        firsts = np.repeat(np.cumsum(times[drawn]) - times[drawn], times[drawn])
        line = np.repeat(drawn, times[drawn])[: batches * identities]
        slots = deal(line, batches, hash32(DRAW, key, 1))
        identity, number = line[slots][..., None], (slots - firsts[slots])[..., None]
        offsets = (number * instances + np.arange(instances)) % images.sizes[identity] + images.starts[identity]
        shuffled = images.sorted_by(uniform(hash32(DRAW, key, 2), np.arange(len(images.members))))
        samples: Indices = images.members[shuffled[offsets]]
        return samples

    return _Pass(identities, batches, draw)


def _pass_by_camera(images: _Images, identities: int, instances: int, cameras: Indices) -> _Pass:
    """Return passes in which every identity comes once, with one image and then those of other cameras; ``cameras``:
    of the images (n). With fewer than K images, those after the first are repeated."""
    batches = len(images.sizes) // identities

    def draw(key: int) -> Indices:
        random = uniform(hash32(DRAW, key, 0), np.arange(len(images.members)))
        firsts = images.sorted_by(random)[images.starts]
        is_first = np.zeros(len(images.members), dtype=bool)
        is_first[firsts] = True
        preferred = images.sorted_by(random, cameras == cameras[firsts][images.owners], ~is_first)
        identity = shuffled_range(len(images.sizes), hash32(DRAW, key, 1))[: batches * identities]
        identity = identity.reshape(batches, identities, 1)
        ranks, others = np.arange(instances), images.sizes[identity] - 1
        ranks = np.where((ranks > 0) & (others > 0), 1 + (ranks - 1) % np.maximum(1, others), 0)
        samples: Indices = images.members[preferred[images.starts[identity] + ranks]]
        return samples

    return _Pass(identities, batches, draw)


def shuffled_range(count: int, key: int) -> Indices:
    """Return the numbers from 0 to ``count`` - 1, shuffled."""
    return np.argsort(uniform(key, np.arange(count)), kind="stable").astype(np.int64)


def max_batches(times: Indices, identities: int) -> int:
    """Return the maximum number of batches of different identities, each of which comes at most ``times`` (I).

    An identity cannot come more often than there are batches, so fewer batches are filled than the sum suggests.

    Example: times [9, 2, 1] in batches of 2 are 3 batches: each with the first identity and one of the others.
    """
    batches = int(times.sum()) // identities
    while (filled := int(np.minimum(times, batches).sum()) // identities) < batches:
        batches = filled
    return batches


def deal(line: Indices, batches: int, key: int) -> Indices:
    """Return positions in ``line`` for each batch (batches x P), so that equal identities are in different batches.

    The line is cut into P segments, and each segment is dealt to all batches in a shuffled order. Only an identity that
    is cut in two can come twice to a batch; so its second part begins with the batches that have not had the first
    (McNaughton's rule for schedules, Scheduling with Deadlines and Loss Functions, 1959, shuffled).

    Args:
        line: identities, equal ones next to each other and none more often than there are batches (batches * P).
        batches: number of batches.
        key: of the random order.
    """
    segments = np.arange(len(line)).reshape(-1, batches)
    slots = np.empty((batches, len(segments)), dtype=np.int64)
    for number, segment in enumerate(segments):
        rows = shuffled_range(batches, hash32(DRAW, key, number))
        if number:
            had = line[slots[:, number - 1]] == line[segment[0]]
            rows = rows[np.argsort(had[rows], kind="stable")]
        slots[rows, number] = segment
    return slots


# --- batches ----------------------------------------------------------------------------------------------------------


def _batch_sampler(passes: Sequence[_Pass], instances: int, seed: int, samples: int) -> Sampler:
    """Return a sampler of whole batches, to which one or several passes contribute identities, evenly interleaved: so
    every process has some of each. The batches of an epoch follow those of the one before.

    Args:
        passes: contribute identities to each batch.
        instances: K.
        seed: of the run.
        samples: per epoch, rounded down to whole batches.
    """
    latest = [
        (rule.batches, lru_cache(maxsize=1)(partial(_draw_pass, rule, hash32(DRAW, seed, number))))
        for number, rule in enumerate(passes)
    ]
    interleaved = np.argsort(
        np.concatenate([(np.arange(rule.identities) + 0.5) / rule.identities for rule in passes]), kind="stable"
    )
    batch_size = len(interleaved) * instances
    batches_per_epoch = max(1, samples // batch_size)

    def batch(number: int) -> Indices:
        """Return the samples of a batch, whose number counts from the beginning of the run."""
        identities = [draw(number // batches)[number % batches] for batches, draw in latest]
        return np.concatenate(identities)[interleaved].ravel()

    def order(epoch: int) -> Order:
        def look_up(positions: Indices) -> Indices:
            batches, columns = np.divmod(np.asarray(positions, dtype=np.int64), batch_size)
            numbers, rows = np.unique(batches, return_inverse=True)
            table = [batch(epoch * batches_per_epoch + number) for number in numbers.tolist()]
            indices = np.array(table, dtype=np.int64).reshape(-1, batch_size)
            return indices[rows.reshape(batches.shape), columns]

        return look_up

    return OrderSampler(batches_per_epoch * batch_size, order)


def _draw_pass(rule: _Pass, seed: int, number: int) -> Indices:
    return rule.draw(hash32(ORDER, seed, number))
