"""Labeled images in one array, for sources that fit into memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import Batch, Indices, Sample


class ImageArray:
    """Images (uint8, N x C x H x W) and labels (int64, N) in memory, once for all workers. Subclasses set both and
    ``classes``, and define ``id``."""

    channels = 1
    labels: NDArray[np.int64]
    _images: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        image = tv_tensors.Image(self._images[index].clone())  # a transform may work in place
        return {"image": image, "label": int(self.labels[index]), "id": self.id(index)}

    def batch(self, indices: Indices) -> Batch:
        """Return the collated samples of ``indices`` (int64, B)."""
        labels = torch.from_numpy(self.labels[indices])
        return {"image": self._images[indices], "label": labels, "id": [self.id(i) for i in indices.tolist()]}

    def id(self, index: int) -> str:
        """Return the id of a sample."""
        raise NotImplementedError
