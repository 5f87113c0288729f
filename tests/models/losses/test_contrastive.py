"""Contrastive losses: VISSL's golden values, reference implementations with loops, and low temperatures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.models.losses.contrastive import estimate_log_normalizer, info_nce, memory_nce, moco_v3_loss, nt_xent

FOLDER = Path(__file__).resolve().parents[2] / "golden" / "selfsup"
SIMCLR = json.loads((FOLDER / "simclr.json").read_text())
MEMORY = json.loads((FOLDER / "nce_memory.json").read_text())


def random_vectors(rows: int = 6, columns: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def cosines(first: Tensor, second: Tensor) -> list[list[float]]:
    """Return the cosine similarity of each pair of rows, computed with Python floats."""
    lengths = [[math.hypot(*row) for row in rows.tolist()] for rows in (first, second)]
    return [
        [sum(a * b for a, b in zip(left, right, strict=True)) / (lengths[0][i] * lengths[1][j])
         for j, right in enumerate(second.tolist())]
        for i, left in enumerate(first.tolist())
    ]  # fmt: skip


# --- SimCLR -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crops", [2, 3, 4])
def test_nt_xent_averages_over_all_ordered_pairs_of_crops(crops: int) -> None:
    views, temperature = [random_vectors(3, seed=number) for number in range(crops)], 0.3
    losses = []
    for view, other_view in permutations(views, 2):
        similarity, similar = cosines(view, other_view), [cosines(view, other) for other in views]
        for image in range(3):
            positive_term = math.exp(similarity[image][image] / temperature)
            negatives = sum(math.exp(row[image][j] / temperature) for row in similar for j in range(3) if j != image)
            losses.append(-math.log(positive_term / (positive_term + negatives)))
    assert nt_xent(views, temperature).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


# --- low temperatures -------------------------------------------------------------------------------------------------

Z = torch.tensor(5.0)
LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "nt_xent": lambda x, t: nt_xent([x, -x.detach()], t),
    "info_nce": lambda x, t: info_nce(x, -x.detach(), x.detach(), t),
    "against_keys": lambda x, t: moco_v3_loss(x, -x.detach(), t),
    "memory_nce": lambda x, t: memory_nce(x, -x.detach(), x.detach(), Z, 50, t),
    "memory_nce estimated": lambda x, t: memory_nce(
        x, -x.detach(), x.detach(), estimate_log_normalizer(x, x, x, 50, t), 50, t
    ),
}


@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.01])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_temperatures_give_finite_losses(name: str, temperature: float, dtype: torch.dtype) -> None:
    """The worst case: the key is the opposite of the query, and the query itself is among the negatives."""
    vectors = random_vectors().to(dtype).requires_grad_()
    loss = LOSSES[name](vectors, temperature)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(LOSSES[name](vectors, temperature), loss)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32 and loss.isfinite() and loss > 0
    assert vectors.grad is not None and vectors.grad.isfinite().all() and vectors.grad.any()


# --- a queue ----------------------------------------------------------------------------------------------------------


def reference_info_nce(queries: Tensor, keys: Tensor, negatives_of_each: list[Tensor], temperature: float) -> float:
    losses = []
    for i, negatives in enumerate(negatives_of_each):
        own = math.exp(cosines(queries[i : i + 1], keys[i : i + 1])[0][0] / temperature)
        total = own + sum(math.exp(cosine / temperature) for cosine in cosines(queries[i : i + 1], negatives)[0])
        losses.append(-math.log(own / total))
    return sum(losses) / len(losses)


def test_info_nce_against_one_queue_and_negatives_per_query() -> None:
    queries, keys, queue = random_vectors(3), random_vectors(3, seed=1), random_vectors(7, seed=2)
    expected = reference_info_nce(queries, keys, [queue] * 3, 0.2)
    assert info_nce(queries, keys, queue).item() == pytest.approx(expected, rel=1e-5)
    assert info_nce(9 * queries, keys / 3, 2 * queue).item() == pytest.approx(expected, rel=1e-5)
    negatives = random_vectors(15, seed=2).view(3, 5, 4)
    expected = reference_info_nce(queries, keys, list(negatives), 0.07)
    assert info_nce(queries, keys, negatives, 0.07).item() == pytest.approx(expected, rel=1e-5)


# --- keys of the batch ------------------------------------------------------------------------------------------------


def test_moco_v3_loss_is_algorithm_1_of_the_paper() -> None:
    queries, keys, temperature = random_vectors(5), random_vectors(5, seed=1), 0.3
    logits = torch.tensor(cosines(queries, keys)) / temperature
    expected = 2 * temperature * F.cross_entropy(logits, torch.arange(5))
    assert moco_v3_loss(queries, keys, temperature).item() == pytest.approx(expected.item(), rel=1e-5)


# --- memory bank ------------------------------------------------------------------------------------------------------


def vissl_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return the golden case's queries, their own entries of the memory bank, and the negatives."""
    inputs = MEMORY["inputs"]
    drawn = torch.tensor(inputs["memory"])[torch.tensor(inputs["sampled_indices_first_is_positive"])]
    return torch.tensor(inputs["embedding"], requires_grad=True), drawn[:, 0], drawn[:, 1:]


def test_noise_contrastive_estimation_matches_vissl() -> None:
    case, samples = MEMORY["inputs"], len(MEMORY["inputs"]["memory"])
    z = estimate_log_normalizer(*vissl_inputs(), samples, case["T"])
    assert not z.requires_grad
    assert z.exp().item() == pytest.approx(MEMORY["outputs"]["nce"]["Z"], rel=1e-5)
    loss = memory_nce(*vissl_inputs(), z, samples, case["T"])
    assert loss.item() == pytest.approx(MEMORY["outputs"]["nce"]["loss"][0], abs=MEMORY["tolerance"])
