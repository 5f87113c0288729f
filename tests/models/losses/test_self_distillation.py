"""Self-distillation losses: VISSL's golden values, and reference implementations of the formulas."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opabinia.models.losses.self_distillation import (
    centered_softmax,
    dino_loss,
    koleo,
    masked_patch_loss,
    warmup_temperature,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "selfsup" / "dino.json").read_text())


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("views", [2, 5])
def test_dino_matches_its_formula(views: int) -> None:
    student = [random_tensor(3, 7, seed=number) for number in range(views)]
    targets = [random_tensor(3, 7, seed=10 + number).softmax(1) for number in range(2)]
    terms = [
        -sum(float(target[row, k]) * float((view[row] / 0.2).log_softmax(0)[k]) for k in range(7))
        for teacher_view, target in enumerate(targets)
        for student_view, view in enumerate(student)
        if teacher_view != student_view
        for row in range(3)
    ]
    assert float(dino_loss(student, targets, 0.2)) == pytest.approx(sum(terms) / len(terms), rel=1e-5)


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_the_temperature_increases_linearly_and_then_stays(length: int) -> None:
    rising = torch.linspace(0.04, 0.07, length, dtype=torch.float64).tolist()
    temperatures = [warmup_temperature(step, length, 0.04, 0.07) for step in range(length + 3)]
    assert temperatures == pytest.approx([*rising, 0.07, 0.07, 0.07])


def test_images_have_equal_weights_whatever_their_mask() -> None:
    student, targets = random_tensor(3, 4, 6), random_tensor(3, 4, 6, seed=1).softmax(-1)
    mask = torch.tensor([[True, False, False, False], [True, True, True, False], [False] * 4])

    def patch_loss(image: int, patch: int) -> float:
        return float(F.cross_entropy(student[image, patch] / 0.1, targets[image, patch]))

    expected = (patch_loss(0, 0) + sum(patch_loss(1, patch) for patch in range(3)) / 3 + 0) / 3
    assert float(masked_patch_loss(student, targets, mask)) == pytest.approx(expected, rel=1e-5)


def test_without_masked_patches_there_is_no_loss_and_no_gradient() -> None:
    student = random_tensor(2, 4, 6).requires_grad_()
    loss = masked_patch_loss(student, random_tensor(2, 4, 6).softmax(-1), torch.zeros(2, 4, dtype=torch.bool))
    loss.backward()
    assert loss == 0 and student.grad is not None and not student.grad.any()


def test_koleo_matches_its_formula() -> None:
    vectors = random_tensor(6, 3)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    nearest = [min(math.dist(a, b) for b in unit.tolist() if b != a) for a in unit.tolist()]
    expected = -sum(map(math.log, nearest)) / 6
    assert float(koleo(vectors)) == pytest.approx(expected, rel=1e-5)
    assert float(koleo(torch.eye(2))) == pytest.approx(-math.log(2) / 2, abs=1e-6)


def test_koleo_of_equal_vectors_is_finite() -> None:
    vectors = torch.ones(3, 4, requires_grad=True)
    loss = koleo(vectors)
    loss.backward()
    assert loss.isfinite() and vectors.grad is not None and vectors.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    student = [(10 * random_tensor(2, 5, seed=number)).to(dtype) for number in range(3)]
    targets = [centered_softmax(view, torch.zeros(5), 0.04) for view in student[:2]]
    assert dino_loss(student, targets).dtype == koleo(student[0]).dtype == targets[0].dtype == torch.float32
    torch.testing.assert_close(dino_loss(student, targets), dino_loss([view.float() for view in student], targets))


def test_autocast_does_not_change_nearest_neighbours() -> None:
    first = torch.tensor([1.0, 0.0])
    near = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in (0.03, 0.02, 0.04)])
    vectors = torch.cat([first[None], near])  # cosines that are all 1 in bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = koleo(vectors)
    torch.testing.assert_close(lowered, koleo(vectors), rtol=0, atol=0)
