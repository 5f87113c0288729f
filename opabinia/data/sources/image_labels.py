"""Image-level labels of annotated objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import DetectionSource, ImageClassesSource, Sample, SourcePart


@register.source
class ImageLabels:
    """Detection or panoptic data whose images also have image-level labels: the classes of the objects in them.

    Tasks of a multi-task run can then learn boxes, maps and the classes of an image from the same images.

    Args:
        source: of images with annotated objects that knows the classes in each image (``present``).
        objects: samples keep their objects and maps; false: they have the image and its labels only, for multi-label
            classification by itself.

    Attributes:
        labels: 1 for the classes in an image (float32, N x K).

    Raises:
        ValueError: the source has no objects, or does not know the classes of each image.
    """

    multi_label = True

    def __init__(self, *, source: SourcePart, objects: bool = True) -> None:
        if not isinstance(source, DetectionSource) or not isinstance(source, ImageClassesSource):
            raise ValueError(f"source: {type(source).__name__} does not know which objects are in an image")
        self._source: Any = source
        self._objects = objects
        self.channels, self.classes = source.channels, source.classes
        self.labels: NDArray[np.float32] = np.zeros((len(source), len(source.classes)), dtype=np.float32)
        for row, present in zip(self.labels, source.present, strict=True):
            row[present] = 1

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        sample = self._source[index]
        if not self._objects:
            sample = {key: sample[key] for key in ("image", "id")}
        return {**sample, "label": torch.from_numpy(self.labels[index])}

    def __getattr__(self, name: str) -> Any:
        # Forwards the source's other abilities (boxes, maps, fingerprint ...) except those without these labels.
        hidden = () if self._objects else ("has_boxes", "has_masks", "has_maps", "present")
        if name.startswith("_") or name in ("batch", "encoded", *hidden):
            raise AttributeError(name)
        return getattr(self._source, name)
