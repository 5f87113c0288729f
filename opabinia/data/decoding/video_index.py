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

from opabinia.runtime.local_copies import fetch, is_placeholder
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
        unit: of the times, in seconds.
        table: whether it comes from the container's table, which has times in decoding order only: frames are assumed
            to be evenly spaced, and the decoded frames must agree.
        counted: whether frames have no times of their own, so that they can only be numbered by decoding from the
        start.
    """

    times: NDArray[np.int64]
    keys: NDArray[np.int64]
    seconds: float
    unit: float
    table: bool = False
    counted: bool = False

    def first_number(self, seconds: float) -> int:
        """Return the number of the first frame that is displayed at this time after the first frame, or later."""
        return int(np.searchsorted(self.times, self.times[0] + round(seconds / self.unit)))


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

_CONTAINERS = (
    *("mov", "matroska", "avi", "gif", "apng", "mpeg", "mpegts", "mpegvideo", "asf", "flv", "live_flv", "ogg", "mxf"),
    *("nut", "ivf", "rm", "swf", "dv", "wtv", "mjpeg", "yuv4mpegpipe"),
    *("m4v", "h263", "h264", "hevc", "vvc", "vc1", "av1", "obu"),  # streams without a container
)
_ONLY_THIS_FILE = {"protocol_whitelist": "file", "format_whitelist": ",".join(_CONTAINERS)}
"""FFmpeg's options for a file of any of its formats that hold a video. Others are playlists and session descriptions,
whatever the name: they would open network connections, or return the frames of other files of this machine."""


def open_video(path: str) -> tuple[InputContainer, VideoStream]:
    """Open a file and its video stream.

    Raises:
        OSError: it is missing or not readable.
        ValueError: it is not a video.
    """
    import av

    fetch(path)
    if not os.stat(path).st_size:
        raise ValueError(f"{path} is empty: it has 0 bytes")
    try:
        # "file:": a name with a colon is not a URL.
        container = av.open(f"file:{path}", options=_ONLY_THIS_FILE, metadata_errors="ignore")
    except av.error.FFmpegError as error:
        if is_placeholder(path):  # the cache of remote files removed it after it was fetched
            return open_video(path)
        with open(path, "rb") as file:
            raise ValueError(f"{path} {_describe_content(file.read(1024), error)}") from error
    cover = av.stream.Disposition.attached_pic
    tracks = [track for track in container.streams.video if not track.disposition & cover]
    for track in tracks:
        context: object = track.codec_context  # None if there is no decoder, which its type does not show
        if context is not None:
            track.codec_context.thread_count = 1  # the workers are the parallelism
            return container, track
    types = sorted({stream.type for stream in container.streams})
    container.close()
    if tracks:
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


def read_packets(container: InputContainer, *streams: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Yield all packets of these streams, or of all, from the current position, up to the first one that cannot be
    read."""
    import av

    # IndexError: a broken transport stream in which a stream first appears in the middle, which PyAV does not expect.
    with suppress(av.error.FFmpegError, IndexError):
        for packet in container.demux(*streams):
            if packet.size:
                yield packet  # type: ignore[misc]  # without streams, also those of other types


# --- building the index -----------------------------------------------------------------------------------------------


def index_from_table(container: InputContainer, track: VideoStream, file_size: int) -> VideoIndex | None:
    """Read the table of an mp4 or mov file; return None unless its frames are evenly spaced and within the file."""
    if "mp4" not in container.format.name or track.start_time is None or track.time_base is None:
        return None
    entries = [
        (entry.timestamp, entry.is_keyframe, entry.is_discard, entry.pos + entry.size) for entry in track.index_entries
    ]
    if len(entries) != track.frames or len(entries) < 2:
        return None
    times, keys, discarded, ends = (np.array(column) for column in zip(*entries, strict=True))
    step = int(times[1] - times[0])
    if step <= 0 or (np.diff(times) != step).any() or discarded.any() or ends.max() > file_size or not keys[0]:
        return None
    display_times = track.start_time + step * np.arange(len(times), dtype=np.int64)
    unit = float(track.time_base)
    return VideoIndex(display_times, np.flatnonzero(keys), len(times) * step * unit, unit, table=True)


def index_from_packets(path: str, container: InputContainer, track: VideoStream) -> VideoIndex:
    """Read all packets, without decoding them.

    A packet that is marked as corrupt ends a file that is cut off; where others follow, as between concatenated
    transport streams, only their numbering is interrupted.
    """
    # Without the contents, which may be large.
    packets = [
        (packet.pts, packet.is_keyframe, packet.is_discard, packet.is_corrupt)
        for packet in read_packets(container, track)
    ]
    ends_early = bool(packets) and packets[-1][3]
    missing = 0 if container.format.name == "gif" else track.frames - len(packets)
    if container.format.name == "avi":  # it counts intervals, in which there may be no frame
        missing = missing if _exceeds_file(path) else 0
    packets = packets[: len(packets) - ends_early]
    times = [time for time, _, discarded, _ in packets if not discarded]  # others are decoded, but not displayed
    keys = [is_key for _, is_key, discarded, _ in packets if not discarded]
    if not times:
        raise ValueError(f"{path} has a video stream without frames" + (": it is cut off" if ends_early else ""))
    if ends_early or missing > 0:
        of = f" of {track.frames}" if missing > 0 else ""
        warn_damaged(path, f"is cut off; the first {len(times)} frames{of} are used")
    known = [time for time in times if time is not None]
    if len(set(known)) < len(times) or _has_no_times(container, track):
        return counted_index(len(times), _duration(container, track, len(times)))
    display_times = np.sort(np.array(known, dtype=np.int64))
    starts = np.searchsorted(display_times, np.array(known)[np.array(keys)])
    unit = float(track.time_base or 0)
    seconds = 0.0
    if len(display_times) > 1:
        seconds = float(display_times[-1] - display_times[0] + np.median(np.diff(display_times))) * unit
    seconds = seconds or _duration(container, track, len(display_times))
    claimed = (container.duration or 0) / 1e6 if "matroska" in container.format.name else 0.0  # of the longest stream
    if seconds < 0.8 * claimed and _last_time(path) < 0.8 * claimed:
        warn_damaged(path, f"is cut off; the first {seconds:.1f} of {claimed:.1f} seconds are used")
    return VideoIndex(display_times, np.union1d(starts, [0]), seconds, unit)


def _exceeds_file(path: str) -> bool:
    """Return whether the size in the header of a RIFF file (AVI) is larger than the file."""
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8)[4:], "little") + 8 > os.stat(path).st_size


def _last_time(path: str) -> float:
    """Return the last time of all streams of a file, in seconds."""
    container, _ = open_video(path)
    with container:
        return max(
            (float(packet.pts * packet.time_base) for packet in read_packets(container) if packet.pts), default=0.0
        )


def counted_index(frames: int, seconds: float) -> VideoIndex:
    """Return the index of frames that can only be counted from the start."""
    numbers = np.arange(frames, dtype=np.int64)
    return VideoIndex(numbers, numbers[:1], seconds, seconds / frames, counted=True)


def _has_no_times(container: InputContainer, track: VideoStream) -> bool:
    """AVI has no times, and FFmpeg's guesses are wrong if frames are stored out of display order. The key frames of a
    GIF are not independent: each image is painted over the one before."""
    name = container.format.name
    return name == "gif" or (name == "avi" and track.codec_context.name in ("h264", "hevc"))


def _duration(container: InputContainer, track: VideoStream, frames: int) -> float:
    if track.average_rate:
        return float(frames / track.average_rate)
    return container.duration / 1e6 if container.duration else frames / 25
