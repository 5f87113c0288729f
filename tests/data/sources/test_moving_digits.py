import numpy as np
import pytest
import torch

from opabinia.contracts import Source, Video
from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.data.sources.moving_digits import MOVES, MovingDigits, load_videos, move


@pytest.fixture(scope="module")
def val() -> MovingDigits:
    return MovingDigits(split="val")


def test_every_digit_of_the_split_occurs_twice(val: MovingDigits) -> None:
    train = MovingDigits()
    assert isinstance(val, Source)
    assert (len(train), len(val)) == (2 * 1437, 2 * 360)
    assert np.bincount(val.info.labels).tolist() == [90] * 8
    assert set(np.bincount(train.info.labels).tolist()) == {359, 360}
    sample = val[7]
    assert isinstance(sample["video"], Video)
    assert (sample["id"], sample["label"]) == ("val/0003_1", val.info.labels[7])
    assert (sample["video"].frames, sample["video"].size) == (16, (32, 32))
    assert len({val.id(index) for index in range(len(val))}) == len(val)
    assert val.fingerprint() != train.fingerprint()
    with pytest.raises(IndexError):
        val[len(val)]


def test_the_videos_are_the_same_on_every_machine(val: MovingDigits) -> None:
    """A change of the generator needs a new name of the cached file."""
    sums = [int(load_videos(split)["videos"].sum(dtype=np.int64)) for split in ("train", "val")]  # type: ignore[arg-type]
    assert sums == [1815081678, 453709709]
    digits, labels = load_digits()
    arrays = load_videos("val")
    val_digits, shown = digits[split_digits(labels)["val"]], np.repeat(np.arange(360), 2)[:64]
    videos = move(val_digits, shown, val.info.labels[:64], 2894037488)
    assert np.array_equal(videos, arrays["videos"][:64])


def test_a_digit_moves_in_the_direction_of_its_class() -> None:
    square = np.zeros((1, 8, 8), dtype=np.uint8)
    square[0, 2, 3:] = 255
    videos = move(square, np.zeros(16, dtype=np.int64), np.arange(16) % 8, 3)
    speeds = set()
    for number, video in enumerate(videos):
        ink = video > 150
        assert ink.sum((1, 2)).tolist() == [20] * 16, "complete in every frame"
        down, right = list(MOVES.values())[number % 8]
        moved = [np.roll(ink[:-1], (speed * down, speed * right), (1, 2)) for speed in (1, 2)]
        matches = [np.array_equal(candidate, ink[1:]) for candidate in moved]
        assert sum(matches) == 1
        speeds.add(matches.index(True))
    assert speeds == {0, 1}


def test_flips_change_the_label_of_horizontal_motion(val: MovingDigits) -> None:
    for index in range(30):
        is_vertical = val.classes[val.info.labels[index]] in ("up", "down")
        assert val[index]["flip_changes_label"] is not is_vertical


def test_frames_do_not_share_memory_with_the_source(val: MovingDigits) -> None:
    before = val[3]["video"].read([0, 5])
    assert before.shape == (2, 1, 32, 32) and before.dtype == torch.uint8
    val[3]["video"].read([0, 5]).zero_()
    assert torch.equal(val[3]["video"].read([0, 5]), before)
