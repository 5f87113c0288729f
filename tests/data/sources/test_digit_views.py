from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.data.sources.digit_views import DigitViews
from opabinia.data.sources.identity_datasets import market1501
from opabinia.data.sources.reid_base import MARKET_FOLDERS


@pytest.fixture(scope="module")
def train() -> DigitViews:
    return DigitViews(split="train")


@pytest.fixture(scope="module")
def test() -> DigitViews:
    return DigitViews(split="test")


def test_every_identity_is_seen_twice_by_every_camera(train: DigitViews, test: DigitViews) -> None:
    for source, identities in ((train, 1000), (test, 797)):
        assert source.info.cameras is not None
        pairs = Counter(zip(source.info.labels.tolist(), source.info.cameras.tolist(), strict=True))
        assert pairs == {(label, camera): 2 for label in range(identities) for camera in range(4)}
    assert not set(train.classes) & set(test.classes), "no identity is in both splits"
    assert train.info.queries is None and "query" not in train[0]


def test_of_each_identity_and_camera_one_image_is_a_query(test: DigitViews) -> None:
    assert test.info.queries is not None and test.info.cameras is not None
    for label in (0, 400, 796):
        of_identity = test.info.labels == label
        for chosen in (test.info.queries, ~test.info.queries):
            assert sorted(test.info.cameras[of_identity & chosen]) == [0, 1, 2, 3]


def test_the_images_are_the_same_on_every_machine(train: DigitViews, test: DigitViews) -> None:
    sums = [source.batch(np.arange(len(source)))["image"].sum(dtype=torch.int64).item() for source in (train, test)]
    assert sums == [806412344, 642012261]
    row = [73, 75, 80, 111, 143, 175, 171, 160, 155, 150, 137, 127, 122, 112, 98, 79]
    assert train[5]["image"][0, 15, 8:24].tolist() == row


def test_a_batch_consists_of_its_samples(test: DigitViews) -> None:
    indices = np.array([7, 0, 4003])
    batch, samples = test.batch(indices), [test[int(index)] for index in indices]
    assert batch.keys() == samples[0].keys()
    for number, sample in enumerate(samples):
        assert torch.equal(batch["image"][number], sample["image"])
        for key in ("label", "camera", "query", "id"):
            assert batch[key][number] == sample[key]


@pytest.mark.slow
def test_images_written_as_market_1501_are_read_back(tmp_path: Path, train: DigitViews, test: DigitViews) -> None:
    for name in MARKET_FOLDERS.values():
        (tmp_path / name).mkdir()
    for source in (train, test):
        for index in range(len(source)):
            Image.fromarray(source[index]["image"][0].numpy()).save(tmp_path / source.id(index))
    for source, split in ((train, "train"), (test, "test")):
        read = market1501(root=tmp_path, split=split, cameras=4, channels=1)  # type: ignore[arg-type]
        assert read.classes == source.classes and len(read) == len(source)
        for name in ("labels", "cameras", "queries"):
            assert np.array_equal(getattr(read.info, name), getattr(source.info, name))
        for index in (0, 3187, 6375):
            actual, expected = read[index], source[index]
            assert torch.equal(actual.pop("image"), expected.pop("image")) and actual == expected
