"""Films: files by PyAV, whose wheels carry FFmpeg; folders of pictures; arrays.

Costs are those of decoding: from the key frame before the first frame that is wanted to the last one. So nothing else
is decoded: the decoder starts at that key frame, leaves out frames between that no other frame refers to, jumps where a
later key frame serves, and stops at the last frame that is wanted. Frames are those of a decoding from start to end, to
the bit; which number a frame has is known from the file's table, or from its packets, without decoding.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.data.decoding.images import read_image
from opabinia.data.transforms.sizes import shortest_edge
from opabinia.runtime.log import log

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

EXTENSIONS = (".mp4", ".m4v", ".mov", ".avi", ".webm", ".mkv", ".mpeg", ".mpg", ".gif")
"""What counts as a film when a folder is searched."""

Channels = Literal[1, 3]

_FORMATS = {1: "gray", 3: "rgb24"}


def is_film(name: bytes) -> bool:
    """Whether a file is taken for a film, by its ending."""
    return name.lower().endswith(tuple(ending.encode() for ending in EXTENSIONS))


# --- which frame is where -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """What a film has, as its file tells without being decoded.

    Attributes:
        times: of the frames, in the order in which they are shown (int64, N, in units of the stream).
        keys: numbers of frames at which a decoder can begin (int64, ascending; the first is 0).
        seconds: how long it lasts.
        table: taken from the file's table, where times stand in the order of decoding only: they are evenly spaced, and
            what is decoded must agree.
        counted: frames have no times of their own; their numbers are known by decoding from the start only.
    """

    times: NDArray[np.int64]
    keys: NDArray[np.int64]
    seconds: float
    table: bool = False
    counted: bool = False


class _Disagrees(Exception):
    """What is decoded is not what the index says: the film is to be gone through, or its frames counted."""


_KEPT = 4096
_indices: OrderedDict[tuple[str, int, int], Index] = OrderedDict()
"""Of the files read last, by path, size and time: a film that is read again (other views, the next epoch) is not gone
through again. Some kilobytes each."""

_told: dict[str, str] = {}


def _tell(path: str, what: str) -> None:
    """A warning once per file."""
    if path not in _told and len(_told) < _KEPT:
        _told[path] = what
        log.warning("%s: %s", path, what)


def damage(path: str) -> str | None:
    """What is wrong with a film of which nonetheless something can be used, as far as it was found when it was read."""
    return _told.get(path)


def _by_table(container: InputContainer, stream: VideoStream, size: int) -> Index | None:
    """From the table of an mp4 or mov file, if its frames are evenly spaced and all there."""
    if "mp4" not in container.format.name or stream.start_time is None or stream.time_base is None:
        return None
    entries = [(one.timestamp, one.is_keyframe, one.is_discard, one.pos + one.size) for one in stream.index_entries]
    if len(entries) != stream.frames or len(entries) < 2:
        return None
    stamps, keys, left_out, ends = (np.array(column) for column in zip(*entries, strict=True))
    step = int(stamps[1] - stamps[0])
    if step <= 0 or (np.diff(stamps) != step).any() or left_out.any() or ends.max() > size or not keys[0]:
        return None
    times = stream.start_time + step * np.arange(len(stamps), dtype=np.int64)
    return Index(times, np.flatnonzero(keys), float(len(stamps) * step * stream.time_base), table=True)


def _by_packets(path: str, container: InputContainer, stream: VideoStream) -> Index:
    """From all packets, which are not decoded."""
    stamps: list[int | None] = []
    keys: list[bool] = []
    cut = False
    for packet in _packets(container, stream):
        if packet.is_corrupt:
            cut = True
        elif not packet.is_discard:  # it is decoded, but not shown
            stamps.append(packet.pts)
            keys.append(packet.is_keyframe)
    claimed = stream.frames
    if not stamps:
        raise ValueError(f"{path} has a track of pictures, but no picture in it" + (": it is cut off" if cut else ""))
    if cut or (claimed > len(stamps) and container.format.name != "gif"):
        of = f" of {claimed}" if claimed > len(stamps) else ""
        _tell(path, f"is cut off; the first {len(stamps)} frames{of} are used")
    known = [stamp for stamp in stamps if stamp is not None]
    if len(set(known)) < len(stamps) or _has_no_times(container, stream):
        return _counted(len(stamps), _seconds(container, stream, len(stamps)))
    times = np.sort(np.array(known, dtype=np.int64))
    starts = np.searchsorted(times, np.array(known)[np.array(keys)])
    base = float(stream.time_base or 0)
    seconds = float(times[-1] - times[0] + np.median(np.diff(times))) * base if len(times) > 1 else 0.0
    seconds = seconds or _seconds(container, stream, len(times))
    if container.duration and "matroska" in container.format.name and seconds < 0.8 * container.duration / 1e6:
        _tell(path, f"is cut off; the first {seconds:.1f} of {container.duration / 1e6:.1f} seconds are used")
    return Index(times, np.union1d(starts, [0]), seconds)


def _has_no_times(container: InputContainer, stream: VideoStream) -> bool:
    """AVI holds no times, and FFmpeg's guesses are wrong where frames are stored in another order. The key frames of a
    GIF are none: each picture is painted over the one before."""
    kind = container.format.name
    return kind == "gif" or (kind == "avi" and stream.codec_context.name in ("h264", "hevc"))


def _counted(frames: int, seconds: float) -> Index:
    everything = np.arange(frames, dtype=np.int64)
    return Index(everything, everything[:1], seconds, counted=True)


def _seconds(container: InputContainer, stream: VideoStream, frames: int) -> float:
    if stream.average_rate:
        return float(frames / stream.average_rate)
    if container.duration:
        return container.duration / 1e6
    return frames / 25


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """All packets from here on, up to the first place that cannot be read."""
    import av

    # IndexError: a track that begins in the middle, in a broken transport stream; PyAV does not know it.
    with suppress(av.error.FFmpegError, IndexError):
        for packet in container.demux(stream):
            if packet.size:
                yield packet


# --- opening --------------------------------------------------------------------------------------------------------


def _opened(path: str) -> tuple[InputContainer, VideoStream]:
    """The file and its track of pictures.

    Raises:
        OSError: it is not there, or must not be read.
        ValueError: it is no film.
    """
    import av

    if not os.stat(path).st_size:
        raise ValueError(f"{path} is empty: it has 0 bytes")
    try:
        # A name with a colon is no address, and a play list opens nothing on the network.
        container = av.open(f"file:{path}", options={"protocol_whitelist": "file"}, metadata_errors="ignore")
    except av.error.FFmpegError as error:
        with open(path, "rb") as file:
            raise ValueError(f"{path} {_instead(file.read(1024), error)}") from error
    cover = av.stream.Disposition.attached_pic
    for stream in container.streams.video:
        context: object = stream.codec_context  # None where there is no decoder, which its type does not tell
        if context is not None and not stream.disposition & cover:
            # Workers are many; threads within each would be in each other's way.
            stream.codec_context.thread_count = 1
            return container, stream
    if any(not stream.disposition & cover for stream in container.streams.video):
        container.close()
        raise ValueError(f"{path} holds pictures of a kind that FFmpeg cannot decode")
    kinds = sorted({stream.type for stream in container.streams})
    container.close()
    raise ValueError(f"{path} holds no pictures, only {' and '.join(kinds) or 'an empty container'}")


def _instead(start: bytes, error: Exception) -> str:
    """What a file that cannot be opened is."""
    if b"ftyp" in start[:16]:
        return "is cut off: an mp4 or mov file whose table (moov) is missing, as after a broken download or recording"
    with suppress(UnicodeDecodeError):
        text = start[: max(len(start) - 4, 4)].decode()  # a character may be cut in two at the end
        if text.isprintable() or not set(text) - set(map(chr, (*range(9, 14), *range(32, 127), *range(160, 0x3000)))):
            return "is no film, but text"
    return f"is no film that can be read: {getattr(error, 'strerror', None) or error}"


# --- files ----------------------------------------------------------------------------------------------------------


class VideoFile:
    """A film in a file (:class:`opabinia.contracts.Video`): mp4, mov, avi, webm, mkv, mpeg, gif and what else FFmpeg
    reads.

    It is opened when it is first asked for something, and closed after each ``read``. Frames are turned as the file's
    rotation flag says. A file that is cut off has the frames that are there.

    Args:
        path: the file.
        channels: 3 for colour, 1 for grey.

    Example::

        film = FilmFile("cooking.mp4")
        clip = film.read(range(100, 164, 4), short_side=256)   # uint8, 16 x 3 x 256 x 455
    """

    def __init__(self, path: str | os.PathLike[str], channels: Channels = 3) -> None:
        self.path = os.fspath(path)
        self._channels = channels
        self._open: tuple[InputContainer, VideoStream] | None = None
        self._fresh = False
        self._size: tuple[int, int] | None = None

    @property
    def frames(self) -> int:
        return len(self._index().times)

    @property
    def seconds(self) -> float:
        return self._index().seconds

    @property
    def fps(self) -> float:
        return self.frames / self.seconds

    @property
    def size(self) -> tuple[int, int]:
        if self._size is None:
            with closing(self):
                self._decode([0], lambda number, frame: None)
        assert self._size is not None
        return self._size

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        with closing(self):
            places = _places(indices, self.frames, self.path)
            canvas = _Canvas(len(indices), places, self._channels, short_side)
            self._decode(list(places), canvas.paint)
        return canvas.clip()

    # --- opening ---

    def _index(self) -> Index:
        status = os.stat(self.path)
        key = (self.path, status.st_size, status.st_mtime_ns)
        found = _indices.get(key)
        if found is None:
            container, stream = self._container()
            found = _by_table(container, stream, status.st_size)
            if found is None:
                found = self._gone_through()
            _remember(key, found)
        return found

    def _gone_through(self) -> Index:
        container, stream = self._container(anew=not self._fresh)
        self._fresh = False
        return _by_packets(self.path, container, stream)

    def _container(self, anew: bool = False) -> tuple[InputContainer, VideoStream]:
        if anew:
            self.close()
        if self._open is None:
            self._open = _opened(self.path)
            self._fresh = True
        return self._open

    def close(self) -> None:
        """Give the file back. It is opened again when it is needed."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    # --- decoding ---

    def _decode(self, wanted: list[int], take: Take) -> None:
        """Hand over each of these frames (numbers, ascending), once."""
        index = self._index()
        while True:
            try:
                return self._decoded(index, wanted, take)
            except _Disagrees:  # at most twice: what is counted cannot disagree
                index = self._gone_through() if index.table else _counted(len(index.times), index.seconds)
                status = os.stat(self.path)
                _remember((self.path, status.st_size, status.st_mtime_ns), index)

    def _decoded(self, index: Index, wanted: list[int], take: Take) -> None:
        if wanted[-1] >= len(index.times):
            raise ValueError(f"{self.path}: its table is wrong; it has {len(index.times)} frames only")
        if index.counted:
            self._walk(index, None, _Wanted(wanted, take, self._seen), last_chance=True)
            return
        todo = _Wanted(wanted, take, self._seen)
        while todo.numbers:
            key = bisect_right(index.keys, todo.numbers[0]) - 1
            back = 0
            first = todo.numbers[0]
            self._walk(index, key, todo, leave_out=True)
            while todo.numbers and todo.numbers[0] == first:
                # Not to be had from there: a stream may need more than its key frame, or be broken here.
                start = key - back if back <= key else None
                self._walk(index, start, todo, last_chance=start is None)
                if start is None and todo.numbers[:1] == [first]:
                    raise ValueError(f"{self.path} is broken: frame {first} cannot be decoded, nor any other beside it")
                back = 2 * back or 1

    def _walk(
        self, index: Index, key: int | None, todo: _Wanted, leave_out: bool = False, last_chance: bool = False
    ) -> None:
        """Decode from a key frame on, and hand over what is wanted, up to a place from where it is better to jump.

        Args:
            index: of the film.
            key: which of its key frames, or None for the start of the file.
            todo: what is wanted; what is handed over is taken off it.
            leave_out: frames that no other one refers to are not decoded where they are not wanted. Ends at the first
                frame that is missing; else what is missing is as the frame before it.
            last_chance: what is missing at the start is as the first frame that there is.

        Raises:
            _Disagrees: packets are not where the table says, or frames do not come in the order of their times.
            ValueError: it was the last chance, and no frame at all can be decoded.
        """
        container, stream = self._at(index, key)
        context = stream.codec_context
        leave_out = leave_out and context.name in _LEAVES_OUT
        times: list[int] = index.times.tolist()
        stamps = {times[number] for number in todo.numbers}
        jump = _FEW if container.format.name.split(",")[0] in _QUICK else _MANY
        newest = latest = -1  # the last key frame that the decoder has, and the last frame that it gave
        begun, first = False, todo.numbers[0]
        todo.begin()
        for packet in chain(_packets(container, stream), [None]):
            if packet is not None and packet.is_corrupt:
                continue
            if packet is not None and not index.counted:
                number = _number(times, packet.pts)
                if number is None and index.table:
                    raise _Disagrees
                if number is not None and not begun:
                    if number > todo.numbers[0] and not last_chance:
                        return  # the jump went too far
                    if index.table and packet.is_keyframe and number not in index.keys:
                        raise _Disagrees
                    begun = True
                if packet.is_keyframe and number is not None:
                    newest = max(newest, number)
            unwanted = leave_out and packet is not None and packet.pts not in stamps
            context.skip_frame = "NONREF" if unwanted else "DEFAULT"
            for frame in _frames(stream, packet):
                number = todo.count if index.counted else _number(times, frame.pts)
                todo.count += 1
                if number is None:
                    continue
                if number <= latest:
                    raise _Disagrees
                if latest < 0 and number and not last_chance and frame.pict_type not in _WHOLE:
                    return  # it was none to begin at: frames become whole bit by bit from there
                latest = number
                if number > todo.numbers[0] and leave_out:
                    return
                if number > todo.numbers[0] and (todo.last is not None or last_chance):
                    _tell(self.path, f"frame {todo.numbers[0]} cannot be decoded; it is as the one beside it")
                todo.arrived(number, frame, last_chance)
                if not todo.numbers or (number >= todo.numbers[0] and not last_chance):
                    return
                ahead = int(index.keys[bisect_right(index.keys, todo.numbers[0]) - 1])
                if todo.numbers[0] != first and ahead > max(newest, number + jump):
                    return
        if not leave_out:
            self._ended(todo, last_chance)

    def _ended(self, todo: _Wanted, last_chance: bool) -> None:
        """The file ends before all is found."""
        if todo.last is not None:
            _tell(self.path, f"frames from {todo.numbers[0]} on cannot be decoded; they are as the last good one")
            todo.fill()
        elif last_chance:
            raise ValueError(f"{self.path} is broken: none of its frames can be decoded")

    def _at(self, index: Index, key: int | None) -> tuple[InputContainer, VideoStream]:
        """The file, so that the next packet is that of a key frame, or of one before it."""
        import av

        container, stream = self._container(anew=key is None and not self._fresh)
        fresh, self._fresh = self._fresh, False
        if key is not None and not (fresh and not index.keys[key]):
            try:
                container.seek(int(index.times[index.keys[key]]), stream=stream)
            except (av.error.FFmpegError, OSError):  # without a table some can only be read from the start
                container, stream = self._container(anew=True)
                self._fresh = False
        return container, stream

    def _seen(self, frame: VideoFrame) -> None:
        if self._size is None:
            upright = (frame.height, frame.width)
            self._size = upright[::-1] if _quarters(frame) % 2 else upright


Take = Callable[[int, "VideoFrame"], None]
"""Gets a frame's number and the frame."""

_WHOLE = (1, 5)
"""Kinds of frames that need no other: I and SI."""

_LEAVES_OUT = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
"""Decoders that know by the frame itself that no other one refers to it."""

_QUICK, _FEW, _MANY = ("mov", "matroska", "avi"), 2, 24
"""Files in which jumping costs hardly anything; how many frames it must save there, and elsewhere."""


class _Wanted:
    """What is still to be handed over.

    Attributes:
        numbers: of frames, ascending.
        last: the newest frame that was decoded, in this walk.
        count: frames that were decoded, in all.
    """

    def __init__(self, numbers: Sequence[int], take: Take, seen: Callable[[VideoFrame], None]) -> None:
        self.numbers = list(numbers)
        self.last: VideoFrame | None = None
        self.count = 0
        self._take, self._saw = take, seen

    def begin(self) -> None:
        """A new walk."""
        self.last = None

    def arrived(self, number: int, frame: VideoFrame, first_for_all: bool) -> None:
        """A frame is there: it is handed over if it is wanted, in place of those that should have come before it the
        one before, or, where there is none and that is allowed, itself."""
        if self.last is None and first_for_all:
            self.last = frame
        while self.numbers and self.numbers[0] < number and self.last is not None:
            self._hand(self.last)
        self.last = frame
        if self.numbers and self.numbers[0] == number:
            self._hand(frame)

    def fill(self) -> None:
        """The newest frame in place of all that is left."""
        assert self.last is not None
        while self.numbers:
            self._hand(self.last)

    def _hand(self, frame: VideoFrame) -> None:
        self._saw(frame)
        self._take(self.numbers.pop(0), frame)


def _frames(stream: VideoStream, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
    """What the decoder gives, at the end (None) what it has kept; nothing where it cannot."""
    import av

    try:
        return stream.codec_context.decode(packet)
    except av.error.FFmpegError:
        return []


def _number(times: list[int], stamp: int | None) -> int | None:
    """Which frame has this time."""
    if stamp is None:
        return None
    number = bisect_left(times, stamp)
    return number if number < len(times) and times[number] == stamp else None


def _remember(key: tuple[str, int, int], index: Index) -> None:
    _indices[key] = index
    while len(_indices) > _KEPT:
        _indices.popitem(last=False)


# --- pixels ---------------------------------------------------------------------------------------------------------


class _Canvas:
    """Where frames are put, each when it comes, at its places.

    Args:
        length: of the clip.
        places: of each frame, by its number.
        channels: 3 or 1.
        short_side: to which larger frames are shrunk.
    """

    def __init__(self, length: int, places: dict[int, list[int]], channels: Channels, short_side: int | None) -> None:
        from av.video.reformatter import VideoReformatter

        self._length, self._places, self._channels, self._short = length, places, channels, short_side
        self._pixels: NDArray[np.uint8] | None = None
        self._size, self._turn = (0, 0), 0
        self._reformatter = VideoReformatter()

    def paint(self, number: int, frame: VideoFrame) -> None:
        """Put frame ``number`` to its places. All are of the size of the first."""
        if self._pixels is None:
            self._begin(frame)
        assert self._pixels is not None
        height, width = self._size
        found = self._reformatter.reformat(frame, width, height, _FORMATS[self._channels], threads=1)
        pixels = found.to_ndarray().reshape(height, width, self._channels)
        first, *others = self._places[number]
        self._pixels[first] = np.rot90(pixels, self._turn)
        for place in others:
            self._pixels[place] = self._pixels[first]

    def clip(self) -> Tensor:
        """All of them, T x C x H x W; in memory channels are the last, as the decoder gives them."""
        assert self._pixels is not None
        return torch.from_numpy(self._pixels).permute(0, 3, 1, 2)

    def _begin(self, frame: VideoFrame) -> None:
        self._size = _shrunk(frame.height, frame.width, self._short)
        self._turn = _quarters(frame)
        height, width = self._size[::-1] if self._turn % 2 else self._size
        self._pixels = np.empty((self._length, height, width, self._channels), dtype=np.uint8)


def _quarters(frame: VideoFrame) -> int:
    """By how many quarters of a turn a frame is to be turned anticlockwise."""
    return round(int(frame.rotation) / 90) % 4


def _shrunk(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    if short_side is None or min(height, width) <= short_side:
        return height, width
    return shortest_edge(height, width, short_side)


def _places(indices: Sequence[int], frames: int, path: str) -> dict[int, list[int]]:
    """Where each frame goes, by its number, ascending.

    Raises:
        ValueError: there are none, or one that the film does not have.
    """
    places: dict[int, list[int]] = {}
    for place, number in enumerate(map(int, indices)):
        if not 0 <= number < frames:
            raise ValueError(f"{path} has frames 0 to {frames - 1}; there is no frame {number}")
        places.setdefault(number, []).append(place)
    if not places:
        raise ValueError(f"{path}: no frame is asked for")
    return dict(sorted(places.items()))


# --- folders and arrays ---------------------------------------------------------------------------------------------


class FilmOfPictures:
    """A film whose frames are pictures of their own (:class:`opabinia.contracts.Video`); where they lie is left to its
    heirs.

    Args:
        path: what messages name.
        frames: how many there are.
        fps: frames a second.
        seconds: how long it lasts.
    """

    def __init__(self, path: str, frames: int, fps: float, seconds: float) -> None:
        self.path, self.frames, self.fps, self.seconds = path, frames, fps, seconds

    def picture(self, number: int) -> Tensor:
        """A frame (uint8, C x H x W)."""
        raise NotImplementedError

    def name(self, number: int) -> str:
        """What a frame is called."""
        raise NotImplementedError

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.picture(0).shape[-2:]
        return height, width

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        places = _places(indices, self.frames, self.path)
        clip: Tensor | None = None
        for number, where in places.items():
            picture = self.picture(number)
            size = _shrunk(picture.shape[-2], picture.shape[-1], short_side)
            if size != tuple(picture.shape[-2:]):
                picture = F.resize(picture, list(size), antialias=True)
            if clip is None:
                clip = picture.new_empty(len(indices), *picture.shape)
            if picture.shape != clip.shape[1:]:
                first = next(iter(places))
                raise ValueError(
                    f"{self.path}: frames differ in size: {self.name(first)} has {_text(clip[0])}, "
                    f"{self.name(number)} has {_text(picture)}"
                )
            clip[where] = picture
        assert clip is not None
        return clip


class FilmFolder(FilmOfPictures):
    """A film whose frames are picture files.

    Args:
        path: their folder.
        names: the files in it, in the order of the frames.
        fps: frames a second.
        channels: 3 for colour, 1 for grey.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, path: str, names: Sequence[str], *, fps: float = 30.0, channels: Channels = 3) -> None:
        if not names:
            raise ValueError(f"{path} holds no pictures")
        super().__init__(path, len(names), fps, len(names) / fps)
        self._names, self._channels = names, channels

    def picture(self, number: int) -> Tensor:
        return read_image(os.path.join(self.path, self._names[number]), self._channels)

    def name(self, number: int) -> str:
        return self._names[number]


def _text(picture: Tensor) -> str:
    return f"{picture.shape[-2]} x {picture.shape[-1]}"


class VideoInMemory:
    """A film that is there already (:class:`opabinia.contracts.Video`).

    Args:
        pixels: uint8, T x C x H x W.
        path: what messages name.
        fps: frames a second.
    """

    def __init__(self, pixels: Tensor, *, path: str = "a film in memory", fps: float = 30.0) -> None:
        self.path, self.fps = path, fps
        self._pixels = pixels

    @property
    def frames(self) -> int:
        return len(self._pixels)

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    @property
    def size(self) -> tuple[int, int]:
        height, width = self._pixels.shape[-2:]
        return height, width

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        _places(indices, self.frames, self.path)
        clip = self._pixels[torch.tensor([int(number) for number in indices])]
        size = _shrunk(*self.size, short_side)
        found: Tensor = clip if size == self.size else F.resize(clip, list(size), antialias=True)
        return found
