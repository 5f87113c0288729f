"""Properties of sources that are known without reading samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from opabinia.contracts import IdentitySource, ImageClassesSource, Indices, LabeledSource, Source
from opabinia.data.sources.concat import ConcatBase
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.data.sources.object_maps import ObjectMaps
from opabinia.data.sources.video_views import VideoViews


def leaf_sources(source: Source) -> Iterator[Source]:
    """Yield the sources that a concatenation consists of, in order, and the source of videos behind their views."""
    if isinstance(source, ConcatBase):
        for part in source.sources:
            yield from leaf_sources(part)
    elif isinstance(source, VideoViews):
        yield from leaf_sources(source.source)
    else:
        yield source


def annotated_images(source: Source) -> AnnotatedImages | None:
    """Return the source if its objects are read from an annotation file, or the one that its maps are made of."""
    own = source.source if isinstance(source, ObjectMaps) else source
    return own if isinstance(own, AnnotatedImages) else None


def label_name(source: Source, index: int) -> str | None:
    """Return the class name or identity of a sample; None if it has none, or several."""
    labels = single_labels(source)
    if labels is None or not 0 <= (label := int(labels[index])) < len(source.classes):
        return None
    return str(source.classes[label])


def single_labels(source: Source) -> Indices | None:
    """Return the labels of a source with one label per sample (int64, N); None for others."""
    return np.asarray(source.labels) if isinstance(source, LabeledSource) and np.ndim(source.labels) == 1 else None


def count_per_class(source: Source) -> dict[str, int]:
    """Return the number of images or videos of each class by name; empty if the source does not know."""
    counts = np.zeros(len(source.classes), dtype=np.int64)
    labels = single_labels(source)
    # In a concatenation the identities of each part have their own labels.
    if labels is not None and isinstance(source, IdentitySource):
        counts += np.bincount(labels, minlength=len(counts))
    else:
        for part in leaf_sources(source):
            if isinstance(part, ImageClassesSource):
                counts += np.bincount(concatenate(part.present), minlength=len(counts))
            elif isinstance(part, LabeledSource):
                one_hot = np.ndim(part.labels) == 2
                own = part.labels.sum(0) if one_hot else np.bincount(part.labels, minlength=len(counts))
                counts += np.asarray(own).astype(np.int64)
            else:
                return {}
    return dict(zip(map(str, source.classes), counts.tolist(), strict=True))


def concatenate(arrays: Iterable[Indices]) -> Indices:
    """Return integer arrays, of which there may be none, as one."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
