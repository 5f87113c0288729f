"""Films taken apart into JPEGs, which are read more quickly: what ``opabinia data pack`` does."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from opabinia.contracts import DataMismatch, Source, Video
from opabinia.data.sources.packed_videos import COLUMNS, FORMAT, INDEX, PLACE, shard_name
from opabinia.data.sources.video_views import ViewsOfFilms
from opabinia.runtime.files import DiskError, disk_errors, exclusive_lock, write_atomic
from opabinia.runtime.log import log

FILMS = 64
"""In a shard."""

_MEMORY = 256 * 2**20
"""Bytes of pixels that are decoded at once, of one film."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Packed:
    """What was written.

    Attributes:
        films, frames: how many.
        bytes: of all files.
        left_out: films that could not be read.
    """

    films: int
    frames: int
    bytes: int
    left_out: int


def pack(
    source: Source, folder: Path, *, size: int | None = None, quality: int = 90, workers: int = 1, skip: bool = False
) -> Packed:
    """Write the films of a source as JPEGs in tar files, for the source ``packed_films``.

    Each shard is written aside and renamed; who is stopped goes on with the first one that is missing. The index is
    written last.

    Args:
        source: of films; of several views of each (``views_of_films``) the films are taken.
        folder: to be written; new, or left by a packing of the same films that was stopped.
        size: shrink larger frames until their shorter side has so many pixels.
        quality: of the JPEGs, 1 to 95.
        workers: threads that decode and write, a shard each.
        skip: leave out films that cannot be read, which are told.

    Raises:
        Unfit: the samples are no films, the folder holds other ones, or (without ``skip``) one cannot be read.
        DiskError: the folder cannot be written to.
    """
    source = source.source if isinstance(source, ViewsOfFilms) else source
    if not len(source) or "video" not in source[0]:
        raise DataMismatch("only films can be packed, and the samples of this source are none")
    if (folder / INDEX).exists():
        raise DataMismatch(f"{folder} holds packed films already; take another folder")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder):
        shards = [range(first, min(first + FILMS, len(source))) for first in range(0, len(source), FILMS)]
        write = partial(_shard, source, folder, size=size, quality=quality, skip=skip)
        with ThreadPoolExecutor(workers) as pool:
            try:
                rows = [row for own in pool.map(write, range(len(shards)), shards) for row in own]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if not rows:
            raise DataMismatch(f"none of the {len(source)} films can be read")
        sizes = [(folder / shard_name(number)).stat().st_size for number in range(len(shards))]
        _write_index(source, folder, rows, sizes)
        for number in range(len(shards)):
            _part(folder, number).unlink(missing_ok=True)
    written = sum(sizes) + (folder / INDEX).stat().st_size
    return Packed(len(rows), sum(row["frames"] for row in rows), written, len(source) - len(rows))


def _write_index(source: Source, folder: Path, rows: Rows, sizes: list[int]) -> None:
    known = {
        "format": FORMAT,
        "classes": list(source.classes),
        "multi_label": bool(getattr(source, "multi_label", False)),
        "channels": source.channels,
        "sizes": sizes,
        "films": {name: [row[name] for row in rows] for name in COLUMNS},
    }
    write_atomic(folder / INDEX, json.dumps(known))


# --- shards -----------------------------------------------------------------------------------------------------------


def _part(folder: Path, number: int) -> Path:
    """What is known of the films of a finished shard, until all are finished."""
    return folder / f"{number:05d}.json"


def _shard(
    source: Source, folder: Path, number: int, films: range, *, size: int | None, quality: int, skip: bool
) -> Rows:
    """Write a shard, unless that is done already."""
    part = _part(folder, number)
    asked = _digest(source, size, quality)
    if part.exists():
        known = json.loads(part.read_bytes())
        if known["of"] != asked:
            raise DataMismatch(
                f"{folder} holds a part of other films, or of another size or quality; take another folder"
            )
        rows: Rows = known["films"]
        return rows
    path = folder / shard_name(number)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with disk_errors(path), tarfile.open(aside, "w", format=tarfile.USTAR_FORMAT) as tar:
            found = [_film(source, index, tar, path, size, quality, skip) for index in films]
        with disk_errors(path):
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    rows = [{**row, "shard": number} for row in found if row is not None]
    write_atomic(part, json.dumps({"of": asked, "films": rows}))
    log.info("%s: films %d to %d, %.1f MB", path, films.start, films.stop - 1, path.stat().st_size / 1e6)
    return rows


def _digest(source: Source, size: int | None, quality: int) -> str:
    own = getattr(source, "fingerprint", None)
    content = [FORMAT, FILMS, str(own() if callable(own) else len(source)), source.channels, size, quality]
    return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _film(
    source: Source, index: int, tar: tarfile.TarFile, path: Path, size: int | None, quality: int, skip: bool
) -> dict[str, Any] | None:
    """Write a film, and what the index says of it; None where it cannot be read and is left out."""
    try:
        sample = source[index]
        film: Video = sample["video"]
        places = []
        for number, frame in enumerate(_frames(film, size)):
            places.append(_add(tar, path, f"{index:08d}/{number:06d}.jpg", _jpeg(frame, quality)))
    except (ValueError, OSError) as error:
        if not skip or isinstance(error, DiskError):
            raise DataMismatch(f"film {index}: {error}") from error
        log.warning("left out: film %d: %s", index, error)
        return None
    table = BytesIO()
    np.save(table, np.array(places, dtype=PLACE), allow_pickle=False)
    place, place_size = _add(tar, path, f"{index:08d}.npy", table.getvalue())
    tar.members.clear()  # type: ignore[attr-defined]  # it would keep one for every frame
    label = sample["label"]
    return {
        "id": sample["id"],
        "label": label.nonzero().flatten().tolist() if isinstance(label, Tensor) else int(label),
        "directed": bool(sample.get("directed", False)),
        "frames": len(places),
        "fps": film.fps,
        "seconds": film.seconds,
        "place": place,
        "place_size": place_size,
    }


def _frames(film: Video, size: int | None) -> Iterator[Tensor]:
    """All frames in order, some at a time."""
    height, width = film.size
    shrunk = min(1.0, size / min(height, width)) if size else 1.0
    few = max(1, int(_MEMORY / (3 * height * width * shrunk**2)))
    for first in range(0, film.frames, few):
        yield from film.read(range(first, min(first + few, film.frames)), size)


def _jpeg(frame: Tensor, quality: int) -> bytes:
    pixels = frame.permute(1, 2, 0).contiguous().numpy()
    content = BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(content, "JPEG", quality=quality)
    return content.getvalue()


def _add(tar: tarfile.TarFile, path: Path, name: str, content: bytes) -> tuple[int, int]:
    """Where the content lies in the file: offset and size."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    with disk_errors(path):
        tar.addfile(member, BytesIO(content))
    return tar.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, len(content)
