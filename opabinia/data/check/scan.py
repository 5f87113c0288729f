"""Reading every sample once, in several processes: sizes, errors, and what duplicates are told by."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import get_context
from threading import Thread

import torch
from torch import Tensor

from opabinia.contracts import Sample, Source, Video
from opabinia.data.check.datasets import id_of, picture_file
from opabinia.data.check.image_hash import Sketch, sketched
from opabinia.data.decoding.images import Encoded
from opabinia.data.decoding.video import damage

Place = tuple[int, int]
"""A sample: the number of its source, and its number in there."""

CHUNK = 8
"""Samples that a process takes at once."""


class Crashed(Exception):
    """Reading has ended a process, which no error in Python does."""

    exit_status = 2


@dataclass(frozen=True)
class Length:
    """How long a film is: ``frames``, ``seconds``, and frames a second (``fps``)."""

    frames: int
    seconds: float
    fps: float


@dataclass(frozen=True)
class Look:
    """What was seen of a sample.

    Attributes:
        id: what it is called.
        is_film: or a picture.
        error: why it cannot be read; None if it can.
        cut: it cannot be read because its file ends early.
        size: height and width.
        content: digest of its file; None where the source does not tell the file, and of films.
        pixels: digest of size and pixels; of films of the number of frames, and of the first, middle and last one.
        sketch: of the picture, or of these three frames; None where there is too little in it to be compared.
        length: of a film.
        damage: what is wrong with a film that can be used nonetheless.
    """

    id: str
    is_film: bool = False
    error: str | None = None
    cut: bool = False
    size: tuple[int, int] | None = None
    content: bytes | None = None
    pixels: bytes | None = None
    sketch: Sketch | None = None
    length: Length | None = None
    damage: str | None = None


def look_at(sources: Sequence[Source], places: Sequence[Place], workers: int) -> Iterator[Look]:
    """Read samples, each once.

    Args:
        sources: that hold them.
        places: which ones.
        workers: processes; 0 reads in this one.

    Yields:
        What was seen, in the order of ``places``.

    Raises:
        Crashed: reading has ended a process; the text names the samples that may have done it.
    """
    if not workers:
        yield from (look(sources[number], index) for number, index in places)
        return
    # The sources go to the processes by the fork: they may be large, and some hold open files.
    pool = ProcessPoolExecutor(workers, get_context("fork"), _begin, (sources, os.getpid()))
    done = 0
    try:
        for seen in pool.map(_look, places, chunksize=CHUNK):
            yield seen
            done += 1
    except BrokenProcessPool as error:
        number, index = places[done]
        after = CHUNK * workers
        raise Crashed(
            f"a process that reads was ended, by too little memory or by a file that crashes its decoder; it is "
            f"{id_of(sources[number], index)} or one of the {after} samples after it (--workers 0 reads one by one)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_sources: Sequence[Source] = ()


def _begin(sources: Sequence[Source], parent: int) -> None:
    """Ctrl-C is for the process that waits; threads would be in the other processes' way."""
    global _sources
    _sources = sources
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Nobody tells a process of the pool that the one that reads its results was killed: it would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _look(place: Place) -> Look:
    number, index = place
    return look(_sources[number], index)


def look(source: Source, index: int) -> Look:
    """Read one sample."""
    try:
        name = id_of(source, index)
    except (ValueError, OSError) as error:
        return Look(f"sample {index}", error=str(error))
    try:
        picture = picture_file(source, index)
        if picture is not None:
            content = picture.content if isinstance(picture, Encoded) else None
            return _of_picture(name, content, picture.pixels())
        sample = source[index]
    except (ValueError, OSError) as error:
        return Look(name, error=str(error), cut=_ends_early(str(error)))
    return _of_film(name, sample["video"]) if "video" in sample else _of_sample(name, sample)


def _ends_early(reason: str) -> bool:
    return re.search("truncated|incomplete|premature|ends early|end of file", reason, re.IGNORECASE) is not None


def _of_sample(name: str, sample: Sample) -> Look:
    if not isinstance(sample.get("image"), Tensor):
        return Look(name)
    image = sample["image"]
    return _of_picture(str(sample.get("id", name)), None, image if image.dtype == torch.uint8 else (image * 255).byte())


def _of_picture(name: str, content: bytes | None, image: Tensor) -> Look:
    return Look(
        name,
        size=_size(image),
        content=None if content is None else blake2b(content, digest_size=16).digest(),
        pixels=_digest([image]),
        sketch=sketched(image.unsqueeze(0)),
    )


def _of_film(name: str, film: Video) -> Look:
    try:
        count = film.frames
        frames = film.read([0, count // 2, count - 1])
        length = Length(count, film.seconds, film.fps)
    except (ValueError, OSError) as error:
        return Look(name, is_film=True, error=str(error))
    return Look(
        name,
        is_film=True,
        size=_size(frames),
        pixels=_digest([torch.tensor([count]), frames]),
        sketch=sketched(frames),
        length=length,
        damage=damage(film.path),
    )


def _size(image: Tensor) -> tuple[int, int]:
    height, width = image.shape[-2:]
    return height, width


def _digest(values: Sequence[Tensor]) -> bytes:
    found = blake2b(digest_size=16)
    for value in values:
        found.update(str(tuple(value.shape)).encode() + value.contiguous().numpy().tobytes())
    return found.digest()
