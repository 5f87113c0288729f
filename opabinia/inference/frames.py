"""Models of images on videos, URLs and cameras, frame by frame (``opabinia predict RUN video.mp4``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any

from PIL import Image

from opabinia.contracts import DrawOptions, frame_channels
from opabinia.data.decoding.sequential import TimedFrame, read_frames
from opabinia.inference.earlier_files import replace_earlier
from opabinia.inference.input_files import MAX_BATCH_BYTES, raise_skipped
from opabinia.inference.predictor import Predictor
from opabinia.runtime.addresses import is_live, public_name
from opabinia.runtime.files import disk_errors
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.signals import Stopped, StopSignal, stop_signals
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import one_line, plural, printable
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.video_strips import draw_label, write_video

_RATE, _TIME_BASE = Fraction(25), Fraction(1, 1000)


def predict_frames(
    predictor: Predictor,
    names: Sequence[str],
    out: Path,
    *,
    every: float = 0.0,
    max_frames: int | None = None,
    min_score: float = 0.5,
) -> None:
    """Print and write predictions of the frames of videos.

    ``predictions.jsonl`` has a line per frame with ``path``, ``frame`` (its number), ``time`` (seconds) and the task's
    readable prediction, written as soon as it is known. ``videos/NAME.mp4`` has these frames with the predictions
    drawn, at their times. A stop signal, such as Ctrl-C, ends both after the current frames.

    Args:
        predictor: a model of images.
        names: files, URLs and cameras, see :func:`opabinia.data.decoding.sequential.read_frames`.
        out: the folder to write.
        every: seconds from a frame to the next one that is predicted; 0: all frames.
        max_frames: maximum number of frames of each video; None: all.
        min_score: lowest score of detections that are drawn and printed.

    Raises:
        DataError: some videos could not be read, or not to their end; everything else is written.
        Stopped: a stop signal ended it early; the files are complete.
    """
    errors, stop, count = list[str](), StopSignal("completing the files"), 0
    log = out / "predictions.jsonl"
    with disk_errors(log), stop_signals(stop), progress_bar("predict", None, unit="frames") as bar:
        out.mkdir(parents=True, exist_ok=True)
        with replace_earlier(out), log.open("w", encoding="utf-8", buffering=1) as file:
            for number, name in enumerate(names):
                shown = public_name(name) if is_live(name) else shown_path(name)
                next_print = 0.0
                predicted = _predicted(predictor, _batches(predictor, name, every, max_frames, errors), min_score)
                if stop.reason is not None or (first := next(predicted, None)) is None:
                    continue
                stem = file_stem(shown)
                with write_frames(out / "videos" / f"{number:05d}-{stem}.mp4") as write:
                    for frame, readable, caption, image in bar.track(chain([first], predicted)):
                        if frame.seconds >= next_print:
                            next_print = frame.seconds + 1
                            print(printable(f"{shown}  {frame.seconds:.2f} s  {caption}"))
                        write(image, frame.seconds)
                        about = {"path": shown, "frame": frame.number, "time": round(frame.seconds, 3)}
                        file.write(json.dumps({**about, **readable}) + "\n")
                        count += 1
                        if stop.reason is not None:
                            break
    print(f"{plural(count, 'frame')}; predictions.jsonl and videos are in {out}")
    raise_skipped(errors, len(names))
    if stop.reason is not None:
        raise Stopped(stop.reason, stop.exit_status)


def file_stem(name: str) -> str:
    """Return the name, without suffix, of the files about a video, URL or camera."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem)


@contextmanager
def write_frames(path: Path) -> Iterator[Callable[[Image.Image, float], None]]:
    """Write a video (mp4): yield a function that adds an image at a time in seconds, at the next millisecond at least.

    Raises:
        DiskError: the file cannot be written.
    """
    last_time = -1
    with write_video(path, _RATE, _TIME_BASE) as write:

        def write_at(image: Image.Image, seconds: float) -> None:
            nonlocal last_time
            last_time = max(round(seconds / _TIME_BASE), last_time + 1)
            write(image, last_time)

        yield write_at


def _predicted(
    predictor: Predictor, batches: Iterator[list[TimedFrame]], min_score: float
) -> Iterator[tuple[TimedFrame, Mapping[str, Any], str, Image.Image]]:
    """Yield each frame with its readable prediction, its caption, and the image to write."""
    options = DrawOptions(min_score=min_score, legend=False)
    for frames in batches:
        samples = [predictor.read(frame.image) for frame in frames]
        predictions = predictor.batch([predictor.transform(sample) for sample in samples])
        for frame, sample, prediction in zip(frames, samples, predictions, strict=True):
            presenter = predictor.presenter(prediction)
            caption = ", ".join(presenter.caption(prediction.readable, min_score=min_score)) or "nothing"
            drawn = presenter.draw(sample, prediction, options)
            drawn = drawn or draw_label(to_pil(sample["image"]), one_line(caption))
            yield frame, prediction.readable, caption, drawn


def _batches(
    predictor: Predictor, name: str, every: float, max_frames: int | None, errors: list[str]
) -> Iterator[list[TimedFrame]]:
    """Yield frames in batches; of what arrives live each by itself. A message about an error goes to ``errors``."""
    frames: list[TimedFrame] = []
    try:
        for frame in islice(read_frames(name, frame_channels(predictor.channels), every=every), max_frames):
            frames.append(frame)
            full = len(frames) == predictor.batch_size or len(frames) * frame.image.nbytes > MAX_BATCH_BYTES
            if is_live(name) or full:
                yield frames
                frames = []
    except (OSError, ValueError) as error:
        errors.append(str(error))
    if frames:
        yield frames
