"""What was found in pictures, and what is there, ready to be drawn. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Detections, Truth
from opabinia.contracts.masks import decoded
from opabinia.evaluation.detection.rle import paste
from opabinia.visualization.drawing import Thing


def things_found(
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


def things_there(truth: Truth, classes: Sequence[str]) -> list[Thing]:
    """Things that are in a picture as its file says, crowds among them."""
    found = []
    for number, (left, top, width, height) in enumerate(truth.boxes.tolist()):
        points = () if truth.keypoints is None else truth.keypoints[number]
        found.append(
            Thing(
                label=int(truth.labels[number]),
                text=classes[int(truth.labels[number])] + (" (crowd)" if truth.crowd[number] else ""),
                box=(left, top, left + width, top + height),
                mask=None if truth.segments is None else _pixels(truth.segments[number], truth.size),
                points=[(x + 0.5, y + 0.5) for x, y, seen in points if seen],  # files number pixels
            )
        )
    return found


def _pixels(segment: Any, size: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Which pixels belong to a thing; None where nobody tells."""
    return decoded(segment, size).astype(bool) if segment else None
