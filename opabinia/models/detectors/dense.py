"""Shared by one-stage detectors, which predict classes and boxes at every position of a feature pyramid."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval
from torch import Tensor

from opabinia.contracts import Detections, Detector, Level, NeckPart, Sizes
from opabinia.models.detectors.suppression import Candidates, suppress, suppress_static

HeadNorm = Literal["none", "group"]

Probability = Annotated[float, Interval(gt=0, lt=1)]

Decode = Callable[[Tensor, Tensor], Tensor]
"""Map encoded boxes and their anchors (N x 4 each) to boxes (N x 4); those of rotated boxes have 5 columns."""


def is_top1(logits: Tensor, classes: Tensor) -> Tensor:
    """Return whether the true class has the highest logit (bool, B x N); False for background (-1)."""
    logits = logits.detach()
    true_logits = logits.gather(-1, classes.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (true_logits >= logits.amax(dim=-1)) & (classes >= 0)


class HeadOutput(NamedTuple):
    """Predictions of a head for one level of B images.

    Attributes:
        logits: B x N x K.
        deltas: encoded boxes (B x N x 4).
        anchors: N x 4.
        centerness: logits (B x N); None for heads without.
    """

    logits: Tensor
    deltas: Tensor
    anchors: Tensor
    centerness: Tensor | None = None


Predictions = tuple[Tensor, Tensor, list[Tensor], Tensor | None]
"""Logits (B x N x K) and encoded boxes (B x N x 4) of all levels, the anchors of each level, and centerness (B x N)."""


def split_levels(
    logits: Tensor, deltas: Tensor, anchors: Sequence[Tensor], centerness: Tensor | None = None
) -> list[HeadOutput]:
    """Split the concatenated predictions of a head (B x sum of all N x ...) into levels."""
    ends = [0, *accumulate(map(len, anchors))]
    parts = [slice(*pair) for pair in pairwise(ends)]
    return [
        HeadOutput(logits[:, part], deltas[:, part], level, None if centerness is None else centerness[:, part])
        for part, level in zip(parts, anchors, strict=True)
    ]


def top_candidates(level: HeadOutput, decode: Decode, count: int) -> Candidates:
    """Return the pairs of an anchor and a class with the highest scores on one level, at most ``count`` per image.

    A score is the probability of a class; with centerness the geometric mean of the two probabilities (Tian et al.
    2022, equation 4).
    """
    # The best pairs are among the best anchors: only their K scores are computed.
    best = _scores(level.logits.amax(dim=2, keepdim=True), level.centerness).squeeze(2)
    rows = best.topk(min(count, best.shape[1])).indices
    centerness = None if level.centerness is None else level.centerness.gather(1, rows)
    scores = _scores(_gather_rows(level.logits, rows), centerness).flatten(1)
    scores, pairs = scores.topk(min(count, scores.shape[1]))
    classes = level.logits.shape[2]
    rows = rows.gather(1, pairs // classes)
    boxes = decode(_gather_rows(level.deltas, rows).flatten(0, 1), level.anchors[rows].flatten(0, 1))
    return Candidates(scores, pairs % classes, boxes.view(*rows.shape, -1))


def _scores(logits: Tensor, centerness: Tensor | None) -> Tensor:
    probabilities = logits.float().sigmoid()
    return probabilities if centerness is None else (probabilities * centerness.float().sigmoid().unsqueeze(2)).sqrt()


def _gather_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Select rows (B x M) of B x N x C."""
    return values.gather(1, rows.unsqueeze(2).expand(-1, -1, values.shape[2]))


class DenseDetector(Detector):
    """Base class of detectors with a neck and a head on every level of its pyramid.

    Attributes:
        score_threshold, nms_threshold, max_detections: see :func:`suppress`.
        pre_nms_topk: number of candidates of each level that go into suppression.
    """

    _decode: Decode

    def __init__(
        self,
        neck: NeckPart,
        levels: Sequence[Level],
        score_threshold: float,
        nms_threshold: float,
        pre_nms_topk: int,
        max_detections: int,
    ) -> None:
        super().__init__()
        self.neck = neck(levels)
        self.score_threshold, self.nms_threshold = score_threshold, nms_threshold
        self.pre_nms_topk, self.max_detections = pre_nms_topk, max_detections

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Detections of each image; see :func:`top_candidates` for their scores."""
        candidates = self.candidates(maps, shape)
        return suppress(candidates, sizes, self.score_threshold, self.nms_threshold, self.max_detections)

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections:
        """Detections of B images with static shapes; see :func:`suppress_static`."""
        thresholds = self.score_threshold, self.nms_threshold, self.max_detections
        return suppress_static(self.candidates(maps, shape), sizes, *thresholds)

    def candidates(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> list[Candidates]:
        """The best predictions of each level, before suppression."""
        levels = split_levels(*self._predict(maps, shape))
        return [top_candidates(level, self._decode, self.pre_nms_topk) for level in levels]

    @abstractmethod
    def _predict(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Predictions:
        """Run the head on all levels."""
