"""Rotated FCOS: oriented object detection without anchors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction, Level, NeckPart, NonNegative, Positive
from opabinia.contracts.rotated_boxes import box_axes, long_edge_boxes
from opabinia.models.detectors.dense import HeadNorm, Probability
from opabinia.models.detectors.fcos import Fcos, flatten_positions
from opabinia.models.losses.boxes import rotated_iou_loss
from opabinia.models.losses.class_weights import ClassWeights
from opabinia.models.necks import fpn_p3_p7_from_p5


def decode_rotated(encoded: Tensor, points: Tensor) -> Tensor:
    """Return the rotated boxes (... x 5) around points (as boxes of the stride's size, ... x 4) that are encoded as
    distances to the left, top, right and bottom side in the box's own frame, in strides, and the angle in radians
    (... x 5)."""
    strides = points[..., 2:] - points[..., :2]
    near, far = encoded[..., :2] * strides, encoded[..., 2:4] * strides
    angles, shifts = torch.rad2deg(encoded[..., 4]), (far - near) / 2
    along_width, along_height = box_axes(angles)
    centers = (points[..., :2] + points[..., 2:]) / 2 + shifts[..., :1] * along_width + shifts[..., 1:] * along_height
    return torch.cat([centers, near + far, angles[..., None]], -1)


def _decode_long_edge(encoded: Tensor, points: Tensor) -> Tensor:
    return long_edge_boxes(decode_rotated(encoded, points))


@register.detector
class RotatedFcos(Fcos):
    """FCOS (Tian et al. 2019) for rotated boxes, after MMRotate's ``RotatedFCOS``: a point predicts its distances to
    the four sides of a box in the box's own frame, and the angle.

    Objects are assigned to points as by :class:`Fcos`, by the distances in their frames. Predicted boxes have width >=
    height and angles in [-90, 90). The defaults are those of MMRotate's ``rotated_fcos_r50_fpn_1x_dota_le90``.

    Parameters of the head have the names of ``fcos``, and ``head.angle`` and ``head.angle_scale``.

    Args:
        neck: makes the feature pyramid.
        num_convs: convolutions of each of the two branches.
        norm: after each of them.
        prior_probability: initial probability of every class.
        center_sampling_radius: points up to this many strides from the center of an object, along its sides, are
            assigned to it; null: all points within its box.
        level_factors: the predicted distances of each level are multiplied by a learned factor, the angles by one for
            all levels.
        weight_boxes: box losses are weighted by the centerness of their points.
        offset: position of the first point, in strides.
        alpha: weight alpha of the focal loss.
        gamma: focusing exponent of the focal loss.
        class_weights: weights of the class loss by class name, or ``balanced``, as in :class:`Fcos`; null: all alike.
        score_threshold: detections with this score or less are dropped.
        nms_threshold: IoU of two detections of one class above which the one with the lower score is dropped.
        pre_nms_topk: candidates of each level that go into suppression, the best ones.
        max_detections: per image.
    """

    oriented = True
    _decode = staticmethod(_decode_long_edge)

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn_p3_p7_from_p5,
        num_convs: Count = 4,
        norm: HeadNorm = "group",
        prior_probability: Probability = 0.01,
        center_sampling_radius: Positive | None = 1.5,
        level_factors: bool = True,
        weight_boxes: bool = True,
        offset: Fraction = 0.5,
        alpha: Fraction = 0.25,
        gamma: NonNegative = 2.0,
        class_weights: ClassWeights | None = None,
        score_threshold: Fraction = 0.05,
        nms_threshold: Fraction = 0.1,
        pre_nms_topk: Count = 2000,
        max_detections: Count = 2000,
    ) -> None:
        super().__init__(
            levels,
            dataset_info,
            neck=neck,
            num_convs=num_convs,
            norm=norm,
            prior_probability=prior_probability,
            center_sampling_radius=center_sampling_radius,
            level_factors=level_factors,
            weight_boxes=weight_boxes,
            offset=offset,
            alpha=alpha,
            gamma=gamma,
            class_weights=class_weights,
            score_threshold=score_threshold,
            nms_threshold=nms_threshold,
            pre_nms_topk=pre_nms_topk,
            max_detections=max_detections,
        )
        angle = nn.Conv2d(self.neck.out_levels[0].channels, 1, 3, padding=1)
        nn.init.normal_(angle.weight, std=0.01)
        assert angle.bias is not None
        nn.init.zeros_(angle.bias)
        self.head["angle"] = angle
        if level_factors:
            self.head["angle_scale"] = nn.ParameterList([torch.ones(())])

    def _regress(self, features: Tensor, level: int, points: Tensor) -> Tensor:
        heads: Any = self.head
        angles = flatten_positions(heads["angle"](features)).float()
        if "angle_scale" in heads:
            angles = angles * heads["angle_scale"][0]
        return torch.cat([super()._regress(features, level, points), angles], 2)

    def _box_losses(self, encoded: Tensor, points: Tensor, targets: Tensor) -> Tensor:
        return rotated_iou_loss(decode_rotated(encoded, points), targets)
