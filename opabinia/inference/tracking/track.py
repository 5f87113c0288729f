"""The work of ``opabinia track``: track the objects in videos, and write and draw the tracks.

The state of the tracker is written every few seconds and at the end, together with the sizes of the other files. A call
that resumes cuts them to these sizes. It reads a file from its start and draws its first frames from ``tracks.jsonl``,
without the models; a live stream continues with what arrives.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from PIL.Image import Image

from opabinia.config import ConfigError, Problem
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.inference.frames import write_frames
from opabinia.inference.input_files import raise_skipped
from opabinia.inference.tracking.arrays import STEP, Record, mot_rows, readable_tracks
from opabinia.inference.tracking.pipeline import Pipeline, StreamTracker
from opabinia.inference.tracking.state import load_state, save_state
from opabinia.inference.tracking.streams import Stream
from opabinia.runtime.files import disk_errors, exclusive_lock, remove_leftovers
from opabinia.runtime.json_files import InvalidFile, check_fields
from opabinia.runtime.log import log
from opabinia.runtime.progress import PhaseBar, progress_bar
from opabinia.runtime.signals import Stopped, StopSignal, stop_signals
from opabinia.runtime.text import plural, printable
from opabinia.training.tracking import Tracking
from opabinia.visualization.presenters.detections import most_frequent
from opabinia.visualization.tracks import TrackDrawing

LINES, STATE = "tracks.jsonl", "state.safetensors"

SAVE_SECONDS = 10.0
"""Seconds between two times that the state is written."""


@dataclass
class Position:
    """The progress of a call, which the state file has.

    Attributes:
        finished: names of the streams before the one that is tracked.
        stream: name of the one that is tracked.
        frames: number of its frames so far.
        number, seconds: number and time of the last of them.
        clock: Unix time at which that was tracked.
        lines_start, lines: bytes of ``tracks.jsonl`` without and with its frames.
        rows: bytes of its file in the format of MOTChallenge.
        all_frames, all_tracks: number of frames, and of tracks in the streams before.
        files: files that were written, below the folder.
    """

    finished: list[str] = field(default_factory=list)
    stream: str = ""
    frames: int = 0
    number: int = -1
    seconds: float = -STEP
    clock: float = 0.0
    lines_start: int = 0
    lines: int = 0
    rows: int = 0
    all_frames: int = 0
    all_tracks: int = 0
    files: list[str] = field(default_factory=list)

    def begin(self, stream: str, tracks: int) -> None:
        """Go on to the next stream, after one with some tracks."""
        self.finished += [self.stream] * bool(self.stream)
        self.all_tracks += tracks
        self.stream, self.frames, self.number, self.seconds, self.rows = stream, 0, -1, -STEP, 0
        self.lines_start = self.lines


def track(
    pipeline: Pipeline,
    tracking: Tracking,
    streams: Sequence[Stream],
    out: Path,
    *,
    settings: Mapping[str, Any],
    max_frames: int | None = None,
    video: bool = True,
    resume: bool = False,
) -> None:
    """Print, write and draw the tracks of objects in videos.

    ``tracks.jsonl`` has a line per frame with ``path``, ``frame`` (its number, from 0), ``time`` (seconds) and
    ``tracks``: ``id`` (from 1 in each video), ``class``, ``score`` and ``box`` (left, top, right, bottom). ``mot`` has
    a file for each video in the format of MOTChallenge's results, ``videos`` the frames with the tracks drawn. A stop
    signal, such as Ctrl-C, completes all files after the current frame.

    Args:
        pipeline: the models.
        tracking: the tracker.
        streams: videos.
        out: the folder to write.
        settings: what the tracks depend on, by name; a call that resumes needs the same.
        max_frames: maximum number of frames of each video; None: all.
        video: whether to write videos.
        resume: continue the call before, whose state is in the folder.

    Raises:
        ConfigError: there is no state to resume from, or it is of another call.
        DataError: some videos could not be read, or not to their end; everything else is written.
        Stopped: a stop signal ended it early; the files are complete.
    """
    stop = StopSignal("completing the files")
    with disk_errors(out), stop_signals(stop), progress_bar("track", None, unit="frames") as bar:
        out.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(out):
            remove_leftovers(out / "videos")
            call = _Call(pipeline, tracking, out, settings, stop, bar, max_frames, video)
            call.resume() if resume else call.remove_earlier()
            with call.open_lines():
                for stream in streams:
                    if stop.reason is None and stream.name not in call.position.finished:
                        call.track(stream)
            call.finish()
    counts = f"{plural(call.position.all_frames, 'frame')}, {plural(call.tracks, 'track')}"
    print(f"{counts}; {f'{LINES}, mot and videos' if video else f'{LINES} and mot'} are in {out}")
    if call.frames:
        print(_describe_latency(pipeline.latency, call.frames))
    raise_skipped(call.errors, len(streams))
    if stop.reason is not None:
        raise Stopped(stop.reason, stop.exit_status)


class _Call:
    """A call of :func:`track`, see its arguments.

    Attributes:
        errors: messages of videos that could not be read.
        frames: number of frames that this call has tracked.
        position: progress of the call.
        tracker: tracker of the current stream.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tracking: Tracking,
        out: Path,
        settings: Mapping[str, Any],
        stop: StopSignal,
        bar: PhaseBar,
        max_frames: int | None,
        video: bool,
    ) -> None:
        self.pipeline, self.tracking, self.out, self.settings = pipeline, tracking, out, dict(settings)
        self.stop, self.bar, self.max_frames, self.video = stop, bar, max_frames, video
        self.errors = list[str]()
        self.position, self.tracker = Position(), StreamTracker(pipeline, tracking)
        self.frames = 0
        pipeline.latency.clear()
        self._saved_at, self._unsaved = time.monotonic(), ""

    @property
    def tracks(self) -> int:
        """Number of tracks so far."""
        return self.position.all_tracks + len(self.tracker.state.get("numbers", ()))

    # --- state --------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over the state of the call before.

        Raises:
            ConfigError: there is none, it is damaged, or of a call with other settings.
        """
        try:
            saved = check_fields(load_state(self.out / STATE), dict[str, Any], STATE)
            if reason := saved.get("unsaved"):
                raise InvalidFile(f"the state of the tracker cannot be stored: {reason}")
            position = check_fields(saved.get("position"), Position, f"{self.out / STATE}: position")
            state = check_fields(saved.get("tracker"), dict[Any, Any], f"{self.out / STATE}: tracker")
        except InvalidFile as error:
            raise _resume_error(f"{error}; start without --resume") from error
        before = saved.get("settings")
        for name, value in self.settings.items():
            if not isinstance(before, dict) or before.get(name) != value:
                was = before.get(name) if isinstance(before, dict) else None
                raise _resume_error(f"{name} was {was} in the call before, now it is {value}")
        self.position = position
        self.tracker.state = state
        if self.tracker.camera is not None:
            self.tracker.camera.before = saved.get("camera")

    def remove_earlier(self) -> None:
        """Remove the files of the call before."""
        try:
            files = load_state(self.out / STATE)["position"]["files"]
        except (InvalidFile, KeyError, TypeError):
            return
        for name in files:
            if isinstance(name, str) and re.fullmatch(r"(mot/[\w.-]+\.txt)|(videos/[\w.-]+\.mp4)", name):
                (self.out / name).unlink(missing_ok=True)
        (self.out / STATE).unlink()

    def save(self) -> None:
        """Write the state of the tracker and the position."""
        self._saved_at = time.monotonic()
        camera = self.tracker.camera
        state = {
            "settings": self.settings,
            "position": vars(self.position),
            "tracker": self.tracker.state,
            "camera": None if camera is None else camera.before,
        }
        try:
            save_state(self.out / STATE, state)
        except TypeError as error:
            if not self._unsaved:
                log.warning("the state of the tracker cannot be stored, so --resume is not possible: %s", error)
            self._unsaved = str(error)
            save_state(self.out / STATE, {**state, "tracker": {}, "unsaved": self._unsaved})

    def finish(self) -> None:
        """Write the state at the end of the call."""
        if self.stop.reason is None and not self.errors:
            self.position.begin("", len(self.tracker.state.get("numbers", ())))
            self.tracker = StreamTracker(self.pipeline, self.tracking)
        self.save()

    # --- streams ------------------------------------------------------------------------------------------------------

    @contextmanager
    def open_lines(self) -> Iterator[None]:
        """Open ``tracks.jsonl`` at the current position."""
        with _appended(self.out / LINES, self.position.lines) as self._lines:
            yield

    def track(self, stream: Stream) -> None:
        """Track one stream."""
        position = self.position
        if position.stream != stream.name:
            position.begin(stream.name, len(self.tracker.state.get("numbers", ())))
            self.tracker = StreamTracker(self.pipeline, self.tracking)
        rows = f"mot/{stream.name}.txt"
        next_print = 0.0
        with _appended(self.out / rows, position.rows) as file:
            self._list(rows)
            self.save()
            records = self._records(stream, file)
            if (first := next(records, None)) is None:
                return
            drawing = TrackDrawing()
            with self._open_video(stream) as write:
                for image, record in self.bar.track(chain([first], records)):
                    if record["time"] >= next_print:
                        next_print = record["time"] + 1
                        caption = ", ".join(most_frequent([row["class"] for row in record["tracks"]])) or "nothing"
                        print(printable(f"{stream.path}  {record['time']:.2f} s  {caption}"))
                    if write is not None:
                        with self.pipeline.latency.measure("drawing"):
                            write(drawing.draw(image.image, record["time"], record["tracks"]), record["time"])
                    if self.stop.reason is not None:
                        break

    def _records(self, stream: Stream, rows: BinaryIO) -> Iterator[tuple[TimedFrame, Record]]:
        """Yield each frame with its line of ``tracks.jsonl``, which is written unless it is there already."""
        position = self.position
        frames = self._read(stream)
        if stream.is_live and position.frames:
            frames = _continued(frames, position)
        else:
            yield from self._replayed(stream, frames)
        for image in islice(frames, None if self.max_frames is None else max(0, self.max_frames - position.frames)):
            image = image._replace(seconds=max(image.seconds, position.seconds + STEP))
            frame, ids = self.tracker.track(image)
            tracks = readable_tracks(frame, ids.tolist(), self.pipeline.detector.classes)
            record = {"path": stream.path, "frame": image.number, "time": round(image.seconds, 3), "tracks": tracks}
            position.lines += self._lines.write(f"{json.dumps(record)}\n".encode())
            position.rows += rows.write("".join(mot_rows(image.number + stream.first, tracks)).encode())
            self.frames, position.frames, position.all_frames = (
                count + 1 for count in (self.frames, position.frames, position.all_frames)
            )
            position.number, position.seconds, position.clock = image.number, image.seconds, time.time()
            for file in (self._lines, rows):
                file.flush()
            if time.monotonic() >= self._saved_at + SAVE_SECONDS:
                self.save()
            yield image, record

    def _read(self, stream: Stream) -> Iterator[TimedFrame]:
        """Yield the frames; the message of an error goes to ``errors``."""
        frames = stream.read(self.pipeline.channels)
        try:
            while True:
                with self.pipeline.latency.measure("reading"):
                    image = next(frames, None)
                if image is None:
                    return
                yield image
        except (OSError, ValueError) as error:
            self.errors.append(str(error))

    def _replayed(self, stream: Stream, frames: Iterator[TimedFrame]) -> Iterator[tuple[TimedFrame, Record]]:
        """Yield the frames that an earlier call has tracked, with their lines.

        Raises:
            ConfigError: the lines are damaged, or of other frames.
        """
        position = self.position
        with (self.out / LINES).open("rb") as file:
            file.seek(position.lines_start)
            for line in islice(file, position.frames):
                image = next(frames, None)
                if self.errors:
                    return
                try:
                    record = json.loads(line)
                    matches = image is not None and record["frame"] == image.number
                except (ValueError, KeyError, TypeError):
                    matches = False
                if image is None or not matches:
                    raise _resume_error(
                        f"{self.out / LINES} or {stream.path} has changed since; start without --resume"
                    )
                yield image, record

    @contextmanager
    def _open_video(self, stream: Stream) -> Iterator[Callable[[Image, float], None] | None]:
        """Yield a function that writes a frame; None without a video. A live stream that continues gets a new file."""
        names = chain([stream.name], (f"{stream.name}-part{number}" for number in range(2, 1_000_000)))
        continues = stream.is_live and self.position.rows
        name = next(name for name in names if not continues or not (self.out / "videos" / f"{name}.mp4").exists())
        with write_frames(self.out / "videos" / f"{name}.mp4") if self.video else nullcontext() as write:
            self._list(*([f"videos/{name}.mp4"] if self.video else []))
            yield write

    def _list(self, *files: str) -> None:
        self.position.files += [file for file in files if file not in self.position.files]


@contextmanager
def _appended(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file to write behind its first bytes; later ones are dropped.

    Raises:
        ConfigError: it is shorter.
    """
    path.parent.mkdir(exist_ok=True)
    if size and (not path.is_file() or path.stat().st_size < size):
        raise _resume_error(f"{path} has changed since; start without --resume")
    with path.open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(0, os.SEEK_END)
        yield file


def _continued(frames: Iterator[TimedFrame], position: Position) -> Iterator[TimedFrame]:
    """Yield the frames of a live stream with numbers and times after those of the call before."""
    number, seconds = position.number + 1, position.seconds + max(STEP, time.time() - position.clock)
    for frame in frames:
        yield frame._replace(number=number + frame.number, seconds=seconds + frame.seconds)


def _describe_latency(latency: Mapping[str, float], frames: int) -> str:
    """Return the milliseconds per frame, as a whole and by stage."""
    times = {stage: 1000 * seconds / frames for stage, seconds in latency.items()}
    stages = ", ".join(f"{stage} {milliseconds:.1f}" for stage, milliseconds in times.items())
    return f"{sum(times.values()):.1f} ms per frame: {stages}"


def _resume_error(message: str) -> ConfigError:
    return ConfigError(Problem("command line", "--resume", message))
