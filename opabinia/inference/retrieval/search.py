"""The work of ``opabinia search``: find images in a gallery with a faiss index on the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor
from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem, dump
from opabinia.config.datasets import validation_sets
from opabinia.engine.checkpointing.checkpoint import read_state
from opabinia.inference.input_files import find_files, raise_skipped
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import Gallery, embed_files, embed_gallery
from opabinia.runtime.files import DiskError, disk_errors, flush_to_disk
from opabinia.runtime.json_files import InvalidFile, read_json, write_json
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.text import plural
from opabinia.training.run_folder import chosen_checkpoint, resolve

FORMAT = 1

Contents = dict[str, Any]
"""The inputs of an index, see :func:`describe_index`."""


def search(
    model: RunModel,
    gallery: Path,
    queries: Sequence[Path],
    *,
    index: Path | None = None,
    nearest: int = 10,
    rerank: bool = False,
    as_json: bool = False,
) -> None:
    """Print the images of a gallery that are nearest to each query, by the cosine of their embeddings.

    The embeddings of the gallery are kept in an exact faiss index, their file names in a ``.json`` file beside it.
    While the gallery's files (names, sizes, modification times), the checkpoint and the preprocessing stay the same,
    only queries are embedded; otherwise the index is rebuilt.

    Args:
        model: the model that embeds the images.
        gallery: the folder that is searched.
        queries: images, and folders of them.
        index: file of the index; None: one for each gallery, in the run folder's ``search``.
        nearest: maximum number of matches per query.
        rerank: re-rank them, see :meth:`opabinia.inference.retrieval.gallery.Gallery.with_reranking`.
        as_json: print a line for each query, as ``opabinia predict`` writes them, instead of tables.

    Raises:
        ConfigError: faiss is missing; there is no such run, checkpoint, file or folder; or ``index`` is another file.
        DataError: some queries could not be read (the others are answered), or no image of the gallery can be.
    """
    import_faiss()
    path = chosen_checkpoint(model.run, model.checkpoint)
    root = gallery.resolve()
    file = index or model.run / "search" / f"{root.name}-{_digest(str(root))[:8]}.faiss"
    if file.exists() and not _description_file(file).is_file():
        message = f"{file} exists already, without {_description_file(file).name} beside it: it is not our index"
        raise ConfigError(Problem("command line", "--index", message))
    with logging_to(None):
        predictor = replace(model, checkpoint=str(path)).load()
        query_files = list(find_files(queries, videos=predictor.takes_video))
        gallery_files = list(find_files([gallery], videos=predictor.takes_video))
        contents = describe_index(model, path, predictor.weights, gallery, gallery_files)
        searched = open_gallery(file, contents, predictor, gallery, gallery_files)
        searched = searched.with_reranking() if rerank else searched
    folder = gallery if gallery.is_dir() else gallery.parent
    console = Console(highlight=False)
    errors: list[str] = []
    for batch, embeddings in embed_files(predictor, query_files, errors):
        by_query = searched.nearest(batch.paths, embeddings, nearest)
        for query, matches in zip(batch.paths, by_query, strict=True):
            if as_json:
                line = {"path": str(query), "nearest": [match.to_json() for match in matches]}
                print(json.dumps(line), flush=True)
            else:
                # Where file names give identities.
                verdict = ["verdict"] if any(match.verdict for match in matches) else []
                table = Table("", Column(Text(f"image in {folder}"), overflow="fold"), "distance", *verdict)
                for number, match in enumerate(matches, 1):
                    name = Text(os.path.relpath(match.path, folder))
                    table.add_row(str(number), name, f"{match.distance:.4f}", *[match.verdict or ""] * len(verdict))
                console.print(Text(str(query)), soft_wrap=True)
                console.print(table)
    raise_skipped(errors, len(query_files))


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


class _Description(TypedDict):
    format: int
    checksum: str
    of: dict[str, Any]
    pictures: list[str]


def describe_index(model: RunModel, checkpoint: Path, weights: str, gallery: Path, paths: Sequence[Path]) -> Contents:
    """Return the inputs of an index, as in its ``.json`` file; if they change, it is rebuilt.

    Returns:
        ``checkpoint``: checksum of the model's state; ``prepared``: digest of task, transforms, precision and choice of
        weights; ``gallery``: the folder; ``files``: name, size in bytes and modification time in nanoseconds of each
        image.
    """
    config = resolve(model.run, model.overrides).config
    sets = validation_sets(config)
    preprocessing = {
        "task": config["task"],
        "transforms": sets[0]["transforms"] if sets else [],
        "precision": config["train"]["precision"],
        "weights": weights,
    }
    stats = [(path, path.stat()) for path in paths]
    return {
        "checkpoint": read_state(checkpoint)["checksum"],
        "prepared": _digest(dump(preprocessing)),
        "gallery": str(gallery),
        "files": [[os.fspath(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats],
    }


def open_gallery(file: Path, contents: Contents, predictor: Predictor, root: Path, paths: Sequence[Path]) -> Gallery:
    """Return the gallery; its index is read from the disk if it is up to date, otherwise built and written.

    Args:
        file: index of faiss; a description is next to it.
        contents: see :func:`describe_index`.
        predictor: embeds the images.
        root: the folder of the gallery.
        paths: paths of its images.

    Raises:
        DataError: none of the images can be read.
        DiskError: the index cannot be written.
    """
    images, index = _load_index(file, contents) or _build_index(file, contents, predictor, root, paths)

    def nearest(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
        similarities, indices = (torch.from_numpy(rows) for rows in index.search(embeddings.numpy(), k))
        return sort_matches(1 - similarities, indices)

    return Gallery(images, root, nearest, lambda numbers: torch.from_numpy(index.reconstruct_batch(numbers.numpy())))


def _load_index(file: Path, contents: Contents) -> tuple[list[Path], Any] | None:
    """Return images and index from the disk; None if they are missing, outdated or damaged."""
    try:
        checksum = _checksum(file)
        description = read_json(_description_file(file), _Description)
        if (description["format"], description["checksum"]) != (FORMAT, checksum):
            raise InvalidFile(f"{file}: its checksum or format does not match")
    except FileNotFoundError:
        return None
    except (InvalidFile, OSError) as error:
        log.warning("rebuilding the index: %s", error)
        return None
    changed = [key for key, value in contents.items() if description["of"].get(key) != value]
    if changed:
        log.info("%s is outdated (%s changed); rebuilding it", file, ", ".join(changed))
        return None
    total = len(contents["files"])
    if missing := total - len(description["pictures"]):
        log.warning("%d of %d images could not be read when %s was built", missing, total, file)
    return [Path(name) for name in description["pictures"]], import_faiss().read_index(str(file))


def _build_index(
    file: Path, contents: Contents, predictor: Predictor, root: Path, paths: Sequence[Path]
) -> tuple[list[Path], Any]:
    log.info("building an index of %s in %s", plural(len(paths), "image"), root)
    errors: list[str] = []
    images, embeddings = embed_gallery(predictor, paths, root, errors)
    index = import_faiss().IndexFlatIP(embeddings.shape[1])  # embeddings have length 1: products are cosines
    index.add(embeddings.numpy())
    for message in errors:
        log.warning("skipped: %s", message)
    _write_index(file, contents, index, images)
    return images, index


def _write_index(file: Path, contents: Contents, index: Any, images: Sequence[Path]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            import_faiss().write_index(index, str(temporary))
            flush_to_disk(temporary)
            description = {
                "format": FORMAT,
                "checksum": _checksum(temporary),
                "of": contents,
                "pictures": [os.fspath(image) for image in images],
            }
            # The description comes first: an index without one would be taken for a foreign file.
            write_json(_description_file(file), description, indent=None)
            temporary.replace(file)
        except RuntimeError as error:  # faiss raises nothing else for disk errors
            raise DiskError(f"cannot write {file}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)


def sort_matches(distances: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sort matches (both B x k) by distance, ties by index in the gallery, which faiss returns in any order."""
    by_index = indices.argsort(1)
    sorted_distances, order = distances.gather(1, by_index).sort(dim=1, stable=True)
    return sorted_distances, indices.gather(1, by_index).gather(1, order)


def _description_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
