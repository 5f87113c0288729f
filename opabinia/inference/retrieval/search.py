"""The work of ``opabinia search``: find images in a gallery with a faiss index on the disk."""

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
from opabinia.inference.input_files import find_files, raise_skipped
from opabinia.inference.load import load
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import Gallery, Match, embed_files
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
    """Print the images of a gallery that are nearest to each query, by the cosine of their embeddings.

    The embeddings of the gallery are kept in an exact faiss index, their file names in a ``.json`` file beside it.
    While the gallery's files (names, sizes, modification times), the checkpoint and the preprocessing stay the same,
    only queries are embedded; otherwise the index is rebuilt.

    Args:
        run: the run folder.
        gallery: the folder that is searched.
        queries: images, and folders of them.
        index: file of the index; None: one for each gallery, in the run folder's ``search``.
        nearest: maximum number of matches per query.
        as_json: print a line for each query, as ``opabinia predict`` writes them, instead of tables.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: faiss is missing; there is no such run, checkpoint, file or folder; or ``index`` is another file.
        DataError: some queries could not be read (the others are answered), or no image of the gallery can be.
    """
    import_faiss()
    path = chosen_checkpoint(run, checkpoint)
    file = index or default_index(run, gallery)
    check_replaceable(file)
    with logging_to(None):
        predictor = load(run, checkpoint=str(path), device=device)
        query_files = list(find_files(queries, videos=predictor.takes_video))
        gallery_files = list(find_files([gallery], videos=predictor.takes_video))
        contents = describe_index(run, path, gallery, gallery_files)
        searched = Index(file, contents).gallery(predictor, gallery, gallery_files)
    console = Console(highlight=False)
    errors: list[str] = []
    for batch, embeddings in embed_files(predictor, query_files, errors):
        by_query = searched.nearest(batch.paths, embeddings, nearest)
        for query, matches in zip(batch.paths, by_query, strict=True):
            if as_json:
                line = {"path": str(query), "nearest": [match.to_json() for match in matches]}
                print(json.dumps(line), flush=True)
            else:
                console.print(_table(query, matches))
    raise_skipped(errors, len(query_files))


def _table(query: Path, matches: Iterable[Match]) -> Table:
    table = Table("", str(query), "distance", "")
    for number, match in enumerate(matches, 1):
        table.add_row(str(number), str(match.path), f"{match.distance:.4f}", match.verdict or "")
    return table


def import_faiss() -> Any:
    """Import faiss, an optional dependency.

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
class IndexContents:
    """The inputs of an index; if they change, it is rebuilt. The field names are keys of its ``.json`` file.

    Attributes:
        checkpoint: checksum of the model's state.
        prepared: digest of task, transforms, precision and choice of weights.
        gallery: the folder.
        files: name, size in bytes and modification time in nanoseconds of each image.
    """

    checkpoint: str
    prepared: str
    gallery: str
    files: list[list[Any]]


def describe_index(run: Path, checkpoint: Path, gallery: Path, paths: Sequence[Path]) -> IndexContents:
    """Return the contents that an index of these images must have."""
    config = resolve(run).config
    sets = validation_sets(config)
    preprocessing = {
        "task": config["task"],
        "transforms": sets[0]["transforms"] if sets else [],
        "precision": config["train"]["precision"],
        "weights": config["evaluate"]["weights"],
    }
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    stats = [(path, path.stat()) for path in paths]
    files = [[os.fspath(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    return IndexContents(state["checksum"], _digest(dump(preprocessing)), str(gallery), files)


def default_index(run: Path, gallery: Path) -> Path:
    """Return the default index file of a gallery."""
    resolved = gallery.resolve()
    return run / "search" / f"{resolved.name}-{_digest(str(resolved))[:8]}.faiss"


def check_replaceable(file: Path) -> None:
    """Check that ``file`` does not exist or is an index of ours.

    Raises:
        ConfigError: it is another file.
    """
    if file.exists() and not _description_file(file).is_file():
        message = f"{file} exists already, without {_description_file(file).name} beside it: it is not our index"
        raise ConfigError(Problem("command line", "--index", message))


class Index:
    """A faiss index file with a description beside it.

    Args:
        file: of faiss.
        contents: that it must have.
    """

    def __init__(self, file: Path, contents: IndexContents) -> None:
        self._file, self._contents = file, contents

    def gallery(self, predictor: Predictor, root: Path, paths: Sequence[Path]) -> Gallery:
        """Return the gallery; its index is read from the disk if it is up to date, otherwise built and written.

        Raises:
            DataError: none of the images can be read.
            DiskError: the index cannot be written.
        """
        images, index = self._load() or self._build(predictor, root, paths)

        def nearest(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
            similarities, indices = (torch.from_numpy(rows) for rows in index.search(embeddings.numpy(), k))
            return sort_matches(1 - similarities, indices)

        return Gallery(images, root, nearest)

    def _load(self) -> tuple[list[Path], Any] | None:
        """Return images and index from the disk; None if they are missing, outdated or damaged."""
        try:
            description = json.loads(_description_file(self._file).read_text(encoding="utf-8"))
            with self._file.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        except ValueError:
            description = None
        if (
            not isinstance(description, dict)
            or description.get("format") != FORMAT
            or description.get("checksum") != checksum
        ):
            log.warning("%s is damaged; rebuilding it", self._file)
            return None
        changed = [key for key, value in asdict(self._contents).items() if description["of"].get(key) != value]
        if changed:
            log.info("%s is outdated (%s changed); rebuilding it", self._file, ", ".join(changed))
            return None
        if missing := len(self._contents.files) - len(description["pictures"]):
            total = len(self._contents.files)
            log.warning("%d of %d images could not be read when %s was built", missing, total, self._file)
        return [Path(name) for name in description["pictures"]], import_faiss().read_index(str(self._file))

    def _build(self, predictor: Predictor, root: Path, paths: Sequence[Path]) -> tuple[list[Path], Any]:
        faiss = import_faiss()
        log.info("building an index of %d images in %s", len(paths), root)
        index: Any = None
        images: list[Path] = []
        errors: list[str] = []
        for batch, embeddings in embed_files(predictor, paths, errors):
            index = index or faiss.IndexFlatIP(embeddings.shape[1])  # embeddings have length 1: products are cosines
            index.add(embeddings.numpy())
            images += batch.paths
        if index is None:
            raise DataError(f"none of the {len(paths)} images in {root} can be read; the first: {errors[0]}")
        for message in errors:
            log.warning("skipped: %s", message)
        self._write(faiss, index, images)
        return images, index

    def _write(self, faiss: Any, index: Any, images: Sequence[Path]) -> None:
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}.tmp")
        with disk_errors(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                faiss.write_index(index, str(temporary))
                with temporary.open("rb") as file:
                    checksum = hashlib.file_digest(file, "sha256").hexdigest()
                flush_to_disk(temporary)
                description = {
                    "format": FORMAT,
                    "checksum": checksum,
                    "of": asdict(self._contents),
                    "pictures": [os.fspath(image) for image in images],
                }
                # The description comes first: an index without one would be taken for a foreign file.
                write_atomic(_description_file(self._file), json.dumps(description) + "\n")
                temporary.replace(self._file)
            except RuntimeError as error:  # faiss raises nothing else for disk errors
                raise DiskError(f"cannot write {self._file}: {error}") from error
            finally:
                temporary.unlink(missing_ok=True)


def sort_matches(distances: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sort matches (both B x k) by distance, ties by index in the gallery, which faiss returns in any order."""
    by_index = indices.argsort(1)
    sorted_distances, order = distances.gather(1, by_index).sort(dim=1, stable=True)
    return sorted_distances, indices.gather(1, by_index).gather(1, order)


def _description_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
