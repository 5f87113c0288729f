"""The contract of heads on the queries of a detector: they add masks, keypoints, angles ... to its detections.

A head reads the queries of the decoder's last layer. It is trained on those that the detector matches with objects, and
has no part in matching.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from opabinia.contracts import Detections, Target
from opabinia.runtime.device import move_tensor


class Queries(NamedTuple):
    """Queries of the decoder's last layer.

    Attributes:
        embeddings: ... x C.
        boxes: center, width and height as fractions of the padded image (... x 4); without a gradient.
    """

    embeddings: Tensor
    boxes: Tensor


class MatchedObjects(NamedTuple):
    """The objects of M matched queries.

    Attributes:
        indices: index of the object of each query among those of all images (int64, M).
        counts: number of matched queries of each image; those of an image are consecutive.
    """

    indices: Tensor
    counts: Sequence[int]


class QueryHead(nn.Module):
    """Base class of heads on queries. A new head is a subclass and a key of the detectors that have it.

    Attributes:
        label_keys: keys of a sample that it needs in addition to ``boxes``.
    """

    label_keys: tuple[str, ...]

    @abstractmethod
    def losses(
        self,
        queries: Queries,
        objects: MatchedObjects,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        targets: Sequence[Target],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """Return the weighted losses by name. Every parameter takes part, even if M is 0.

        Args:
            queries: matched ones (M x C, M x 4).
            objects: theirs.
            maps: feature maps of the whole batch (B x C x h x w each), see :meth:`QueryDetector.add_heads`.
            shape: height and width of the padded batch.
            targets: one per image.
            count: number by which the sums over M queries are divided, see
                :func:`opabinia.models.losses.matching.global_count`.
        """

    @abstractmethod
    def describe(
        self, queries: Queries, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections
    ) -> Detections:
        """Add predictions to the detections of B images, with static shapes.

        Args:
            queries: that of each detection (B x D x C, B x D x 4).
            maps, shape: see :meth:`losses`.
            detections: upright boxes (B x D x 4) in pixels, scores and labels.
        """


def query_network(width: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers on each query, whose outputs begin at 0.

    Args:
        width: C, channels of a query.
        outputs: number of outputs.
    """
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, last)


def sides_of(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return width, height, width and height (float32, 4), given height and width."""
    height, width = shape
    return move_tensor(torch.tensor([width, height, width, height], dtype=torch.float32), device)
