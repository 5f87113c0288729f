"""DOTA's average precision of oriented bounding boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Lt

from opabinia.config import register
from opabinia.contracts import DatasetInfo, Fraction
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.voc import Voc


@register.evaluator(name="dota_map")
class DotaMap(Voc):
    """DOTA's mean average precision of oriented boxes (Xia et al. 2018, section 5; its development kit, task 1).

    The rule is :class:`opabinia.evaluation.detection.voc.Voc`'s with the IoU of a predicted box and the annotated
    quadrilateral, as annotated: ``AP50`` is DOTA's own score, ``AP75`` that of a larger IoU, ``AP`` the mean over IoUs
    from 0.5 to 0.95. Difficult objects (``crowd`` in the ground truth) need not be detected, and detections of them are
    ignored.

    Files: ``Task1_<class>.txt``, the detections as DOTA's server takes them: name of the image, score, and x and y of
    the four corners.

    Args:
        dataset_info: facts about the data.
        year: 2007: the mean of the precisions at recalls 0, 0.1 ... 1, DOTA's choice; 2012: the area under precision
            over recall.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.
        ious: further IoUs with a score of their own: ``[0.3]`` adds ``AP30``.
    """

    oriented = True

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        year: Literal[2007, 2012] = 2007,
        confidence: Fraction | None = None,
        ious: list[Annotated[float, Gt(0), Lt(1)]] | None = None,
    ) -> None:
        super().__init__(dataset_info, year=year, confidence=confidence, ious=ious)

    def files(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the lines of ``Task1_<class>.txt`` for each class with detections."""
        classes = self._dataset_info.classes
        lines: dict[str, list[str]] = {name: [] for name in classes}
        for image in self._results(states)[0]:
            corners = box_corners(torch.from_numpy(image.boxes).double()).flatten(1).tolist()
            for label, score, points in zip(image.labels.tolist(), image.scores.tolist(), corners, strict=True):
                values = " ".join(f"{value:.2f}" for value in points)
                lines[classes[label]].append(f"{image.ground_truth.image_id} {score:.6f} {values}\n")
        return {f"Task1_{name.replace('/', '_')}.txt": "".join(rows) for name, rows in lines.items()}
