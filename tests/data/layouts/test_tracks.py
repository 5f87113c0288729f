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
