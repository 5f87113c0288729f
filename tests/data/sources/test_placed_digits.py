import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.data.sources.placed_digits import SHOTS, PlacedDigits, load_images, place


@pytest.fixture(scope="module")
def val() -> PlacedDigits:
    return PlacedDigits(split="val")


def test_every_digit_of_the_split_occurs_several_times(val: PlacedDigits) -> None:
    _, labels = load_digits()
    numbers = split_digits(labels)
    assert isinstance(val, Source)
    assert (len(PlacedDigits()), len(val)) == (SHOTS * 1437, SHOTS * 360)
    assert val.info.labels.reshape(-1, SHOTS).T.tolist() == [labels[numbers["val"]].tolist()] * SHOTS
    assert (val[7]["id"], val[7]["label"]) == ("val/0001_2", val.info.labels[7])
    assert len({val.id(index) for index in range(len(val))}) == len(val)
    assert val.fingerprint() != PlacedDigits().fingerprint()


def test_the_images_are_the_same_on_every_machine(val: PlacedDigits) -> None:
    """A change of the generator needs a new name of the cached file."""
    sums = [int(load_images(split)["images"].sum(dtype=np.int64)) for split in ("train", "val")]  # type: ignore[arg-type]
    assert sums == [275910091, 68352416]
    digits, labels = load_digits()
    images = place(digits[split_digits(labels)["val"]], np.repeat(np.arange(360), SHOTS)[:64], 1586986492)
    assert np.array_equal(images[:, None], val.batch(np.arange(64))["image"].numpy())


def test_images_do_not_share_memory_with_the_source(val: PlacedDigits) -> None:
    before = val[3]["image"].clone()
    val[3]["image"].zero_()
    assert torch.equal(val[3]["image"], before)
    batch = val.batch(np.array([3, 1799, 3]))
    assert torch.equal(batch["image"][2], before)
    assert batch["label"].tolist() == [val.info.labels[index] for index in (3, 1799, 3)]
    assert batch["id"] == [val[index]["id"] for index in (3, 1799, 3)]
    with pytest.raises(IndexError):
        val[len(val)]
