"""Panoptic data as semantic segmentation of stuff, with one class for all countable objects."""

from __future__ import annotations

from dataclasses import replace

from opabinia.config import register
from opabinia.contracts import (
    FileSource,
    FingerprintedSource,
    NamedSource,
    Sample,
    SegmentationSource,
    SizedSource,
    SourcePart,
)
from opabinia.data.sources.relabeled import relabel

_OBJECT_KEYS = ("boxes", "labels", "masks", "ground_truth")


@register.source
class StuffMaps:
    """Semantic segmentation of stuff: label 0 is any countable object, the others are the classes without such, in the
    order of the source (detectron2's ``panoptic_stuffonly``).

    Args:
        source: panoptic data, such as ``coco_panoptic``.
        things: name of the class of all objects.

    Raises:
        ValueError: the source is not panoptic, or has a class of that name.
    """

    has_maps = True
    thing_labels, colors = (), ()

    def __init__(self, *, source: SourcePart, things: str = "things") -> None:
        if not isinstance(source, SegmentationSource) or not source.thing_labels:
            raise ValueError(f"source: {type(source).__name__} is not panoptic; take coco_panoptic")
        objects = [source.classes[label] for label in source.thing_labels]
        stuff = [name for name in source.classes if name not in objects]
        if things in stuff:
            raise ValueError(f"things: {things!r} is a class of the source; take another name")
        self.classes = (things, *stuff)
        self.source = relabel(source, self.classes, dict.fromkeys(objects, things))
        self.channels = source.channels
        if isinstance(source, SizedSource):
            self.sizes = source.sizes
        if isinstance(source, NamedSource):
            self.id = source.id
        if isinstance(source, FileSource):
            self.paths = source.paths

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        ground_truth = replace(sample["ground_truth_map"], segments=None, segment_labels=None, crowd=None)
        kept = {key: value for key, value in sample.items() if key not in _OBJECT_KEYS}
        return {**kept, "ground_truth_map": ground_truth}

    def fingerprint(self) -> str:
        """Return a text that changes with the samples."""
        source = self.source
        return source.fingerprint() if isinstance(source, FingerprintedSource) else str(len(source))
