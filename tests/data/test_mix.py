from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Batch, Facts
from opabinia.data.mix import blend, float_images, mixup, soft_labels
from opabinia.runtime.seeds import seed_sample

FACTS = Facts(samples=10, classes=("a", "b", "c", "d"))


def batch_of(labels: list[int]) -> Batch:
    images = torch.randint(0, 256, (len(labels), 3, 4, 4), dtype=torch.uint8)
    return {"image": images, "label": torch.tensor(labels), "id": [f"{i}" for i in range(len(labels))]}


def test_golden_labels() -> None:
    with (
        mock.patch("numpy.random.beta", return_value=0.7),
        mock.patch("torch.randperm", return_value=torch.tensor([1, 0])),
    ):
        mixed = mixup(batch_of([1, 2]), FACTS, alpha=0.2)
    torch.testing.assert_close(mixed["label"], torch.tensor([[0, 0.7, 0.3, 0], [0, 0.3, 0.7, 0]]))


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.just(0.0) | st.floats(0.01, 5))
def test_images_and_labels_are_mixed_alike(seed: int, count: int, alpha: float) -> None:
    seed_sample(seed)
    batch = batch_of([i % 4 for i in range(count)])
    before = batch["image"].clone()
    mixed = mixup(batch, FACTS, alpha=alpha)
    seed_sample(seed)
    batch_of([0] * count)  # draws the same images
    weight = np.random.beta(alpha, alpha) if alpha else 1.0
    partners = torch.randperm(count)
    torch.testing.assert_close(mixed["image"], weight * before / 255 + (1 - weight) * before[partners] / 255)
    assert mixed["image"].dtype == torch.float32
    hard = torch.eye(4)[batch["label"]]
    torch.testing.assert_close(mixed["label"], weight * hard + (1 - weight) * hard[partners])
    assert mixed["id"] == batch["id"]
    assert torch.equal(batch["image"], before), "the batch that was handed over has changed"


def test_twice_is_fine() -> None:
    mixed = mixup(mixup(batch_of([0, 1, 2]), FACTS, alpha=1), FACTS, alpha=1)
    torch.testing.assert_close(mixed["label"].sum(dim=1), torch.ones(3))


def test_pieces() -> None:
    values = torch.tensor([[0.0, 10], [4, 20]])
    assert blend(values, torch.tensor([1, 0]), 0.75).tolist() == [[1, 12.5], [3, 17.5]]
    assert soft_labels(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_float_images_stay_in_their_range() -> None:
    assert float_images(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0, 1]
    assert float_images(torch.tensor([0, 0.5])).tolist() == [0, 0.5]


def test_without_classes() -> None:
    with pytest.raises(ValueError, match="no classes"):
        mixup(batch_of([0]), Facts(samples=1), alpha=0.2)
