"""Detectors and decoders on a GPU: no constant is copied so that the host waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from opabinia.contracts import MaskTargets, Target
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.models import panoptic
from opabinia.models.detectors import queries
from opabinia.models.detectors.rt_detr import HybridDetector, _anchors
from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.masks import MaskCriterion, QueryMasks
from opabinia.models.losses.matching import Objects, Pairs, Prediction
from tests.fake_gpu import GPU, WithoutBlockingCopies

ones = partial(torch.ones, device=GPU)
integers = partial(torch.ones, device=GPU, dtype=torch.int64)


class Detector(queries.QueryDetector):
    """Predicts the same boxes whatever the images."""

    def _predict(self, maps: Any, shape: Any, sizes: Tensor, objects: Objects | None = None) -> queries.Outputs:
        return queries.Outputs(Prediction(maps[0][..., :3], maps[0][..., :4]))

    def _layer_losses(self, prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> dict[str, Tensor]:
        return {"loss_giou": box_losses(prediction, pairs, objects, count)[1]}


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make CUDA tensors without values, of which the host may read nothing."""
    monkeypatch.setattr(queries, "match_queries", lambda layers, *others: [Pairs(*torch.tensor([[0, 1]] * 3))])
    with FakeTensorMode(), WithoutBlockingCopies():
        yield


def test_corners_of_rotated_boxes() -> None:
    assert box_corners(ones(3, 5)).shape == (3, 4, 2)


def test_losses_and_detections_of_queries() -> None:
    detector, maps, sizes = Detector(), [ones(2, 5, 4)], [(60, 80), (64, 96)]
    target = Target(ones(1, 4), integers(1))
    losses = detector.losses(maps, (64, 96), sizes, [target] * 2)
    assert losses["loss_giou"].device == GPU
    assert detector.detect_batch(maps, (64, 96), queries.sizes_as_tensor(sizes, maps[0].device)).boxes.shape[0] == 2


def test_anchors_of_queries() -> None:
    anchors, inside = _anchors([(8, 12), (4, 6)], (64, 96), integers(2, 2))
    assert anchors.device == inside.device == GPU


def test_pairs_of_denoising_queries() -> None:
    config = SimpleNamespace(num_denoising=4, num_labels=3, label_noise_ratio=0.5, box_noise_scale=1.0)
    meta = {"dn_num_group": 2, "dn_positive_idx": [integers(4), integers(2)]}
    queries_of = lambda **options: (ones(2, 8, 4), ones(2, 8, 4), ones(9, 9), meta)  # noqa: E731
    detector: Any = SimpleNamespace(_config=config, _denoising_queries=queries_of, denoising_class_embed=None)
    objects = Objects(integers(3), ones(3, 4), [2, 1])
    denoising = HybridDetector._make_denoising(detector, objects, 1)
    assert denoising is not None and all(len(values) == 6 for values in denoising.pairs)


def test_losses_of_masks() -> None:
    layer = QueryMasks(ones(2, 5, 4), ones(2, 5, 8, 8))
    segments = MaskTargets(integers(2), ones(2, 8, 8))
    pairs = Pairs(*(integers(2) for _ in range(3)))
    assert MaskCriterion(num_points=8)._layer(layer, pairs, segments)["loss_ce"].device == GPU


def test_instances_and_segments_of_mask_classifiers() -> None:
    logits, masks = ones(2, 5, 4), ones(2, 5, 8, 8)
    panoptic.top_instances(logits, masks, [0, 2])
    assert panoptic.merge_queries(logits, masks, [0, 2]).map.device == GPU
