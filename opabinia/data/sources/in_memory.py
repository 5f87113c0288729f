"""Labeled images in one array, for sources that fit into memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import Batch, Indices, Sample, Source, SourceInfo


class ImageArray(Source):
    """Gray images (uint8, N x H x W) and labels (int64, N) in memory, once for all workers. Subclasses define ``id``.

    Args:
        images: as above.
        labels: as above.
        classes: class names.
    """

    def __init__(self, images: NDArray[np.uint8], labels: Indices, classes: Sequence[str]) -> None:
        self.info = SourceInfo(channels=1, classes=tuple(classes), labels=labels)
        self._images = torch.from_numpy(images).unsqueeze(1)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        image = tv_tensors.Image(self._images[index].clone())  # a transform may work in place
        return {"image": image, **self.info.labels_of(index), "id": self.id(index)}


def collate_arrays(source: Source, images: torch.Tensor, indices: Indices) -> Batch:
    """Return the collated samples of ``indices`` (int64, B) of a source with all ``images`` in memory."""
    columns = {key: torch.from_numpy(column[indices]) for key, column in source.info.columns.items()}
    return {"image": images[indices], **columns, "id": [source.id(index) for index in indices.tolist()]}
