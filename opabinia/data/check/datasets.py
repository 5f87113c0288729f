"""What a source is made of, and what it knows without reading a picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opabinia.contracts import Indices, Source
from opabinia.data.decoding.images import Encoded, LazyImage
from opabinia.data.sources.concat import Chain
from opabinia.data.sources.detection_base import Annotated
from opabinia.data.sources.reid_base import Identities
from opabinia.data.sources.video_views import ViewsOfFilms


def parts_of(source: Source) -> Iterator[Source]:
    """The sources that a joined one is made of, in their order; of films in several views the films."""
    if isinstance(source, Chain):
        for part in source.sources:
            yield from parts_of(part)
    elif isinstance(source, ViewsOfFilms):
        yield from parts_of(source.source)
    else:
        yield source


def picture_file(part: Source, index: int) -> LazyImage | None:
    """The picture of a sample, not decoded yet; None where only whole samples can be had."""
    if isinstance(part, Annotated):
        return file_of(part, part.name(index))
    if isinstance(part, Identities):
        path = part.file(index)
        return None if path is None else Encoded.file(path, part.channels)
    if hasattr(part, "encoded"):
        image = part.encoded(index)["image"]
        return image if isinstance(image, LazyImage) else None
    return None


def file_of(part: Annotated, name: bytes) -> Encoded:
    """A picture below the root of a source, also one that the source has left out."""
    return Encoded.file(os.path.join(os.fsencode(part.root), name), part.channels)


def id_of(part: Source, index: int) -> str:
    """What a sample is called: its id, or its number where the source does not tell without reading it."""
    tell = getattr(part, "id", None)
    if callable(tell):
        return str(tell(index))
    if hasattr(part, "encoded"):
        return str(part.encoded(index)["id"])
    return f"sample {index}"


def label_of(part: Source, index: int) -> str | None:
    """The name of a sample's class or identity; None where it has none, or several."""
    labels = labels_of(part)
    if labels is None or not len(part.classes):
        return None
    label = int(labels[index])
    return str(part.classes[label]) if 0 <= label < len(part.classes) else None


def labels_of(source: Source) -> Indices | None:
    """The one label of each sample (int64, N); None where there is none, or several of a sample."""
    labels = getattr(source, "labels", None)
    return None if labels is None or np.ndim(labels) != 1 else np.asarray(labels)


def is_of_identities(source: Source) -> bool:
    """Whether labels are identities, for re-identification and retrieval."""
    return hasattr(source, "camera_count")


def pictures_of_classes(source: Source) -> dict[str, int]:
    """In how many pictures or films each class is, by its name; nothing where a source does not tell."""
    counts = np.zeros(len(source.classes), dtype=np.int64)
    own = labels_of(source)
    if own is not None and is_of_identities(source):  # joined ones number those of each part on
        return _named(source, np.bincount(own, minlength=len(counts)))
    for part in parts_of(source):
        labels, present = getattr(part, "labels", None), getattr(part, "present", None)
        if present is not None:
            counts += np.bincount(joined(present), minlength=len(counts))
        elif labels is not None:
            labels = np.asarray(labels)
            counts += np.bincount(labels, minlength=len(counts)) if labels.ndim == 1 else labels.sum(0).astype(np.int64)
        else:
            return {}
    return _named(source, counts)


def _named(source: Source, counts: Any) -> dict[str, int]:
    return dict(zip(map(str, source.classes), counts.tolist(), strict=True))


def joined(lists: Sequence[Indices]) -> Indices:
    """Arrays of numbers, which may be none, as one."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])
