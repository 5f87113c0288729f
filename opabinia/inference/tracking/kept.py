"""Detections of the frames of videos with tracks, kept in a run folder for the evaluation of further trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import DataMismatch, FrameTracks, Sample, Source
from opabinia.contracts.tracking import FrameDetections, Role, TrackGroundTruth
from opabinia.data.errors import DataError
from opabinia.evaluation.tracking.frames import join_frames
from opabinia.inference.tracking.pipeline import Pipeline, gray_image
from opabinia.models.trackers.camera import Camera
from opabinia.models.trackers.sequences import Frame
from opabinia.runtime.array_files import Arrays, cached_arrays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DETECTIONS, EMBEDDINGS, CAMERA = "detections", "embeddings", "camera"


class VideoDetections(NamedTuple):
    """The T frames of a sequence, in order, with N annotated boxes and M detections in the order of frames.

    Attributes:
        numbers: number of each frame (int64, T).
        seconds: time of each frame; NaN: unknown (float64, T).
        truth: annotated boxes (N).
        frames: number of each detection's frame (int64, M).
        boxes, scores, labels: as in :class:`opabinia.models.trackers.sequences.Frame` (M).
    """

    numbers: Ints
    seconds: Floats
    truth: TrackGroundTruth
    frames: Ints
    boxes: Floats
    scores: Floats
    labels: Ints

    def arrays(self) -> Arrays:
        """Return all arrays by name, for a file."""
        arrays = {f"truth_{name}": column for name, column in self.truth._asdict().items()}
        return arrays | {name: column for name, column in self._asdict().items() if name != "truth"}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> VideoDetections:
        """Return the arrays of a file.

        Raises:
            ValueError: they are others, or do not fit together.
        """
        truth = TrackGroundTruth(*(arrays[f"truth_{name}"] for name in TrackGroundTruth._fields))
        video = cls(truth=truth, **{name: arrays[name] for name in cls._fields if name != "truth"})
        groups = (video.numbers, video.seconds), truth, (video.frames, video.boxes, video.scores, video.labels)
        if any(len({len(column) for column in columns}) > 1 for columns in groups):
            raise ValueError("its arrays differ in length")
        return video

    def counted(self) -> VideoDetections:
        """Return the same video with the annotated objects as detections, as by a detector without errors."""
        rows = np.flatnonzero(self.truth.roles == Role.COUNTED)
        rows = rows[np.argsort(self.truth.frames[rows], kind="stable")]
        truth = self.truth
        return self._replace(
            frames=truth.frames[rows], boxes=truth.boxes[rows], scores=np.ones(len(rows)), labels=truth.labels[rows]
        )

    def rows_of_frames(self) -> Iterator[slice]:
        """Yield the rows of the detections of each frame."""
        starts = np.searchsorted(self.frames, self.numbers).tolist()
        return (slice(start, end) for start, end in pairwise([*starts, len(self.frames)]))

    def frames_to_track(self, embeddings: Floats | None, camera: Floats | None) -> Iterator[Frame]:
        """Yield the frames.

        Args:
            embeddings: appearance of the detections (M x D); None: the tracker gets none.
            camera: shift of each frame (T x 2); None: the camera stands still.
        """
        shifts = np.zeros((len(self.numbers), 2)) if camera is None else camera
        columns = zip(self.numbers.tolist(), self.seconds.tolist(), shifts.tolist(), self.rows_of_frames(), strict=True)
        for number, seconds, (right, down), rows in columns:
            detections = FrameDetections(
                self.boxes[rows],
                self.scores[rows],
                None if embeddings is None else embeddings[rows],
                None if np.isnan(seconds) else seconds,
                (right, down),
            )
            yield Frame(number, detections, self.labels[rows])


@dataclass(frozen=True)
class KeptVideos:
    """The videos of a source with their detections, which are computed once and kept in files.

    Args:
        folder: ``tracking`` in the run folder.
        source: frames of videos with tracks.
        pipeline: returns the models; called only if something is missing.
        names: name of the folder of each kind of files (:data:`DETECTIONS` ...), which says what they depend on.
            Without :data:`EMBEDDINGS` there is no model for them.
    """

    folder: Path
    source: Source
    pipeline: Callable[[], Pipeline]
    names: Mapping[str, str]

    @cached_property
    def samples(self) -> dict[str, Ints]:
        """Indices of the samples of each sequence, the sequences in the order of the source.

        Raises:
            DataMismatch: the source has no videos with tracks.
        """
        sequences = self.source.info.sequences
        if sequences is None:
            name = type(self.source).__name__
            raise DataMismatch(f"{name} has no videos with tracks; sources such as mot and digit_tracks do")
        return {name: np.flatnonzero(sequences == name) for name in dict.fromkeys(sequences.tolist())}

    def folder_of(self, kind: str) -> Path:
        """Return the folder of a kind of files."""
        return self.folder / self.names[kind]

    def missing(self, kind: str) -> int:
        """Return of how many sequences there is no file yet."""
        return sum(not self._path(kind, sequence).is_file() for sequence in self.samples)

    def detections(self, sequence: str) -> VideoDetections:
        """Return the detections of a sequence.

        Raises:
            DataMismatch: frames are missing between those of the sequence, or have no tracks.
            DataError: a frame cannot be read.
        """
        path = self._path(DETECTIONS, sequence)
        return cached_arrays(path, lambda: self._detect(sequence).arrays(), VideoDetections.of_arrays)

    def embeddings(self, sequence: str, video: VideoDetections) -> tuple[Floats, Floats]:
        """Return embeddings of the detections of a sequence, and of its annotated objects, as in
        :meth:`VideoDetections.counted`.

        Raises:
            DataError: a frame cannot be read.
        """
        counted = video.counted()

        def compute() -> Arrays:
            pipeline, found, annotated = self.pipeline(), list[Floats](), list[Floats]()
            samples = self._samples_of(sequence)
            for sample, rows, objects in zip(samples, video.rows_of_frames(), counted.rows_of_frames(), strict=True):
                found.append(pipeline.embed(sample["image"], video.boxes[rows]))
                annotated.append(pipeline.embed(sample["image"], counted.boxes[objects]))
            parts = {"detections": found, "annotated": annotated}
            return {name: np.concatenate(rows).astype(np.float32) for name, rows in parts.items()}

        def decode(arrays: Arrays) -> tuple[Floats, Floats]:
            found, annotated = (arrays[name].astype(np.float64) for name in ("detections", "annotated"))
            if (len(found), len(annotated)) != (len(video.boxes), len(counted.boxes)):
                raise ValueError("its embeddings are not of these detections")
            return found, annotated

        return cached_arrays(self._path(EMBEDDINGS, sequence), compute, decode)

    def camera(self, sequence: str, video: VideoDetections) -> Floats:
        """Return by how many pixels the background has moved since the frame before, to the right and down (T x 2)."""

        def compute() -> Arrays:
            camera = Camera()
            images = (gray_image(sample["image"]) for sample in self._samples_of(sequence))
            return {"shifts": np.array([camera.shift(image) for image in images])}

        def decode(arrays: Arrays) -> Floats:
            if arrays["shifts"].shape != (len(video.numbers), 2):
                raise ValueError("it is not of these frames")
            return arrays["shifts"]

        return cached_arrays(self._path(CAMERA, sequence), compute, decode)

    def _path(self, kind: str, sequence: str) -> Path:
        return self.folder_of(kind) / f"{list(self.samples).index(sequence):05d}.npz"

    def _detect(self, sequence: str) -> VideoDetections:
        pipeline, tracks, frames = self.pipeline(), list[FrameTracks](), list[Frame]()
        for sample in self._samples_of(sequence):
            track: FrameTracks = sample["ground_truth"].track
            frames.append(pipeline.detect(sample["image"], track.frame))
            tracks.append(track)
        numbers = np.array([frame.number for frame in frames])
        if (gaps := np.flatnonzero(np.diff(numbers) != 1)).size:
            before, after = numbers[gaps[0]], numbers[gaps[0] + 1]
            raise DataMismatch(
                f"{sequence}: frame {before} is followed by frame {after}: tracks are evaluated on all frames of a "
                "sequence in order, so the validation data must not skip any (every, subset, empty: drop ...)"
            )
        found = [frame.detections for frame in frames]
        return VideoDetections(
            numbers,
            np.array([np.nan if track.time is None else track.time for track in tracks]),
            join_frames(tracks)[sequence],
            numbers.repeat([len(detections.boxes) for detections in found]),
            np.concatenate([detections.boxes for detections in found]),
            np.concatenate([detections.scores for detections in found]),
            np.concatenate([frame.labels for frame in frames]),
        )

    def _samples_of(self, sequence: str) -> Iterator[Sample]:
        for index in self.samples[sequence].tolist():
            yield read_frame(self.source, index)


def read_frame(source: Source, index: int) -> Sample:
    """Return a sample.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return source[index]
    except (OSError, ValueError) as error:
        raise DataError(f"sample {index}: {error}") from error


def digest(*contents: Any) -> str:
    """Return a checksum of values, by their texts, and of arrays, for the name of a folder."""
    checksum = blake2b(digest_size=8)
    for content in contents:
        checksum.update(content if isinstance(content, bytes) else f"{content!r}\n".encode())
    return checksum.hexdigest()
