"""Tracks of streams, whose frames clients send one after another."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opabinia.contracts import Sample
from opabinia.data.decoding.images import decode_bytes
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.serving.inference import Inference, pixels_of, reading
from opabinia.inference.serving.limits import Limits, RequestError, Upload
from opabinia.inference.tracking.arrays import DEFAULT_RATE, readable_tracks
from opabinia.inference.tracking.pipeline import LOWEST_SCORE, Pipeline, StreamTracker
from opabinia.training.tracking import Tracking

MAX_SECONDS = 1e11
"""Largest magnitude of the time of a frame: 3,000 years, also those since 1970."""


@dataclass(frozen=True)
class StreamOptions:
    """Options of a server that tracks.

    Attributes:
        tracking: the tracker.
        embedder: the model of embeddings; None: there is none.
        score: lowest score of the detections that are tracked.
        rate: frames per second of streams whose frames have no time.
        max_streams: maximum number of streams at a time.
        max_idle: seconds after its last frame in which a stream is forgotten.
    """

    tracking: Tracking
    embedder: RunModel | None = None
    score: float = LOWEST_SCORE
    rate: float = DEFAULT_RATE
    max_streams: int = 64
    max_idle: float = 300.0


@dataclass
class _Stream:
    """A stream with its tracker, the number of its frames so far, and of the last one the time, whether the client gave
    it, and when that was, by the clock of the process."""

    tracker: StreamTracker
    frames: int = 0
    seconds: float = 0.0
    timed: bool = False
    used: float = 0.0


class TrackingInference(Inference):
    """Also tracks the objects of streams, each with a tracker of its own, as :func:`opabinia.inference.tracking.track`.
    One thread at a time may call it.

    Args:
        predictor: the detector.
        limits: limits of uploads.
        options: tracker, model of embeddings, limits of streams.

    Attributes:
        options: see above.
        pipeline: the models; its ``latency`` is that of all frames so far.
        frames: number of these.

    Raises:
        ConfigError: the models do not predict bounding boxes, or embeddings.
    """

    def __init__(self, predictor: Predictor, limits: Limits, options: StreamOptions) -> None:
        super().__init__(predictor, limits)
        self.options, self.frames = options, 0
        embedder = options.embedder.load() if options.embedder else None
        self.pipeline = Pipeline(predictor, embedder, min_score=options.score)
        for model in filter(None, (predictor, embedder)):
            model.transforms.append(self._check_sample)
        self._streams: dict[str, _Stream] = {}

    @property
    def streams(self) -> int:
        """Number of streams that are not forgotten."""
        return sum(not self._is_forgotten(stream) for stream in list(self._streams.values()))

    def track(self, name: str, uploads: Sequence[Upload], seconds: float | None) -> dict[str, Any]:
        """Return the tracks in the next frame of a stream, which begins with its first frame.

        Args:
            name: name of the stream.
            uploads: the frame.
            seconds: its time; None: it follows the frame before at the rate of the options.

        Raises:
            RequestError: the frame is refused or broken, it does not follow the frame before (409), or there are too
                many streams (429). The stream is as it was before.
        """
        if len(uploads) != 1:
            raise RequestError(422, f"a request has one frame of a stream, not {len(uploads)}")
        self._streams = {key: stream for key, stream in self._streams.items() if not self._is_forgotten(stream)}
        stream = self._streams.get(name) or self._begun()
        seconds, timed = self._time(name, stream, seconds), seconds is not None
        self.check(uploads)
        with self.pipeline.latency.measure("reading"), reading(uploads[0]):
            image = decode_bytes(uploads[0].content, uploads[0].name, self.pipeline.channels)
        frame, ids = stream.tracker.track(TimedFrame(stream.frames, seconds, image))
        stream.frames, stream.seconds, stream.timed, stream.used = stream.frames + 1, seconds, timed, time.monotonic()
        self._streams[name] = stream
        self.frames += 1
        tracks = readable_tracks(frame, ids.tolist(), self.predictor.classes)
        return {"stream": name, "frame": frame.number, "time": round(seconds, 3), "tracks": tracks}

    def end(self, name: str) -> dict[str, Any]:
        """Forget a stream; return the number of its frames and tracks.

        Raises:
            RequestError: there is no such stream (404).
        """
        stream = self._streams.pop(name, None)
        if stream is None or self._is_forgotten(stream):
            raise RequestError(404, f"there is no stream {name}")
        return {"stream": name, "frames": stream.frames, "tracks": len(stream.tracker.state["numbers"])}

    def _is_forgotten(self, stream: _Stream) -> bool:
        return time.monotonic() > stream.used + self.options.max_idle

    def _begun(self) -> _Stream:
        if len(self._streams) >= self.options.max_streams:
            idle = f"no frame for {self.options.max_idle:g} s (--max-idle)"
            text = f"{len(self._streams)} streams are open (--max-streams)"
            raise RequestError(429, f"{text}: end one (DELETE), or wait until one has had {idle}")
        return _Stream(StreamTracker(self.pipeline, self.options.tracking))

    def _time(self, name: str, stream: _Stream, seconds: float | None) -> float:
        """Return the time of the next frame of a stream."""
        if stream.frames and stream.timed != (seconds is not None):
            has = "have a time" if stream.timed else "have no time"
            raise RequestError(409, f"the frames of the stream {name} so far {has}: all or none of a stream have one")
        if seconds is None:
            return stream.frames / self.options.rate
        if stream.frames and seconds <= stream.seconds:
            after = f"after {stream.seconds:.12g} s, the time of the frame before in the stream {name}"
            raise RequestError(409, f"the time of the frame is {seconds:.12g} s: it must be {after}")
        return seconds

    def _check_sample(self, sample: Sample) -> Sample:
        self.check_input("the frame", pixels_of(sample))
        return sample


def check_name(name: str) -> str:
    """Return the name of a stream.

    Raises:
        RequestError: it is too long, or has other characters than those of a file name (422).
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        characters = "letters and digits of ASCII, points, _ and -; the first one is a letter or a digit"
        raise RequestError(422, f"the name of a stream has 1 to 64 characters: {characters}")
    return name


def read_time(query: Sequence[tuple[str, str]]) -> float | None:
    """Return the time of a frame from the parameters of its request; None without any.

    Raises:
        RequestError: there are others, or it is not a number (422).
    """
    if not query:
        return None
    try:
        ((key, text),) = query
        seconds = float(text) if key == "time" else None
    except ValueError:
        seconds = None
    if seconds is None or not abs(seconds) <= MAX_SECONDS:
        raise RequestError(422, "the only parameter of a frame is its time, a number of seconds: ?time=0.04")
    return seconds
