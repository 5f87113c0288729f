"""Label smoothing, focal, binary and asymmetric losses, distillation: golden values of the original code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.models.losses.binary import (
    asymmetric,
    binary_cross_entropy,
    binary_focal,
)
from opabinia.models.losses.cross_entropy import (
    adaptive_cross_entropy,
    cross_entropy,
    focal,
    is_exclusive,
    soft_targets,
)
from opabinia.models.losses.distillation import features_loss, logits_loss

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "selfsup"
LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [5.0, -5.0, 0.0]])
TARGETS = torch.tensor([0, 2, 1])


@pytest.mark.parametrize(
    ("smoothing", "over", "expected"),
    [(0.0, "others", 3.750005), (0.1, "others", 3.5800047), (0.1, "all", 3.6366715)],
)
def test_label_smoothing_matches_fastreid_and_torch(smoothing: float, over: Any, expected: float) -> None:
    loss = cross_entropy(LOGITS, TARGETS, label_smoothing=smoothing, smoothing_classes=over)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("smoothing", "expected"), [(0.0, 0.41702995), (0.1, 0.51369661)])
def test_cross_entropy_matches_basecls(smoothing: float, expected: float) -> None:
    """basecls smooths as torch does: e / K over all classes, of labels as of soft targets."""
    logits, labels = torch.tensor([[2, 1, 0.1]]), torch.tensor([0])
    for targets in (labels, F.one_hot(labels, 3).float()):
        assert cross_entropy(logits, targets, label_smoothing=smoothing).item() == pytest.approx(expected, abs=5e-8)


def test_adaptive_smoothing_matches_fastreid() -> None:
    assert adaptive_cross_entropy(LOGITS, TARGETS).item() == pytest.approx(3.8714941, rel=1e-6)
    torch.testing.assert_close(adaptive_cross_entropy(LOGITS, TARGETS, alpha=0.0), cross_entropy(LOGITS, TARGETS))


def test_focal() -> None:
    p = LOGITS.softmax(1).gather(1, TARGETS[:, None])[:, 0]
    torch.testing.assert_close(focal(LOGITS, TARGETS), (-((1 - p) ** 2) * p.log()).mean())
    torch.testing.assert_close(focal(LOGITS, TARGETS, gamma=0.0), cross_entropy(LOGITS, TARGETS))
    torch.testing.assert_close(focal(LOGITS, soft_targets(TARGETS, 3)), focal(LOGITS, TARGETS))


def test_binary_cross_entropy_matches_basecls() -> None:
    loss = binary_cross_entropy(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
    assert loss.item() == pytest.approx(1.41003764)


def test_binary_cross_entropy_with_label_smoothing() -> None:
    expected = F.binary_cross_entropy_with_logits(LOGITS, soft_targets(TARGETS, 3, 0.3))
    torch.testing.assert_close(binary_cross_entropy(LOGITS, TARGETS, label_smoothing=0.3), expected)
    assert expected != binary_cross_entropy(LOGITS, TARGETS)


def test_binary_cross_entropy_of_a_mixed_image_has_both_classes() -> None:
    mixed, multi_hot = torch.tensor([[0.7, 0.3, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    loss = binary_cross_entropy(LOGITS[:1], mixed, target_threshold=0.2, sum_classes=True)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(LOGITS[:1], multi_hot, reduction="sum"))


@pytest.mark.parametrize(("logit", "target", "expected"), [(0.0, 1.0, 0.0433), (2.0, 1.0, 0.0005), (-2.0, 0.0, 0.0014)])
def test_binary_focal_matches_detectron2(logit: float, target: float, expected: float) -> None:
    loss = binary_focal(torch.tensor([[logit]]), torch.tensor([[target]]))
    assert loss.item() == pytest.approx(expected, abs=5e-5)


def test_asymmetric_follows_the_paper() -> None:
    p, one_hot = LOGITS.sigmoid(), F.one_hot(TARGETS, 3).float()
    shifted = (p - 0.05).clamp(min=0)
    paper = one_hot * (1 - p) * p.log() + (1 - one_hot) * shifted**4 * (1 - shifted).log()
    torch.testing.assert_close(asymmetric(LOGITS, TARGETS), -paper.sum(1).mean())


def test_asymmetric_has_finite_gradients_for_large_logits() -> None:
    logits = torch.tensor([[100.0, -100.0]], requires_grad=True)
    asymmetric(logits, torch.tensor([[0.0, 1.0]])).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_losses_that_need_one_class_per_sample() -> None:
    assert is_exclusive(cross_entropy) and is_exclusive(focal) and not is_exclusive(asymmetric)


# --- several outputs --------------------------------------------------------------------------------------------------


def cross_entropies_of_both() -> tuple[dict[str, float], dict[str, float]]:
    """Return our losses and VISSL's, whose loss of multiple outputs is a sum of cross entropies of scaled logits."""
    known = [0, 2]
    losses = {
        "plain": cross_entropy(LOGITS, TARGETS),
        "two outputs [x, 2x] (sum)": cross_entropy(LOGITS, TARGETS) + cross_entropy(2 * LOGITS, TARGETS),
        "T=.5": cross_entropy(LOGITS / 0.5, TARGETS),
        "normalize T=.1": cross_entropy(F.normalize(LOGITS) / 0.1, TARGETS),
        "label_smoothing=.1": cross_entropy(LOGITS, TARGETS, label_smoothing=0.1),
        "ignore_index=-1, targets [0,-1,1]": cross_entropy(LOGITS[known], torch.tensor([0, 1])),
    }
    golden = json.loads((GOLDEN / "ce_multi.json").read_text())["outputs"]
    return {name: loss.item() for name, loss in losses.items()}, {name: golden[name] for name in losses}


# --- distillation -----------------------------------------------------------------------------------------------------

STUDENT, TEACHER = torch.tensor([[1.0, 2, 3], [0, 0, 1]]), torch.tensor([[3.0, 2, 1], [0.5, 0, -0.5]])


LOGITS_LOSSES: list[tuple[Any, float, float]] = [
    *(("symmetric", 16.0, 0.84755516), ("symmetric", 1.0, 0.75820011)),  # FastReID
    *(("soft", 1.0, 0.74767518), ("soft", 4.0, 0.83970189), ("mse", 1.0, 1.75)),  # VISSL
]


DISTILLED = json.loads((GOLDEN / "distill.json").read_text())


def distillation_of_vissl(name: str) -> Tensor:
    """Return our loss with VISSL's options.

    VISSL's CROSS_ENTROPY is our loss plus the constant entropy of the teacher; ours is 0 if both agree. Its alpha is
    the weight of the teacher.
    """
    kind, alpha, temperature = name.split()
    share, heat = float(alpha.removeprefix("alpha=")), float(temperature.removeprefix("T="))
    loss = logits_loss(STUDENT, TEACHER, "mse" if kind == "MSE" else "soft", heat)
    if kind == "CROSS_ENTROPY":
        loss = loss + torch.special.entr((TEACHER / heat).softmax(1)).sum(1).mean() * heat**2
    return share * loss + (1 - share) * cross_entropy(STUDENT, torch.tensor(DISTILLED["inputs"]["target"]))


@pytest.mark.parametrize("kind", ["soft", "symmetric", "binary", "mse"])
def test_equal_logits_have_no_loss(kind: Any) -> None:
    assert logits_loss(STUDENT, STUDENT, kind, 2.0).item() == pytest.approx(0, abs=1e-6)
    assert logits_loss(STUDENT, TEACHER, kind, 2.0) > 0.01


def test_no_gradient_flows_to_the_teacher() -> None:
    student, teacher = STUDENT.clone().requires_grad_(), TEACHER.clone().requires_grad_()
    (logits_loss(student, teacher, "soft") + features_loss(student, teacher, "mse")).backward()  # type: ignore[no-untyped-call]
    assert student.grad is not None and teacher.grad is None
