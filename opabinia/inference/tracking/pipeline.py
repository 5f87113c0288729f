"""Tracks of the objects in the frames of a video: a detector, a re-identification model if there is one, a tracker.

A frame is a forward pass of its own, and so are its crops. Kernels round differently for batches of different sizes;
this way, tracks depend on the frames alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Channels, FrameChannels, frame_channels
from opabinia.contracts.tracking import FrameDetections, TrackerState
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.data.errors import DataError
from opabinia.inference.predictor import ImageInput, Predictor, image_from
from opabinia.inference.tracking.arrays import MAX_CROPS, crop_corners, tracked_rows
from opabinia.models.trackers.camera import Camera
from opabinia.models.trackers.sequences import Frame, update
from opabinia.training.tracking import Tracking

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOWEST_SCORE = 0.1
"""Lowest score of the detections that are tracked: trackers also use detections of low score."""

_PROBE_SIDE = 64


class Latency(defaultdict[str, float]):
    """Seconds by stage: ``detector``, ``re-ID``, ``tracker`` ..."""

    def __init__(self) -> None:
        super().__init__(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = perf_counter()
        try:
            yield
        finally:
            self[stage] += perf_counter() - start


class Pipeline:
    """Detect and track objects.

    Args:
        detector: a model that predicts upright boxes; instance masks and keypoints are not used.
        embedder: a model whose embeddings describe the appearance of objects, such as one of re-identification.
        min_score: lowest score of detections.

    Attributes:
        latency: time that the models and the tracker took so far.

    Raises:
        ConfigError: the detector predicts no upright boxes, or the embedder no embeddings of images.

    Example::

        pipeline = Pipeline(opabinia.load("runs/detection/mine/default"), opabinia.load("runs/reid/mine/default"))
        tracking = resolve_tracking({"tracker": "botsort"})
        for image, frame, ids in pipeline.track(read_frames("video.mp4"), tracking):
            print(frame.number, ids, frame.detections.boxes)
    """

    def __init__(
        self, detector: Predictor, embedder: Predictor | None = None, *, min_score: float = LOWEST_SCORE
    ) -> None:
        self.detector, self.embedder, self.min_score = detector, embedder, min_score
        self.latency = Latency()
        _check_detector(detector)
        self._width = None if embedder is None else _embedding_width(embedder)

    @property
    def channels(self) -> FrameChannels:
        """Channels of the frames to read: 3 if one of the models needs color."""
        color = self.embedder is not None and self.embedder.channels == 3
        return 3 if color else frame_channels(self.detector.channels)

    def detect(
        self, image: ImageInput, number: int = 0, time: float | None = None, camera: Camera | None = None
    ) -> Frame:
        """Return the detections of a frame that have area within it, best first, with embeddings if there is a model
        for them.

        Args:
            image: the frame.
            number: number of the frame.
            time: time of the frame in seconds; None: one frame after the frame before.
            camera: that of the sequence, of successive calls; None: it stands still.

        Raises:
            ValueError, OSError: it is not an image, or cannot be read.
            DataError: the detector predicts numbers that are not finite.
        """
        pixels = image_from(image, self.channels)
        with self.latency.measure("detector"):
            boxes, scores, labels = self._boxes(pixels, number)
        embeddings = None if self.embedder is None else self.embed(pixels, boxes)
        detections = FrameDetections(boxes, scores, embeddings, time)
        if camera is not None:
            with self.latency.measure("camera"):
                detections = detections._replace(camera_shift=camera.shift(gray_image(pixels)))
        return Frame(number, detections, labels)

    def _boxes(self, image: Tensor, number: int) -> tuple[Floats, Floats, Ints]:
        """Return boxes, scores and labels of the detections in an image."""
        prediction = _tensors(self.detector, image)
        found = prediction["labels"] >= 0
        boxes, scores = (prediction[name][found].double().numpy() for name in ("boxes", "scores"))
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise DataError(f"the detector predicts numbers that are not finite for frame {number}")
        rows = tracked_rows(boxes, scores, image.shape[-2:], self.min_score)
        return boxes[rows], scores[rows], prediction["labels"][found].numpy()[rows].astype(np.int64)

    def embed(self, image: ImageInput, boxes: Floats) -> Floats:
        """Return embeddings of the crops of an image in boxes, of unit length (N x D), D = 0 without an embedder.

        Crops have whole pixels, those that a box touches, as in the sources of crops; one at least.

        Args:
            image: the original image.
            boxes: left, top, right, bottom in its pixels (N x 4).
        """
        if self.embedder is None or self._width is None:
            return np.zeros((len(boxes), 0))
        with self.latency.measure("re-ID"):
            pixels = image_from(image, self.channels)
            samples = [
                self.embedder.sample(pixels[:, top:bottom, left:right])
                for left, top, right, bottom in crop_corners(boxes, pixels.shape[-2:]).tolist()
            ]
            parts = [samples[first : first + MAX_CROPS] for first in range(0, len(samples), MAX_CROPS)]
            rows = [self.embedder.embeddings(part).double().numpy() for part in parts]
            return np.concatenate([np.zeros((0, self._width)), *rows])

    def track(self, images: Iterable[TimedFrame], tracking: Tracking) -> Iterator[tuple[TimedFrame, Frame, Ints]]:
        """Yield successive frames, each with its detections and their tracks, see
        :func:`opabinia.models.trackers.sequences.update`.

        Args:
            images: frames of a video.
            tracking: the tracker, see :func:`opabinia.training.tracking.resolve_tracking`.
        """
        stream = StreamTracker(self, tracking)
        for image in images:
            yield image, *stream.track(image)


class StreamTracker:
    """Track the objects of one stream, frame by frame.

    Args:
        pipeline: detector and embedder.
        tracking: the tracker.

    Attributes:
        state: state of the tracker.
        camera: measures the motion of the camera, if that is wanted.
    """

    def __init__(self, pipeline: Pipeline, tracking: Tracking) -> None:
        self.pipeline, self.tracking = pipeline, tracking
        self.state: TrackerState = {}
        self.camera = Camera() if tracking.camera_motion else None

    def track(self, image: TimedFrame) -> tuple[Frame, Ints]:
        """Return the detections of the next frame and their tracks, -1 for those without one.

        Raises:
            ValueError: the time is not after that of the frame before; see :meth:`Pipeline.detect` for the others.
        """
        tracking = self.tracking
        frame = self.pipeline.detect(image.image, image.number, image.seconds, self.camera)
        with self.pipeline.latency.measure("tracker"):
            return frame, update(tracking.tracker, self.state, frame.detections, frame.labels, tracking.per_class)


def gray_image(image: ImageInput) -> NDArray[np.uint8]:
    """Return an image in gray (H x W), for :class:`Camera`."""
    gray: NDArray[np.uint8] = image_from(image, 1)[0].numpy()
    return gray


def _tensors(predictor: Predictor, image: Tensor) -> dict[str, Tensor]:
    return predictor.tensors([predictor.sample(image)])[0]


def _probe(channels: Channels) -> Tensor:
    """Return an image for trials."""
    ramp = torch.linspace(0, 255, _PROBE_SIDE).round().to(torch.uint8)
    return ramp.expand(frame_channels(channels), _PROBE_SIDE, _PROBE_SIDE)


def _check_detector(detector: Predictor) -> None:
    """Raise a ConfigError if a model predicts no upright boxes of an image."""
    if detector.takes_video:
        raise _error("RUN", "its model predicts videos; a detector is needed")
    prediction = _tensors(detector, _probe(detector.channels))
    if not {"boxes", "scores", "labels"} <= prediction.keys():
        raise _error("RUN", f"its model predicts {', '.join(sorted(prediction))}; a detector, with boxes, is needed")
    if prediction["boxes"].shape[1] != 4:
        raise _error("RUN", "its model predicts oriented boxes; trackers are for upright ones")


def _embedding_width(embedder: Predictor) -> int:
    """Return the number of values of an embedding.

    Raises:
        ConfigError: the model gives none.
    """
    if embedder.takes_video:
        raise _error("--reid", "its model takes videos; one of images is needed, such as of re-identification")
    try:
        width: int = embedder.embeddings([embedder.sample(_probe(embedder.channels))]).shape[1]
    except NotImplementedError as error:
        message = "its model gives no embeddings; one of re-identification, classification or the like does"
        raise _error("--reid", message) from error
    return width


def _error(option: str, message: str) -> ConfigError:
    return ConfigError(Problem("command line", option, message))
