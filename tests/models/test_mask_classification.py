"""Mask classification losses: comparison with the transformers library, matching and point sampling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import MaskTargets
from opabinia.models.losses.masks import MaskCriterion, QueryMasks, sample_points, semantic_segments
from tests.host_waits import HostWaits


def make_predictions(layers: int = 2) -> list[QueryMasks]:
    draw = torch.Generator().manual_seed(1)
    return [
        QueryMasks(torch.randn(2, 7, 5, generator=draw), torch.randn(2, 7, 12, 16, generator=draw))
        for _ in range(layers)
    ]


def make_targets() -> list[MaskTargets]:
    draw = torch.Generator().manual_seed(2)
    return [
        MaskTargets(torch.tensor(labels), (torch.rand(len(labels), 48, 64, generator=draw) > 0.6).to(torch.uint8))
        for labels in ([0, 2, 2], [3])
    ]


def fixed_rand(*shape: Any, **options: Any) -> Tensor:
    """Return the same numbers for the same shape, so that both implementations sample the same points."""
    sizes = shape[0] if isinstance(shape[0], tuple) else shape
    return torch.empty(sizes).uniform_(generator=torch.Generator().manual_seed(sum(sizes)))


Losses = dict[str, Tensor]


def losses_of_both(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Losses, Losses]]:
    """Return our losses of each layer and those of the library."""
    library = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    config = library.Mask2FormerConfig(num_labels=4, train_num_points=50)
    weights = {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0}
    monkeypatch.setattr(torch, "rand", fixed_rand)
    pairs = []
    for layer in make_predictions():
        expected = library.Mask2FormerLoss(config, weights)(
            layer.masks,
            layer.logits,
            [row.masks.float() for row in make_targets()],
            [row.labels for row in make_targets()],
        )
        (losses,) = MaskCriterion(num_points=50).losses([layer], make_targets())
        names = {"loss_ce": "loss_cross_entropy", "loss_mask": "loss_mask", "loss_dice": "loss_dice"}
        pairs.append((losses, {name: weights[theirs] * expected[theirs] for name, theirs in names.items()}))
    return pairs


def test_losses_match_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for losses, expected in losses_of_both(monkeypatch):
        torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matching_is_in_float32_under_autocast(dtype: torch.dtype) -> None:
    criterion, shape = MaskCriterion(), (64, 64)
    layer = QueryMasks(torch.zeros(1, 4, 3), torch.linspace(-30, -15, 4).view(1, 4, 1, 1).expand(1, 4, *shape))
    segments = [MaskTargets(torch.tensor([0]), torch.ones(1, *shape, dtype=torch.uint8))]
    with torch.autocast("cpu", dtype):
        (pairs,) = criterion.match([layer], segments)
    assert pairs.queries.tolist() == [3]  # sums over 12,544 points exceed the range of float16


def test_an_image_without_segments_has_finite_losses_and_gradients() -> None:
    empty = MaskTargets(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 48, 64, dtype=torch.uint8))
    for segments in ([make_targets()[0], empty], [empty, empty]):
        layers = [QueryMasks(*(values.requires_grad_() for values in layer)) for layer in make_predictions()]
        losses = MaskCriterion(num_points=20).losses(layers, segments)
        sum(value for layer in losses for value in layer.values()).backward()  # type: ignore[union-attr]
        assert all(values.grad is not None and values.grad.isfinite().all() for layer in layers for values in layer)


def test_points_are_interpolated_between_pixels() -> None:
    maps = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    points = torch.tensor([[[0.5, 0.5], [0.25, 0.25], [0.75, 0.25]]])
    assert sample_points(maps, points).tolist() == [[[1.5, 0.0, 1.0]]]


def test_each_class_of_a_segmentation_map_is_a_segment() -> None:
    with HostWaits() as waits:
        segments, empty = semantic_segments(torch.tensor([[[3, 255], [0, 3]], [[255, 255], [255, 255]]]))
    assert waits.calls == {"tolist": 1}
    assert len(empty.labels) == len(empty.masks) == 0
    assert segments.labels.tolist() == [0, 3]
    assert segments.masks.tolist() == [[[0, 0], [1, 0]], [[1, 0], [0, 1]]]
