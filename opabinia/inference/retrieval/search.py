"""What the search command does: find pictures in a gallery whose index lies on the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from opabinia.config import ConfigError, Problem, dump
from opabinia.data.loader import DataError
from opabinia.inference.load import load
from opabinia.inference.predict import found, line
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import Found, Gallery, embedded
from opabinia.runtime.files import DiskError, disk_errors, flush_to_disk, write_atomic
from opabinia.runtime.log import log, logging_to
from opabinia.training.run_folder import chosen_checkpoint, resolve, validation_sets

FORMAT = 1


def search(
    run: Path,
    gallery: Path,
    queries: Sequence[Path],
    *,
    index: Path | None = None,
    nearest: int = 10,
    as_json: bool = False,
    checkpoint: str = "best",
    device: str | None = None,
) -> None:
    """Print the pictures of a gallery that are nearest to each query, by the cosine of their embeddings.

    The embeddings of the gallery are kept in an exact index of faiss, and in a file with ``.json`` behind its name
    whose they are. While the gallery's files (names, sizes, times of change), the checkpoint and what is done to
    pictures stay the same, only queries are embedded; otherwise the index is made anew.

    Args:
        run: the run folder.
        gallery: the folder that is searched.
        queries: pictures, and folders of them.
        index: the file of the index; one for each gallery, in the run folder's ``search``, when not given.
        nearest: how many to tell.
        as_json: print a line for each query, as ``opabinia predict`` writes them, in place of tables.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: faiss is missing; there is no such run, checkpoint, file or folder; or ``index`` is another file.
        DataError: some queries could not be read, the others are answered; or nothing in the gallery can be.
    """
    library()
    path = chosen_checkpoint(run, checkpoint)
    file = index or default_index(run, gallery)
    refuse_other_files(file)
    with logging_to(None):
        predictor = load(run, checkpoint=str(path), device=device)
        pictures, others = list(found(queries, films=predictor.films)), list(found([gallery], films=predictor.films))
        searched = Index(file, described(run, path, gallery, others)).gallery(predictor, gallery, others)
    console = Console(highlight=False)
    broken: list[str] = []
    for names, _, embeddings in embedded(predictor, pictures, broken):
        for name, near in zip(names, searched.nearest(names, embeddings, nearest), strict=True):
            if as_json:
                print(json.dumps({"path": str(name), "nearest": [line(one) for one in near]}), flush=True)
            else:
                console.print(table(name, near))
    if broken:
        raise DataError(f"{len(broken)} of {len(pictures)} pictures could not be read:\n" + "\n".join(broken))


def table(query: Path, near: Iterable[Found]) -> Table:
    """An answer for people."""
    shown = Table("", str(query), "distance", "")
    for number, one in enumerate(near, 1):
        shown.add_row(str(number), str(one.path), f"{one.distance:.4f}", one.verdict or "")
    return shown


def library() -> Any:
    """faiss, which is an extra.

    Raises:
        ConfigError: it is missing.
    """
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(Problem("", "", "search needs faiss: pip install 'opabinia[search]'")) from error
    return faiss


# --- the index ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """What an index was made of; another gallery or model makes another index.

    Attributes:
        checkpoint: of the model: the checksum of its state.
        prepared: of what is done to pictures, and how the model computes.
        gallery: the folder.
        files: name, size in bytes, and time of the last change in nanoseconds, of each picture in it.
    """

    checkpoint: str
    prepared: str
    gallery: str
    files: list[list[Any]]


def described(run: Path, checkpoint: Path, gallery: Path, paths: Sequence[Path]) -> Described:
    """What an index of these pictures is made of."""
    config = resolve(run).config
    sets = validation_sets(config)
    said = {
        "task": config["task"],
        "transforms": sets[0]["transforms"] if sets else [],
        "precision": config["train"]["precision"],
        "weights": config["evaluate"]["weights"],
    }
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    stats = [(path, path.stat()) for path in paths]
    files = [[os.fspath(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    return Described(state["checksum"], _digest(dump(said)), str(gallery), files)


def default_index(run: Path, gallery: Path) -> Path:
    """Where the index of a gallery lies when nobody says."""
    whole = gallery.resolve()
    return run / "search" / f"{whole.name}-{_digest(str(whole))[:8]}.faiss"


def refuse_other_files(file: Path) -> None:
    """Only an index of ours is written anew.

    Raises:
        ConfigError: ``file`` is something else.
    """
    if file.exists() and not _beside(file).is_file():
        message = f"{file} is there already, and {_beside(file).name} is not beside it: it is no index of ours"
        raise ConfigError(Problem("command line", "--index", message))


class Index:
    """A file of faiss, and beside it what it was made of.

    Args:
        file: of faiss.
        described: what is to be searched.
    """

    def __init__(self, file: Path, described: Described) -> None:
        self._file, self._described = file, described

    def gallery(self, predictor: Predictor, root: Path, paths: Sequence[Path]) -> Gallery:
        """The gallery, from the disk if what lies there is of the same, otherwise embedded and written.

        Raises:
            DataError: none of the pictures can be read.
            DiskError: the index cannot be written.
        """
        names, index = self._kept() or self._made(predictor, root, paths)

        def look(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
            similarities, places = (torch.from_numpy(one) for one in index.search(embeddings.numpy(), k))
            return in_order(1 - similarities, places)

        return Gallery(names, root, look)

    def _kept(self) -> tuple[list[Path], Any] | None:
        """Pictures and index as they were written; None when they are of something else, or not whole."""
        try:
            about = json.loads(_beside(self._file).read_text(encoding="utf-8"))
            with self._file.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        except ValueError:
            about = None
        if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("checksum") != checksum:
            log.warning("%s is not whole; making it anew", self._file)
            return None
        if different := [key for key, value in asdict(self._described).items() if about["of"].get(key) != value]:
            log.info("%s is of something else (%s); making it anew", self._file, ", ".join(different))
            return None
        if missing := len(self._described.files) - len(about["pictures"]):
            log.warning(
                "%d of %d pictures could not be read when %s was made", missing, len(self._described.files), self._file
            )
        return [Path(name) for name in about["pictures"]], library().read_index(str(self._file))

    def _made(self, predictor: Predictor, root: Path, paths: Sequence[Path]) -> tuple[list[Path], Any]:
        faiss = library()
        log.info("making an index of %d pictures in %s", len(paths), root)
        index: Any = None
        pictures: list[Path] = []
        broken: list[str] = []
        for names, _, embeddings in embedded(predictor, paths, broken):
            index = index or faiss.IndexFlatIP(embeddings.shape[1])  # of length 1, so products are cosines
            index.add(embeddings.numpy())
            pictures += names
        if index is None:
            raise DataError(f"none of the {len(paths)} pictures in {root} can be read; the first: {broken[0]}")
        for message in broken:
            log.warning("left out: %s", message)
        self._write(faiss, index, pictures)
        return pictures, index

    def _write(self, faiss: Any, index: Any, pictures: Sequence[Path]) -> None:
        aside = self._file.with_name(f".{self._file.name}.{os.getpid()}.tmp")
        with disk_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                faiss.write_index(index, str(aside))
                with aside.open("rb") as file:
                    checksum = hashlib.file_digest(file, "sha256").hexdigest()
                flush_to_disk(aside)
                about = {
                    "format": FORMAT,
                    "checksum": checksum,
                    "of": asdict(self._described),
                    "pictures": [os.fspath(picture) for picture in pictures],
                }
                # First what tells of it: an index without is taken for somebody else's file.
                write_atomic(_beside(self._file), json.dumps(about) + "\n")
                aside.replace(self._file)
            except RuntimeError as error:  # all that faiss says of the disk
                raise DiskError(f"cannot write {self._file}: {error}") from error
            finally:
                aside.unlink(missing_ok=True)


def in_order(distances: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest first, and of equal ones the first in the gallery: faiss gives those in any order (both B x k)."""
    by_place = places.argsort(1)
    sorted_distances, order = distances.gather(1, by_place).sort(dim=1, stable=True)
    return sorted_distances, places.gather(1, by_place).gather(1, order)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
