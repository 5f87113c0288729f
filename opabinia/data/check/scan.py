"""Read every sample once, in several processes: size, errors, digests and hashes for finding duplicates."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from hashlib import blake2b
from multiprocessing import get_context
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Indices, Source, Video
from opabinia.data.check.image_hash import ImageHash, compute_hash
from opabinia.data.decoding.images import EncodedImage, LazyImage, open_image
from opabinia.data.decoding.values import is_array
from opabinia.data.decoding.video_index import damage
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.data.sources.named import NamedFiles
from opabinia.data.sources.segmentation_base import MapError

Position = tuple[int, int]
"""A sample: the index of its source, and its index in that source."""

CHUNK = 8
"""Samples that a process takes at once."""


class WorkerDied(Exception):
    """Reading has killed a process, which no Python error does."""

    exit_status = 2


class VideoLength(NamedTuple):
    """Length of a video."""

    frames: int
    seconds: float
    fps: float


@dataclass(frozen=True)
class SampleScan:
    """Result of reading a sample.

    Attributes:
        id: of the sample.
        is_video: a video, or an image.
        error: why it cannot be read; None if it can.
        truncated: it cannot be read because its file ends early.
        bad_map: its image can be read, but not its segmentation map.
        size: height and width.
        is_gray: all channels of the image, or of the three frames, are the same.
        bits: of a channel in the file: 8, or 16.
        file_digest: of its file; None if the source does not give the file, and for videos.
        pixel_digest: of size and pixels; for videos of the number of frames and of the first, middle and last frame.
        image_hash: of the image, or of these three frames; None if they have too little content to be compared.
        length: of a video.
        damage: what is wrong with a video that is still usable.
        pixels: of a segmentation map, the number of pixels with each value (int64, 256).
        moments: of an image in 0 to 1, mean and mean of the squares of each channel (float64, 2 x C).
    """

    id: str
    is_video: bool = False
    error: str | None = None
    truncated: bool = False
    bad_map: bool = False
    size: tuple[int, int] | None = None
    is_gray: bool = False
    bits: int = 8
    file_digest: bytes | None = None
    pixel_digest: bytes | None = None
    image_hash: ImageHash | None = None
    length: VideoLength | None = None
    damage: str | None = None
    pixels: Indices | None = None
    moments: NDArray[np.float64] | None = None


def scan_samples(sources: Sequence[Source], positions: Sequence[Position], workers: int) -> Iterator[SampleScan]:
    """Read samples, each once, and yield the results in the order of ``positions``.

    Args:
        sources: hold the samples.
        positions: the samples to read.
        workers: processes; 0 reads in this one.

    Raises:
        WorkerDied: reading has killed a process; the text names the samples that may be the cause.
    """
    if not workers:
        yield from (scan_sample(sources[source], index) for source, index in positions)
        return
    # Processes inherit the sources through fork: they may be large, and some hold open files.
    pool = ProcessPoolExecutor(workers, get_context("fork"), _init_worker, (sources, os.getpid()))
    done = 0
    try:
        for result in pool.map(_scan_position, positions, chunksize=CHUNK):
            yield result
            done += 1
    except BrokenProcessPool as error:
        source, index = positions[done]
        files = [os.fsdecode(path) for path in sources[source].paths(index)]  # its id may be known by reading it only
        raise WorkerDied(
            "a reading process was killed, by too little memory or by a file that crashes its decoder: "
            f"{files[0] if files else f'sample {index}'} or one of the {CHUNK * workers} samples after it "
            "(--workers 0 reads one by one)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_sources: Sequence[Source] = ()


def _init_worker(sources: Sequence[Source], parent: int) -> None:
    global _sources
    _sources = sources
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    torch.set_num_threads(1)
    Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent process has been killed; otherwise a worker would wait forever for the next task."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _scan_position(position: Position) -> SampleScan:
    source, index = position
    return scan_sample(_sources[source], index)


def lazy_image(source: Source, index: int) -> LazyImage | None:
    """Return the image of a sample, not yet decoded; None if the source only returns whole samples."""
    if isinstance(source, AnnotatedImages):
        return image_file(source, source.names[index])
    image = source.encoded(index)["image"] if source.info.encoded else None
    return image if isinstance(image, LazyImage) else None


def image_file(source: NamedFiles, name: bytes) -> EncodedImage:
    """Return an image below the root of a source, even if the source has dropped it."""
    return EncodedImage.file(os.path.join(os.fsencode(source.root), name), source.channels)


def sample_id(source: Source, index: int) -> str:
    """Return the id of a sample; its index if it must be read for that, which fails."""
    try:
        return source.id(index)
    except (ValueError, OSError):
        return f"sample {index}"


def scan_sample(source: Source, index: int) -> SampleScan:
    """Read one sample."""
    name = sample_id(source, index)
    try:
        lazy = lazy_image(source, index)
        if lazy is not None:
            return _scan_image(name, lazy.decode(), lazy.content if isinstance(lazy, EncodedImage) else None)
        sample = source[index]
    except (ValueError, OSError) as error:
        truncated = re.search("truncated|incomplete|premature|ends early|end of file", str(error), re.IGNORECASE)
        return SampleScan(name, error=str(error), truncated=truncated is not None, bad_map=isinstance(error, MapError))
    if "video" in sample:
        return _scan_video(name, sample["video"])
    image = sample.get("image")
    if not isinstance(image, Tensor):
        return SampleScan(name)
    scan = _scan_image(str(sample.get("id", name)), image)
    if "ground_truth_map" not in sample:
        return scan
    labels = torch.from_numpy(sample["ground_truth_map"].labels).flatten()
    return replace(scan, pixels=torch.bincount(labels, minlength=256).numpy())  # NumPy's takes eight bytes per pixel


def _scan_image(name: str, image: Tensor, content: bytes | None = None) -> SampleScan:
    height, width = image.shape[-2:]
    return SampleScan(
        name,
        size=(height, width),
        is_gray=_is_gray(image),
        bits=8 if content is None else _bits(content, image),
        file_digest=None if content is None else blake2b(content, digest_size=16).digest(),
        pixel_digest=_digest([image]),
        image_hash=compute_hash(image.unsqueeze(0)),
        moments=_moments(image),
    )


def _scan_video(name: str, video: Video) -> SampleScan:
    try:
        count = video.frames
        frames = video.read([0, count // 2, count - 1])
        length = VideoLength(count, video.seconds, video.fps)
    except (ValueError, OSError) as error:
        return SampleScan(name, is_video=True, error=str(error))
    height, width = frames.shape[-2:]
    return SampleScan(
        name,
        is_video=True,
        size=(height, width),
        is_gray=_is_gray(frames),
        pixel_digest=_digest([torch.tensor([count]), frames]),
        image_hash=compute_hash(frames),
        length=length,
        damage=damage(video.path),
    )


def _is_gray(images: Tensor) -> bool:
    """Return whether all channels (... x C x H x W) are the same."""
    return all(torch.equal(images.select(-3, 0), channel) for channel in images.unbind(-3)[1:])


def _moments(image: Tensor) -> NDArray[np.float64]:
    """Return mean and mean of the squares of each channel of an image (C x H x W) in 0 to 1 (2 x C)."""
    channels = image.as_subclass(Tensor).flatten(1)
    if image.dtype == torch.uint8:  # counting values is five times as fast as computing with pixels
        counts = torch.stack([torch.bincount(pixels, minlength=256) for pixels in channels]).numpy()
        levels = np.arange(256) / 255
        moments: NDArray[np.float64] = np.stack([levels, levels**2]) @ counts.T / channels.shape[1]
        return moments
    values = channels.double()
    return torch.stack([values.mean(1), values.square().mean(1)]).numpy()


def _bits(content: bytes, image: Tensor) -> int:
    """Return the bits of a channel in an image file, 8 or 16 (more count as 16), given its decoded pixels."""
    if image.is_floating_point():
        return 16
    if content.startswith(b"\xff\xd8") or is_array(content) or image.shape[0] not in (1, 3):
        return 8
    with open_image(content) as file:
        return 16 if file.mode.startswith("I") else 8


def _digest(tensors: Sequence[Tensor]) -> bytes:
    digest = blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.digest()
