"""Ground truth and predicted maps of images: the common part of the segmentation evaluators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import IGNORE_LABEL, Batch, DataMismatch, GroundTruthMap, Predictions

MAX_WORST = 100


def ground_truth_maps(
    predictions: Predictions, batch: Batch, classes: int
) -> Iterator[tuple[int, str, GroundTruthMap, tuple[slice, slice]]]:
    """Yield for each image its row, its id, its ground truth, and the area of the padded predictions that it fills.

    Args:
        predictions: predictions of a segmentation task (:data:`opabinia.contracts.Predictions`).
        batch: with ``ground_truth_map`` and ``id``.
        classes: their number.

    Raises:
        DataMismatch: the ground truth has another size than the image, or a label that is no class.
    """
    sizes = predictions["image_size"].tolist()
    for row, (name, ground_truth) in enumerate(zip(batch["id"], batch["ground_truth_map"], strict=True)):
        labels = ground_truth.labels
        if list(labels.shape) != sizes[row]:
            (height, width), (map_height, map_width) = sizes[row], labels.shape
            raise DataMismatch(f"{name}: its map has {map_height} x {map_width} pixels, the image {height} x {width}")
        highest = int(labels.max(initial=0, where=labels != IGNORE_LABEL))
        if highest >= classes:
            raise DataMismatch(
                f"{name}: its map has the label {highest}; labels are 0 to {classes - 1}, and {IGNORE_LABEL} for "
                "pixels without one"
            )
        yield row, str(name), ground_truth, (slice(sizes[row][0]), slice(sizes[row][1]))


def boundary_pixels(labels: NDArray[np.integer], width: int) -> NDArray[np.bool_]:
    """Return whether each pixel of a map (H x W) is on the boundary of its label: the square of ``2 * width + 1``
    pixels around it has another label or leaves the image. This is Boundary IoU's erosion of the mask of each label
    (Cheng et al. 2021), for all at once."""
    from scipy.ndimage import maximum_filter, minimum_filter

    signed = labels.astype(np.int32)
    low, high = (
        function(signed, 2 * width + 1, mode="constant", cval=-1) for function in (minimum_filter, maximum_filter)
    )
    return np.asarray(low != high)


def worst_rows(parts: Sequence[Sequence[dict[str, Any]]], score: str) -> list[dict[str, Any]]:
    """Return at most a hundred rows with the lowest score, of equal ones in the order of their ids, so that the number
    of processes does not matter."""
    return sorted(chain.from_iterable(parts), key=lambda row: (row[score], row["id"]))[:MAX_WORST]
