"""Values of the drawing methods of :class:`opabinia.contracts.Task`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image


class DrawOptions(NamedTuple):
    """Options of drawing.

    Attributes:
        min_score: detections with a lower score are not drawn.
        side: small images are enlarged by a whole factor until the longer side has about this many pixels.
        text: minimum height of texts in pixels.
        legend: name the colors of a segmentation map below the image, which becomes higher.
    """

    min_score: float = 0.5
    side: int = 512
    text: int = 11
    legend: bool = True


class Panel(NamedTuple):
    """A drawn image with its title."""

    image: Image.Image
    title: str


class Comparison(NamedTuple):
    """Ground truth and prediction of one sample.

    Attributes:
        panels: images shown side by side.
        caption: both in words, one line.
        correct: whether the prediction is right, where that can be said.
    """

    panels: Sequence[Panel]
    caption: str
    correct: bool | None = None
