"""Label errors of segmentation maps: connected regions in which the predicted probability of the labeled class is low.

Lad and Mueller, Estimating Label Quality and Errors in Semantic Segmentation Data via Any Model (2023), score pixels
and images by the probability of the label; here a region is scored by its mean, so that it can be shown and corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import IGNORE_LABEL, Batch, DataMismatch, Predictions
from opabinia.evaluation.label_errors.suspects import Box, Floats, LabelCheck, LabelErrors, Suspect, ranked

REGION = "region"

MIN_SUSPICION = 0.5
"""Regions with a lower score are not listed."""

MIN_RADIUS, RELATIVE_RADIUS = 2, 0.005
"""Thinner regions are borders of objects: half their width in pixels, at least, and relative to the longer side."""

Labels = NDArray[np.uint8]


class Region(NamedTuple):
    """A connected region of one labeled class in which another one is predicted.

    Attributes:
        label, predicted: class numbers.
        score: 1 - the mean probability of the labeled class.
        pixels: their number.
        box: left, top, right and bottom in pixels of the map.
    """

    label: int
    predicted: int
    score: float
    pixels: int
    box: Box


def wrong_regions(labels: Labels, predicted: Labels, of_label: Floats) -> Iterator[Region]:
    """Yield the connected regions of each pair of a labeled and another predicted class that are more than borders.

    Args:
        labels: class of each pixel, 255 without one (H x W).
        predicted: predicted class of each pixel (H x W).
        of_label: predicted probability of the labeled class (H x W).
    """
    from scipy import ndimage

    radius = max(MIN_RADIUS, round(RELATIVE_RADIUS * max(labels.shape)))
    pairs = labels.astype(np.int64) * 256 + predicted
    pairs[(labels == IGNORE_LABEL) | (labels == predicted)] = -1
    square = np.ones((3, 3), dtype=bool)
    for pair in np.unique(pairs[pairs >= 0]).tolist():
        mask = pairs == pair
        core = ndimage.binary_erosion(mask, square, iterations=radius, border_value=1)
        if not core.any():
            continue
        components, _ = ndimage.label(mask, square)
        places = ndimage.find_objects(components)
        for number in np.unique(components[core]).tolist():
            rows, columns = places[number - 1]
            inside = components[rows, columns] == number
            score = 1 - float(of_label[rows, columns][inside].mean(dtype=np.float64))
            box = (float(columns.start), float(rows.start), float(columns.stop), float(rows.stop))
            yield Region(pair // 256, pair % 256, score, int(inside.sum()), box)


class SegmentationCheck(LabelCheck):
    """Segmentation maps: listed are the :func:`wrong_regions` with a score of at least :data:`MIN_SUSPICION`."""

    def __init__(self) -> None:
        super().__init__()
        self._regions: list[tuple[str, Region]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``predicted`` (uint8, B x H x W), ``of_label``, the probability of the labeled class, and
        ``mask``, all of the padded images; with ``image_sizes`` and ``original_size``, if they are resized.

        Raises:
            DataMismatch: a probability is not finite.
        """
        columns = (predictions["predicted"].numpy(), predictions["of_label"].float().numpy(), batch["mask"].numpy())
        full = [columns[0].shape[1:]] * len(batch["id"])
        sizes: Sequence[Sequence[int]] = batch.get("image_sizes", full)
        originals: Sequence[Sequence[int]] = batch.get("original_size", sizes)
        for name, predicted, of_label, labels, size, original in zip(
            batch["id"], *columns, sizes, originals, strict=True
        ):
            height, width = size
            shown = (slice(None, height), slice(None, width))
            if not np.isfinite(of_label[shown]).all():
                raise DataMismatch(
                    f"{name} has a predicted probability that is not finite; the model may have diverged"
                )
            scale = (original[1] / width, original[0] / height) * 2
            for region in wrong_regions(labels[shown].astype(np.uint8), predicted[shown], of_label[shown]):
                left, top, right, bottom = (value * factor for value, factor in zip(region.box, scale, strict=True))
                self._regions.append((name, region._replace(box=(left, top, right, bottom))))
        self.ids += batch["id"]

    @staticmethod
    def find(checks: Sequence[SegmentationCheck], classes: Sequence[str]) -> LabelErrors:
        regions = [item for check in checks for item in check._regions if item[1].score >= MIN_SUSPICION]
        suspects = []
        for name, region in regions:
            label, predicted = classes[region.label], classes[region.predicted]
            reason = (
                f"in {region.pixels:,} connected pixels {predicted} is predicted; the mean probability of {label} is "
            )
            reason += f"{1 - region.score:.2f}"
            suspects.append(Suspect(name, REGION, label, predicted, region.score, reason, region.box))
        return LabelErrors(ranked(suspects), {})
