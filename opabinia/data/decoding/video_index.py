"""Index of a video file: the time of every frame and the key frames, read from the container without decoding."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opabinia.runtime.log import log

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.video.stream import VideoStream


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """The frames of a video, according to its container.

    Attributes:
        times: of the frames, in display order (int64, N, in units of the stream).
        keys: numbers of the key frames, at which a decoder can start (int64, ascending; the first is 0).
        seconds: duration.
        table: whether it comes from the container's table, which has times in decoding order only: frames are assumed
            to be evenly spaced, and the decoded frames must agree.
        counted: whether frames have no times of their own, so that they can only be numbered by decoding from the
        start.
    """

    times: NDArray[np.int64]
    keys: NDArray[np.int64]
    seconds: float
    table: bool = False
    counted: bool = False


def frame_number(times: list[int], time: int | None) -> int | None:
    """Return the number of the frame with this time, or None."""
    if time is None:
        return None
    number = bisect_left(times, time)
    return number if number < len(times) and times[number] == time else None


# --- damaged files ----------------------------------------------------------------------------------------------------

_MAX_WARNINGS = 4096
_warnings: dict[str, str] = {}


def warn_damaged(path: str, problem: str) -> None:
    """Log a warning about a file that can be used in part, once per file."""
    if path not in _warnings and len(_warnings) < _MAX_WARNINGS:
        _warnings[path] = problem
        log.warning("%s: %s", path, problem)


def damage(path: str) -> str | None:
    """Return the problem of a file that can be used in part, if reading it has shown one."""
    return _warnings.get(path)


# --- opening ----------------------------------------------------------------------------------------------------------


def open_video(path: str) -> tuple[InputContainer, VideoStream]:
    """Open a file and its video stream.

    Raises:
        OSError: it is missing or not readable.
        ValueError: it is not a video.
    """
    import av

    if not os.stat(path).st_size:
        raise ValueError(f"{path} is empty: it has 0 bytes")
    try:
        # "file:": a name with a colon is not a URL. The whitelist: a playlist must not open network connections.
        container = av.open(f"file:{path}", options={"protocol_whitelist": "file"}, metadata_errors="ignore")
    except av.error.FFmpegError as error:
        with open(path, "rb") as file:
            raise ValueError(f"{path} {_describe_content(file.read(1024), error)}") from error
    cover = av.stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    for stream in streams:
        context: object = stream.codec_context  # None if there is no decoder, which its type does not show
        if context is not None:
            stream.codec_context.thread_count = 1  # the workers are the parallelism
            return container, stream
    types = sorted({stream.type for stream in container.streams})
    container.close()
    if streams:
        raise ValueError(f"{path} has a video codec that FFmpeg cannot decode")
    raise ValueError(f"{path} has no video stream, only {' and '.join(types) or 'an empty container'}")


def _describe_content(start: bytes, error: Exception) -> str:
    """Describe a file that cannot be opened by its first bytes."""
    if b"ftyp" in start[:16]:
        return "is cut off: an mp4 or mov file whose table (moov) is missing, as after a broken download or recording"
    with suppress(UnicodeDecodeError):
        text = start[: max(len(start) - 4, 4)].decode()  # the last character may be incomplete
        if text.isprintable() or not set(text) - set(map(chr, (*range(9, 14), *range(32, 127), *range(160, 0x3000)))):
            return "is not a video, but text"
    return f"is not a readable video: {getattr(error, 'strerror', None) or error}"


def read_packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Yield all packets from the current position, up to the first one that cannot be read."""
    import av

    # IndexError: a broken transport stream in which a stream first appears in the middle, which PyAV does not expect.
    with suppress(av.error.FFmpegError, IndexError):
        for packet in container.demux(stream):
            if packet.size:
                yield packet


# --- building the index -----------------------------------------------------------------------------------------------


def index_from_table(container: InputContainer, stream: VideoStream, file_size: int) -> VideoIndex | None:
    """Read the table of an mp4 or mov file; return None unless its frames are evenly spaced and within the file."""
    if "mp4" not in container.format.name or stream.start_time is None or stream.time_base is None:
        return None
    entries = [
        (entry.timestamp, entry.is_keyframe, entry.is_discard, entry.pos + entry.size) for entry in stream.index_entries
    ]
    if len(entries) != stream.frames or len(entries) < 2:
        return None
    times, keys, discarded, ends = (np.array(column) for column in zip(*entries, strict=True))
    step = int(times[1] - times[0])
    if step <= 0 or (np.diff(times) != step).any() or discarded.any() or ends.max() > file_size or not keys[0]:
        return None
    display_times = stream.start_time + step * np.arange(len(times), dtype=np.int64)
    return VideoIndex(display_times, np.flatnonzero(keys), float(len(times) * step * stream.time_base), table=True)


def index_from_packets(path: str, container: InputContainer, stream: VideoStream) -> VideoIndex:
    """Read all packets, without decoding them."""
    times: list[int | None] = []
    keys: list[bool] = []
    truncated = False
    for packet in read_packets(container, stream):
        if packet.is_corrupt:
            truncated = True
        elif not packet.is_discard:  # a discarded packet is decoded, but not displayed
            times.append(packet.pts)
            keys.append(packet.is_keyframe)
    claimed = stream.frames
    if not times:
        raise ValueError(f"{path} has a video stream without frames" + (": it is cut off" if truncated else ""))
    if truncated or (claimed > len(times) and container.format.name != "gif"):
        of = f" of {claimed}" if claimed > len(times) else ""
        warn_damaged(path, f"is cut off; the first {len(times)} frames{of} are used")
    known = [time for time in times if time is not None]
    if len(set(known)) < len(times) or _has_no_times(container, stream):
        return counted_index(len(times), _duration(container, stream, len(times)))
    display_times = np.sort(np.array(known, dtype=np.int64))
    starts = np.searchsorted(display_times, np.array(known)[np.array(keys)])
    unit = float(stream.time_base or 0)
    seconds = 0.0
    if len(display_times) > 1:
        seconds = float(display_times[-1] - display_times[0] + np.median(np.diff(display_times))) * unit
    seconds = seconds or _duration(container, stream, len(display_times))
    if container.duration and "matroska" in container.format.name and seconds < 0.8 * container.duration / 1e6:
        warn_damaged(path, f"is cut off; the first {seconds:.1f} of {container.duration / 1e6:.1f} seconds are used")
    return VideoIndex(display_times, np.union1d(starts, [0]), seconds)


def counted_index(frames: int, seconds: float) -> VideoIndex:
    """Return the index of frames that can only be counted from the start."""
    numbers = np.arange(frames, dtype=np.int64)
    return VideoIndex(numbers, numbers[:1], seconds, counted=True)


def _has_no_times(container: InputContainer, stream: VideoStream) -> bool:
    """AVI has no times, and FFmpeg's guesses are wrong if frames are stored out of display order. The key frames of a
    GIF are not independent: each image is painted over the one before."""
    name = container.format.name
    return name == "gif" or (name == "avi" and stream.codec_context.name in ("h264", "hevc"))


def _duration(container: InputContainer, stream: VideoStream, frames: int) -> float:
    if stream.average_rate:
        return float(frames / stream.average_rate)
    return container.duration / 1e6 if container.duration else frames / 25
