"""What was found in pictures, and what is there, ready to be drawn. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Detections, GroundTruth
from opabinia.contracts.masks import decoded
from opabinia.evaluation.detection.rle import paste
from opabinia.visualization.drawing import Thing


def predicted_objects(
    prediction: Mapping[str, Tensor], classes: Sequence[str], size: tuple[int, int], least: float = 0.5
) -> list[Thing]:
    """Things that a model found in a picture, best first.

    Args:
        prediction: a row of each tensor (see :data:`opabinia.contracts.Predictions`), on the CPU.
        classes: their names.
        size: height and width of the picture.
        least: score of what is shown.
    """
    shown = ((prediction["labels"] >= 0) & (prediction["scores"] >= least)).nonzero().flatten()
    rows = {name: values[shown] for name, values in prediction.items() if name in Detections._fields}
    masks: list[str] | None = None
    if "masks" in rows:
        masks = paste(rows["masks"].numpy(), rows["boxes"].numpy(), size)
    points = rows["keypoints"][..., :2].tolist() if "keypoints" in rows else [()] * len(shown)
    columns = rows["labels"].tolist(), rows["scores"].tolist(), rows["boxes"].tolist(), points
    return [
        Thing(
            label=label,
            text=f"{classes[label]}: {score:.2f}",
            box=box,
            mask=None if masks is None else _pixels({"size": list(size), "counts": masks[number]}, size),
            points=some,
        )
        for number, (label, score, box, some) in enumerate(zip(*columns, strict=True))
    ]


def annotated_objects(ground_truth: GroundTruth, classes: Sequence[str]) -> list[Thing]:
    """Things that are in a picture as its file says, crowds among them."""
    found = []
    for number, (left, top, width, height) in enumerate(ground_truth.boxes.tolist()):
        points = () if ground_truth.keypoints is None else ground_truth.keypoints[number]
        found.append(
            Thing(
                label=int(ground_truth.labels[number]),
                text=classes[int(ground_truth.labels[number])] + (" (crowd)" if ground_truth.crowd[number] else ""),
                box=(left, top, left + width, top + height),
                mask=None
                if ground_truth.segments is None
                else _pixels(ground_truth.segments[number], ground_truth.size),
                points=[(x + 0.5, y + 0.5) for x, y, seen in points if seen],  # files number pixels
            )
        )
    return found


def _pixels(segment: Any, size: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Which pixels belong to a thing; None where nobody tells."""
    return decoded(segment, size).astype(bool) if segment else None
