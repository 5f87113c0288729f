"""Decoding of single frames: exactly those of a decoding from start to end, at the lowest cost.

The cost of reading frames is that of decoding from the key frame before them. A pass of the decoder starts at such a
key frame, skips frames that no other frame refers to, and ends where it is better to jump to a later key frame. If a
wanted frame does not come out (the stream is damaged there, or needs more than its key frame), further passes start at
earlier key frames, the last one at the start of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from opabinia.data.decoding.video_index import VideoIndex, frame_number, read_packets, warn_damaged

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

Deliver = Callable[[int, "VideoFrame"], None]
"""Called with each wanted frame's number and the frame."""

_INTRA_TYPES = (1, 5)
"""Frame types that refer to no other frame: I and SI."""

_SKIPPING_CODECS = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
"""Decoders that see from the frame itself that no other frame refers to it."""

_FAST_SEEKING, _MIN_JUMP_FAST, _MIN_JUMP = ("mov", "matroska", "avi"), 2, 24
"""Containers with cheap seeks; the number of frames that a jump must save there, and elsewhere."""


class IndexMismatch(Exception):
    """The decoded frames contradict the index: the packets must be read, or the frames counted."""


@dataclass
class DecoderPass:
    """One pass of the decoder, from the container's position on.

    A wanted frame that is missing is replaced by the frame before it; a pass from the start also replaces missing
    frames at the beginning, by the first frame there is.

    Attributes:
        path: of the file, for messages.
        container: positioned at a key frame at or before the first wanted frame, or at the start.
        track: its video track.
        index: of the video.
        pending: numbers of the wanted frames, ascending and at least one. Delivered frames are removed.
        deliver: called with each wanted frame, in order.
        from_start: nothing before this position can be tried any more: the pass does not give up.
        skip_unreferenced: do not decode unwanted frames that no other frame refers to (if the codec shows that), and
            end at the first missing frame instead of replacing it.
    """

    path: str
    container: InputContainer
    track: VideoStream
    index: VideoIndex
    pending: list[int]
    deliver: Deliver
    from_start: bool
    skip_unreferenced: bool

    def __post_init__(self) -> None:
        self._skips = self.skip_unreferenced and self.track.codec_context.name in _SKIPPING_CODECS
        self._times: list[int] = self.index.times.tolist()
        self._min_jump = _MIN_JUMP_FAST if self.container.format.name.split(",")[0] in _FAST_SEEKING else _MIN_JUMP
        self._target = self.pending[0]
        self._positioned = False  # whether a packet has confirmed the position
        self._newest_key = -1  # the last key frame that the decoder was given
        self._latest = -1  # the last frame that it returned
        self._count = 0
        self._previous: VideoFrame | None = None

    def run(self) -> None:
        """Decode until all wanted frames are delivered, or another pass should go on.

        Raises:
            IndexMismatch: packets are not where the table says, or frames do not come in the order of their times.
            ValueError: a pass from the start finds no frame at all.
        """
        wanted_times = {self._times[number] for number in self.pending}
        for packet in chain(read_packets(self.container, self.track), [None]):  # None flushes the decoder
            if packet is not None and not self.index.counted:
                if packet.is_corrupt and frame_number(self._times, packet.pts) is None:
                    continue  # the end of a file that is cut off
                if self._is_too_late(packet):
                    return
            unwanted = self._skips and packet is not None and packet.pts not in wanted_times
            self.track.codec_context.skip_frame = "NONREF" if unwanted else "DEFAULT"
            for frame in decode_packet(self.track, packet):
                if self._ends_at(frame):
                    return
        if not self._skips:
            self._replace_rest()

    def _is_too_late(self, packet: Packet[VideoStream]) -> bool:
        """Compare a packet with the index; return whether the seek went beyond the first wanted frame."""
        number = frame_number(self._times, packet.pts)
        if number is None:
            if self.index.table:
                raise IndexMismatch
            return False
        if not self._positioned:
            if number > self.pending[0] and not self.from_start:
                return True
            if self.index.table and packet.is_keyframe and number not in self.index.keys:
                raise IndexMismatch
            self._positioned = True
        if packet.is_keyframe:
            self._newest_key = max(self._newest_key, number)
        return False

    def _ends_at(self, frame: VideoFrame) -> bool:
        """Deliver a decoded frame if it is wanted; return whether the pass ends."""
        number = self._count if self.index.counted else frame_number(self._times, frame.pts)
        self._count += 1
        if number is None:
            return False
        if number <= self._latest:
            raise IndexMismatch
        if self._latest < 0 and number and not self.from_start and frame.pict_type not in _INTRA_TYPES:
            return True  # not a real key frame: from here on frames become complete only bit by bit
        self._latest = number
        if number > self.pending[0]:
            if self._skips:
                return True
            if self._previous is not None or self.from_start:
                warn_damaged(self.path, f"frame {self.pending[0]} cannot be decoded; its neighbor is used instead")
        self._deliver_up_to(number, frame)
        if not self.pending or (number >= self.pending[0] and not self.from_start):
            return True
        next_key = int(self.index.keys[bisect_right(self.index.keys, self.pending[0]) - 1])
        return self.pending[0] != self._target and next_key > max(self._newest_key, number + self._min_jump)

    def _deliver_up_to(self, number: int, frame: VideoFrame) -> None:
        """Deliver the frame before in place of missing ones, then this frame if it is wanted."""
        if self._previous is None and self.from_start:
            self._previous = frame
        while self.pending and self.pending[0] < number and self._previous is not None:
            self.deliver(self.pending.pop(0), self._previous)
        self._previous = frame
        if self.pending and self.pending[0] == number:
            self.deliver(self.pending.pop(0), frame)

    def _replace_rest(self) -> None:
        """The file has ended: deliver the last frame in place of all that are missing."""
        if self._previous is not None:
            problem = f"frames from {self.pending[0]} on cannot be decoded; the last good one is used instead"
            warn_damaged(self.path, problem)
            while self.pending:
                self.deliver(self.pending.pop(0), self._previous)
        elif self.from_start:
            raise ValueError(f"{self.path} is broken: none of its frames can be decoded")


def decode_packet(track: VideoStream, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
    """Return the frames that the decoder gives for a packet (None: those it still holds); none if it fails."""
    import av

    try:
        return track.codec_context.decode(packet)
    except av.error.FFmpegError:
        return []
