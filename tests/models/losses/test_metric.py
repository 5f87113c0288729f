"""Metric learning losses: FastReID's golden values, reference implementations with loops, and edge cases."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.models.losses.cross_entropy import adaptive_cross_entropy, cross_entropy, focal
from opabinia.models.losses.metric import (
    circle,
    cosface,
    count_pairs,
    cross_batch_memory_loss,
    multi_similarity,
    proxy_anchor,
    supervised_contrastive,
    triplet,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "fastreid"
Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "hard triplet": triplet,
    "weighted triplet": partial(triplet, mining="weighted"),
    "soft triplet": partial(triplet, margin=0.0),
    "weighted soft triplet": partial(triplet, mining="weighted", margin=0.0),
    "cosine triplet": partial(triplet, distance="cosine", mining="weighted"),
    "circle": circle,
    "cosface": cosface,
    "supervised contrastive": supervised_contrastive,
    "multi-similarity": multi_similarity,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
LABELS = torch.tensor([0, 1, 0, 2, 2, 1, 0, 5])


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = json.loads((GOLDEN / f"{name}.json").read_text())
    return case["inputs"], case["outputs"]


def random_features(seed: int = 0, rows: int = len(LABELS), columns: int = 6) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


# --- golden values of FastReID ----------------------------------------------------------------------------------------

TRIPLETS, TRIPLET_VALUES = golden("triplet")


def triplet_of_fastreid(settings: str) -> tuple[Tensor, bool]:
    """Return the loss with FastReID's options, and whether FastReID's weights of negatives begin to collapse: they do
    at distances of 5 to 10 (see below)."""
    options = dict(pair.split("=") for pair in settings.split(","))
    cosine, hard = options["norm_feat"] == "True", options["hard_mining"] == "True"
    features = torch.tensor(TRIPLETS["embedding_for_norm_feat" if cosine else "embedding"])
    loss = triplet(
        features,
        torch.tensor(TRIPLETS["targets"]),
        margin=float(options["margin"]),
        mining="hard" if hard else "weighted",
        distance="cosine" if cosine else "euclidean",
    )
    return loss, not cosine and not hard


@pytest.mark.parametrize("settings", TRIPLET_VALUES)
def test_triplet_of_fastreid(settings: str) -> None:
    loss, collapsed = triplet_of_fastreid(settings)
    assert loss.item() == pytest.approx(TRIPLET_VALUES[settings], abs=3e-4 if collapsed else 2e-6)
    assert not collapsed or loss.item() != pytest.approx(TRIPLET_VALUES[settings], abs=1e-5)


def test_weighted_mining_does_not_collapse() -> None:
    """FastReID adds 1e-6 to a sum of exp(-distance): its weighted mean of 30 and 31 is 4e-6."""
    features = torch.tensor([[0.0], [1.0], [30.0], [31.0]])
    near, far = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))
    inner, outer = near * 29 + far * 30, near * 30 + far * 31
    expected = (outer + inner) / 2 - near  # by which negatives are further away than positives; the margin is larger
    loss = triplet(features, torch.tensor([0, 0, 1, 1]), mining="weighted", margin=100.0)
    assert loss.item() == pytest.approx(100 - expected, rel=1e-6)


def test_the_mean_over_losses_that_are_not_zero() -> None:
    logits, targets = torch.tensor([[200.0, 0.0], [0.0, 0.0], [0.0, 200.0], [0.0, 0.0]]), torch.tensor([0, 0, 1, 1])
    assert cross_entropy(logits, targets).item() == pytest.approx(math.log(2) / 2)
    assert cross_entropy(logits, targets, averaged_samples="nonzero").item() == pytest.approx(math.log(2))
    assert cross_entropy(logits[:1], targets[:1], averaged_samples="nonzero").item() == 0.0
    certain = adaptive_cross_entropy(logits, targets, alpha=0.0, averaged_samples="nonzero")
    assert certain.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_of_a_sample_that_is_certain(gamma: float) -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 0.0]], requires_grad=True)
    focal(logits, torch.tensor([0, 1]), gamma=gamma).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad[1].any()


# --- reference implementations with loops -----------------------------------------------------------------------------


def reference_triplet(features: Tensor, labels: Tensor, margin: float) -> float:
    total = 0.0
    for anchor, label in zip(features, labels, strict=True):
        distances = (features - anchor).norm(dim=1)
        total += max(0.0, float(distances[labels == label].max() - distances[labels != label].min()) + margin)
    return total / len(labels)


def cosines(features: Tensor) -> Tensor:
    unit: Tensor = features / features.norm(dim=1, keepdim=True)
    return (unit[:, None] * unit[None]).sum(2)


def positives_and_negatives(number: int, labels: Tensor) -> tuple[list[int], list[int]]:
    """Return the indices of the positives and of the negatives of a sample."""
    positives = [other for other in range(len(labels)) if labels[other] == labels[number] and other != number]
    return positives, [other for other in range(len(labels)) if labels[other] != labels[number]]


def reference_circle(features: Tensor, labels: Tensor, margin: float, gamma: float) -> float:
    total, similarity = 0.0, cosines(features).tolist()
    for number, row in enumerate(similarity):
        positives, negatives = positives_and_negatives(number, labels)
        positive = sum(math.exp(-gamma * max(0, 1 + margin - row[p]) * (row[p] - 1 + margin)) for p in positives)
        negative = sum(math.exp(gamma * max(0, row[n] + margin) * (row[n] - margin)) for n in negatives)
        total += math.log1p(positive * negative)
    return total / len(labels)


def reference_cosface(features: Tensor, labels: Tensor, margin: float, gamma: float) -> float:
    total, similarity = 0.0, cosines(features).tolist()
    for number, row in enumerate(similarity):
        positives, negatives = positives_and_negatives(number, labels)
        total += math.log1p(sum(math.exp(gamma * (row[n] - row[p] + margin)) for p in positives for n in negatives))
    return total / len(labels)


def reference_contrastive(features: Tensor, labels: Tensor, temperature: float) -> float:
    losses: list[float] = []
    similarity = (cosines(features) / temperature).tolist()
    for number, row in enumerate(similarity):
        positives, negatives = positives_and_negatives(number, labels)
        if positives:
            all_others = math.log(sum(math.exp(row[other]) for other in positives + negatives))
            losses.append(sum(all_others - row[p] for p in positives) / len(positives))
    return sum(losses) / len(losses)


def reference_multi_similarity(features: Tensor, labels: Tensor, alpha: float, beta: float, base: float) -> float:
    unit = features / features.norm(dim=1, keepdim=True)
    cosines, total = (unit @ unit.T).tolist(), 0.0
    for row, label in enumerate(labels.tolist()):
        indices = [index for index in range(len(labels)) if index != row]
        positives = [cosines[row][index] for index in indices if labels[index] == label]
        negatives = [cosines[row][index] for index in indices if labels[index] != label]
        if not positives or not negatives:
            continue
        hard_positives = [cosine for cosine in positives if cosine - 0.1 < max(negatives)]
        hard_negatives = [cosine for cosine in negatives if cosine + 0.1 > min(positives)]
        if hard_positives and hard_negatives:
            total += math.log(1 + sum(math.exp(-alpha * (cosine - base)) for cosine in hard_positives)) / alpha
            total += math.log(1 + sum(math.exp(beta * (cosine - base)) for cosine in hard_negatives)) / beta
    return total / len(labels)


@pytest.mark.parametrize("seed", range(5))
def test_losses_match_reference_implementations(seed: int) -> None:
    features = random_features(seed)
    assert triplet(features, LABELS).item() == pytest.approx(reference_triplet(features, LABELS, 0.3), rel=1e-5)
    for margin, gamma in ((0.25, 8.0), (0.4, 2.0)):
        expected = reference_circle(features, LABELS, margin, gamma)
        assert circle(features, LABELS, margin=margin, gamma=gamma).item() == pytest.approx(expected, rel=1e-5)
        expected = reference_cosface(features, LABELS, margin, gamma)
        assert cosface(features, LABELS, margin=margin, gamma=gamma).item() == pytest.approx(expected, rel=1e-5)
    for alpha, beta, base in ((2.0, 50.0, 0.5), (1.0, 4.0, 1.0)):
        expected = reference_multi_similarity(features, LABELS, alpha, beta, base)
        loss = multi_similarity(features, LABELS, alpha=alpha, beta=beta, base=base)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    for temperature in (0.1, 1.0):
        expected = reference_contrastive(features, LABELS, temperature)
        loss = supervised_contrastive(features, LABELS, temperature=temperature)
        assert loss.item() == pytest.approx(expected, rel=1e-5)


# --- properties of all losses -----------------------------------------------------------------------------------------


@every_loss
def test_gradients_are_right(loss: Loss) -> None:
    features = random_features(3).double().requires_grad_()
    if loss is circle:  # its weights are detached, so finite differences do not apply
        loss(features, LABELS).backward()  # type: ignore[no-untyped-call]
        assert features.grad is not None and features.grad.abs().sum() > 1
    else:
        assert torch.autograd.gradcheck(lambda x: loss(x, LABELS), features)


@every_loss
def test_losses_have_a_scale(loss: Loss) -> None:
    doubled = loss(random_features(), LABELS, scale=2.0)  # type: ignore[call-arg]
    torch.testing.assert_close(doubled, 2 * loss(random_features(), LABELS))
    assert doubled > 0


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_full(loss: Loss, dtype: torch.dtype) -> None:
    features = random_features().to(dtype).requires_grad_()
    plain = loss(features.detach().float(), LABELS)
    with torch.autocast("cpu", dtype):
        lowered = loss(features, LABELS)
    assert lowered.dtype == torch.float32
    torch.testing.assert_close(lowered, plain)
    lowered.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None and features.grad.dtype == dtype and features.grad.isfinite().all()


EDGES = {
    "all features equal": (torch.ones(4, 3), torch.tensor([0, 0, 1, 1])),
    "all features zero": (torch.zeros(4, 3), torch.tensor([0, 0, 1, 1])),
    "equal in pairs": (torch.tensor([[1.0, 2], [1, 2], [2, 1], [2, 1]]), torch.tensor([0, 0, 1, 1])),
    "equal pairs of two identities": (torch.tensor([[1.0, 2], [2, 1], [2, 1], [1, 2]]), torch.tensor([0, 0, 1, 1])),
    "far apart": (random_features(0, 4, 3) * 1e3, torch.tensor([0, 1, 0, 1])),
    "farther apart": (random_features(0, 4, 3) * 1e15, torch.tensor([0, 1, 0, 1])),
    "far from 0": (random_features(0, 4, 3) + 1e4, torch.tensor([0, 1, 0, 1])),
    "one identity": (random_features(0, 4, 3), torch.tensor([7, 7, 7, 7])),
    "no positive pairs": (random_features(0, 4, 3), torch.tensor([0, 1, 2, 3])),
    "one anchor without a positive": (random_features(0, 4, 3), torch.tensor([0, 0, 1, 0])),
    "one sample": (random_features(0, 1, 3), torch.tensor([3])),
}


@every_loss
@pytest.mark.parametrize("features, labels", EDGES.values(), ids=EDGES)
def test_losses_and_gradients_stay_finite(loss: Loss, features: Tensor, labels: Tensor) -> None:
    features = features.clone().requires_grad_()
    value = loss(features, labels)
    value.backward()  # type: ignore[no-untyped-call]
    assert value.isfinite() and value >= 0
    assert features.grad is not None and features.grad.isfinite().all()


@every_loss
def test_a_batch_of_one_identity_has_no_loss(loss: Loss) -> None:
    labels = torch.full((4,), 7)
    shares = count_pairs(labels)
    assert [share.item() for share in shares] == [1, 0, 0]
    if loss is not supervised_contrastive:  # it still pulls positives to equal distances
        assert loss(random_features(0, 4), labels).item() == 0.0


def test_distances_of_features_far_from_0_are_kept() -> None:
    features = random_features(0, 4, 3) / 64
    moved = features + 1024.0  # both are exact up to 2 ** -13
    labels = torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(triplet(moved - 1024, labels), triplet(moved, labels), rtol=1e-5, atol=1e-5)


def test_pairs() -> None:
    shares = count_pairs(torch.tensor([0, 0, 1]))
    assert [share.item() for share in shares] == pytest.approx([2 / 3, 1, 2 / 3])
    assert [share.item() for share in count_pairs(torch.tensor([4]))] == [0, 0, 0]


@every_loss
def test_soft_labels_are_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match="identities are one whole number a sample"):
        loss(random_features(), torch.nn.functional.one_hot(LABELS).float())


# --- against a queue --------------------------------------------------------------------------------------------------


cosface_within = partial(cosface, gamma=32.0)


def test_an_empty_queue_changes_nothing() -> None:
    """Unused entries have no identity; in FastReID they are of class 0 until the queue is full."""
    empty, no_labels = torch.zeros(9, 6), torch.full((9,), -1)
    torch.testing.assert_close(
        cross_batch_memory_loss(random_features(), LABELS, empty, no_labels), cosface_within(random_features(), LABELS)
    )


def test_the_queue_equals_a_larger_batch() -> None:
    """The mean loss against all other samples is the same, whichever part of them is in the queue."""
    features, labels = random_features(0, 8), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    unit = torch.nn.functional.normalize(features, dim=1)
    first = cross_batch_memory_loss(features[:4], labels[:4], unit[4:], labels[4:])
    second = cross_batch_memory_loss(features[4:], labels[4:], unit[:4], labels[:4])
    torch.testing.assert_close((first + second) / 2, cosface_within(features, labels))


def test_gradients_flow_only_to_anchors() -> None:
    """Gradients are half of those within a batch, where both samples of a pair are anchors."""
    labels, empty_queue = torch.tensor([0, 0, 1, 1]), (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    a, b = torch.eye(4, 6).double().requires_grad_(), torch.eye(4, 6).double().requires_grad_()
    cross_batch_memory_loss(a, labels, *empty_queue).backward()
    cosface_within(b, labels).backward()  # type: ignore[no-untyped-call]
    assert a.grad is not None and b.grad is not None and b.grad.abs().sum() > 0.1
    torch.testing.assert_close(2 * a.grad, b.grad)


# --- proxies ----------------------------------------------------------------------------------------------------------


def test_proxy_losses_follow_the_papers() -> None:
    """Numbers of pytorch-metric-learning 2.9: ProxyAnchorLoss, and ProxyNCALoss with softmax_scale 9."""
    generator = torch.Generator().manual_seed(0)
    features, proxies = (torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in (6, 4))
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    cosines = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(proxies).T
    pull = [sum(math.exp(-32 * (cosines[i, k] - 0.1)) for i in range(6) if labels[i] == k) for k in range(4)]
    push = [sum(math.exp(32 * (cosines[i, k] + 0.1)) for i in range(6) if labels[i] != k) for k in range(4)]
    expected = sum(math.log1p(x) for x in pull[:3]) / 3 + sum(math.log1p(x) for x in push) / 4
    assert proxy_anchor(32 * cosines, labels).item() == pytest.approx(expected) == pytest.approx(20.87030881)
    # ProxyNCA++ (Teh et al. 2020, equation 6) is cross entropy of cosines with scale 18: exp(-9 d^2) = c exp(18 cos).
    assert cross_entropy(18 * cosines, labels).item() == pytest.approx(1.78105365)
    logits = (32 * cosines[:2]).requires_grad_()
    proxy_anchor(logits, labels[:2]).backward()  # one class has no negatives, three have no samples
    assert logits.grad is not None and logits.grad.isfinite().all()
