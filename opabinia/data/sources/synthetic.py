"""Random images, for benchmarks and dry runs without data."""

from __future__ import annotations

import numpy as np
import torch
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Batch, ChannelCount, Count, Indices, Sample, Source, SourceInfo
from opabinia.runtime.seeds import hash32


@register.source
class Synthetic(Source):
    """Noise in the color of its class, which a network learns within a few steps. Sample i depends on i and the seed.

    Args:
        samples: number of samples.
        size: height and width in pixels.
        classes: number of classes; sample i has the label i modulo this number.
        channels: 3 for color, 1 for gray, or any other number.
        seed: of the noise.
    """

    def __init__(
        self, *, samples: Count = 1024, size: Count = 32, classes: Count = 10, channels: ChannelCount = 3, seed: int = 0
    ) -> None:
        self._labels = np.arange(samples, dtype=np.int64) % classes
        self.info = SourceInfo(channels=channels, classes=tuple(map(str, range(classes))), labels=self._labels)
        self._shape, self._seed = (channels, size, size), seed
        self._tints = np.random.default_rng(seed).integers(0, 128, (classes, channels, 1, 1))

    def __len__(self) -> int:
        return len(self._labels)

    def _pixels(self, index: int) -> torch.Tensor:
        generator = np.random.default_rng(hash32(self._seed, index))
        noise = generator.integers(0, 128, self._shape)
        return torch.from_numpy((noise + self._tints[self._labels[index]]).astype(np.uint8))

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        image = tv_tensors.Image(self._pixels(index))
        return {"image": image, "label": int(self._labels[index]), "id": self.id(index)}

    def id(self, index: int) -> str:
        return str(index)

    def batch(self, indices: Indices) -> Batch:
        """Return the collated samples of ``indices`` (int64, B)."""
        images = torch.stack([self._pixels(int(index)) for index in indices])
        return {"image": images, "label": torch.from_numpy(self._labels[indices]), "id": [str(i) for i in indices]}

    def fingerprint(self) -> str:
        """Return a text that changes with every argument."""
        size = " x ".join(map(str, self._shape))
        return f"{len(self)} samples of {len(self.classes)} classes, {size}, seed {self._seed}"
