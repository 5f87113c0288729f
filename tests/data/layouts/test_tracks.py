"""Sections of videos with tracks: the videos of each split, and their crops."""

from __future__ import annotations

from pathlib import Path

from opabinia.data.layouts.recognition import recognize
from tests.data.layouts.folders import Maker


def test_crops_are_of_the_same_videos_as_frames(tmp_path: Path) -> None:
    make = Maker(tmp_path)
    make.images("video{0..6}/img1/1.jpg")
    for number in range(7):
        make.write(f"video{number}/gt/gt.txt", f"1,1,{number},1,4,4,1,1,1")
    frames, crops = (recognize(tmp_path, task=task) for task in ("detection", "reid"))
    train, val = (
        {"name": "mot", "root": str(tmp_path), "format": "mot", "sequences": [f"video{number}" for number in numbers]}
        for numbers in ((0, 1, 2, 3, 5, 6), (4,))
    )
    assert (frames.train, frames.val) == (train, val)
    assert crops.train == {"name": "track_crops", "split": "train", "source": train}
    assert crops.val == {"name": "track_crops", "split": "test", "source": val}


def test_names_of_videos_that_begin_with_a_split(tmp_path: Path) -> None:
    make = Maker(tmp_path)
    for number, name in enumerate(("train-0", "train-1", "val-0", "test-0")):
        make.images(f"{name}/img1/1.jpg")
        make.write(f"{name}/gt/gt.txt", f"1,1,{number},1,4,4,1,1,1")
    layout = recognize(tmp_path, task="detection")
    sequences = {"train": ["train-0", "train-1"], "val": ["val-0"], "test": ["test-0"]}
    assert {split: getattr(layout, split)["sequences"] for split in sequences} == sequences
    assert not any("held out" in note for note in layout.notes)


def test_one_video_of_each_split(tmp_path: Path) -> None:
    """The folders are videos, not splits with videos in them."""
    make = Maker(tmp_path)
    for number, name in enumerate(("train-0", "val-0")):
        make.images(f"{name}/img1/1.jpg")
        make.write(f"{name}/gt/gt.txt", f"1,1,{number},1,4,4,1,1,1")
    layout = recognize(tmp_path, task="reid")
    assert layout.train["source"]["sequences"] == ["train-0"]
    assert layout.val is not None and layout.val["source"]["sequences"] == ["val-0"]


def test_one_name_without_a_split(tmp_path: Path) -> None:
    make = Maker(tmp_path)
    for number, name in enumerate(("train-0", "val-0", "street")):
        make.images(f"{name}/img1/1.jpg")
        make.write(f"{name}/gt/gt.txt", f"1,1,{number},1,4,4,1,1,1")
    layout = recognize(tmp_path, task="detection")
    assert layout.val is not None and layout.val["sequences"] == ["val-0"], "the last by name"
    assert layout.train["sequences"] == ["street", "train-0"]
