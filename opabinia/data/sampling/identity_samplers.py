"""Batches of P identities with K images each, for losses that compare the samples of a batch with each other.

An identity is a class of the source. Batches are drawn in passes over the identities, and passes go on from one epoch
to the next. A whole pass is drawn at once, from the seed and its number alone: so any batch of any epoch is found by
division, and only the newest pass is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Literal, Protocol

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Count, Indices, Sampler, Source
from opabinia.data.sampling.permutation import Order
from opabinia.data.sampling.samplers import labels_of, uniform
from opabinia.runtime.seeds import DRAW, ORDER, hash32

Few = Literal["repeat", "leave_out"]
Weight = Annotated[int, Ge(0)]

# --- the samplers -----------------------------------------------------------------------------------------------------


@register.sampler
def identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    instances: Count = 4,
    few: Few = "repeat",
    length: Count | None = None,
) -> Sampler:
    """In every batch P = batch_size / K different identities with K images each.

    An identity with n images comes n // K times in a pass, each time with other images (FastReID's
    NaiveIdentitySampler; its passes leave more images out, ours have as many batches as can be filled).

    Args:
        source: has labels.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        instances: K, images of an identity in a batch; 4 is FastReID's default.
        few: what is done about identities with fewer than K images: ``repeat`` takes some of them several times,
            ``leave_out`` never trains on them.
        length: samples of an epoch, of which whole batches are taken, and at least one; null takes as many as there
            are.

    Raises:
        ValueError: the source has no labels or too few identities, or K does not divide the batch.

    Example:
        18 images of identities with 5, 4, 2, 6 and 1 images, in batches of 8: a pass has two batches, each of two
        identities, and one identity waits for the next pass.
    """
    images, taken = _images_and_identities(labels_of(source), batch_size, instances, few)
    return _Batches([_InTurns(images, taken, instances)], instances, seed, length or len(source))


@register.sampler
def balanced_identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    instances: Count = 4,
    few: Few = "repeat",
    length: Count | None = None,
) -> Sampler:
    """Every identity once in a pass, however many images it has, seen by as many cameras as possible: one image, and
    K - 1 more from other cameras than its own as long as there are any (FastReID's BalancedIdentitySampler).

    Identities that fill no batch at the end of a pass are left out of it; they are others each time.

    Args:
        source: has labels and ``cameras``.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        instances: K, images of an identity in a batch; 4 is FastReID's default.
        few: what is done about identities with fewer than K images: ``repeat`` takes some of them several times,
            ``leave_out`` never trains on them.
        length: samples of an epoch, of which whole batches are taken, and at least one; null takes as many as there
            are.

    Raises:
        ValueError: the source has no labels, no cameras or too few identities, or K does not divide the batch.

    Example:
        An identity has the images a and b of camera 0, c and d of camera 1. If a comes first, four images are a, c, d,
        b or a, d, c, b.
    """
    cameras = _cameras_of(source)
    images, taken = _images_and_identities(labels_of(source), batch_size, instances, few)
    return _Batches(
        [_EachOnce(images, taken, instances, cameras[images.members])], instances, seed, length or len(source)
    )


@register.sampler
def mixed_identities(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    weights: Annotated[list[Weight], MinLen(1)],
    by: Literal["source", "camera"] = "source",
    instances: Count = 4,
    few: Few = "repeat",
    length: Count | None = None,
) -> Sampler:
    """As ``identities``, with the same number of identities from each camera, or each source of ``joined_identities``
    or ``joined``, in every batch (what FastReID's SetReWeightSampler was meant to do).

    All K images of an identity are from one camera when they are divided by cameras. An identity that several cameras
    have seen may then come from two of them in one batch, with K images each.

    Args:
        source: has labels, and ``cameras`` or is the source ``joined_identities`` or ``joined``.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        weights: of the sources or cameras in their order, relative to each other: of 16 identities [3, 1] takes 12 and
            4. They must come out even.
        by: what has the weights, ``source`` or ``camera``.
        instances: K, images of an identity in a batch; 4 is FastReID's default.
        few: what is done about identities with fewer than K images there: ``repeat`` takes some of them several times,
            ``leave_out`` never trains on them.
        length: samples of an epoch, of which whole batches are taken, and at least one; null takes as many as there
            are.

    Raises:
        ValueError: the source does not tell what is needed, the weights do not fit to it or to the batch, or a source
            or camera has too few identities.
    """
    labels = labels_of(source)
    domains, count = _domains_of(source, by)
    if len(weights) != count or not sum(weights):
        raise ValueError(f"weights: {count} {by}s need as many weights, not all 0; there are {weights}")
    takes = _shares(_identities_of_a_batch(batch_size, instances), weights, instances)
    _refuse_one(len(np.unique(labels)))
    passes = []
    for domain, taken in enumerate(takes):
        if not taken:
            continue
        images = _Images.of(labels, np.flatnonzero(domains == domain), instances, few)
        if (found := len(images.sizes)) < taken:
            message = f"weights.{domain}: each batch takes {taken} identities of this {by}, which has {found}"
            remedy = "give it a smaller weight or take a smaller batch_size"
            raise ValueError(f"{message}{_with_enough(instances, few)}; {remedy}")
        passes.append(_InTurns(images, taken, instances))
    return _Batches(passes, instances, seed, length or len(labels))


# --- what they are built on -------------------------------------------------------------------------------------------


def _identities_of_a_batch(batch_size: int, instances: int) -> int:
    if batch_size % instances:
        message = f"instances: a batch of {batch_size} does not hold {instances} images of each of its identities; "
        raise ValueError(message + _that_would_do(batch_size, instances))
    return batch_size // instances


def _shares(identities: int, weights: Sequence[int], instances: int) -> list[int]:
    """The identities of a batch, divided by weights."""
    whole = sum(weights)
    if any(identities * weight % whole for weight in weights):
        message = f"weights: {identities} identities of a batch cannot be divided as {':'.join(map(str, weights))}; "
        raise ValueError(message + _that_would_do(identities * instances, whole // gcd(*weights) * instances))
    return [identities * weight // whole for weight in weights]


def _that_would_do(batch_size: int, step: int) -> str:
    below = batch_size // step * step
    return f"batch_size {f'{below} or ' if below else ''}{below + step} would do"


def _images_and_identities(labels: Indices, batch_size: int, instances: int, few: Few) -> tuple[_Images, int]:
    """All images to draw from, and P."""
    taken = _identities_of_a_batch(batch_size, instances)
    images = _Images.of(labels, np.arange(len(labels)), instances, few)
    found = len(images.sizes)
    _refuse_one(found, _with_enough(instances, few))
    if found < taken:
        message = f"a batch of {batch_size} with {instances} images each has {taken} identities, and there are {found}"
        raise ValueError(f"{message}{_with_enough(instances, few)}; batch_size {found * instances} would do")
    return images, taken


def _refuse_one(found: int, which: str = "") -> None:
    if found < 2:
        raise ValueError(f"only {found} identities{which}: there is nothing to compare with each other")


def _with_enough(instances: int, few: Few) -> str:
    return f" with {instances} images or more (few: leave_out)" if few == "leave_out" else ""


def _cameras_of(source: Source) -> Indices:
    cameras = getattr(source, "cameras", None)
    if cameras is None:
        raise ValueError(f"{type(source).__name__} does not tell the cameras of its images, which this sampler needs")
    return np.asarray(cameras, dtype=np.int64)


def _domains_of(source: Source, by: Literal["source", "camera"]) -> tuple[Indices, int]:
    """The number of each image's camera or source (N), and how many there are."""
    if by == "camera":
        cameras = _cameras_of(source)
        return cameras, int(cameras.max(initial=-1)) + 1
    starts = getattr(source, "starts", None)
    if starts is None:
        raise ValueError(f"by: source is for 'joined' and 'joined_identities'; this is a {type(source).__name__}")
    return np.searchsorted(starts, np.arange(len(source)), "right").astype(np.int64) - 1, len(starts)


@dataclass(frozen=True)
class _Images:
    """Images in the order of their identities.

    Attributes:
        members: their indices in the source (n).
        owners: numbers of their identities (n), ascending from 0.
        sizes: how many each identity has (I).
        starts: the first of each identity (I).
    """

    members: Indices
    owners: Indices
    sizes: Indices
    starts: Indices

    @classmethod
    def of(cls, labels: Indices, members: Indices, instances: int, few: Few) -> _Images:
        """The images with these indices; ``labels`` are those of the whole source."""
        if few == "leave_out":
            members = members[np.bincount(labels[members])[labels[members]] >= instances]
        members = members[np.argsort(labels[members], kind="stable")]
        _, starts, owners, sizes = np.unique(
            labels[members], return_index=True, return_inverse=True, return_counts=True
        )
        return cls(members, owners.astype(np.int64), sizes.astype(np.int64), starts.astype(np.int64))

    def sorted_by(self, *keys: NDArray[np.generic]) -> Indices:
        """Those of each identity sorted, by the last key first (n)."""
        return np.lexsort((*keys, self.owners)).astype(np.int64)


# --- passes -----------------------------------------------------------------------------------------------------------


class _Pass(Protocol):
    """A pass over identities, chosen by a key.

    Attributes:
        batches: of a pass.
        width: samples that it gives to each batch, those of an identity beside each other.
    """

    batches: int
    width: int

    def __call__(self, key: int) -> Indices:
        """Indices of the source (batches x width)."""
        ...


class _InTurns:
    """Passes in which an identity has as many turns as its images allow.

    Args:
        images: of the identities.
        taken: P, identities of a batch.
        instances: K.
    """

    def __init__(self, images: _Images, taken: int, instances: int) -> None:
        self._images, self._taken, self._instances = images, taken, instances
        turns = np.maximum(1, images.sizes // instances)
        self.batches = most_batches(turns, taken)
        self.width = taken * instances
        self._turns = np.minimum(turns, self.batches)

    def __call__(self, key: int) -> Indices:
        """Who is left over is who happens to be the last."""
        images, instances = self._images, self._instances
        drawn = shuffled(len(images.sizes), hash32(DRAW, key, 0))
        turns = self._turns[drawn]
        firsts = np.repeat(np.cumsum(turns) - turns, turns)
        line = np.repeat(drawn, turns)[: self.batches * self._taken]
        slots = dealt(line, self.batches, hash32(DRAW, key, 1))
        whose, turn = line[slots][..., None], (slots - firsts[slots])[..., None]
        places = (turn * instances + np.arange(instances)) % images.sizes[whose] + images.starts[whose]
        mingled = images.sorted_by(uniform(hash32(DRAW, key, 2), np.arange(len(images.members))))
        table: Indices = images.members[mingled[places]].reshape(self.batches, self.width)
        return table


class _EachOnce:
    """Passes in which every identity comes once, one image and then those of other cameras.

    Args:
        images: of the identities.
        taken: P, identities of a batch.
        instances: K.
        cameras: of the images (n).
    """

    def __init__(self, images: _Images, taken: int, instances: int, cameras: Indices) -> None:
        self._images, self._taken, self._instances, self._cameras = images, taken, instances, cameras
        self.batches = len(images.sizes) // taken
        self.width = taken * instances

    def __call__(self, key: int) -> Indices:
        """Where there are fewer than K images, those after the first come again."""
        images, owners = self._images, self._images.owners
        chance = uniform(hash32(DRAW, key, 0), np.arange(len(images.members)))
        firsts = images.sorted_by(chance)[images.starts]
        same = self._cameras == self._cameras[firsts][owners]
        first = np.zeros(len(owners), dtype=bool)
        first[firsts] = True
        preferred = images.sorted_by(chance, same, ~first)
        whose = shuffled(len(images.sizes), hash32(DRAW, key, 1))[: self.batches * self._taken, None]
        ranks, others = np.arange(self._instances), images.sizes[whose] - 1
        ranks = np.where((ranks > 0) & (others > 0), 1 + (ranks - 1) % np.maximum(1, others), 0)
        table: Indices = images.members[preferred[images.starts[whose] + ranks]].reshape(self.batches, self.width)
        return table


def shuffled(count: int, key: int) -> Indices:
    """The numbers from 0 to ``count`` - 1, all at once."""
    return np.argsort(uniform(key, np.arange(count)), kind="stable").astype(np.int64)


def most_batches(turns: Indices, taken: int) -> int:
    """How many batches of so many different identities can be filled, where each has a number of turns.

    Identities with more turns than there are batches cannot take them all, so fewer are left than it seems.

    Example: turns [9, 2, 1] in batches of 2 are 3 batches: each with the first identity and one of the others.
    """
    batches = int(turns.sum()) // taken
    while (filled := int(np.minimum(turns, batches).sum()) // taken) < batches:
        batches = filled
    return batches


def dealt(line: Indices, batches: int, key: int) -> Indices:
    """Places in ``line`` for each batch (batches x P), so that the turns of an identity are in different batches.

    The line is cut into P pieces, and each piece is dealt to all batches in a shuffled order. Only an identity that is
    cut in two can come twice to a batch; so its second part begins with the batches that have not had the first
    (McNaughton's rule for schedules, Scheduling with Deadlines and Loss Functions, 1959, shuffled).

    Args:
        line: identities, equal ones beside each other and none more often than there are batches (batches * P).
        batches: how many.
        key: chooses one of the many ways.
    """
    pieces = np.arange(len(line)).reshape(-1, batches)
    slots = np.empty((batches, len(pieces)), dtype=np.int64)
    for number, piece in enumerate(pieces):
        rows = shuffled(batches, hash32(DRAW, key, number))
        if number:
            had = line[slots[:, number - 1]] == line[piece[0]]
            rows = rows[np.argsort(had[rows], kind="stable")]
        slots[rows, number] = piece
    return slots


# --- batches ----------------------------------------------------------------------------------------------------------


class _Batches:
    """A sampler of whole batches, to which one or several passes give identities, evenly mixed.

    Args:
        passes: what gives samples to each batch.
        instances: K.
        seed: of the run.
        samples: of an epoch, rounded down to whole batches.
    """

    def __init__(self, passes: Sequence[_Pass], instances: int, seed: int, samples: int) -> None:
        self._streams = [_Endless(one, hash32(DRAW, seed, number)) for number, one in enumerate(passes)]
        self._givers = np.repeat(evenly([one.width // instances for one in passes]), instances)
        self._places = np.empty_like(self._givers)
        for number, one in enumerate(passes):
            self._places[self._givers == number] = np.arange(one.width)
        self._batches = max(1, samples // len(self._givers))

    def __len__(self) -> int:
        return self._batches * len(self._givers)

    def order(self, epoch: int) -> Order:
        """The batches of an epoch follow those of the one before."""

        def indices(positions: Indices) -> Indices:
            batches, places = np.divmod(np.asarray(positions, dtype=np.int64), len(self._givers))
            batches = batches + epoch * self._batches
            found = np.empty(batches.shape, dtype=np.int64)
            for number, stream in enumerate(self._streams):
                here = self._givers[places] == number
                found[here] = stream(batches[here], self._places[places[here]])
            return found

        return indices


def evenly(counts: Sequence[int]) -> Indices:
    """Numbers of parts, each as often as it counts, evenly mixed: so every process has some of each.

    Example: [4, 2] is [0, 1, 0, 0, 1, 0].
    """
    spread = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    parts: Indices = np.repeat(np.arange(len(counts)), counts)[np.argsort(spread, kind="stable")]
    return parts


class _Endless:
    """Passes one after the other, the newest of them kept.

    Args:
        draw: a pass.
        seed: chooses all of them.
    """

    def __init__(self, draw: _Pass, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._newest = 0, draw(hash32(ORDER, seed, 0))

    def __call__(self, batches: Indices, places: Indices) -> Indices:
        """The index at a place of a batch, counted from the beginning of the run (both of n)."""
        passes, rows = np.divmod(batches, self._draw.batches)
        found = np.empty(batches.shape, dtype=np.int64)
        for number in np.unique(passes).tolist():
            here = passes == number
            found[here] = self._pass(number)[rows[here], places[here]]
        return found

    def _pass(self, number: int) -> Indices:
        if self._newest[0] != number:
            self._newest = number, self._draw(hash32(ORDER, self._seed, number))
        return self._newest[1]
