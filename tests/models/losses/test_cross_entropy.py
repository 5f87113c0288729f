import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opabinia.models.losses.cross_entropy import cross_entropy

LOGITS = torch.tensor([[2, 1, 0.1]])


@pytest.mark.parametrize(("smoothing", "expected"), [(0.0, 0.41702995), (0.1, 0.51369661)])
def test_cross_entropy_matches_basecls(smoothing: float, expected: float) -> None:
    """Golden values of basecls, which smooths as torch does: e / K over all classes."""
    loss = cross_entropy(LOGITS, torch.tensor([0]), label_smoothing=smoothing)
    assert loss.item() == pytest.approx(expected, abs=5e-8)


@given(st.floats(0, 1), st.integers(0, 2**31))
def test_labels_and_one_hot_targets_have_the_same_loss(smoothing: float, seed: int) -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
    labels = torch.tensor([0, 4, 2, 2])
    soft = torch.nn.functional.one_hot(labels, 5).float()
    hard = cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(hard, cross_entropy(logits, soft, label_smoothing=smoothing))
    smoothed = soft * (1 - smoothing) + smoothing / 5
    torch.testing.assert_close(hard, cross_entropy(logits, smoothed), msg="smoothing changes the target")


def test_the_loss_is_the_mean_over_samples() -> None:
    logits, labels = torch.tensor([[2, 1, 0.1], [0, 0, 0]]), torch.tensor([0, 1])
    each = [cross_entropy(logits[i : i + 1], labels[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(cross_entropy(logits, labels), torch.stack(each).mean())


def test_huge_logits_stay_finite() -> None:
    assert cross_entropy(torch.tensor([[1e4, -1e4]]), torch.tensor([1])).item() == pytest.approx(2e4)
