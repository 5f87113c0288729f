import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, Source
from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.data.sources.placed_digits import SHOTS, SIDE, PlacedDigits, load_images, place
from opabinia.evaluation.representation.knn import Knn


@pytest.fixture(scope="module")
def val() -> PlacedDigits:
    return PlacedDigits(split="val")


def test_every_digit_of_the_split_is_shown_several_times(val: PlacedDigits) -> None:
    _, labels = load_digits()
    numbers = split_digits(labels)
    assert isinstance(val, Source)
    assert (len(PlacedDigits()), len(val)) == (SHOTS * 1437, SHOTS * 360)
    assert val.labels.reshape(-1, SHOTS).T.tolist() == [labels[numbers["val"]].tolist()] * SHOTS
    assert (val[7]["id"], val[7]["label"]) == ("val/0001_2", val.labels[7])
    assert len({val.id(index) for index in range(len(val))}) == len(val)
    assert val.fingerprint() != PlacedDigits().fingerprint()


def test_the_images_are_the_same_on_every_machine() -> None:
    sums = [int(load_images(split)["images"].sum(dtype=np.int64)) for split in ("train", "val")]  # type: ignore[arg-type]
    assert sums == [275910091, 68352416]


def test_what_is_cached_is_what_would_be_made(val: PlacedDigits) -> None:
    """Whoever changes how images are made must change the name of the cached file, too."""
    digits, labels = load_digits()
    made = place(digits[split_digits(labels)["val"]], np.repeat(np.arange(360), SHOTS)[:64], 1586986492)
    assert np.array_equal(made[:, None], val.batch(np.arange(64))["image"].numpy())


def test_a_whole_digit_is_the_brightest_object_in_its_image() -> None:
    """Of a digit that is a full square all is seen, wherever it lies, and it is much brighter than pieces are."""
    squares = np.full((3, 8, 8), 255, dtype=np.uint8)
    images = place(squares, np.repeat(np.arange(3), 40), 1).astype(int)
    assert images.shape == (120, SIDE, SIDE)
    ink = (images > 185).sum((1, 2))
    # A side of 1.5 to 2.7 times 8 pixels, and what is lost at soft edges.
    assert ink.min() > 9**2 and ink.max() < 23**2 and ink.std() > 40
    middles = np.array([np.argwhere(one > 185).mean(0) for one in images])
    assert middles.min() < 9 and middles.max() > SIDE - 9, "anywhere"


def test_an_image_is_the_readers_own(val: PlacedDigits) -> None:
    before = val[3]["image"].clone()
    val[3]["image"].zero_()
    assert torch.equal(val[3]["image"], before)
    batch = val.batch(np.array([3, 1799, 3]))
    assert torch.equal(batch["image"][2], before) and batch["label"].tolist() == [val.labels[i] for i in (3, 1799, 3)]
    assert batch["id"] == [val[index]["id"] for index in (3, 1799, 3)]
    with pytest.raises(IndexError):
        val[len(val)]


def test_pixels_know_more_than_half_of_them(val: PlacedDigits) -> None:
    """What every method is measured against stands in the documents."""
    evaluator = Knn(DatasetInfo(samples=0, channels=1, classes=PlacedDigits.classes))
    for source, take in ((PlacedDigits(), evaluator.learn), (val, evaluator.update)):
        batch = source.batch(np.arange(len(source)))
        take({"embedding": batch["image"].flatten(1).float() / 255}, batch)
    assert evaluator.compute([evaluator.state()])["knn_top1"] == pytest.approx(0.578, abs=0.005)
