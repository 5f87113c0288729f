"""What a model says of files that were posted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import Sample
from opabinia.data.decoding.images import decoded
from opabinia.data.loader import DataError
from opabinia.evaluation.retrieval.distances import nearest
from opabinia.inference.predict import found
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import embedded
from opabinia.inference.serving.limits import Limits, Received, Refused, refuse_film, refuse_picture
from opabinia.runtime.log import log


class Neighbours:
    """Pictures among which the nearest ones are told.

    Args:
        predictor: embeds them.
        folder: holds them, at any depth.
        count: how many are told.

    Attributes:
        files: of the pictures, by their names below the folder.

    Raises:
        ConfigError: there is no such folder, or nothing in it.
        DataError: nothing in it can be read.
    """

    def __init__(self, predictor: Predictor, folder: Path, count: int = 10) -> None:
        paths: list[Path] = []
        features: list[Tensor] = []
        broken: list[str] = []
        for names, _, embeddings in embedded(predictor, list(found([folder], films=predictor.films)), broken):
            paths += names
            features.append(embeddings)
        for message in broken:
            log.warning("left out: %s", message)
        if not paths:
            raise DataError(f"nothing in {folder} can be read; the first: {broken[0]}")
        self.files = {path.relative_to(folder).as_posix(): path for path in paths}
        self._names, self._features, self._count = list(self.files), torch.cat(features), min(count, len(paths))

    def nearest(self, embeddings: Tensor) -> list[list[dict[str, Any]]]:
        """``path`` (below the folder) and ``distance`` (1 - cosine) of the nearest to each embedding (B x D)."""
        distances, numbers = nearest(embeddings, self._features, self._count)
        return [
            [
                {"path": self._names[number], "distance": round(distance, 6)}
                for number, distance in zip(places, row, strict=True)
            ]
            for places, row in zip(numbers.tolist(), distances.tolist(), strict=True)
        ]


class Answers:
    """Files in, plain values out, as :func:`opabinia.inference.predict.predict` writes them.

    Args:
        predictor: the model.
        limits: of what is accepted.
        neighbours: among which the nearest ones are told; None: what the task predicts is.
    """

    def __init__(self, predictor: Predictor, limits: Limits, neighbours: Neighbours | None = None) -> None:
        self.predictor, self.limits, self.neighbours = predictor, limits, neighbours

    def __call__(self, files: Sequence[Received]) -> list[dict[str, Any]]:
        """For each file its ``path`` (the name it was sent by) and the task's readable prediction, or ``nearest``.

        Raises:
            Refused: one of them is not accepted, or broken; nothing is said of the others.
        """
        for one in files:
            (refuse_film if self.predictor.films else refuse_picture)(one, self.limits)
        samples = [self._sample(one) for one in files]
        said = self._said(samples)
        return [{"path": one.name, **values} for one, values in zip(files, said, strict=True)]

    def _said(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        if self.neighbours is not None:
            return [{"nearest": near} for near in self.neighbours.nearest(self.predictor.embeddings(samples))]
        return [prediction.readable for prediction in self.predictor.batch(samples)]

    def _sample(self, one: Received) -> Sample:
        try:
            if self.predictor.films:
                return self._film(one.content)
            return self.predictor.sample(decoded(one.content, one.name, self.predictor.channels))
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Refused(422, f"{one.name} is broken: {first}") from error

    def _film(self, content: bytes) -> Sample:
        descriptor, path = tempfile.mkstemp(prefix="opabinia-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return self.predictor.sample(path)
        finally:
            os.unlink(path)
