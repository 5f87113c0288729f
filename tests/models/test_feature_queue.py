"""Feature queues and memory banks: their contents after any batches, and their state in checkpoints."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from opabinia.models.feature_queue import FeatureQueue, MemoryBank
from opabinia.models.feature_queue import VectorQueue as VectorQueue

GOLDEN_FOLDER = Path(__file__).resolve().parent.parent / "golden"
GOLDEN = GOLDEN_FOLDER / "fastreid" / "moco_memory.json"
VISSL_CASE = json.loads((GOLDEN_FOLDER / "selfsup" / "nce_memory.json").read_text())


def test_the_queue_matches_fastreid() -> None:
    case = json.loads(GOLDEN.read_text())
    inputs, expected = case["inputs"], case["outputs"]
    queue = FeatureQueue(inputs["dim"], inputs["K"])
    queue.features.copy_(torch.tensor(inputs["queue_start_columns"]).T)
    queue.labels.zero_()
    queue.enqueue(torch.tensor(inputs["feat"]), torch.tensor(inputs["targets"]))
    torch.testing.assert_close(queue.features, torch.tensor(expected["queue_after"]).T)
    assert queue.labels.tolist() == expected["labels_after"][0]
    assert [queue.pointer.item()] == expected["ptr"]


@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=6))
def test_the_queue_holds_the_newest_vectors(size: int, batches: list[int]) -> None:
    queue, count_pushed = FeatureQueue(3, size), 0
    for count in batches:
        labels = torch.arange(count_pushed, count_pushed + count)
        queue.enqueue(torch.stack([labels + 1.0, labels * 0 + 1.0, -labels * 1.0], dim=1), labels)
        count_pushed += count
    newest = list(range(max(0, count_pushed - size), count_pushed))
    assert sorted(queue.labels.tolist()) == [-1] * (size - len(newest)) + newest
    assert queue.pointer.item() == count_pushed % size
    for position, label in enumerate(queue.labels.tolist()):
        expected = torch.zeros(3) if label < 0 else F.normalize(torch.tensor([label + 1.0, 1, -label]), dim=0)
        torch.testing.assert_close(queue.features[position], expected)
        assert label < 0 or label % size == position


def test_the_queue_takes_half_precision_and_detaches() -> None:
    queue = FeatureQueue(2, 3)
    queue.enqueue(torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True), torch.tensor([5, 6]))
    assert queue.features.dtype == torch.float32 and not queue.features.requires_grad
    assert queue.features[:2].norm(dim=1).tolist() == pytest.approx([1, 1])


# --- queues without labels --------------------------------------------------------------------------------------------


# --- memory bank ------------------------------------------------------------------------------------------------------


def test_the_memory_bank_matches_vissl() -> None:
    bank = MemoryBank(5, 2)
    bank.vectors.copy_(torch.tensor(VISSL_CASE["inputs"]["memory"]))
    bank.update(torch.tensor(VISSL_CASE["inputs"]["targets"]), torch.tensor(VISSL_CASE["inputs"]["embedding"]), 0.5)
    expected = torch.tensor(VISSL_CASE["outputs"]["cross_entropy"]["memory_after"])
    torch.testing.assert_close(bank.vectors, expected, atol=1e-6, rtol=1e-6)


def test_a_memory_bank_starts_with_random_vectors() -> None:
    torch.manual_seed(0)
    vectors = MemoryBank(200, 16).vectors
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(200))
    assert vectors.mean(0).norm() < 0.2


def test_the_last_view_of_a_repeated_image_counts() -> None:
    bank, reference = MemoryBank(4, 3), MemoryBank(4, 3)
    reference.load_state_dict(bank.state_dict())
    views = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    bank.update(torch.tensor([2, 0, 2]), views, 0.25)
    reference.update(torch.tensor([0, 2]), views[1:], 0.25)
    assert torch.equal(bank.vectors, reference.vectors)


def test_vectors_that_are_not_finite_are_ignored() -> None:
    bank = MemoryBank(4, 2)
    before = bank.vectors.clone()
    bank.update(torch.tensor([1, 3]), torch.tensor([[torch.nan, 1.0], [torch.inf, 2.0]]), 0.5)
    assert torch.equal(bank.vectors, before)
