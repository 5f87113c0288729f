"""Queues of earlier vectors and a memory of all: what they hold after any batches, and what is saved with the model."""

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
OF_VISSL = json.loads((GOLDEN_FOLDER / "selfsup" / "nce_memory.json").read_text())


def test_fastreids_queue() -> None:
    case = json.loads(GOLDEN.read_text())
    given, expected = case["inputs"], case["outputs"]
    queue = FeatureQueue(given["dim"], given["K"])
    queue.features.copy_(torch.tensor(given["queue_start_columns"]).T)
    queue.labels.zero_()
    queue.enqueue(torch.tensor(given["feat"]), torch.tensor(given["targets"]))
    torch.testing.assert_close(queue.features, torch.tensor(expected["queue_after"]).T)
    assert queue.labels.tolist() == expected["labels_after"][0]
    assert [queue.pointer.item()] == expected["ptr"]


@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=6))
def test_it_holds_the_newest(size: int, batches: list[int]) -> None:
    queue, seen = FeatureQueue(3, size), 0
    for count in batches:
        labels = torch.arange(seen, seen + count)
        queue.enqueue(torch.stack([labels + 1.0, labels * 0 + 1.0, -labels * 1.0], dim=1), labels)
        seen += count
    held = list(range(max(0, seen - size), seen))
    assert sorted(queue.labels.tolist()) == [-1] * (size - len(held)) + held
    assert queue.pointer.item() == seen % size
    for place, label in enumerate(queue.labels.tolist()):
        expected = torch.zeros(3) if label < 0 else F.normalize(torch.tensor([label + 1.0, 1, -label]), dim=0)
        torch.testing.assert_close(queue.features[place], expected)
        assert label < 0 or label % size == place


def test_it_takes_what_has_gradients_and_half_precision() -> None:
    queue = FeatureQueue(2, 3)
    queue.enqueue(torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True), torch.tensor([5, 6]))
    assert queue.features.dtype == torch.float32 and not queue.features.requires_grad
    assert queue.features[:2].norm(dim=1).tolist() == pytest.approx([1, 1])


def test_it_is_saved_with_the_model() -> None:
    queue, other = FeatureQueue(2, 3), FeatureQueue(2, 3)
    queue.enqueue(torch.tensor([[3.0, 4.0]]), torch.tensor([7]))
    other.load_state_dict(queue.state_dict())
    for one in (queue, other):
        one.enqueue(torch.tensor([[0.0, 2.0]]), torch.tensor([8]))
    assert queue.state_dict().keys() == {"features", "labels", "pointer"}
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in queue.state_dict().items())
    assert other.labels.tolist() == [7, 8, -1]


# --- without identities -----------------------------------------------------------------------------------------------


def test_a_queue_may_begin_with_drawn_vectors() -> None:
    torch.manual_seed(0)
    queue = VectorQueue(16, 200, random_init=True)
    torch.testing.assert_close(queue.features.norm(dim=1), torch.ones(200))
    assert queue.features.mean(0).norm() < 0.2, "they point everywhere"
    assert not VectorQueue(16, 200).features.any()


def test_it_reports_where_vectors_were_put() -> None:
    queue = VectorQueue(2, 5)
    assert queue.push(torch.ones(3, 2)).tolist() == [0, 1, 2]
    assert queue.push(torch.ones(4, 2)).tolist() == [3, 4, 0, 1]
    assert queue.push(torch.ones(6, 2)).tolist() == [3, 4, 0, 1, 2]


# --- a memory of all images -------------------------------------------------------------------------------------------


def test_vissls_memory() -> None:
    bank = MemoryBank(5, 2)
    bank.vectors.copy_(torch.tensor(OF_VISSL["inputs"]["memory"]))
    bank.update(torch.tensor(OF_VISSL["inputs"]["targets"]), torch.tensor(OF_VISSL["inputs"]["embedding"]), 0.5)
    expected = torch.tensor(OF_VISSL["outputs"]["cross_entropy"]["memory_after"])
    torch.testing.assert_close(bank.vectors, expected, atol=1e-6, rtol=1e-6)


def test_a_memory_begins_with_drawn_vectors() -> None:
    torch.manual_seed(0)
    vectors = MemoryBank(200, 16).vectors
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(200))
    assert vectors.mean(0).norm() < 0.2


def test_of_an_image_that_is_there_twice_the_last_view_counts() -> None:
    bank, once = MemoryBank(4, 3), MemoryBank(4, 3)
    once.load_state_dict(bank.state_dict())
    views = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    bank.update(torch.tensor([2, 0, 2]), views, 0.25)
    once.update(torch.tensor([0, 2]), views[1:], 0.25)
    assert torch.equal(bank.vectors, once.vectors)


def test_what_is_not_finite_is_not_remembered() -> None:
    bank = MemoryBank(4, 2)
    before = bank.vectors.clone()
    bank.update(torch.tensor([1, 3]), torch.tensor([[torch.nan, 1.0], [torch.inf, 2.0]]), 0.5)
    assert torch.equal(bank.vectors, before)
