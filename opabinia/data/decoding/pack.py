"""Convert videos to JPEG frames in tar files, which are faster to read (``opabinia data pack``)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from opabinia.contracts import DataMismatch, Source, Video
from opabinia.data.sources.packed_videos import FORMAT, FRAME_RECORD, INDEX_COLUMNS, INDEX_FILE, shard_name
from opabinia.data.sources.videos import VideoViews
from opabinia.runtime.files import DiskError, disk_errors, exclusive_lock, temporary_file, write_atomic
from opabinia.runtime.log import log
from opabinia.runtime.text import plural

VIDEOS_PER_SHARD = 64

_MAX_PIXEL_BYTES = 256 * 2**20
"""Maximum bytes of pixels that are decoded at once, per thread."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class PackResult:
    """Size of a packed dataset.

    Attributes:
        videos: number of packed videos.
        frames: number of frames in them.
        bytes: size of all files.
        skipped: number of videos that could not be read.
    """

    videos: int
    frames: int
    bytes: int
    skipped: int


@dataclass(frozen=True)
class _Packer:
    """Properties that all shards share."""

    source: Source
    folder: Path
    size: int | None
    quality: int
    skip: bool

    def write_shard(self, number: int, videos: range) -> Rows:
        """Write a shard and return the rows of the index; a finished shard of an interrupted run is kept."""
        finished = self.rows_file(number)
        digest = self._digest()
        if finished.exists():
            content = json.loads(finished.read_bytes())
            if content["of"] != digest:
                raise DataMismatch(
                    f"{self.folder} holds a part of other videos, or of another size or quality; take another folder"
                )
            return list(content["films"])
        path = self.folder / shard_name(number)
        with temporary_file(path) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            rows = [row | {"shard": number} for index in videos if (row := self._add_video(index, tar, path))]
        write_atomic(finished, json.dumps({"of": digest, "films": rows}))
        log.info("%s: videos %d to %d, %.1f MB", path, videos.start, videos.stop - 1, path.stat().st_size / 1e6)
        return rows

    def rows_file(self, number: int) -> Path:
        """Return the file with the rows of a finished shard, which exists until all are finished."""
        return self.folder / f"{number:05d}.json"

    def _digest(self) -> str:
        source = self.source
        content = [FORMAT, VIDEOS_PER_SHARD, source.fingerprint(), source.channels, self.size, self.quality]
        return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    def _add_video(self, index: int, tar: tarfile.TarFile, path: Path) -> dict[str, Any] | None:
        """Write the frames of a video and return its row of the index; None if it cannot be read and is skipped."""
        try:
            sample = self.source[index]
            video: Video = sample["video"]
            locations = [
                _add_file(tar, path, f"{index:08d}/{number:06d}.jpg", _encode(frame, self.quality))
                for number, frame in enumerate(_frames(video, self.size))
            ]
        except (ValueError, OSError) as error:
            if not self.skip or isinstance(error, DiskError):
                raise DataMismatch(f"video {index}: {error}") from error
            log.warning("skipped: video %d: %s", index, error)
            return None
        table = BytesIO()
        np.save(table, np.array(locations, dtype=FRAME_RECORD), allow_pickle=False)
        place, place_size = _add_file(tar, path, f"{index:08d}.npy", table.getvalue())
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps a record of every frame in memory
        label = sample["label"]
        return {
            "id": sample["id"],
            "label": label.nonzero().flatten().tolist() if isinstance(label, Tensor) else int(label),
            "directed": bool(sample.get("flip_changes_label", False)),
            "frames": len(locations),
            "fps": video.fps,
            "seconds": video.seconds,
            "place": place,
            "place_size": place_size,
        }


def pack(
    source: Source, folder: Path, *, size: int | None = None, quality: int = 90, workers: int = 1, skip: bool = False
) -> PackResult:
    """Write the videos of a source as JPEG frames in tar files, for the source ``packed_videos``.

    Each shard is written under a temporary name and renamed; after an interruption packing resumes with the first
    missing shard. The index is written last.

    Args:
        source: of videos; of a source of views of videos the videos are packed.
        folder: output; new, or left by an interrupted packing of the same videos.
        size: downscale larger frames to this length of the shorter side, in pixels.
        quality: of the JPEGs, 1 to 95.
        workers: threads that decode and write, a shard each.
        skip: skip videos that cannot be read, with a warning.

    Raises:
        DataMismatch: the samples are not videos, the folder holds other ones, or (without ``skip``) one cannot be read.
        DiskError: the folder cannot be written to.
    """
    source = source.source if isinstance(source, VideoViews) else source
    if not len(source) or "video" not in source[0]:
        raise DataMismatch("only videos can be packed, and the samples of this source are not videos")
    if (folder / INDEX_FILE).exists():
        raise DataMismatch(f"{folder} holds packed videos already; take another folder")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    packer = _Packer(source, folder, size, quality, skip)
    with exclusive_lock(folder):
        starts = range(0, len(source), VIDEOS_PER_SHARD)
        shards = [range(first, min(first + VIDEOS_PER_SHARD, len(source))) for first in starts]
        with ThreadPoolExecutor(workers) as pool:
            try:
                written = pool.map(packer.write_shard, range(len(shards)), shards)
                rows = [row for shard_rows in written for row in shard_rows]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if not rows:
            raise DataMismatch(f"none of {plural(len(source), 'video')} can be read")
        sizes = [(folder / shard_name(number)).stat().st_size for number in range(len(shards))]
        index = {
            "format": FORMAT,
            "classes": list(source.classes),
            "multi_label": source.info.multi_label,
            "channels": source.channels,
            "sizes": sizes,
            "films": {name: [row[name] for row in rows] for name in INDEX_COLUMNS},
        }
        write_atomic(folder / INDEX_FILE, json.dumps(index))
        for number in range(len(shards)):
            packer.rows_file(number).unlink(missing_ok=True)
    total = sum(sizes) + (folder / INDEX_FILE).stat().st_size
    return PackResult(len(rows), sum(row["frames"] for row in rows), total, len(source) - len(rows))


def _frames(video: Video, size: int | None) -> Iterator[Tensor]:
    """Yield all frames in order, decoding several at a time."""
    height, width = video.size
    scale = min(1.0, size / min(height, width)) if size else 1.0
    chunk = max(1, int(_MAX_PIXEL_BYTES / (3 * height * width * scale**2)))
    for first in range(0, video.frames, chunk):
        yield from video.read(range(first, min(first + chunk, video.frames)), size)


def _encode(frame: Tensor, quality: int) -> bytes:
    content = BytesIO()
    to_pil_image(frame).save(content, "JPEG", quality=quality)
    return content.getvalue()


def _add_file(tar: tarfile.TarFile, path: Path, name: str, content: bytes) -> tuple[int, int]:
    """Add a file and return the offset and size of its content in the tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    with disk_errors(path):
        tar.addfile(member, BytesIO(content))
    return tar.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, len(content)
