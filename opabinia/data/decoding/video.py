"""Video files, read by PyAV, whose wheels include FFmpeg.

The frames returned are bitwise identical to those of a decoding from start to end. The number of a frame is known from
the container's table or from its packets, without decoding (:mod:`opabinia.data.decoding.video_index`); only what is
needed for the requested frames is decoded (:mod:`opabinia.data.decoding.seeking`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import FrameChannels
from opabinia.data.decoding.image_sequences import clip_positions, downscaled_size
from opabinia.data.decoding.seeking import DecoderPass, Deliver, IndexMismatch
from opabinia.data.decoding.video_index import counted_index, index_from_packets, index_from_table, open_video

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

    from opabinia.data.decoding.video_index import VideoIndex

EXTENSIONS = (
    *(".mp4", ".m4v", ".mov", ".avi", ".webm", ".mkv", ".mpeg", ".mpg", ".gif"),
    *(".wmv", ".asf", ".flv", ".f4v", ".ts", ".mts", ".m2ts", ".ogv", ".vob", ".3gp", ".mjpeg"),
)
"""File extensions of videos, for searching folders."""

FORMATS = {1: "gray", 3: "rgb24"}
"""FFmpeg's pixel formats by number of channels."""


_MAX_INDICES = 4096
_indices: OrderedDict[tuple[str, int, int], VideoIndex] = OrderedDict()
"""Indices of the files read last, by path, size and modification time, so that reading a video again (other views, the
next epoch) does not read its packets again. A few kilobytes each."""


class VideoFile:
    """A video file (:class:`opabinia.contracts.Video`): mp4, mov, avi, webm, mkv, mpeg, gif and the other
    containers of video that FFmpeg reads, but no playlists.

    It is opened on first use and closed after each ``read``. Frames are rotated according to the file's rotation flag.
    A truncated file has the frames that are in it.

    Args:
        path: the file.
        channels: 3 for color, 1 for gray.
        start: use the frames from this time on, in seconds after the first frame, by the times of the frames.
        end: use the frames before this time; None: all.

    Example::

        video = VideoFile("cooking.mp4")
        clip = video.read(range(100, 164, 4), short_side=256)   # uint8, 16 x 3 x 256 x 455
    """

    def __init__(
        self, path: str | os.PathLike[str], channels: FrameChannels = 3, *, start: float = 0.0, end: float | None = None
    ) -> None:
        self.path = os.fspath(path)
        self._channels = channels
        self.start, self.end = start, end
        self._open: tuple[InputContainer, VideoStream] | None = None
        self._at_start = False  # whether nothing has been read since it was opened
        self._size: tuple[int, int] | None = None

    @property
    def frames(self) -> int:
        return len(self._numbers())

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    @property
    def fps(self) -> float:
        index = self._index()
        return len(index.times) / index.seconds

    @property
    def size(self) -> tuple[int, int]:
        if self._size is None:
            with closing(self):
                self._decode([0], lambda number, frame: None)
        assert self._size is not None
        return self._size

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        with closing(self):
            numbers = self._numbers()
            positions = {numbers[i]: where for i, where in clip_positions(indices, len(numbers), self.path).items()}
            buffer = _ClipBuffer(positions, self._channels, short_side)
            self._decode(list(positions), buffer.add)
        return buffer.clip()

    def close(self) -> None:
        """Close the file. It is opened again when needed."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    # --- index and position ---

    def _numbers(self) -> range:
        """Return the numbers in the file of the frames from the start to the end, at least one."""
        index = self._index()
        first = index.first_number(self.start)
        stop = len(index.times) if self.end is None else index.first_number(self.end)
        if first == len(index.times):
            raise ValueError(f"{self.path} has {index.seconds:.2f} seconds; none of its frames is after {self.start:g}")
        return range(first, max(stop, first + 1))

    def _key(self) -> tuple[str, int, int]:
        status = os.stat(self.path)
        return self.path, status.st_size, status.st_mtime_ns

    def _index(self) -> VideoIndex:
        key = self._key()
        index = _indices.get(key)
        if index is None:
            index = index_from_table(*self._container(), key[1]) or self._index_from_packets()
            _remember(key, index)
        return index

    def _index_from_packets(self) -> VideoIndex:
        container, track = self._container(reopen=not self._at_start)
        self._at_start = False
        return index_from_packets(self.path, container, track)

    def _container(self, reopen: bool = False) -> tuple[InputContainer, VideoStream]:
        if reopen:
            self.close()
        if self._open is None:
            self._open = open_video(self.path)
            self._at_start = True
        return self._open

    def _seek(self, index: VideoIndex, key: int | None) -> tuple[InputContainer, VideoStream]:
        """Position the file so that the next packet is that of a key frame, or of one before it; None: the start."""
        import av

        container, track = self._container(reopen=key is None and not self._at_start)
        at_start, self._at_start = self._at_start, False
        if key is not None and not (at_start and not index.keys[key]):
            try:
                container.seek(int(index.times[index.keys[key]]), stream=track)
            except (av.error.FFmpegError, OSError):  # some files without a table can only be read from the start
                container, track = self._container(reopen=True)
                self._at_start = False
        return container, track

    # --- decoding ---

    def _decode(self, wanted: list[int], deliver: Deliver) -> None:
        """Deliver each of these frames (numbers, ascending)."""

        def on_frame(number: int, frame: VideoFrame) -> None:
            if self._size is None:
                size = (frame.height, frame.width)
                self._size = size[::-1] if quarter_turns(frame) % 2 else size
            deliver(number, frame)

        index = self._index()
        while True:
            try:
                return self._decode_by(index, wanted, on_frame)
            except IndexMismatch:  # at most twice: counted frames cannot contradict their index
                index = self._index_from_packets() if index.table else counted_index(len(index.times), index.seconds)
                _remember(self._key(), index)

    def _decode_by(self, index: VideoIndex, wanted: list[int], deliver: Deliver) -> None:
        if wanted[-1] >= len(index.times):
            raise ValueError(f"{self.path}: its table is wrong; it has {len(index.times)} frames only")
        pending = list(wanted)
        while pending:
            first = pending[0]
            key = bisect_right(index.keys, first) - 1
            if not index.counted:
                self._run_pass(index, key, pending, deliver, skip_unreferenced=True)
            # If the frame did not come out, start at this key frame again without skipping, then 1, 2, 4 ... key frames
            # earlier, at last at the start of the file.
            back = key + 1 if index.counted else 0
            while pending and pending[0] == first:
                start = key - back if back <= key else None
                self._run_pass(index, start, pending, deliver)
                if start is None and pending[:1] == [first]:
                    raise ValueError(f"{self.path} is broken: frame {first} cannot be decoded, nor any other beside it")
                back = 2 * back or 1

    def _run_pass(
        self, index: VideoIndex, key: int | None, pending: list[int], deliver: Deliver, skip_unreferenced: bool = False
    ) -> None:
        position = self._seek(index, key)
        DecoderPass(self.path, *position, index, pending, deliver, key is None, skip_unreferenced).run()


def _remember(key: tuple[str, int, int], index: VideoIndex) -> None:
    _indices[key] = index
    while len(_indices) > _MAX_INDICES:
        _indices.popitem(last=False)


class _ClipBuffer:
    """The pixels of a clip, filled frame by frame.

    Args:
        positions: in the clip, by frame number.
        channels: 3 or 1.
        short_side: larger frames are downscaled to this length of the shorter side.
    """

    def __init__(self, positions: dict[int, list[int]], channels: FrameChannels, short_side: int | None) -> None:
        from av.video.reformatter import VideoReformatter

        self._positions, self._channels, self._short_side = positions, channels, short_side
        self._pixels: NDArray[np.uint8] | None = None
        self._size, self._turns = (0, 0), 0
        self._reformatter = VideoReformatter()

    def add(self, number: int, frame: VideoFrame) -> None:
        """Write frame ``number`` to its positions. All frames get the size of the first."""
        if self._pixels is None:
            self._size = downscaled_size(frame.height, frame.width, self._short_side)
            self._turns = quarter_turns(frame)
            upright = self._size[::-1] if self._turns % 2 else self._size
            length = sum(map(len, self._positions.values()))
            self._pixels = np.empty((length, *upright, self._channels), dtype=np.uint8)
        height, width = self._size
        converted = self._reformatter.reformat(frame, width, height, FORMATS[self._channels], threads=1)
        pixels = converted.to_ndarray().reshape(height, width, self._channels)
        first, *others = self._positions[number]
        self._pixels[first] = np.rot90(pixels, self._turns)
        for position in others:
            self._pixels[position] = self._pixels[first]

    def clip(self) -> Tensor:
        """Return T x C x H x W; in memory the channels are last, as the decoder returns them."""
        assert self._pixels is not None
        return torch.from_numpy(self._pixels).permute(0, 3, 1, 2)


def quarter_turns(frame: VideoFrame) -> int:
    """Return the number of counterclockwise quarter turns that make a frame upright."""
    return round(int(frame.rotation) / 90) % 4
