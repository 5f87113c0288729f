"""Random images for tests of the data check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def drawn(number: int, size: tuple[int, int] = (128, 96)) -> Image.Image:
    """Return an image of soft blobs of size (width, height), which depends on the number."""
    cells = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)


def save(path: Path, number: int, size: tuple[int, int] = (128, 96), quality: int = 95) -> Path:
    """Save this image in the format of the file extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn(number, size).save(path, **({"quality": quality} if path.suffix == ".jpg" else {}))
    return path
