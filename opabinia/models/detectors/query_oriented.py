"""Oriented boxes of queries: width, height and angle of the rectangle in the query's upright box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Detections, NonNegative, Target
from opabinia.contracts.rotated_boxes import long_edge_boxes
from opabinia.models.detectors.query_heads import MatchedObjects, Queries, QueryHead, query_network, sides_of
from opabinia.models.losses.boxes import angle_loss, rotated_iou_loss


@register.section(name="query_oriented")
@dataclass(frozen=True, kw_only=True)
class QueryOrientedOptions:
    """Options of the head for oriented boxes of detectors with queries. The weights are that of DETR's generalized IoU
    loss (Carion et al. 2020).

    Args:
        iou_weight: weight of -log of the IoU.
        angle_weight: weight of the loss of the angle.
    """

    iou_weight: NonNegative = 2.0
    angle_weight: NonNegative = 2.0


class QueryOrientedHead(QueryHead):
    """A network on each query that gives the logarithms of width and height, in units of the root mean square of the
    sides of its box, and the cosine and sine of twice the angle, whose period is 180 degrees. The box of a query is the
    upright box around the object, which has the same center.

    Losses, which compare predicted and true boxes at the same center: ``loss_rotated_iou``
    (:func:`opabinia.models.losses.boxes.rotated_iou_loss`) and ``loss_angle``
    (:func:`opabinia.models.losses.boxes.angle_loss`).

    Args:
        width: C, channels of a query.
        options: see :class:`QueryOrientedOptions`.
    """

    label_keys = ()

    def __init__(self, width: int, options: QueryOrientedOptions) -> None:
        super().__init__()
        self.options = options
        self.layers = query_network(width, 4)

    def _boxes(self, queries: Queries, shape: tuple[int, int], centers: Tensor) -> Tensor:
        """Return the rotated boxes (... x 5) with some centers, in pixels (... x 2)."""
        sizes, directions = self.layers(queries.embeddings).float().split(2, -1)
        sides = queries.boxes[..., 2:].float() * sides_of(shape, sizes.device)[2:]
        unit = sides.square().mean(-1, keepdim=True).sqrt()
        cosines, sines = directions.chunk(2, -1)
        angles = torch.rad2deg(torch.atan2(sines, 1 + cosines)) / 2  # a new head gives squares of angle 0
        return torch.cat([centers, sizes.exp() * unit, angles], -1)

    def losses(
        self,
        queries: Queries,
        objects: MatchedObjects,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        targets: Sequence[Target],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """See :meth:`QueryHead.losses`."""
        true = long_edge_boxes(torch.cat([target.boxes for target in targets])[objects.indices])
        boxes = self._boxes(queries, shape, true[:, :2])
        return {
            "loss_rotated_iou": self.options.iou_weight * rotated_iou_loss(boxes, true).sum() / count,
            "loss_angle": self.options.angle_weight * angle_loss(boxes, true).sum() / count,
        }

    def describe(
        self, queries: Queries, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections
    ) -> Detections:
        """Replace the boxes by oriented ones (B x D x 5), see :meth:`QueryHead.describe`."""
        centers = queries.boxes[..., :2].float() * sides_of(shape, queries.boxes.device)[:2]
        return detections._replace(boxes=long_edge_boxes(self._boxes(queries, shape, centers)))
