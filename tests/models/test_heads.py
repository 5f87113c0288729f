"""Heads: golden values of FastReID, and edge cases of its formulas."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Head
from opabinia.models.heads import LinearHead, arcface, arcface_logits, circle, circle_logits, cosface, cosface_logits

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "fastreid" / "cls_layers.json").read_text()
)
ARCFACE = {"scale": 30.0, "margin": 0.5}
RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "CosSoftmax s=30 m=0.35": lambda cosines, labels: cosface_logits(cosines, labels, scale=30, margin=0.35),
    "ArcSoftmax s=30 m=0.5": lambda cosines, labels: arcface_logits(cosines, labels, **ARCFACE, beyond_pi="cosine"),
    "CircleSoftmax s=64 m=0.35": lambda cosines, labels: circle_logits(cosines, labels, scale=64, margin=0.35),
}


@pytest.mark.parametrize("beyond_pi", ["line", "cosine"])
@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0000001, -1.0000001, 0.99999994, 0.0])
def test_gradients_of_extreme_angles_are_finite(cosine: float, beyond_pi: Any) -> None:
    """FastReID has an infinite gradient at 1, and NaN above."""
    cosines = torch.tensor([[cosine, 0.2]], requires_grad=True)
    logits = arcface_logits(cosines, torch.tensor([0]), **ARCFACE, beyond_pi=beyond_pi)
    angle = math.acos(max(-1, min(1, cosine)))
    if angle + 0.5 <= math.pi or beyond_pi == "cosine":
        assert logits[0, 0].item() == pytest.approx(30 * math.cos(angle + 0.5), abs=1e-2)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert cosines.grad is not None
    assert cosines.grad.isfinite().all()


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.5, math.pi])
def test_a_smaller_angle_gives_a_larger_logit(margin: float) -> None:
    cosines = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
    logits = arcface_logits(cosines, torch.zeros(2001, dtype=torch.int64), scale=1, margin=margin)
    steps = logits.diff(dim=0)
    assert (steps > 0).all()
    assert steps.max() < 0.05, "without a jump"
    assert (logits <= cosines + 1e-12).all(), "and never larger than without margin"


@pytest.mark.parametrize("name", RULES)
def test_gradients_match_the_formulas(name: str) -> None:
    """The weights of circle are detached, so its gradient is that of a linear function."""
    cosines = torch.tensor([[0.9, -0.2, 0.3], [0.1, 0.5, -0.7]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -1])
    RULES[name](cosines, labels).sum().backward()  # type: ignore[no-untyped-call]
    angle = math.acos(0.9)
    expected = {
        "CosSoftmax s=30 m=0.35": [[30, 30, 30], [30, 30, 30]],
        "ArcSoftmax s=30 m=0.5": [[30 * math.sin(angle + 0.5) / math.sin(angle), 30, 30], [30, 30, 30]],
        "CircleSoftmax s=64 m=0.35": [[64 * 0.45, 64 * 0.15, 64 * 0.65], [64 * 0.45, 64 * 0.85, 0]],
    }
    torch.testing.assert_close(cosines.grad, torch.tensor(expected[name], dtype=torch.float64))


# --- layers -----------------------------------------------------------------------------------------------------------


def test_linear_is_a_matrix_product() -> None:
    head = LinearHead(4, 3, scale=2.0)
    features, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, -1])
    (weight,) = head.parameters()
    logits = head(features)
    torch.testing.assert_close(logits, 2 * features @ weight.T)
    assert head.with_margin(logits, labels) is logits
    assert LinearHead(2048, 751).weight.std().item() == pytest.approx(0.01, rel=0.01)  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("make", [cosface, arcface, circle])
def test_without_labels_logits_are_scaled_cosines(make: Callable[..., Head]) -> None:
    head, features = make(4, 3, scale=10.0), torch.randn(5, 4)
    (weight,) = head.parameters()
    expected = 10 * torch.cosine_similarity(features[:, None], weight[None], dim=2)
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(7 * features), expected, msg="the length of a feature does not matter")


@pytest.mark.parametrize(
    ("head", "rule"),
    [
        (cosface(4, 3, scale=30, margin=0.35), RULES["CosSoftmax s=30 m=0.35"]),
        (arcface(4, 3, scale=30, margin=0.5, beyond_pi="cosine"), RULES["ArcSoftmax s=30 m=0.5"]),
        (circle(4, 3, scale=64, margin=0.35), RULES["CircleSoftmax s=64 m=0.35"]),
    ],
    ids=["cosface", "arcface", "circle"],
)
def test_with_labels_the_margin_is_applied(head: Head, rule: Callable[[Tensor, Tensor], Tensor]) -> None:
    features, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, -1])
    logits = head(features)
    (weight,) = head.parameters()
    cosines = torch.cosine_similarity(features[:, None], weight[None], dim=2)
    torch.testing.assert_close(head.with_margin(logits, labels), rule(cosines, labels), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [cosface, arcface, circle])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cosines_are_computed_in_float32(make: Callable[[int, int], Head], dtype: torch.dtype) -> None:
    head, features = make(64, 5), (100 * torch.randn(8, 64)).to(dtype)
    exact = head(features.float())
    with torch.autocast("cpu", dtype=dtype):
        logits = head(features)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact)


def test_an_invalid_margin_raises() -> None:
    with pytest.raises(ValueError, match=r"margin: it is an angle in radians, 0 to 3.14159, not 20"):
        arcface(4, 3, margin=20)
