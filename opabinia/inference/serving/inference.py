"""Predictions for uploaded files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from opabinia.contracts import Sample
from opabinia.data.decoding.images import decode_bytes
from opabinia.data.sources.file_names import decode_name
from opabinia.evaluation.retrieval.distances import nearest
from opabinia.inference.input_files import find_files
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import embed_gallery
from opabinia.inference.serving.limits import Limits, RequestError, Upload, check_image, check_video
from opabinia.runtime.log import log


class ServedGallery:
    """Images whose nearest ones are returned for each upload.

    Args:
        predictor: embeds them.
        folder: of the images, at any depth.
        count: number of nearest images.

    Attributes:
        files: images by their path below the folder.

    Raises:
        ConfigError: there is no such folder, or it has no images.
        DataError: no image can be read.
    """

    def __init__(self, predictor: Predictor, folder: Path, count: int = 10) -> None:
        errors: list[str] = []
        paths = list(find_files([folder], videos=predictor.takes_video))
        readable, self._features = embed_gallery(predictor, paths, folder, errors)
        for message in errors:
            log.warning("skipped: %s", message)
        # Names need not be valid UTF-8; answers are.
        self.files = {decode_name(os.fsencode(path.relative_to(folder).as_posix())): path for path in readable}
        self._names, self._count = list(self.files), min(count, len(readable))

    def nearest(self, embeddings: Tensor) -> list[list[dict[str, Any]]]:
        """Return ``path`` (below the folder) and ``distance`` (1 - cosine) of the nearest to each embedding (B x D)."""
        distances, indices = nearest(embeddings, self._features, self._count)
        return [
            [{"path": self._names[index], "distance": round(distance, 6)} for index, distance in zip(*row, strict=True)]
            for row in zip(indices.tolist(), distances.tolist(), strict=True)
        ]


class Inference:
    """Maps uploads to JSON values, as :func:`opabinia.inference.predict.predict` writes them.

    Args:
        predictor: the model.
        limits: of uploads.
        gallery: whose nearest images are returned; None: the task's predictions are returned.
    """

    def __init__(self, predictor: Predictor, limits: Limits, gallery: ServedGallery | None = None) -> None:
        self.predictor, self.limits, self.gallery = predictor, limits, gallery

    def __call__(self, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
        """Return for each upload its ``path`` (the name it was sent with) and the readable prediction, or ``nearest``.

        Raises:
            RequestError: one of them is refused or broken; then there is no result for the others either.
        """
        for upload in uploads:
            (check_video if self.predictor.takes_video else check_image)(upload, self.limits)
        samples = [self._sample(upload) for upload in uploads]
        if self.gallery is not None:
            matches = self.gallery.nearest(self.predictor.embeddings(samples))
            results: list[dict[str, Any]] = [{"nearest": rows} for rows in matches]
        else:
            results = [prediction.readable for prediction in self.predictor.batch(samples)]
        return [{"path": upload.name, **result} for upload, result in zip(uploads, results, strict=True)]

    def _sample(self, upload: Upload) -> Sample:
        try:
            if self.predictor.takes_video:
                with tempfile.NamedTemporaryFile(prefix="opabinia-") as file:
                    file.write(upload.content)
                    file.flush()
                    return self.predictor.sample(file.name)
            return self.predictor.sample(decode_bytes(upload.content, upload.name, self.predictor.channels))
        except (OSError, ValueError) as error:
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RequestError(422, f"{upload.name} is broken: {first_line}") from error
