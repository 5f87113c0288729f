"""Galleries of images that are searched, and the identities that their file names give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from opabinia.data.errors import DataError
from opabinia.evaluation.retrieval.rerank import k_reciprocal
from opabinia.inference.input_files import InputBatch, read_batches
from opabinia.inference.predictor import Predictor
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import plural

Verdict = Literal["right", "wrong", "junk"]
"""A match has the same identity, another one, or is ignored by evaluations: the same identity on the same camera, or an
image marked as junk."""


class Identity(NamedTuple):
    """Identity and camera of an image; None if the name does not give them."""

    identity: str | None
    camera: str | None = None


_MARKET = re.compile(r"(-1|\d+)_[cC](\d+)")
_JUNK = "-1"


def identity_from_path(path: Path, root: Path | None = None) -> Identity:
    """Return identity and camera from a name such as ``0002_c1s1_000451_03.jpg`` (Market-1501), otherwise the folder
    of the file as the identity.

    Args:
        path: path of the image.
        root: the folder that is searched; a file directly in it has no identity.
    """
    match = _MARKET.match(path.name)
    if match:
        return Identity(match[1], match[2])
    return Identity(None if path.parent == root else path.absolute().parent.name)


CANDIDATES = 100
"""Nearest images of a query that are re-ranked."""

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Maps embeddings of queries (B x D) and k to distances and indices in the gallery (both B x k), nearest first."""


class Match(NamedTuple):
    """An image of the gallery that is near a query.

    Attributes:
        number: index in the gallery.
        path: path of the image.
        distance: 1 - cosine similarity, 0 to 2; or the re-ranked distance.
        verdict: None if names do not give both identities.
    """

    number: int
    path: Path
    distance: float
    verdict: Verdict | None

    def to_json(self) -> dict[str, Any]:
        """Return the match as it is written to ``predictions.jsonl``."""
        return {"path": shown_path(self.path), "distance": round(self.distance, 6), "verdict": self.verdict}


class Gallery:
    """Images that are searched, with their identities.

    Args:
        paths: paths of the images.
        root: the folder that is searched.
        search: finds the nearest of them.
        embeddings: maps indices of images to their embeddings (n to n x D).
    """

    def __init__(
        self, paths: Sequence[Path], root: Path, search: Search, embeddings: Callable[[Tensor], Tensor]
    ) -> None:
        self.paths, self.root, self._search, self._embeddings = list(paths), root, search, embeddings
        self._identities = [identity_from_path(path, root) for path in paths]
        self._known = {item.identity for item in self._identities} - {None}

    def nearest(self, paths: Sequence[Path], embeddings: Tensor, k: int) -> list[list[Match]]:
        """Return the k nearest images for each query, nearest first, without the query itself.

        Args:
            paths: paths of B queries.
            embeddings: embeddings of the queries (B x D).
            k: maximum number of matches.
        """
        distances, indices = self._search(embeddings, min(k + 1, len(self.paths)))
        nearest = []
        for query, *row in zip(paths, indices.tolist(), distances.tolist(), strict=True):
            resolved, identity = query.resolve(), identity_from_path(query)
            matches = [
                Match(index, self.paths[index], distance, self._verdict(identity, self._identities[index]))
                for index, distance in zip(*row, strict=True)
                if self.paths[index].resolve() != resolved
            ]
            nearest.append(matches[:k])
        return nearest

    def with_reranking(self) -> Gallery:
        """Return the gallery with k-reciprocal re-ranking (:mod:`opabinia.evaluation.retrieval.rerank`) of the
        :data:`CANDIDATES` nearest images of each query, alone; distances are the re-ranked ones."""

        def nearest(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
            _, candidates = self._search(embeddings, min(max(k, CANDIDATES), len(self.paths)))
            distances, indices = torch.zeros(len(embeddings), k), candidates[:, :k].clone()
            for row, (query, near) in enumerate(zip(embeddings, candidates, strict=True)):
                distances[row : row + 1], order = k_reciprocal(query[None], self._embeddings(near)).nearest(k)
                indices[row] = near[order[0]]
            return distances, indices

        return Gallery(self.paths, self.root, nearest, self._embeddings)

    def _verdict(self, query: Identity, match: Identity) -> Verdict | None:
        if query.identity not in self._known or match.identity is None:
            return None
        if match.identity == _JUNK:
            return "junk"
        if match.identity != query.identity:
            return "wrong"
        return "junk" if query.camera is not None and query.camera == match.camera else "right"


def embed_files(predictor: Predictor, paths: Sequence[Path], errors: list[str]) -> Iterator[tuple[InputBatch, Tensor]]:
    """Yield :func:`opabinia.inference.input_files.read_batches` with the embeddings of each batch (B x D)."""
    for batch in read_batches(predictor, paths, errors):
        yield batch, predictor.embeddings(batch.samples)


def embed_gallery(
    predictor: Predictor, paths: Sequence[Path], folder: Path, errors: list[str]
) -> tuple[list[Path], Tensor]:
    """Return the N images of a gallery that can be read, and their embeddings (N x D).

    Raises:
        DataError: none can be read.
    """
    readable: list[Path] = []
    embeddings: list[Tensor] = []
    with progress_bar("embed gallery", len(paths), unit="images") as bar:
        for batch, rows in embed_files(predictor, paths, errors):
            readable += batch.paths
            embeddings.append(rows)
            bar.advance(len(batch))
    if not readable:
        raise DataError(f"none of {plural(len(paths), 'file')} in {folder} can be read; the first: {errors[0]}")
    return readable, torch.cat(embeddings)
