"""Segmentation losses: known values, ignored pixels, and equal results on any number of processes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL
from opabinia.models.losses.segmentation import boundary, dice, lovasz, pixel_cross_entropy, pixel_focal

LOSSES = (pixel_cross_entropy, pixel_focal, dice, lovasz, boundary)


def example(batch: int = 2) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, 4, 9, 8, generator=draw)
    targets = torch.randint(0, 4, (batch, 9, 8), generator=draw)
    targets[:, :2] = IGNORE_LABEL
    return logits, targets


def test_cross_entropy_matches_torch() -> None:
    logits, targets = example()
    weights = [1.0, 0.5, 2.0, 3.0]
    for ours, expected in (
        (pixel_cross_entropy(logits, targets), F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL)),
        (
            pixel_cross_entropy(logits, targets, class_weights=weights, weight=0.5),
            0.5 * F.cross_entropy(logits, targets, torch.tensor(weights), ignore_index=IGNORE_LABEL),
        ),
        (
            pixel_cross_entropy(logits, targets, label_smoothing=0.1),
            F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL, label_smoothing=0.1),
        ),
        (pixel_focal(logits, targets, gamma=0.0), F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL)),
    ):
        torch.testing.assert_close(ours, expected)


def test_wrong_class_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="class_weights: 2 weights for 4 classes"):
        pixel_cross_entropy(*example(), class_weights=[1.0, 1.0])


def test_the_hardest_pixels_of_each_image_are_trained() -> None:
    logits, targets = example()
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL, reduction="none").flatten(1)
    labeled = 7 * 8
    expected = losses.sort(1, descending=True).values[:, : round(0.25 * labeled)].mean()
    torch.testing.assert_close(pixel_cross_entropy(logits, targets, hardest=0.25), expected)


def test_the_focal_loss_of_one_pixel() -> None:
    logits = torch.tensor([1.0, 3.0]).log().view(1, 2, 1, 1)  # probabilities 0.25 and 0.75
    expected = 0.25**2 * -torch.tensor(0.75).log()
    torch.testing.assert_close(pixel_focal(logits, torch.ones(1, 1, 1, dtype=torch.int64)), expected)


def test_the_dice_loss_by_hand() -> None:
    """Half of class 1 is predicted with certainty; class 0 is predicted in 3 of 4 pixels."""
    targets = torch.tensor([[[0, 0, 1, 1]]])
    logits = 50.0 * F.one_hot(torch.tensor([[[0, 0, 0, 1]]]), 3).permute(0, 3, 1, 2).float()
    expected = 1 - (2 * 2 / (3 + 2) + 2 * 1 / (1 + 2)) / 2
    assert float(dice(logits, targets, smooth=0.0)) == pytest.approx(expected)


def test_the_lovasz_loss_of_certain_predictions_is_one_minus_iou() -> None:
    targets = torch.tensor([[[0, 0, 1, 1]]])
    logits = 50.0 * F.one_hot(torch.tensor([[[0, 0, 0, 1]]]), 3).permute(0, 3, 1, 2).float()
    assert float(lovasz(logits, targets)) == pytest.approx(1 - (2 / 3 + 1 / 2) / 2)


def test_perfect_predictions_have_no_loss() -> None:
    _, targets = example()
    logits = 50.0 * F.one_hot(targets.clamp(max=3), 4).permute(0, 3, 1, 2).float()
    for loss in LOSSES:
        assert float(loss(logits, targets)) == pytest.approx(0, abs=1e-5), loss


def test_ignored_pixels_change_nothing() -> None:
    logits, targets = example()
    changed = logits.clone()
    changed[:, :, :2] = 7.0
    for loss in LOSSES:
        torch.testing.assert_close(loss(logits, targets), loss(changed, targets))


def test_a_batch_without_labels_has_the_loss_0() -> None:
    logits, targets = example()
    for loss in LOSSES:
        total = loss(logits.requires_grad_(), torch.full_like(targets, IGNORE_LABEL))
        (gradient,) = torch.autograd.grad(total, logits)
        assert total == 0 and not gradient.any(), loss


def test_losses_average_over_processes_to_those_of_the_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DDP: each process divides by the pixels of the global batch and is weighted by its share of images."""
    logits, targets = example(3)
    targets[0, :6] = IGNORE_LABEL
    mean = (targets != IGNORE_LABEL).sum() / 3
    for loss in LOSSES:
        expected = loss(logits, targets)
        with monkeypatch.context() as patch:
            patch.setattr("opabinia.models.losses.segmentation.mean_over_samples", lambda total, count: mean)
            parts = [loss(logits[rows], targets[rows]) for rows in (slice(0, 1), slice(1, 3))]
        torch.testing.assert_close((parts[0] + 2 * parts[1]) / 3, expected)
