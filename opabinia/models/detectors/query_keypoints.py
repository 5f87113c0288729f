"""Keypoints of queries: their positions relative to the query's box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Detections, NonNegative, Positive, Target
from opabinia.contracts.keypoints import COCO_SIGMAS, OTHER_SIGMA
from opabinia.models.detectors.query_heads import MatchedObjects, Queries, QueryHead, query_network, sides_of
from opabinia.models.losses.keypoints import keypoint_losses, keypoint_similarity
from opabinia.runtime.device import move_tensor


@register.section(name="query_keypoints")
@dataclass(frozen=True, kw_only=True)
class QueryKeypointOptions:
    """Options of the keypoint head of detectors with queries. Weights are those of ED-Pose's code (Yang et al. 2023);
    that of the visibility is YOLO-Pose's.

    Args:
        sigmas: for each keypoint the standard deviation of annotators, in units of the object's size (square root of
            its area); null: COCO's for its 17 keypoints of people, 0.05 for others.
        distance_weight: weight of the L1 distance, in fractions of the padded image.
        similarity_weight: weight of 1 - OKS; the area of an object is that of its box.
        visibility_weight: weight of the cross entropy of the visibility.
    """

    sigmas: tuple[Positive, ...] | None = None
    distance_weight: NonNegative = 10.0
    similarity_weight: NonNegative = 4.0
    visibility_weight: NonNegative = 1.0


class QueryKeypointHead(QueryHead):
    """A network on each query that gives the positions of P keypoints relative to the center of its box, in widths and
    heights of it, and the logits of their visibility, the scores of keypoints.

    Losses: ``loss_keypoint``, the L1 distance of visible keypoints, ``loss_oks`` and ``loss_visibility``, see
    :func:`opabinia.models.losses.keypoints.keypoint_losses`.

    Args:
        names: names of the P keypoints.
        width: C, channels of a query.
        options: see :class:`QueryKeypointOptions`.

    Raises:
        ValueError: there are other numbers of sigmas than keypoints.
    """

    label_keys = ("keypoints",)

    def __init__(self, names: Sequence[str], width: int, options: QueryKeypointOptions) -> None:
        super().__init__()
        self.options = options
        default = COCO_SIGMAS.values() if tuple(names) == tuple(COCO_SIGMAS) else [OTHER_SIGMA] * len(names)
        self._sigmas = tuple(default) if options.sigmas is None else options.sigmas
        if len(self._sigmas) != len(names):
            raise ValueError(
                f"keypoint.sigmas: {len(self._sigmas)} numbers for {len(names)} keypoints; give one for each"
            )
        self.layers = query_network(width, 3 * len(names))  # all keypoints begin at the center of the box

    def _points(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """Return the positions as fractions of the padded image (... x P x 2), and the logits (... x P)."""
        values = self.layers(queries.embeddings).float().unflatten(-1, (-1, 3))
        centers, sizes = queries.boxes.float().unsqueeze(-2).chunk(2, -1)
        return centers + values[..., :2] * sizes, values[..., 2]

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
        known = [target.keypoints for target in targets if target.keypoints is not None]
        if len(known) < len(targets):
            raise ValueError("an image without keypoints came to a detector that learns them")
        true = torch.cat(known)[objects.indices]
        boxes = torch.cat([target.boxes for target in targets])[objects.indices]
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        points, logits = self._points(queries)
        pixels = sides_of(shape, points.device)[:2]
        shifts = points - true[..., :2] / pixels
        sigmas = move_tensor(torch.tensor(self._sigmas), points.device)
        similarity = keypoint_similarity(shifts * pixels, areas, sigmas)
        visible = (true[..., 2] > 0).to(logits.dtype)
        distance, oks, visibility = keypoint_losses(shifts, logits, visible, similarity)
        return {
            "loss_keypoint": self.options.distance_weight * distance / count,
            "loss_oks": self.options.similarity_weight * oks / count,
            "loss_visibility": self.options.visibility_weight * visibility / count,
        }

    def describe(
        self, queries: Queries, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections
    ) -> Detections:
        """Add keypoints (B x D x P x 3), see :meth:`QueryHead.describe`."""
        points, logits = self._points(queries)
        scores = logits.sigmoid().unsqueeze(-1)
        return detections._replace(keypoints=torch.cat([points * sides_of(shape, points.device)[:2], scores], -1))
