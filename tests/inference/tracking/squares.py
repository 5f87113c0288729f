"""Videos in which gray squares are the objects, and a detector that sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from opabinia.contracts import FrameTracks, GroundTruth, Sample, Source, SourceInfo
from opabinia.contracts.tracking import FrameDetections, Role, TrackGroundTruth
from opabinia.inference.tracking.pipeline import Pipeline
from opabinia.models.trackers.sequences import Frame

SIDE, SQUARE = 64, 12
GRAYS = (80, 160, 240)

Positions = Sequence[int | None]
"""Left edge of a square in each frame; None: it is hidden."""

CROSSING: list[Positions] = [
    [*range(6, 24, 2), *[None] * 6, *range(22, 8, -2)],
    [*range(50, 32, -2), *[None] * 6, *range(34, 48, 2)],
    [10] * 22,
]
"""Two squares meet, are hidden, and go back to where they came from; a third one stands still."""
PASSING: list[Positions] = [[left, left + 2, left + 4, left + 6, left + 8, left + 10] for left in (0, 20, 40)]

VIDEOS = {"crossing": CROSSING, "passing": PASSING}


def draw(paths: Sequence[Positions], frame: int) -> torch.Tensor:
    """Return a frame (uint8, 1 x 64 x 64): the first two squares share a row, the third has one of its own."""
    image = torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)
    for number, path in enumerate(paths):
        left, top = path[frame], 40 if number == 2 else 10
        if left is not None:
            image[:, top : top + SQUARE, left : left + SQUARE] = GRAYS[number]
    return image


def squares(image: torch.Tensor) -> tuple[list[int], NDArray[np.float64]]:
    """Return the gray values of the squares in an image, and their boxes."""
    found = [gray for gray in GRAYS if (image == gray).any()]
    boxes = []
    for gray in found:
        rows, columns = np.nonzero(image[0].numpy() == gray)
        boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return found, np.array(boxes, float).reshape(-1, 4)


class SquareVideos(Source):
    """Frames of videos, one after the other."""

    def __init__(self, videos: Mapping[str, Sequence[Positions]] = VIDEOS) -> None:
        self._frames = [
            (name, number, draw(paths, number)) for name, paths in videos.items() for number in range(len(paths[0]))
        ]
        sequences = np.array([name for name, _, _ in self._frames])
        self.info = SourceInfo(channels=1, classes=("square",), boxes=True, sequences=sequences)

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Sample:
        name, number, image = self._frames[index]
        found, boxes = squares(image)
        count, zeros = len(found), np.zeros(len(found), np.int64)
        truth = TrackGroundTruth(np.full(count, number), np.array(found), boxes, zeros, np.full(count, Role.COUNTED))
        areas, crowd = np.full(count, 144.0), np.zeros(count, bool)
        track = FrameTracks(name, number, number / 10, truth)
        ground_truth = GroundTruth(index, (SIDE, SIDE), zeros, boxes, zeros, areas, crowd, track=track)
        return {"image": image, "id": f"{name}/{number}", "ground_truth": ground_truth}


def write_videos(root: Path) -> dict[str, Any]:
    """Write the videos in the layout of MOTChallenge, and return the section of their source."""
    for name, paths in VIDEOS.items():
        (root / name / "img1").mkdir(parents=True)
        (root / name / "gt").mkdir()
        (root / name / "gt" / "labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)))
        lines = []
        for number in range(len(paths[0])):
            image = draw(paths, number)
            Image.fromarray(image[0].numpy()).save(root / name / "img1" / f"{number + 1:06d}.png")
            for gray, (left, top, right, bottom) in zip(*squares(image), strict=True):
                track = GRAYS.index(gray) + 1
                lines.append(f"{number + 1},{track},{left:g},{top:g},{right - left:g},{bottom - top:g},1,1,1")
        (root / name / "gt" / "gt.txt").write_text("\n".join(lines) + "\n")
    return {"name": "mot", "root": str(root), "first_pixel": 0, "channels": 1}


class Seeing:
    """A pipeline whose detector sees all squares, and whose embeddings tell their gray values apart."""

    def __init__(self) -> None:
        self.detected, self.embedded = 0, 0

    def __call__(self, *models: Any) -> Pipeline:
        return cast(Pipeline, self)

    def detect(self, image: torch.Tensor, number: int) -> Frame:
        self.detected += 1
        found, boxes = squares(image)
        detections = FrameDetections(boxes, np.full(len(found), 0.9))
        return Frame(number, detections, np.zeros(len(found), np.int64))

    def embed(self, image: torch.Tensor, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        self.embedded += 1
        centers = boxes.reshape(-1, 2, 2).mean(1).astype(int)
        grays = image[0].numpy()[centers[:, 1], centers[:, 0]]
        return (grays[:, None] == np.array(GRAYS)).astype(float)
