"""Segmentation maps drawn over images."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hsv_to_rgb

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL, DrawOptions
from opabinia.visualization.drawing import COLORS, add_legend, to_pil

_GOLDEN = 0.618034  # multiples of it, modulo 1, are spread evenly however many there are
_HUES = (hsv_to_rgb(number * _GOLDEN % 1, 0.8 - 0.15 * (number % 3), 0.95) for number in range(IGNORE_LABEL))
PALETTE = (*COLORS, *((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in _HUES))[:IGNORE_LABEL]
"""Colors of classes in maps of datasets that have none of their own."""


def draw_map(
    image: Tensor,
    labels: Tensor | NDArray[np.integer],
    classes: Sequence[str] = (),
    colors: Sequence[tuple[int, int, int]] = (),
    options: DrawOptions = DrawOptions(),
    segments: Tensor | NDArray[np.integer] | None = None,
) -> Image.Image:
    """Draw a segmentation map over an image: half the image, half the color of the class of each pixel. Pixels without
    a label (255) show the image.

    Args:
        image: uint8, or float in 0 to 1; C x H x W.
        labels: class of each pixel (H x W, the size of the image).
        classes: their names, for the legend of those in the image; empty: no legend.
        colors: colors of the classes: red, green, blue, 0 to 255; empty takes :data:`PALETTE`.
        options: options of the drawing.
        segments: number of the segment of each pixel (H x W); segments are separated by white lines.
    """
    pixels, values = np.asarray(to_pil(image)), np.asarray(labels)
    palette = colors or PALETTE
    table = np.array([palette[label % len(palette)] for label in range(IGNORE_LABEL + 1)], dtype=np.uint8)
    blended = pixels // 2 + table[values] // 2
    blended = np.where(values[..., None] == IGNORE_LABEL, pixels, blended)
    if segments is not None:
        padded = np.pad(np.asarray(segments), ((0, 1), (0, 1)), mode="edge")
        blended[(padded[:-1, :-1] != padded[1:, :-1]) | (padded[:-1, :-1] != padded[:-1, 1:])] = 255
    drawn = Image.fromarray(blended)
    factor = max(1, options.side // max(drawn.size))
    drawn = drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
    present = [label for label in np.unique(values).tolist() if label < len(classes)]
    if not (options.legend and present):
        return drawn
    return add_legend(drawn, [(classes[label], palette[label % len(palette)]) for label in present], options.text)
