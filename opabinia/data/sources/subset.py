"""A part of a source: the training or the validation samples of a split that a file holds, or some drawn at random."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from numpy.typing import NDArray
from typing_extensions import TypedDict

from opabinia.config import register
from opabinia.contracts import Batch, Count, Indices, InputPath, Sample, Source, SourceInfo, SourcePart
from opabinia.data.sources.wrapper import Wrapper, select_samples
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.json_files import InvalidFile, read_json
from opabinia.runtime.text import first_of, plural

_VERSION = 1

_QUERY_EVERY = 4
"""A query for three images of the gallery: small sets of identities, too, have enough queries for a stable score."""


class SplitFile(TypedDict):
    """Content of a split file: its version, and the keys of the validation samples, sorted."""

    version: int
    val: list[str]


@register.source
def subset(
    *, source: SourcePart, file: InputPath, split: Literal["train", "val"] = "train", identities: bool = False
) -> Source:
    """The training or the validation samples of any source, by a file with the ids of the validation samples.

    ``opabinia plan`` writes such a file for data without validation samples. Samples that are added later are trained
    on.

    Identities are in one of both parts, and each part has its own ones as classes. If their cameras are known, every
    fourth validation image of an identity by a camera is a query, and the others are the gallery; without cameras every
    image is searched among all others.

    Args:
        source: all samples; of views of videos the source inside of ``video_views``.
        file: the file: ``{"version": 1, "val": ["cat/3.jpg", ...]}``. Samples in shards are named by position.
        split: ``val``: the samples in the file; ``train``: all others.
        identities: the labels are identities, also if the source reads them as classes (``class_folders``).

    Example::

        source: {name: subset, source: {name: image_folder, root: photos}, file: split.json, split: train}

    Raises:
        ValueError: the file cannot be read, samples in it are not in the source, or no sample is left.
    """
    in_val = find_validation(source, file.expanduser())
    indices = np.flatnonzero(in_val == (split == "val"))
    if not len(indices):
        raise ValueError(f"{file}: none of {plural(len(source), 'sample')} is for {split}")
    selected = select_samples(source, indices)
    return _Identities(selected, split) if identities or source.info.identities else selected


@register.source
def random_part(
    *,
    source: SourcePart,
    fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.1,
    per_class: Count | None = None,
    part: Literal["chosen", "rest"] = "chosen",
    seed: int = 0,
) -> Source:
    """Samples of any source, drawn at random, or all others: a few labeled images, and unlabeled ones to learn from.

    A larger part with the same seed has all samples of a smaller one. If the labels are identities, a fraction of these
    is chosen with all of their images, and each part has its own ones as classes.

    Args:
        source: all samples.
        fraction: share of the samples that are chosen, of each class if every sample has one label; of identities,
            share of these.
        per_class: number of samples of each class that are chosen, instead of ``fraction``.
        part: the ``chosen`` samples or the ``rest``.
        seed: seed of the choice.

    Example::

        source: {name: random_part, source: {name: digits}, per_class: 4}

    Raises:
        ValueError: for ``per_class`` samples do not have one label each, or a class has too few; or no sample is left.
    """
    order, by_identity = nested_order(source, seed), source.info.identities and per_class is None
    if per_class is not None:
        chosen = _first_of_each_class(source, order, per_class)
    elif by_identity:
        chosen = _first_identities(source, order, fraction)
    else:
        chosen = order[: round(fraction * len(order))]
    selected = np.zeros(len(source), dtype=bool)
    selected[chosen] = True
    indices = np.flatnonzero(selected == (part == "chosen"))
    if not len(indices):
        raise ValueError(f"none of {plural(len(source), 'sample')} is {part}")
    samples = select_samples(source, indices)
    return _Identities(samples, "train") if by_identity else samples


def _first_identities(source: Source, order: Indices, fraction: float) -> Indices:
    """Return the samples of a fraction of the identities, whose samples follow each other in ``order``."""
    labels = source.info.single_labels
    assert labels is not None
    ends = np.flatnonzero(np.diff(labels[order], append=-1)) + 1
    count = round(fraction * len(ends))
    return order[: ends[count - 1] if count else 0]


def _first_of_each_class(source: Source, order: Indices, count: int) -> Indices:
    labels = source.info.single_labels
    if labels is None:
        raise ValueError("per_class: the source does not have one label per sample; take fraction")
    available = np.bincount(labels, minlength=len(source.classes))
    if available.min() < count:
        fewest = source.classes[int(available.argmin())]
        raise ValueError(f"per_class: {count} samples of each class; {fewest} has {available.min()}")
    return np.concatenate([order[labels[order] == label][:count] for label in range(len(available))])


def nested_order(source: Source, seed: int = 0) -> Indices:
    """Return all samples in a random order of which each beginning has the same share of each class, up to one sample;
    the images of an identity follow each other.

    Args:
        source: the samples.
        seed: seed of the order.
    """
    random, count = np.random.default_rng(seed), len(source)
    labels = source.info.single_labels
    if labels is None:
        return random.permutation(count)
    if source.info.identities:
        return np.argsort(random.permutation(int(labels.max()) + 1)[labels], kind="stable")
    places = np.empty(count)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        places[members] = (random.permutation(len(members)) + random.random()) / len(members)
    return np.argsort(places, kind="stable")


def write_split(file: Path, keys: Iterable[str]) -> None:
    """Write a split file.

    Args:
        file: written under a temporary name and renamed.
        keys: the entries of :meth:`opabinia.contracts.Source.split_keys` of the validation samples, in any order.

    Raises:
        DiskError: it cannot be written.
    """
    content: SplitFile = {"version": _VERSION, "val": sorted(set(keys))}
    with disk_errors(file):
        write_atomic(file, json.dumps(content, indent=0, ensure_ascii=False) + "\n")


def find_validation(source: Source, file: Path) -> NDArray[np.bool_]:
    """Return which samples are validation samples of a split file (bool, N).

    Raises:
        ValueError: the file cannot be read, or samples in it are not in the source.
    """
    content = read_json(file, SplitFile)
    if content["version"] != _VERSION:
        raise InvalidFile(f"{file}: version: expected {_VERSION} (found {content['version']})")
    wanted = set(content["val"])
    keys = list(source.split_keys())
    missing = sorted(wanted.difference(keys))
    if missing:
        raise InvalidFile(
            f"{file}: {len(missing)} of its {plural(len(wanted), 'validation sample')} "
            f"{'is' if len(missing) == 1 else 'are'} not in the data: {first_of(missing)}; "
            "remove them from the file, or make a new split (opabinia plan)"
        )
    return np.fromiter((key in wanted for key in keys), dtype=bool, count=len(keys))


class _Identities(Wrapper):
    """The samples of a source with labels from 0 for the identities among them."""

    def __init__(self, source: Source, split: Literal["train", "val"]) -> None:
        labels = source.info.single_labels
        if labels is None:
            raise ValueError("identities: the source does not have one label per sample")
        own, new_labels = np.unique(labels, return_inverse=True)
        classes = tuple(source.classes[label] for label in own.tolist())
        info = replace(source.info, classes=classes, labels=new_labels, identities=True)
        super().__init__(source, replace(info, queries=choose_queries(info) if split == "val" else info.queries))

    def convert(self, sample: Sample, index: int) -> Sample:
        return {**sample, **self.info.labels_of(index)}

    def batch(self, indices: Indices) -> Batch | None:
        batch = self.source.batch(indices)
        columns = {key: torch.from_numpy(column[indices]) for key, column in self.info.columns.items()}
        return None if batch is None else {**batch, **columns}


def choose_queries(info: SourceInfo) -> NDArray[np.bool_] | None:
    """Return which images are queries (bool, N): of each identity every fourth one by each camera, from the first; the
    only one by a camera if the identity has no other query. None if cameras are unknown, or no query has a match."""
    labels, cameras = info.single_labels, info.cameras
    if info.queries is not None or labels is None or cameras is None:
        return info.queries
    order = np.lexsort((cameras, labels))  # stable: images of an identity by a camera stay in order
    pairs, starts, counts = np.unique(
        np.stack([labels, cameras], 1)[order], axis=0, return_index=True, return_counts=True
    )
    identities, firsts, seen_by = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    chosen = counts > 1
    chosen[firsts] |= ~np.logical_or.reduceat(chosen, firsts)
    chosen &= np.isin(pairs[:, 0], identities[seen_by > 1])
    ranks = np.arange(len(labels)) - np.repeat(starts, counts)
    queries = np.zeros(len(labels), dtype=bool)
    queries[order] = (ranks % _QUERY_EVERY == 0) & np.repeat(chosen, counts)
    return queries if queries.any() else None
