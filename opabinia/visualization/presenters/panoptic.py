"""Panoptic segmentation: the segment of each pixel, an object or all pixels of a class without countable objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from opabinia.contracts import DrawOptions, Sample
from opabinia.contracts.masks import compressed_mask
from opabinia.contracts.presenting import OPTIONS, Predicted
from opabinia.visualization.presenters.detections import most_frequent
from opabinia.visualization.presenters.segmentation import SegmentationPresenter, cropped
from opabinia.visualization.segmentation import draw_map


class PanopticPresenter(SegmentationPresenter):
    """Show ``segmentation``, ``segments``, ``segment_labels`` and ``segment_scores``."""

    no_heatmap = "a panoptic map shows where its classes come from; there is nothing else to explain"

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return ``segments``: each with its number ``id`` in the map, ``class``, ``score``, ``area`` in pixels, and
        ``mask`` (COCO's compressed run-length encoding)."""
        numbers = cropped(prediction, "segments")
        labels = prediction["segment_labels"][prediction["segment_labels"] >= 0].tolist()
        areas = numbers.flatten().bincount(minlength=len(labels) + 1).tolist()[1:]
        scores = prediction["segment_scores"].tolist()
        return {
            "segments": [
                {
                    "id": number,
                    "class": self.dataset_info.classes[label],
                    "score": round(score, 4),
                    "area": area,
                    "mask": compressed_mask((numbers == number).numpy()),
                }
                for number, (label, score, area) in enumerate(zip(labels, scores, areas, strict=False), 1)
            ]
        }

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return the number of segments of the three most frequent classes."""
        return most_frequent([row["class"] for row in readable["segments"] if row["score"] >= min_score])

    def ground_truth_caption(self, sample: Sample, classes: Sequence[str]) -> list[str]:
        """Return the number of annotated segments of the three most frequent classes."""
        return most_frequent([classes[label] for label in sample["ground_truth_map"].segment_labels.tolist()])

    def draw_ground_truth(self, sample: Sample, classes: Sequence[str], options: DrawOptions = OPTIONS) -> Image | None:
        """Return the image with the annotated segments in the colors of their classes."""
        if "ground_truth_map" not in sample:
            return None
        maps, colors = sample["ground_truth_map"], self.dataset_info.colors
        return draw_map(sample["image"], maps.labels, classes, colors, options, maps.segments)

    def map_pixels(self, prediction: Predicted) -> NDArray[np.uint8]:
        """Return the number of the segment of each pixel in COCO's panoptic format (red + 256 green + 65536 blue; 0
        belongs to none)."""
        numbers = cropped(prediction, "segments").numpy()
        return np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
