"""Segmentation maps drawn over images."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL
from opabinia.visualization.drawing import COLORS, to_pil

_GOLDEN = 0.618034  # multiples of it, modulo 1, are spread evenly however many there are
_HUES = (hsv_to_rgb(number * _GOLDEN % 1, 0.8 - 0.15 * (number % 3), 0.95) for number in range(IGNORE_LABEL))
PALETTE = (*COLORS, *((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in _HUES))[:IGNORE_LABEL]
"""Colors of classes in maps of datasets that have none of their own."""


def draw_map(
    image: Tensor,
    labels: Tensor | NDArray[np.integer],
    colors: Sequence[tuple[int, int, int]] = (),
    side: int = 512,
    segments: Tensor | NDArray[np.integer] | None = None,
) -> Image.Image:
    """Draw a segmentation map over an image: half the image, half the color of the class of each pixel. Pixels without
    a label (255) show the image.

    Args:
        image: uint8, or float in 0 to 1; C x H x W with 1 or 3 channels.
        labels: class of each pixel (H x W, the size of the image).
        colors: of the classes: red, green, blue, 0 to 255; empty takes :data:`PALETTE`.
        side: small images are enlarged by a whole factor until the longer side has about this many pixels.
        segments: number of the segment of each pixel (H x W); segments are separated by white lines.
    """
    pixels, classes = np.asarray(to_pil(image)), np.asarray(labels)
    palette = colors or PALETTE
    table = np.array([palette[label % len(palette)] for label in range(IGNORE_LABEL + 1)], dtype=np.uint8)
    blended = pixels // 2 + table[classes] // 2
    blended = np.where(classes[..., None] == IGNORE_LABEL, pixels, blended)
    if segments is not None:
        padded = np.pad(np.asarray(segments), ((0, 1), (0, 1)), mode="edge")
        blended[(padded[:-1, :-1] != padded[1:, :-1]) | (padded[:-1, :-1] != padded[:-1, 1:])] = 255
    drawn = Image.fromarray(blended)
    factor = max(1, side // max(drawn.size))
    return drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
