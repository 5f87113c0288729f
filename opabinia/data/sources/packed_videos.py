"""Films taken apart into pictures in a few large files, as ``opabinia data pack`` writes them."""

from __future__ import annotations

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Sample, Video
from opabinia.data.decoding.images import decoded
from opabinia.data.decoding.video import FilmOfPictures
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.shards import Files
from opabinia.data.sources.videos import Films

INDEX = "films.json"
FORMAT = 1
PLACE = np.dtype([("offset", "<i8"), ("size", "<u4")])
"""Where a frame lies in its shard, in bytes."""

COLUMNS = ("id", "label", "directed", "frames", "fps", "seconds", "shard", "place", "place_size")
"""What the index tells of each film; its places (:data:`PLACE`, one a frame) are a member of the shard, in numpy's
format."""


def shard_name(number: int) -> str:
    """The tar file with this number."""
    return f"{number:05d}.tar"


@register.source
class PackedFilms(Films):
    """Films that ``opabinia data pack`` took apart: their frames are JPEGs in tar files. A clip reads its frames, and
    no others, so that it costs as little from the end of a long film as from its start.

    Samples are those of the source that was packed: the same order, ids, labels, numbers of frames and rates, so that
    the same clips are drawn. Their pixels are those of JPEGs, and as small as they were packed.

    Args:
        root: the folder that was written.
        channels: 3 for colour, 1 for grey; as they were packed when not given.
        directed: classes that a mirror image would change; those of the source that was packed when not given.

    Raises:
        ValueError: the folder or a file in it is missing, damaged or cut off, or ``directed`` names what is no class.
    """

    def __init__(self, *, root: Path, channels: Literal[1, 3] | None = None, directed: list[str] | None = None) -> None:
        self.root = existing_folder(root.expanduser(), "root is the folder that opabinia data pack has written")
        known, films = _read_index(self.root)
        names = [str(name).encode() for name in films["id"]]
        classes = [str(name) for name in known["classes"]]
        labels = label_rows(films["label"], len(classes), bool(known["multi_label"]))
        super().__init__(names, labels, classes, channels or known["channels"], directed or [])
        self._told = np.array(films["directed"], dtype=bool) if directed is None else None
        self._numbers = {name: np.array(films[name]) for name in COLUMNS[3:]}
        self._sizes = [int(size) for size in known["sizes"]]
        paths = [str(self.root / shard_name(number)) for number in range(len(self._sizes))]
        _check_sizes(paths, self._sizes)
        self._files = Files(paths)

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return sample if self._told is None else {**sample, "directed": bool(self._told[index])}

    def film(self, index: int) -> Video:
        row = {name: column[index].item() for name, column in self._numbers.items()}
        return _PackedFilm(f"{self.root / shard_name(row['shard'])}, {self.id(index)}", row, self)

    def read(self, shard: int, offset: int, size: int, name: str) -> bytes:
        """Some bytes of a shard.

        Raises:
            ValueError: there are none; the text begins with ``name``.
        """
        if not 0 <= offset <= offset + size <= self._sizes[shard]:
            raise ValueError(f"{name}: its index is damaged: there are no bytes {offset} to {offset + size}")
        return self._files.read(shard, offset, size)


class _PackedFilm(FilmOfPictures):
    """A film in a shard.

    Args:
        path: what messages name.
        row: of the index: ``frames``, ``fps``, ``seconds``, and where its places are.
        source: that reads the shard.
    """

    def __init__(self, path: str, row: dict[str, Any], source: PackedFilms) -> None:
        super().__init__(path, row["frames"], row["fps"], row["seconds"])
        self._row, self._source = row, source
        self._places: NDArray[np.void] | None = None

    def picture(self, number: int) -> Tensor:
        if self._places is None:
            self._places = self._read_places()
        offset, size = self._places[number].tolist()
        content = self._source.read(self._row["shard"], offset, size, self.path)
        return decoded(content, f"{self.path}: {self.name(number)}", self._source.channels)

    def name(self, number: int) -> str:
        return f"frame {number}"

    def _read_places(self) -> NDArray[np.void]:
        shard, place, size = (self._row[name] for name in ("shard", "place", "place_size"))
        content = self._source.read(shard, place, size, self.path)
        try:
            places: NDArray[np.void] = np.load(BytesIO(content), allow_pickle=False)
            if places.dtype != PLACE or places.shape != (self.frames,):
                raise ValueError(f"{places.shape} of {places.dtype}")
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{self.path}: the shard has changed since it was written ({error})") from error
        return places


def label_rows(labels: list[Any], classes: int, multi_label: bool) -> Any:
    """Labels as sources tell them: int64, N; of several labels a film float32, N x K, of 0 and 1."""
    if not multi_label:
        return np.array(labels, dtype=np.int64)
    rows = np.zeros((len(labels), classes), dtype=np.float32)
    for row, own in zip(rows, labels, strict=True):
        row[np.array(own, dtype=np.int64)] = 1
    return rows


def _read_index(root: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What holds for all films, and a column for each of :data:`COLUMNS`."""
    file = root / INDEX
    if not file.is_file():
        begun = ": packing has begun there, and not ended" if any(root.glob("*.tar")) else ""
        raise ValueError(f"{root} holds no {INDEX}{begun}; opabinia data pack writes it last")
    try:
        known = json.loads(file.read_bytes())
        films = known["films"]
        if known["format"] != FORMAT:
            raise ValueError(f"format {known['format']}, expected {FORMAT}")
        if not films["id"] or len({len(films[name]) for name in COLUMNS}) > 1:
            raise ValueError("it lists no films, or not as many everywhere")
        if known["channels"] not in (1, 3) or not {*films["shard"]} <= {*range(len(known["sizes"]))}:
            raise ValueError("channels or shards are none")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error}); pack the films anew") from error
    return known, films


def _check_sizes(paths: list[str], sizes: list[int]) -> None:
    for path, size in zip(paths, sizes, strict=True):
        found = os.path.getsize(path) if os.path.isfile(path) else None
        if found != size:
            has = "is missing" if found is None else f"has {found} bytes, and {INDEX} says {size}"
            raise ValueError(f"{path} {has}; pack the films anew")
