"""Videos to track: files, folders of frames, sequences in the layout of MOTChallenge, URLs and cameras."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opabinia.config import ConfigError, Problem
from opabinia.contracts import FrameChannels
from opabinia.data.decoding.images import read_image
from opabinia.data.decoding.sequential import TimedFrame, is_video, read_frames
from opabinia.data.file_search import list_images
from opabinia.data.sources.mot_files import read_frame_list
from opabinia.data.sources.videos import natural_key
from opabinia.inference.frames import file_stem
from opabinia.inference.tracking.arrays import DEFAULT_RATE
from opabinia.runtime.addresses import is_live, public_name
from opabinia.runtime.storage import shown_path


@dataclass(frozen=True)
class Stream:
    """A video to track.

    Attributes:
        path: path or URL, as it is shown.
        name: name of its files, without suffix.
        read: returns its frames, with 1 or 3 channels.
        first: number of the first frame in files of MOTChallenge.
        is_live: whether frames are gone once they are read.
    """

    path: str
    name: str
    read: Callable[[FrameChannels], Iterator[TimedFrame]]
    first: int = 1
    is_live: bool = False


def find_streams(paths: Sequence[str], rate: float | None = None) -> list[Stream]:
    """Return the videos that paths name.

    Args:
        paths: video files, URLs, cameras; folders of frames, in the natural order of their names; sequences in the
            layout of MOTChallenge; and folders of sequences and video files.
        rate: frames per second of folders; None: those of ``seqinfo.ini``, or :data:`DEFAULT_RATE`.

    Raises:
        ConfigError: there is no such file, or nothing to track in a folder.
    """
    streams: list[Stream] = []
    for path in paths:
        try:
            found = list(_streams_of(path, rate))
        except ValueError as error:
            raise ConfigError(Problem("command line", "", str(error))) from error
        for stream in found:
            names = {other.name for other in streams}
            number = next(number for number in range(1, len(names) + 2) if _numbered(stream.name, number) not in names)
            streams.append(Stream(**{**vars(stream), "name": _numbered(stream.name, number)}))
    return streams


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _streams_of(path: str, rate: float | None) -> Iterator[Stream]:
    folder = Path(path)
    if is_live(path):
        yield Stream(public_name(path), file_stem(public_name(path)), partial(read_frames, path), is_live=True)
    elif not folder.is_dir():
        if not is_video(path):
            raise ValueError(f"{path} is no video; give a folder of frames, not a single image")
        yield Stream(shown_path(path), file_stem(path), partial(read_frames, path))
    elif _is_sequence(folder):
        yield _sequence(folder, rate)
    elif images := list(map(os.fsdecode, list_images(folder))):
        if (folder.parent / "seqinfo.ini").is_file():
            yield _sequence(folder.parent, rate)
        else:
            files = dict(enumerate(folder / name for name in sorted(images, key=natural_key)))
            yield _of_images(folder, files, 1, rate or DEFAULT_RATE)
    else:
        inside = sorted(folder.iterdir(), key=lambda entry: natural_key(entry.name))
        entries = [entry for entry in inside if _is_sequence(entry) or (entry.is_file() and is_video(entry.name))]
        if not entries:
            raise ValueError(f"{path} has no frames, no video files and no sequences (folders with img1) in it")
        for entry in entries:
            yield from _streams_of(str(entry), rate)


def _is_sequence(folder: Path) -> bool:
    return (folder / "seqinfo.ini").is_file() or (folder / "img1").is_dir()


def _sequence(folder: Path, rate: float | None) -> Stream:
    """Return a sequence in the layout of MOTChallenge, whose frames have the numbers in their names."""
    root = folder.absolute().parent
    info, images = read_frame_list(root, folder.absolute().name)
    first = min(images)
    files = {number - first: root / images[number] for number in sorted(images)}
    return _of_images(folder, files, first, rate or info.frame_rate or DEFAULT_RATE)


def _of_images(folder: Path, files: Mapping[int, Path], first: int, rate: float) -> Stream:
    return Stream(shown_path(folder), file_stem(folder.absolute().name), partial(_read_images, files, rate), first)


def _read_images(files: Mapping[int, Path], rate: float, channels: FrameChannels) -> Iterator[TimedFrame]:
    for number, file in files.items():
        yield TimedFrame(number, number / rate, read_image(file, channels))
