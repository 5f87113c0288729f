"""Properties of sources that are known without reading samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from opabinia.contracts import Indices, Source
from opabinia.data.sources.concat import ConcatBase
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.data.sources.object_maps import ObjectMaps
from opabinia.data.sources.videos import VideoViews


def leaf_sources(source: Source) -> Iterator[Source]:
    """Yield the sources that a concatenation consists of, in order, and the source of videos behind their views."""
    if isinstance(source, ConcatBase):
        for joined in source.sources:
            yield from leaf_sources(joined)
    elif isinstance(source, VideoViews):
        yield from leaf_sources(source.source)
    else:
        yield source


def annotated_images(source: Source) -> AnnotatedImages | None:
    """Return the source if its objects are read from an annotation file, or the one that its maps are made of."""
    annotated = source.source if isinstance(source, ObjectMaps) else source
    return annotated if isinstance(annotated, AnnotatedImages) else None


def label_name(source: Source, index: int) -> str | None:
    """Return the class name or identity of a sample; None if it has none, or several."""
    labels = source.info.single_labels
    if labels is None or not 0 <= (label := int(labels[index])) < len(source.classes):
        return None
    return str(source.classes[label])


def count_per_class(source: Source) -> dict[str, int]:
    """Return the number of images or videos of each class by name; empty if the source does not know."""
    counts = np.zeros(len(source.classes), dtype=np.int64)
    labels = source.info.single_labels
    # In a concatenation the identities of each part have their own labels.
    if labels is not None and source.info.identities:
        counts += np.bincount(labels, minlength=len(counts))
    else:
        for info in (leaf.info for leaf in leaf_sources(source)):
            if info.present is not None:
                counts += np.bincount(concatenate(info.present), minlength=len(counts))
            elif info.labels is not None:
                one_hot = np.ndim(info.labels) == 2
                of_leaf = info.labels.sum(0) if one_hot else np.bincount(info.labels, minlength=len(counts))
                counts += np.asarray(of_leaf).astype(np.int64)
            else:
                return {}
    return dict(zip(map(str, source.classes), counts.tolist(), strict=True))


def concatenate(arrays: Iterable[Indices]) -> Indices:
    """Return integer arrays, of which there may be none, as one."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
