"""Losses that tell views of one image from other images: VISSL's numbers, formulas written out, cold temperatures."""

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


def some(rows: int = 6, columns: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def cosines(one: Tensor, other: Tensor) -> list[list[float]]:
    """Of each row with each, in plain numbers."""
    lengths = [[math.hypot(*row) for row in rows.tolist()] for rows in (one, other)]
    return [
        [sum(a * b for a, b in zip(left, right, strict=True)) / (lengths[0][i] * lengths[1][j])
         for j, right in enumerate(other.tolist())]
        for i, left in enumerate(one.tolist())
    ]  # fmt: skip


# --- SimCLR -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_nt_xent_of_vissl(temperature: float) -> None:
    views = torch.tensor(SIMCLR["inputs"]["embedding"]).chunk(2)
    loss = nt_xent(views, temperature)
    assert loss.item() == pytest.approx(SIMCLR["outputs"][f"T={temperature}"], abs=SIMCLR["tolerance"])


def test_its_gradient_is_vissls() -> None:
    vectors = torch.tensor(SIMCLR["inputs"]["embedding"], requires_grad=True)
    nt_xent(vectors.chunk(2), 0.5).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(vectors.grad, torch.tensor(SIMCLR["outputs"]["grad T=0.5"]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("crops", [2, 3, 4])
def test_of_several_crops_every_ordered_pair_counts(crops: int) -> None:
    views, temperature = [some(3, seed=number) for number in range(crops)], 0.3
    losses = []
    for one, other in permutations(views, 2):
        positive, similar = cosines(one, other), [cosines(one, view) for view in views]
        for image in range(3):
            own = math.exp(positive[image][image] / temperature)
            rest = sum(math.exp(row[image][j] / temperature) for row in similar for j in range(3) if j != image)
            losses.append(-math.log(own / (own + rest)))
    assert nt_xent(views, temperature).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


# --- cold temperatures ------------------------------------------------------------------------------------------------

Z = torch.tensor(5.0)
LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "nt_xent": lambda one, cold: nt_xent([one, -one.detach()], cold),
    "info_nce": lambda one, cold: info_nce(one, -one.detach(), one.detach(), cold),
    "against_keys": lambda one, cold: moco_v3_loss(one, -one.detach(), cold),
    "memory_nce": lambda one, cold: memory_nce(one, -one.detach(), one.detach(), Z, 50, cold),
    "memory_nce estimated": lambda one, cold: memory_nce(
        one, -one.detach(), one.detach(), estimate_log_normalizer(one, one, one, 50, cold), 50, cold
    ),
}


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.07, 0.03, 0.01])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_temperature_gives_what_is_not_a_number(name: str, temperature: float, dtype: torch.dtype) -> None:
    """The key is the opposite of the query, which itself is among the others: as far apart as cosines can be."""
    vectors = some().to(dtype).requires_grad_()
    loss = LOSSES[name](vectors, temperature)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32 and loss.isfinite() and loss > 0
    assert vectors.grad is not None and vectors.grad.isfinite().all() and vectors.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_under_autocast_they_are_the_same(name: str) -> None:
    vectors = some()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = LOSSES[name](vectors, 0.07)
    assert lowered.dtype == torch.float32
    torch.testing.assert_close(lowered, LOSSES[name](vectors, 0.07), rtol=0, atol=0)


# --- a queue ----------------------------------------------------------------------------------------------------------


def plain_info_nce(queries: Tensor, keys: Tensor, others: list[Tensor], temperature: float) -> float:
    losses = []
    for i, rest in enumerate(others):
        own = math.exp(cosines(queries[i : i + 1], keys[i : i + 1])[0][0] / temperature)
        among = own + sum(math.exp(one / temperature) for one in cosines(queries[i : i + 1], rest)[0])
        losses.append(-math.log(own / among))
    return sum(losses) / len(losses)


def test_info_nce_against_one_queue() -> None:
    queries, keys, queue = some(3), some(3, seed=1), some(7, seed=2)
    expected = plain_info_nce(queries, keys, [queue] * 3, 0.2)
    assert info_nce(queries, keys, queue).item() == pytest.approx(expected, rel=1e-5)
    assert info_nce(9 * queries, keys / 3, 2 * queue).item() == pytest.approx(expected, rel=1e-5)


def test_info_nce_against_others_for_each() -> None:
    queries, keys, others = some(3), some(3, seed=1), some(15, seed=2).view(3, 5, 4)
    expected = plain_info_nce(queries, keys, list(others), 0.07)
    assert info_nce(queries, keys, others, 0.07).item() == pytest.approx(expected, rel=1e-5)


# --- the keys of the batch --------------------------------------------------------------------------------------------


def test_against_keys_is_algorithm_1_of_moco_v3() -> None:
    queries, keys, temperature = some(5), some(5, seed=1), 0.3
    logits = torch.tensor(cosines(queries, keys)) / temperature
    expected = 2 * temperature * F.cross_entropy(logits, torch.arange(5))
    assert moco_v3_loss(queries, keys, temperature).item() == pytest.approx(expected.item(), rel=1e-5)


# --- a memory ---------------------------------------------------------------------------------------------------------


def of_vissl() -> tuple[Tensor, Tensor, Tensor]:
    """The golden case's queries, their own entries of the memory, and the others."""
    inputs = MEMORY["inputs"]
    drawn = torch.tensor(inputs["memory"])[torch.tensor(inputs["sampled_indices_first_is_positive"])]
    return torch.tensor(inputs["embedding"], requires_grad=True), drawn[:, 0], drawn[:, 1:]


def test_the_cross_entropy_of_vissl() -> None:
    loss = info_nce(*of_vissl(), MEMORY["inputs"]["T"])
    assert loss.item() == pytest.approx(MEMORY["outputs"]["cross_entropy"]["loss"], abs=MEMORY["tolerance"])


def test_the_noise_contrastive_estimation_of_vissl() -> None:
    case, samples = MEMORY["inputs"], len(MEMORY["inputs"]["memory"])
    z = estimate_log_normalizer(*of_vissl(), samples, case["T"])
    assert not z.requires_grad
    assert z.exp().item() == pytest.approx(MEMORY["outputs"]["nce"]["Z"], rel=1e-5)
    loss = memory_nce(*of_vissl(), z, samples, case["T"])
    assert loss.item() == pytest.approx(MEMORY["outputs"]["nce"]["loss"][0], abs=MEMORY["tolerance"])


def test_memory_nce_is_the_formula_of_the_paper() -> None:
    queries, keys, others, z, samples, temperature = some(3), some(3, seed=1), some(4, seed=2), 30.0, 20, 0.5
    noise, total = len(others) / samples, 0.0
    for i in range(3):
        own = math.exp(cosines(queries, keys)[i][i] / temperature) / z
        total -= math.log(own / (own + noise))
        for one in cosines(queries, others)[i]:
            p = math.exp(one / temperature) / z
            total -= math.log(1 - p / (p + noise))
    found = memory_nce(queries, keys, others, torch.tensor(z).log(), samples, temperature)
    assert found.item() == pytest.approx(total / 3, rel=1e-5)


def test_others_for_all_are_others_for_each() -> None:
    queries, keys, others, z = some(3), some(3, seed=1), some(4, seed=2), torch.tensor(2.0)
    for_each = others.expand(3, 4, 4)
    assert memory_nce(queries, keys, others, z, 9).item() == pytest.approx(
        memory_nce(queries, keys, for_each, z, 9).item(), rel=1e-6
    )
