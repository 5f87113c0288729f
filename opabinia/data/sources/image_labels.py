"""Image-level labels of annotated objects."""

from __future__ import annotations

from dataclasses import replace

from opabinia.config import register
from opabinia.contracts import Sample, SourceInfo, SourcePart
from opabinia.data.sources.labels import multi_hot
from opabinia.data.sources.wrapper import Wrapper


@register.source
class ImageLabels(Wrapper):
    """Detection or panoptic data whose images also have image-level labels: the classes of the objects in them.

    Tasks of a multi-task run can then learn boxes, maps and the classes of an image from the same images.

    Args:
        source: of images with annotated objects that knows the classes in each image (``present``).
        objects: samples keep their objects and maps; false: they have the image and its labels only, for multi-label
            classification by itself.

    Raises:
        ValueError: the source has no objects, or does not know the classes of each image.
    """

    def __init__(self, *, source: SourcePart, objects: bool = True) -> None:
        info = source.info
        if not info.boxes or info.present is None:
            raise ValueError(f"source: {type(source).__name__} does not know which objects are in an image")
        labels = multi_hot(info.present, len(info.classes))
        if not objects:
            info = SourceInfo(channels=info.channels, classes=info.classes, sizes=info.sizes)
        super().__init__(source, replace(info, labels=labels, multi_label=True, encoded=False))
        self._objects = objects

    def convert(self, sample: Sample, index: int) -> Sample:
        if not self._objects:
            sample = {key: sample[key] for key in ("image", "id")}
        return {**sample, **self.info.labels_of(index)}
