"""Panoptic data as semantic segmentation of stuff, with one class for all countable objects."""

from __future__ import annotations

from dataclasses import replace

from opabinia.config import register
from opabinia.contracts import Sample, SourcePart
from opabinia.data.sources.relabeled import relabel
from opabinia.data.sources.wrapper import Wrapper

_OBJECT_KEYS = ("boxes", "labels", "masks", "ground_truth")


@register.source
class StuffMaps(Wrapper):
    """Semantic segmentation of stuff: label 0 is any countable object, the others are the classes without such, in the
    order of the source (detectron2's ``panoptic_stuffonly``).

    Args:
        source: panoptic data, such as ``coco_panoptic``.
        things: name of the class of all objects.

    Raises:
        ValueError: the source is not panoptic, or has a class of that name.
    """

    def __init__(self, *, source: SourcePart, things: str = "things") -> None:
        info = source.info
        if not info.maps or not info.thing_labels:
            raise ValueError(f"source: {type(source).__name__} is not panoptic; take coco_panoptic")
        objects = [info.classes[label] for label in info.thing_labels]
        stuff = [name for name in info.classes if name not in objects]
        if things in stuff:
            raise ValueError(f"things: {things!r} is a class of the source; take another name")
        changed = relabel(source, (things, *stuff), dict.fromkeys(objects, things))
        super().__init__(changed, replace(changed.info, boxes=False, masks=False, thing_labels=(), present=None))

    def convert(self, sample: Sample, index: int) -> Sample:
        ground_truth = replace(sample["ground_truth_map"], segments=None, segment_labels=None, crowd=None)
        kept = {key: value for key, value in sample.items() if key not in _OBJECT_KEYS}
        return {**kept, "ground_truth_map": ground_truth}
