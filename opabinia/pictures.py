"""What was found in pictures, and what is there, ready to be drawn. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from opabinia.contracts import Truth
from opabinia.drawing import Thing
from opabinia.evaluation.masks import decoded, pasted


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
    shown = ((prediction["labels"] >= 0) & (prediction["scores"] >= least)).nonzero().flatten().tolist()
    masks = pasted(prediction["masks"][shown], prediction["boxes"][shown], size) if "masks" in prediction else None
    return [
        Thing(
            label=int(prediction["labels"][number]),
            text=f"{classes[int(prediction['labels'][number])]} {float(prediction['scores'][number]):.2f}",
            box=prediction["boxes"][number].tolist(),
            mask=None if masks is None else masks[row],
            points=[(x, y) for x, y, _ in prediction["keypoints"][number].tolist()]
            if "keypoints" in prediction
            else (),
        )
        for row, number in enumerate(shown)
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
                mask=None if truth.segments is None else np.asarray(decoded(truth.segments[number], truth.size), bool),
                points=[(x, y) for x, y, seen in points if seen],
            )
        )
    return found
