from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Batch, DatasetInfo
from opabinia.data.batch_mixing import blend, cutmix, float_images, mixup, mixup_images, one_of, soft_labels
from opabinia.runtime.seeds import seed_sample

DATASET_INFO = DatasetInfo(samples=10, classes=("a", "b", "c", "d"))


def batch_of(labels: list[int]) -> Batch:
    images = torch.randint(0, 256, (len(labels), 3, 4, 4), dtype=torch.uint8)
    return {"image": images, "label": torch.tensor(labels), "id": [f"{i}" for i in range(len(labels))]}


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.just(0.0) | st.floats(0.01, 5))
def test_images_and_labels_are_mixed_with_the_same_weight(seed: int, count: int, alpha: float) -> None:
    seed_sample(seed)
    batch = batch_of([i % 4 for i in range(count)])
    before = batch["image"].clone()
    mixed = mixup(batch, DATASET_INFO, alpha=alpha)
    seed_sample(seed)
    batch_of([0] * count)  # draws the same random numbers
    weight = np.random.beta(alpha, alpha) if alpha else 1.0
    partners = torch.randperm(count)
    torch.testing.assert_close(mixed["image"], weight * before / 255 + (1 - weight) * before[partners] / 255)
    assert mixed["image"].dtype == torch.float32
    hard = torch.eye(4)[batch["label"]]
    torch.testing.assert_close(mixed["label"], weight * hard + (1 - weight) * hard[partners])
    assert mixed["id"] == batch["id"]
    assert torch.equal(batch["image"], before), "the input batch was changed"


def test_soft_labels_and_data_that_cannot_be_mixed() -> None:
    values = torch.tensor([[0.0, 10], [4, 20]])
    assert blend(values, torch.tensor([1, 0]), [0.75, 0.75]).tolist() == [[1, 12.5], [3, 17.5]]
    assert soft_labels(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert float_images(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0, 1]
    assert float_images(torch.tensor([0, 0.5])).tolist() == [0, 0.5]
    mixed = mixup(mixup(batch_of([0, 1, 2]), DATASET_INFO, alpha=1), DATASET_INFO, alpha=1)
    torch.testing.assert_close(mixed["label"].sum(dim=1), torch.ones(3))
    for mix in (mixup, cutmix):
        for batch, info in (
            (batch_of([0]), DatasetInfo(samples=1)),
            ({"image": torch.zeros(2, 3, 4, 4)}, DATASET_INFO),
        ):
            with pytest.raises(
                ValueError, match="mixes the class labels of images, and this data has no 'label'; remo"
            ):
                mix(batch, info)
        with pytest.raises(ValueError, match="the batch has views instead of images"):
            mix({"views": ()}, DATASET_INFO)


def test_images_alone_are_mixed_as_with_labels() -> None:
    batch = batch_of([1, 2, 3])
    seed_sample(5)
    expected = mixup(batch, DATASET_INFO, alpha=1.0)["image"]
    del batch["label"]
    seed_sample(5)
    mixed = mixup_images(batch, DatasetInfo(samples=3))
    assert torch.equal(mixed["image"], expected) and "label" not in mixed


# --- per pair and per sample ------------------------------------------------------------------------------------------


def constant_images(count: int, size: int = 32) -> Batch:
    """Return images filled with their index, which shows what was mixed."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, size, size)
    return {"image": images.clone(), "label": torch.arange(count), "id": [str(i) for i in range(count)]}


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_pairs_share_their_weight(count: int) -> None:
    seed_sample(3)
    mixed = mixup(constant_images(count), DatasetInfo(samples=9, classes=tuple("abcdefgh")), alpha=1.0, per="pair")
    for index in range(count):
        partner = count - 1 - index
        share = mixed["label"][index, index]
        torch.testing.assert_close(mixed["image"][index].mean() * 255, index * share + partner * (1 - share))
        torch.testing.assert_close(mixed["label"][partner, partner], share)
    assert mixed["label"].sum(1).tolist() == pytest.approx([1.0] * count)
    mixed = mixup(constant_images(8), DatasetInfo(samples=9, classes=tuple("abcdefgh")), alpha=1.0, per="sample")
    assert len({round(float(row.max()), 6) for row in mixed["label"]}) > 4, "each sample draws its own weight"


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
    st.sampled_from(["batch", "pair", "sample"]),
    st.just(0.0) | st.floats(0.01, 5),
)
def test_cutmix_labels_are_the_areas(seed: int, count: int, per: Any, alpha: float) -> None:
    seed_sample(seed)
    batch = constant_images(count)
    mixed = cutmix(batch, DatasetInfo(samples=9, classes=tuple("abcdefg")), alpha=alpha, per=per)
    assert mixed["image"].dtype == torch.uint8
    for index in range(count):
        areas = torch.bincount(mixed["image"][index].flatten().int(), minlength=7).float() / 32**2
        torch.testing.assert_close(mixed["label"][index], areas)
        assert (areas > 0).sum() <= 2
    weights = mixed["label"].diagonal()
    assert per != "pair" or torch.equal(weights, weights.flip(0))


def test_cutmix_swaps_rectangles_at_the_same_position() -> None:
    seed_sample(0)
    batch = {**constant_images(2), "image": torch.stack([torch.zeros(3, 16, 24), torch.ones(3, 16, 24)])}
    inside = cutmix(batch, DATASET_INFO, alpha=1.0, per="pair")["image"][0, 0] == 1
    rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
    assert inside.sum() == len(rows) * len(columns) > 0
    assert rows.tolist() == list(range(int(rows[0]), int(rows[-1]) + 1))


def test_one_of_draws_by_weight() -> None:
    first: Any = lambda batch, dataset_info: "first"  # noqa: E731
    second: Any = lambda batch, dataset_info: "second"  # noqa: E731
    batch, result = batch_of([0, 1]), Counter[Any]()
    seed_sample(0)
    for _ in range(1000):
        chosen = one_of(batch, DATASET_INFO, mixes=[first, second], weights=[1, 3], probability=0.8)
        result["none" if chosen is batch else chosen] += 1
    assert abs(result["none"] - 200) < 60 and abs(result["first"] - 200) < 60 and abs(result["second"] - 600) < 60
    with pytest.raises(ValueError, match="2 mixes need as many weights"):
        one_of(batch, DATASET_INFO, mixes=[first, second], weights=[1])
