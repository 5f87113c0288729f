"""Detector, re-identification and tracker on frames."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opabinia
from opabinia.config import ConfigError
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.data.errors import DataError
from opabinia.inference.predictor import Predictor
from opabinia.inference.tracking.pipeline import Pipeline
from opabinia.models.trackers.camera import Camera
from opabinia.training.tracking import resolve_tracking
from tests.inference.tracking.conftest import BOTSORT, EAGER, RUNS


def with_batch_size(predictor: Predictor, size: int) -> Predictor:
    options: dict[str, Any] = {"channels": predictor.channels, "batch_size": size}
    return Predictor(predictor.task, predictor.transforms, predictor.dataset_info, **options)


def test_detections_are_those_of_the_predictor(
    detector: Predictor, embedder: Predictor, frames: list[TimedFrame]
) -> None:
    pipeline = Pipeline(detector, embedder, min_score=0.05)
    frame = pipeline.detect(frames[3].image, 3, 0.12)
    rows = [row for row in detector(frames[3].image).readable["detections"] if row["score"] >= 0.05]
    boxes, scores, embeddings, time, shift = frame.detections
    assert embeddings is not None
    assert (boxes.dtype, scores.dtype, embeddings.dtype, frame.labels.dtype) == (*[np.float64] * 3, np.int64)
    assert boxes == pytest.approx(np.array([row["box"] for row in rows]), abs=0.01)
    assert [detector.classes[label] for label in frame.labels] == [row["class"] for row in rows]
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(1)
    assert (frame.number, time, shift) == (3, 0.12, (0, 0))
    left, top, right, bottom = *np.floor(boxes[0, :2]).astype(int), *np.ceil(boxes[0, 2:]).astype(int)
    crop = frames[3].image[:, top:bottom, left:right]
    assert embeddings[0] == pytest.approx(embedder.embeddings([embedder.sample(crop)])[0].numpy(), abs=1e-5)
    assert Pipeline(detector).detect(frames[3].image).detections.embeddings is None


def test_results_depend_on_the_frames_alone(detector: Predictor, embedder: Predictor, frames: list[TimedFrame]) -> None:
    """Neither on batch sizes nor on what was detected before, to the last bit."""
    pipelines = [
        Pipeline(with_batch_size(detector, size), with_batch_size(embedder, size), min_score=0.05) for size in (1, 8)
    ]
    for frame in frames[:3]:
        first, second = (pipeline.detect(frame.image) for pipeline in pipelines)
        for values, others in zip(first.detections[:3], second.detections[:3], strict=True):
            assert np.array_equal(values, others)
        alone = Pipeline(detector, embedder, min_score=0.05).detect(frame.image)
        assert np.array_equal(alone.detections.boxes, first.detections.boxes)


def test_objects_are_tracked(detector: Predictor, embedder: Predictor, frames: list[TimedFrame]) -> None:
    pipeline = Pipeline(detector, embedder, min_score=0.05)
    for tracking in (
        resolve_tracking({"tracker": "bytetrack"}, EAGER),
        resolve_tracking({"tracker": "botsort", "per_class": False, "camera_motion": True}, EAGER + BOTSORT),
    ):
        ids = [ids for _, _, ids in pipeline.track(frames, tracking)]
        assert len(ids) == 8
        assert len({*ids[3].tolist()} & {*ids[-1].tolist()} - {-1}) >= 4
    assert {"detector", "re-ID", "tracker", "camera"} == pipeline.latency.keys()


def test_crops_have_pixels_wherever_a_box_is(detector: Predictor, embedder: Predictor) -> None:
    pipeline, image = Pipeline(detector, embedder), torch.zeros(1, 20, 30, dtype=torch.uint8)
    boxes = np.array([[-9.0, -9, -5, -5], [29.9, 19.9, 99, 99], [50, 50, 60, 60], [3.2, 4.7, 3.3, 4.8], [0, 0, 30, 20]])
    assert pipeline.embed(image, boxes).shape == (5, 8)
    assert pipeline.embed(image, np.zeros((0, 4))).shape == (0, 8)
    assert Pipeline(detector).embed(image, boxes).shape == (5, 0)


class Fixed(nn.Module):
    """Predicts the same for every image."""

    takes_video, size_multiple = False, None

    def __init__(self, **outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def predict(self, batch: Any) -> dict[str, Tensor]:
        return {name: value[None].expand(len(batch["image"]), *value.shape) for name, value in self.outputs.items()}

    def features(self, batch: Any) -> dict[str, Tensor]:
        raise NotImplementedError


def predicting(detector: Predictor, **outputs: Tensor) -> Predictor:
    return Predictor(Fixed(**outputs), [], detector.dataset_info, channels=1)  # type: ignore[arg-type]


BOXES = torch.tensor([[2.0, 2, 9, 9], [5, 5, 5, 9], [70, 2, 90, 9], [4, 4, 9, 9], [1, 1, 3, 3], [0, 0, 0, 0]])
SCORES, LABELS = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.05, 0]), torch.tensor([1, 1, 1, 0, 0, -1])


def test_boxes_without_area_low_scores_and_padding_are_dropped(detector: Predictor) -> None:
    pipeline = Pipeline(predicting(detector, boxes=BOXES, scores=SCORES, labels=LABELS))
    frame = pipeline.detect(torch.zeros(1, 40, 60, dtype=torch.uint8))
    assert frame.detections.boxes.tolist() == [[2, 2, 9, 9], [4, 4, 9, 9]]
    assert frame.labels.tolist() == [1, 0]


def test_numbers_that_are_not_finite_are_an_error(detector: Predictor) -> None:
    broken = predicting(detector, boxes=BOXES, scores=SCORES.where(SCORES < 0.9, torch.nan), labels=LABELS)
    with pytest.raises(DataError, match="not finite for frame 7"):
        Pipeline(broken).detect(torch.zeros(1, 40, 60, dtype=torch.uint8), 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda detector, embedder: Pipeline(embedder), "RUN: its model predicts embedding, logits; a detector"),
        (
            lambda detector, embedder: Pipeline(
                predicting(detector, boxes=torch.zeros(2, 5), scores=SCORES, labels=LABELS)
            ),
            "oriented boxes",
        ),
        (lambda detector, embedder: Pipeline(opabinia.load(RUNS / "video" / "run")), "RUN: its model predicts videos"),
        (
            lambda detector, embedder: Pipeline(detector, opabinia.load(RUNS / "video" / "run")),
            "--reid: its model takes videos",
        ),
        (lambda detector, embedder: Pipeline(detector, predicting(detector, logits=SCORES)), "gives no embeddings"),
    ],
)
def test_unsuitable_models_are_refused(
    make: Callable[..., Any], message: str, detector: Predictor, embedder: Predictor
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(detector, embedder)


def test_the_motion_of_the_camera_is_measured() -> None:
    """Large frames are reduced; a frame of another size starts again."""
    noise = torch.randint(0, 256, (1, 90, 130), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    scene = noise[0].numpy().repeat(16, 0).repeat(16, 1)
    camera = Camera()
    assert camera.shift(scene[:1200, :1800]) == (0, 0)
    assert camera.shift(scene[8:1208, 32:1832]) == pytest.approx((-32, -8), abs=0.8)
    assert camera.shift(scene[:100, :100]) == (0, 0)
