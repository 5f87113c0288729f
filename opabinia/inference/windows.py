"""Sliding windows over videos: predictions and features by time (``opabinia predict --every``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Sample, Transform, frame_channels
from opabinia.data.decoding.sequential import is_video
from opabinia.data.decoding.video import VideoFile
from opabinia.data.transforms.frame_sampling import Clip
from opabinia.inference.earlier_files import replace_earlier
from opabinia.inference.frames import predict_frames
from opabinia.inference.input_files import find_files, raise_skipped, write_lines
from opabinia.inference.predictor import Predictor
from opabinia.runtime.files import disk_errors
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.storage import shown_path

FEATURES = "features.npy"


def predict_windows(
    predictor: Predictor,
    paths: Sequence[Path | str],
    out: Path,
    *,
    every: float,
    window: float | None = None,
    features: bool = False,
    max_frames: int | None = None,
    min_score: float = 0.5,
) -> None:
    """Print and write predictions of windows of videos.

    ``predictions.jsonl`` has one line per window with ``path``, ``start`` and ``end`` in seconds and the task's
    readable prediction. Windows are predicted like whole videos, with the transforms and views of the validation data.
    A model of images predicts a frame each time, see :func:`opabinia.inference.frames.predict_frames`.

    Args:
        predictor: the model.
        paths: videos, and folders of them; of a model of images videos, URLs and cameras.
        out: the folder to write.
        every: seconds from the start of a window to that of the next one.
        window: length of the windows in seconds; None: ``every``, or the length of a clip if that is longer.
        features: also write the embeddings of the windows to ``features.npy`` (float32, N x D, of length 1), a row for
            each line.
        max_frames, min_score: options for models of images, see :func:`opabinia.inference.frames.predict_frames`.

    Raises:
        ConfigError: there is no such file or folder, or the model takes images and a path is none of a video, or
            windows of them are asked for.
        DataError: some windows could not be read; everything else is written.
    """
    if not predictor.takes_video:
        if window or features or not all(is_video(str(path)) for path in paths):
            message = "the model of this run takes images: give videos, URLs or cameras, and no --window or --features"
            raise ConfigError(Problem("command line", "--every", message))
        names = [str(path) for path in paths]
        return predict_frames(predictor, names, out, every=every, max_frames=max_frames, min_score=min_score)
    files = list(find_files(paths, videos=True))
    errors, lines, rows = list[str](), list[dict[str, Any]](), list[Any]()
    with replace_earlier(out), progress_bar("predict", len(files), unit="videos") as bar:
        for file in bar.track(files):
            for videos, samples in _batches(predictor, file, every, window, errors):
                predictions = predictor.batch(samples)
                for video, prediction in zip(videos, predictions, strict=True):
                    caption = ", ".join(predictor.presenter(prediction).caption(prediction.readable)) or "nothing"
                    print(f"{shown_path(file)}  {video.start:.2f} to {video.end:.2f} s  {caption}")
                    span = {"path": shown_path(file), "start": round(video.start, 3), "end": round(video.end or 0.0, 3)}
                    lines.append({**span, **prediction.readable})
                if features:
                    rows.append(predictor.embeddings(samples).numpy())
        write_lines(out, lines)
        if rows:
            with disk_errors(out):
                np.save(out / FEATURES, np.concatenate(rows))
    print(f"{len(lines)} windows; predictions.jsonl{f' and {FEATURES}' if rows else ''} are in {out}")
    raise_skipped(errors, len(files))


def _batches(
    predictor: Predictor, file: Path, every: float, window: float | None, errors: list[str]
) -> Iterator[tuple[list[VideoFile], list[Sample]]]:
    """Yield the windows of a video and their samples in batches. The message about an unreadable one goes to
    ``errors``, and ends the video."""
    videos, samples = list[VideoFile](), list[Sample]()
    try:
        channels = frame_channels(predictor.channels)
        whole = VideoFile(file, channels)
        length = window or max(every, clip_seconds(predictor.transforms, whole.fps))
        for start, end in window_times(whole.seconds, every, length):
            video = VideoFile(file, channels, start=start, end=end)
            samples.append(predictor.sample(video))
            videos.append(video)
            if len(samples) == predictor.batch_size:
                yield videos, samples
                videos, samples = [], []
    except (OSError, ValueError) as error:
        errors.append(str(error).replace(str(file), shown_path(file)))
    if samples:
        yield videos, samples


def clip_seconds(transforms: Sequence[Transform], fps: float) -> float:
    """Return the length of the clips that transforms sample at equal steps; 0 if they cover the video they are given.

    Args:
        fps: frame rate of the video.
    """
    clip = next((transform for transform in transforms if isinstance(transform, Clip)), None)
    if clip is None or clip.sampling == "uniform":
        return 0.0
    stride = clip.stride if isinstance(clip.stride, int) else clip.stride[0]
    return ((clip.frames - 1) * stride + 1) / (clip.fps or fps)


def window_times(seconds: float, every: float, length: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of windows that cover a video. The last one ends with the video, so that all are complete; a
    video that is shorter than a window is one.

    Example: of 10 seconds, every 4 with length 5: (0, 5), (4, 9), (5, 10).
    """
    number = 0
    while number * every + length < seconds - 1e-6:
        yield number * every, number * every + length
        number += 1
    yield max(0.0, seconds - length), seconds
