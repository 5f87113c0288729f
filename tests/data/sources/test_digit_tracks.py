"""The embedded videos: digits that wait behind an occluder, whose tracks need appearance."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from opabinia.contracts.tracking import FrameDetections, TrackGroundTruth
from opabinia.data.sources import DigitTracks
from opabinia.data.sources.digit_tracks import ARRIVE, FRAMES, LEAVE, PAIRS, SEQUENCES, WALL, make_sequence
from opabinia.data.sources.digits import load_digits
from opabinia.evaluation.tracking.frames import join_frames
from opabinia.evaluation.tracking.scores import evaluate_tracks
from opabinia.models.trackers.botsort import bot_sort
from opabinia.models.trackers.sequences import Frame, track_sequence


@pytest.fixture(scope="module")
def source() -> DigitTracks:
    return DigitTracks(split="val")


@pytest.fixture(scope="module")
def truths(source: DigitTracks) -> dict[str, TrackGroundTruth]:
    return join_frames(source.ground_truth(index).track for index in range(len(source)))


def test_frames(source: DigitTracks) -> None:
    assert len(source) == SEQUENCES["val"] * FRAMES
    sample = source[FRAMES]
    assert sample["id"] == "val/01/000001.png" and sample["image"].shape == (1, 128, 128)
    assert len(sample["boxes"]) == 2 * PAIRS
    labels = sample["labels"].tolist()
    assert labels[::2] == labels[1::2], "the two of a pair have the same class"
    assert len(source[FRAMES + (ARRIVE + LEAVE) // 2]["boxes"]) == 0, "all wait behind the occluder"
    assert (source[5]["image"][0, :, WALL[0] : WALL[1]] == 120).all()


def test_tracks(source: DigitTracks, truths: dict[str, TrackGroundTruth]) -> None:
    assert source.info.sequences is not None and source.info.sequences[FRAMES] == "val/01"
    assert list(truths) == [f"val/{number:02d}" for number in range(SEQUENCES["val"])]
    truth = truths["val/01"]
    assert np.unique(truth.ids).tolist() == list(range(2 * PAIRS)) and truth.frames.max() == FRAMES
    assert truth.boxes[truth.frames == 1].tolist() == source[FRAMES]["boxes"].tolist()
    assert (truth.boxes[:, 2:] > truth.boxes[:, :2]).all() and truth.boxes.min() >= 0 and truth.boxes.max() <= 128


def test_some_pairs_go_on_and_some_go_back(truths: dict[str, TrackGroundTruth]) -> None:
    returned = []
    for truth in truths.values():
        for track in range(0, 2 * PAIRS, 2):
            places = truth.boxes[truth.ids == track, 0]
            returned.append(bool(abs(places[-1] - places[0]) < 10))
    assert 6 < sum(returned) < len(returned) - 6


def test_sequences_are_the_same_on_every_machine() -> None:
    digits, labels = load_digits()
    images, rows = make_sequence(digits, labels, 7)
    assert (int(images.astype(np.int64).sum()), int(rows.sum()), len(rows)) == (48849645, 66139, 228)


def test_appearance_is_needed(source: DigitTracks, truths: dict[str, TrackGroundTruth]) -> None:
    """Ground-truth boxes as detections: motion alone loses tracks behind the occluder."""
    scores = {}
    for name, appearance in (("motion", False), ("appearance", True)):
        tracker = partial(bot_sort, min_appearance_iou=0.0)
        tracks = {}
        for number, (sequence, truth) in enumerate(truths.items()):
            frames = []
            for frame in range(1, FRAMES + 1):
                rows = truth.frames == frame
                boxes = truth.boxes[rows]
                image = source[number * FRAMES + frame - 1]["image"].float()
                embeddings = np.stack([pixels(image, box) for box in boxes]) if len(boxes) else np.zeros((0, 256))
                detections = FrameDetections(boxes, np.ones(len(boxes)), embeddings if appearance else None)
                frames.append(Frame(frame, detections, truth.labels[rows]))
            tracks[sequence] = track_sequence(tracker, frames)
        scores[name] = evaluate_tracks(truths, tracks, source.classes)["detection_averaged"]
    assert scores["appearance"]["AssA"] > scores["motion"]["AssA"] + 0.1, scores


def pixels(image: torch.Tensor, box: np.ndarray) -> np.ndarray:
    """A crop of 16 x 16 pixels of unit length, less its mean."""
    left, top, right, bottom = box.astype(int).tolist()
    crop = torch.nn.functional.interpolate(image[None, :, top:bottom, left:right], (16, 16)).flatten()
    crop = crop - crop.mean()
    return (crop / crop.norm()).double().numpy()
