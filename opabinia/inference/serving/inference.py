"""Predictions for uploaded files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from opabinia.contracts import FrameChannels, Sample, Task, frame_channels
from opabinia.data.decoding.images import decode_bytes
from opabinia.data.decoding.video import VideoFile
from opabinia.data.sources.file_names import decode_name
from opabinia.evaluation.retrieval.distances import nearest
from opabinia.inference.input_files import find_files
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import embed_gallery
from opabinia.inference.serving.limits import (
    INPUT_PIXELS,
    Limits,
    RequestError,
    Upload,
    check_image,
    check_total,
    check_video,
)
from opabinia.runtime.log import log

NEAREST = 10
"""Number of images of a gallery that are returned for an upload."""


class ServedGallery:
    """Images whose nearest ones are returned for each upload.

    Args:
        predictor: embeds them.
        folder: folder of the images, at any depth.

    Attributes:
        files: images by their path below the folder.

    Raises:
        ConfigError: there is no such folder, or it has no images.
        DataError: no image can be read.
    """

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        errors: list[str] = []
        paths = list(find_files([folder], videos=predictor.takes_video))
        readable, self._features = embed_gallery(predictor, paths, folder, errors)
        for message in errors:
            log.warning("skipped: %s", message)
        # Names need not be valid UTF-8; answers are.
        self.files = {decode_name(os.fsencode(path.relative_to(folder).as_posix())): path for path in readable}
        self._names = list(self.files)

    def nearest(self, embeddings: Tensor) -> list[list[dict[str, Any]]]:
        """Return ``path`` (below the folder) and ``distance`` (1 - cosine) of the nearest to each embedding (B x D)."""
        distances, indices = nearest(embeddings, self._features, min(NEAREST, len(self._names)))
        return [
            [{"path": self._names[index], "distance": round(distance, 6)} for index, distance in zip(*row, strict=True)]
            for row in zip(indices.tolist(), distances.tolist(), strict=True)
        ]


class Inference:
    """Maps uploads to JSON values, as :func:`opabinia.inference.predict.predict` writes them, a few at a time.

    Args:
        predictor: the model.
        limits: limits of uploads.
        gallery: images of which the nearest are returned; None: the task's predictions are returned.

    Attributes:
        input_pixels: pixels that the model gets at a time.
    """

    def __init__(self, predictor: Predictor, limits: Limits, gallery: ServedGallery | None = None) -> None:
        self.predictor, self.limits, self.gallery = predictor, limits, gallery
        # Mask classifiers compute masks of all their queries at the size of the file: 400 bytes for each pixel.
        self._masks_of_files = any(isinstance(item, Task) and item.masks_of_files for item in predictor.task.modules())
        self.input_pixels = limits.input_pixels or INPUT_PIXELS["videos" if predictor.takes_video else "images"]

    def __call__(self, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
        """Return for each upload its ``path`` (the name it was sent with) and the readable prediction, or ``nearest``.

        Raises:
            RequestError: one of them is refused or broken; then there is no result for the others either.
        """
        sizes = self.check(uploads)
        results = [result for group in self._groups(uploads, sizes) for result in self._predict(group)]
        return [{"path": upload.name, **result} for upload, result in zip(uploads, results, strict=True)]

    def check(self, uploads: Sequence[Upload]) -> list[tuple[int, int]]:
        """Check uploads before they are decoded; return width and height of each.

        Raises:
            RequestError: one of them is refused.
        """
        check = check_video if self.predictor.takes_video else check_image
        sizes = [check(upload, self.limits) for upload in uploads]
        check_total(sizes, self.limits)
        if self._masks_of_files:
            for upload, (width, height) in zip(uploads, sizes, strict=True):
                self.check_input(upload.name, width * height, ", of which the model predicts masks")
        return sizes

    def _groups(self, uploads: Sequence[Upload], sizes: Sequence[tuple[int, int]]) -> Iterator[list[Sample]]:
        """Yield the samples in groups within both limits: the pixels that the model gets, and those of the files, as
        maps and masks have. The next group is decoded when the caller is done with the one before it."""
        group: list[Sample] = []
        inputs = originals = 0
        for upload, (width, height) in zip(uploads, sizes, strict=True):
            sample = self._sample(upload, (width, height))
            pixels = pixels_of(sample)
            self.check_input(upload.name, pixels)
            inputs, originals = inputs + pixels, originals + width * height
            if group and (inputs > self.input_pixels or originals > self.limits.pixels):
                yield group
                group, inputs, originals = [], pixels, width * height
            group.append(sample)
        yield group

    def _predict(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        if self.gallery is not None:
            return [{"nearest": rows} for rows in self.gallery.nearest(self.predictor.embeddings(samples))]
        return [prediction.readable for prediction in self.predictor.batch(samples)]

    def check_input(self, name: str, pixels: int, where: str = " after the transforms of the model") -> None:
        """Check the number of pixels of an upload that the model gets.

        Raises:
            RequestError: it is too large (413).
        """
        if pixels > self.input_pixels:
            limit = f"more than {self.input_pixels / 1e6:g} (--max-input-megapixels)"
            text = f"{name} has {pixels / 1e6:.3g} megapixels{where}, {limit}"
            raise RequestError(413, text)

    def _sample(self, upload: Upload, size: tuple[int, int]) -> Sample:
        with reading(upload):
            if self.predictor.takes_video:
                with tempfile.NamedTemporaryFile(prefix="opabinia-") as file:
                    file.write(upload.content)
                    file.flush()
                    check = partial(self.check_input, upload.name)
                    return self.predictor.sample(
                        _CheckedVideo(file.name, frame_channels(self.predictor.channels), size, check)
                    )
            return self.predictor.sample(decode_bytes(upload.content, upload.name, self.predictor.channels))


@contextmanager
def reading(upload: Upload) -> Iterator[None]:
    """Read an upload inside.

    Raises:
        RequestError: it is broken (422).
    """
    try:
        yield
    except (OSError, ValueError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(422, f"{upload.name} is broken: {first_line}") from error


def pixels_of(sample: Sample) -> int:
    """Return the number of pixels of a transformed sample, of all its frames and views."""
    shape = sample["image"].shape
    return int(shape.numel()) // int(shape[-3])


class _CheckedVideo(VideoFile):
    """A video whose clips are checked before they are decoded.

    Args:
        path: path of the file.
        channels: 3 for color, 1 for gray.
        size: size of its frames, by the header.
        check: is called with the number of pixels of a clip.
    """

    def __init__(self, path: str, channels: FrameChannels, size: tuple[int, int], check: Callable[[int], None]) -> None:
        super().__init__(path, channels)
        self._header_size, self._check = size, check

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        width, height = self._header_size
        scale = min(1.0, short_side / min(width, height)) if short_side else 1.0
        self._check(round(len(indices) * width * height * scale**2))
        return super().read(indices, short_side)
