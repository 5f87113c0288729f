"""Crops of tracked objects for re-identification."""

from __future__ import annotations

import numpy as np
import pytest

from opabinia.contracts import Source
from opabinia.data.sources import Concat, DigitScenes, DigitTracks, TrackCrops, mot
from tests.data.sources.test_mot import FRAMES, write_sequence


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("mot")
    write_sequence(root / "a")
    write_sequence(root / "b", info=None)
    return mot(root=root)


def test_crops_are_apart_in_time_and_visible(videos: Source) -> None:
    crops = TrackCrops(source=videos)
    assert crops.classes == ("a/1", "a/2", "b/1", "b/2") and crops.info.camera_count == 2
    ids = [crops.id(index) for index in range(len(crops))]
    assert ids[:5] == ["a/1/1", "a/1/11", "a/1/21", "a/2/1", "a/2/16"]
    sample = crops[1]
    assert sample["image"].shape == (3, 30, 20) and sample["image"].unique().tolist() == [110]
    assert (sample["label"], sample["camera"], crops[5]["camera"]) == (0, 0, 1)
    assert crops.paths(1) == videos.paths(10)
    assert len(TrackCrops(source=videos, min_gap=1, min_visibility=0.0)) == 4 * FRAMES
    assert TrackCrops(source=videos, split="test").info.cameras is None
    with pytest.raises(ValueError, match="has no identity to train on"):
        TrackCrops(source=videos, min_size=40)


def test_crops_of_sources_in_sources(videos: Source) -> None:
    half = videos.select(np.arange(FRAMES))
    assert half is not None
    assert TrackCrops(source=Concat(sources=[half, half])).classes == ("0/a/1", "0/a/2", "1/a/1", "1/a/2")


def test_crops_of_the_embedded_videos() -> None:
    crops = TrackCrops(source=DigitTracks(split="val"), split="test", min_size=6)
    assert len(crops.classes) == 48 and crops.id(0) == "val/00/0/1" and crops[0]["label"] == 0
    assert crops[0]["image"].shape[0] == 1 and min(crops[0]["image"].shape[1:]) >= 6


def test_sources_without_tracks() -> None:
    with pytest.raises(ValueError, match="DigitScenes has no videos with tracks, as mot has"):
        TrackCrops(source=DigitScenes(split="val"))
