"""Calibrated scores of detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

_EPSILON = 1e-6


class ScoreMaps(nn.Module):
    """Maps of scores by class: sigmoid(slope * logit(score) + offset); see
    :class:`opabinia.evaluation.detection.score_calibration.ScoreCalibration`.

    Args:
        maps: slope and offset by class; scores of other classes stay as they are.
        classes: names in the order of the labels.

    Raises:
        ValueError: there is no such class, or a slope is not above 0.
    """

    table: Tensor

    def __init__(self, maps: Mapping[str, tuple[float, float]], classes: Sequence[str]) -> None:
        super().__init__()
        for name, (slope, _) in maps.items():
            if name not in classes:
                raise ValueError(f"score_calibration: the training data has no class {name!r}")
            if not slope > 0:
                raise ValueError(f"score_calibration: the slope of {name!r} is {slope}; it must be above 0")
        table = torch.tensor([maps.get(name, (1.0, 0.0)) for name in classes])
        self.register_buffer("table", table, persistent=False)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the scores (...) of detections with these labels (...); those of padding (label -1) stay."""
        slope, offset = self.table[labels.clamp(min=0)].unbind(-1)
        clipped = scores.float().clamp(_EPSILON, 1 - _EPSILON)
        mapped = (slope * (clipped / (1 - clipped)).log() + offset).sigmoid().to(scores.dtype)
        return torch.where(labels < 0, scores, mapped)
