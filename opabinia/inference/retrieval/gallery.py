"""Pictures that others are looked up among, and who is on them as far as names tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from opabinia.contracts import Sample
from opabinia.inference.predictor import Predictor

Verdict = Literal["right", "wrong", "junk"]
"""What a picture found is: of the same identity, of another one, or of no use as an answer: the same identity seen by
the same camera, or a picture marked as junk."""


class Whose(NamedTuple):
    """Who or what is on a picture, and which camera has seen it; None where the name does not tell."""

    identity: str | None
    camera: str | None = None


_MARKET = re.compile(r"(-1|\d+)_[cC](\d+)")
_JUNK = "-1"


def whose(path: Path, root: Path | None = None) -> Whose:
    """What the name of a file tells: ``0002_c1s1_000451_03.jpg`` identity and camera (Market-1501's naming), otherwise
    the folder that it lies in the identity.

    Args:
        path: of the picture.
        root: the folder that was searched; lying in it, and not in one of its folders, tells nothing.
    """
    named = _MARKET.match(path.name)
    if named:
        return Whose(named[1], named[2])
    return Whose(None if path.parent == root else path.absolute().parent.name)


Look = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""From embeddings of queries (B x D) and k to distances and places in the gallery (both B x k), nearest first."""


class Gallery:
    """Pictures that are searched, and whose they are.

    Args:
        paths: of the pictures.
        root: the folder that was searched for them.
        look: how they are searched.
    """

    def __init__(self, paths: Sequence[Path], root: Path, look: Look) -> None:
        self.paths, self._look = list(paths), look
        self._whose = [whose(path, root) for path in paths]
        self._identities = {one.identity for one in self._whose} - {None}

    def nearest(self, paths: Sequence[Path], embeddings: Tensor, k: int) -> list[list[Found]]:
        """The k nearest to each of some pictures, nearest first; one that lies in the gallery does not find itself.

        Args:
            paths: of B pictures.
            embeddings: of them (B x D).
            k: how many; all of a smaller gallery.
        """
        distances, numbers = self._look(embeddings, min(k + 1, len(self.paths)))
        rows = zip(paths, numbers.tolist(), distances.tolist(), strict=True)
        return [self._others(path, zip(*row, strict=True))[:k] for path, *row in rows]

    def _others(self, query: Path, near: Iterable[tuple[int, float]]) -> list[Found]:
        itself, asked = query.resolve(), whose(query)
        return [
            Found(number, self.paths[number], distance, self._verdict(asked, self._whose[number]))
            for number, distance in near
            if self.paths[number].resolve() != itself
        ]

    def _verdict(self, query: Whose, found: Whose) -> Verdict | None:
        if query.identity not in self._identities or found.identity is None:
            return None
        if found.identity == _JUNK:
            return "junk"
        if found.identity != query.identity:
            return "wrong"
        return "junk" if query.camera is not None and query.camera == found.camera else "right"


class Found(NamedTuple):
    """A picture of the gallery that is near to a query.

    Attributes:
        number: in the gallery.
        path: of the picture.
        distance: 1 - cosine similarity, 0 to 2.
        verdict: None where names do not tell who is on both pictures.
    """

    number: int
    path: Path
    distance: float
    verdict: Verdict | None


def read(predictor: Predictor, paths: Sequence[Path], broken: list[str]) -> Iterator[tuple[list[Path], list[Sample]]]:
    """Batches of the pictures that can be read, transformed; what is wrong with the others goes to ``broken``."""
    for start in range(0, len(paths), predictor.batch_size):
        names: list[Path] = []
        samples: list[Sample] = []
        for path in paths[start : start + predictor.batch_size]:
            try:
                samples.append(predictor.sample(path))
                names.append(path)
            except (OSError, ValueError) as error:
                broken.append(str(error))
        if samples:
            yield names, samples


def embedded(
    predictor: Predictor, paths: Sequence[Path], broken: list[str]
) -> Iterator[tuple[list[Path], list[Sample], Tensor]]:
    """As :func:`read`, with the embeddings of each batch (B x D)."""
    for names, samples in read(predictor, paths, broken):
        yield names, samples, predictor.embeddings(samples)
