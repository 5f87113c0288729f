"""Drawing of tracks: boxes with ids, a color for each id, and the way of the last second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import ImageDraw
from PIL.Image import Image
from torch import Tensor

from opabinia.visualization.drawing import COLORS, DrawnObject, draw_objects

TRAIL_SECONDS = 1.0


class TrackDrawing:
    """Draw the tracks of a video, frame by frame."""

    def __init__(self) -> None:
        self._trails: dict[int, deque[tuple[float, float, float]]] = {}

    def draw(self, image: Tensor, seconds: float, tracks: Sequence[Mapping[str, Any]]) -> Image:
        """Return the next frame with its tracks.

        Args:
            image: uint8, C x H x W.
            seconds: time of the frame.
            tracks: ``id``, ``class`` and ``box`` (left, top, right, bottom in pixels) of each.
        """
        objects = [DrawnObject(row["id"], f"{row['id']} {row['class']}", row["box"]) for row in tracks]
        drawn = draw_objects(image, objects)
        factor = drawn.width / image.shape[-1]
        for row in tracks:
            left, top, right, bottom = row["box"]
            trail = self._trails.setdefault(row["id"], deque())
            trail.append((seconds, (left + right) / 2 * factor, (top + bottom) / 2 * factor))
        canvas, width = ImageDraw.Draw(drawn), max(2, round(max(drawn.size) / 320))
        for track, trail in list(self._trails.items()):
            while trail and trail[0][0] < seconds - TRAIL_SECONDS:
                trail.popleft()
            canvas.line([place for _, *place in trail], fill=COLORS[track % len(COLORS)], width=width, joint="curve")
            if not trail:
                del self._trails[track]
        return drawn
