"""A trained task that takes pictures: what :func:`opabinia.load` gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torchvision import tv_tensors

from opabinia.contracts import Batch, DatasetInfo, Predictions, Sample, Task, Transform, Video
from opabinia.data.collate import collate
from opabinia.data.decoding.images import read_image
from opabinia.data.decoding.video import VideoFile, VideoInMemory
from opabinia.data.loader import DataError
from opabinia.data.transforms.clips import Clip
from opabinia.engine.loop.prefetch import to_device
from opabinia.inference.gradcam import heat, last_maps
from opabinia.runtime.device import autocast
from opabinia.runtime.seeds import generators_kept
from opabinia.visualization.video_strips import Noted

Order = Literal["RGB", "BGR"]

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8] | Tensor | Video
"""A path, a PIL image, an array (uint8, H x W x 3 in the order red, green, blue, or H x W grey), or a tensor (uint8, or
float in 0 to 1; C x H x W, red, green, blue). Of a task that learns from clips it is a film: a path, or an array or a
tensor of frames, which has their number ahead (T x ...)."""

View = tuple[tuple[int, int], tuple[int, int]]
"""Clip i of n over time and crop j of m in space: ((i, n), (j, m))."""


class Prediction(Mapping[str, Tensor]):
    """What the model says of one picture: its tensors by name (on the CPU), and the same to be read by people.

    Attributes:
        readable: plain values, such as ``{"top": [{"class": "cat", "probability": 0.98}, ...]}``.
    """

    def __init__(self, tensors: Mapping[str, Tensor], readable: dict[str, Any]) -> None:
        self._tensors, self.readable = dict(tensors), readable

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Prediction({self.readable})"


class Predictor:
    """Pictures in, predictions out, through the same transforms that the validation data goes through.

    A task that learns from clips takes films in the place of pictures, and sees each in as many views as the validation
    data has of it.

    Args:
        task: the trained model.
        transforms: of the validation data.
        facts: of the training data.
        channels: of pictures as they are read, before the transforms: 1 grey, 3 colour.
        device: where the model computes.
        precision: of its forward passes.
        batch_size: pictures in one forward pass.
        views: how many clips and crops of a film are seen; None: what the transforms make of it.

    Attributes:
        films: whether it takes films.

    Example::

        predictor = opabinia.load("runs/classification/digits/default")
        predictor("three.png").readable["top"][0]      # {"class": "3", "probability": 0.998}
        for prediction in predictor(["a.jpg", image, array]):
            prediction["logits"]
    """

    def __init__(
        self,
        task: Task,
        transforms: Sequence[Transform],
        dataset_info: DatasetInfo,
        *,
        channels: Literal[1, 3] = 3,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
        batch_size: int = 32,
        views: tuple[int, int] | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.task = task.eval().to(self.device)
        self.transforms, self.dataset_info, self.channels = list(transforms), dataset_info, channels
        self.films = any(isinstance(one, Clip) for one in self.transforms)
        clips, crops = views or (0, 0)
        self._views: list[View | None] = [((i, clips), (j, crops)) for i in range(clips) for j in range(crops)]
        self._views = self._views or [None]
        self.precision, self.batch_size = precision, max(1, batch_size // len(self._views))
        self._embedding_from: Callable[[Batch], Predictions] = self.task.predict
        self._explained_layer = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.dataset_info.classes

    @overload
    def __call__(self, pictures: Picture, *, order: Order = "RGB") -> Prediction: ...

    @overload
    def __call__(self, pictures: list[Picture] | tuple[Picture, ...], *, order: Order = "RGB") -> list[Prediction]: ...

    def __call__(
        self, pictures: Picture | list[Picture] | tuple[Picture, ...], *, order: Order = "RGB"
    ) -> Prediction | list[Prediction]:
        """Predictions for a list of pictures in its order, or for a single one.

        Args:
            pictures: of any size, each.
            order: of the colours in arrays and tensors: OpenCV reads pictures as ``BGR``. Files and PIL images know
                theirs.

        Raises:
            ValueError: something is no picture, or of a form that is not understood; the text says which.
            OSError: a file cannot be read.
        """
        if isinstance(pictures, list | tuple):
            found: list[Prediction] = []
            for start in range(0, len(pictures), self.batch_size):
                some = pictures[start : start + self.batch_size]
                found += self.batch([self.sample(picture, order=order) for picture in some])
            return found
        return self.batch([self.sample(pictures, order=order)])[0]

    def sample(self, picture: Picture, *, order: Order = "RGB") -> Sample:
        """The picture as the model is to see it; of a film also ``frames``: the numbers of those in each view."""
        if self.films:
            return self._views_of(Noted(film_of(picture, self.channels, order)))
        image = image_of(picture, self.channels, order)
        size = tuple(image.shape[-2:])
        sample: Sample = {"image": tv_tensors.Image(image), "id": name_of(picture), "original_size": size}
        with generators_kept():
            for transform in self.transforms:
                sample = transform(sample)
        return sample

    def _views_of(self, film: Noted) -> Sample:
        """All views of a film: ``image`` is T x C x H x W, or of several views V x T x C x H x W."""
        images: list[Tensor] = []
        with generators_kept():
            for view in self._views:
                sample: Sample = {"video": film, "id": film.path} | ({"view": view} if view else {})
                for transform in self.transforms:
                    sample = transform(sample)
                images.append(sample["image"].as_subclass(Tensor))
        image = images[0] if len(images) == 1 else torch.stack(images)
        return {"image": image, "id": film.path, "frames": film.asked}

    def batch(self, samples: Sequence[Sample]) -> list[Prediction]:
        """Predictions for transformed samples. Images of one size go through the model together: padding, which would
        be others' doing, has no say in what is predicted."""
        found: dict[int, Prediction] = {}
        for numbers in _alike(samples):
            with torch.no_grad(), autocast(self.device, self.precision):
                rows = self.task.predict(self._batch([samples[number] for number in numbers]))
            on_host = {name: (one.float() if one.is_floating_point() else one).cpu() for name, one in rows.items()}
            for place, number in enumerate(numbers):
                tensors = {name: value[place] for name, value in on_host.items()}
                found[number] = Prediction(tensors, self.task.readable(tensors))
        return [found[number] for number in range(len(samples))]

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        return to_device(collate(samples, self.task.size_multiple), self.device)

    def embeddings(self, samples: Sequence[Sample]) -> Tensor:
        """What transformed samples are compared by (float32, B x D, on the CPU): the embedding that the task predicts,
        or its features where it predicts none, at length 1. The product of two is their cosine similarity.

        Raises:
            DataError: some are no finite numbers.
        """
        groups = _alike(samples)
        with torch.no_grad(), autocast(self.device, self.precision):
            each = [self._embedding(self._batch([samples[number] for number in numbers])) for numbers in groups]
        rows = torch.cat(each).float()[torch.tensor([number for numbers in groups for number in numbers]).argsort()]
        whole = rows.isfinite().all(1).tolist()
        if not all(whole):
            names = ", ".join(str(sample["id"]) for sample, right in zip(samples, whole, strict=True) if not right)
            raise DataError(f"the model's embedding is not finite for {names}")
        return normalize(rows, dim=1).cpu()

    def _embedding(self, batch: Batch) -> Tensor:
        found = self._embedding_from(batch)
        if "embedding" not in found:
            self._embedding_from = self.task.features
            found = self.task.features(batch)
        return found["embedding"]

    def explain(self, samples: Sequence[Sample], toward: Tensor | None = None) -> Tensor:
        """Where in transformed samples the prediction comes from (float, B x H x W in 0 to 1, on the CPU): Grad-CAM.

        A task that has a method ``explain`` (batch to B x H x W) is asked itself. Otherwise what is explained is the
        length of a predicted embedding, or else the likeliest class's logit.

        Args:
            samples: of the same size.
            toward: B x D; what is explained is the similarity of the embeddings to these.

        Raises:
            ValueError: there is nothing to explain by: several views of a picture, no logits, embeddings that all have
                length 1, no maps in the model.
        """
        batch = self._batch(samples)
        explain: Callable[[Batch], Tensor] | None = getattr(self.task, "explain", None)
        if explain is not None:
            return explain(batch).float().cpu()
        image = batch["image"]
        if image.ndim != 4:
            others = "films" if self.films else "several views of each"
            raise ValueError(f"only pictures that the model sees as a whole can be explained, not {others}")
        goal = None if toward is None else toward.to(self.device)
        size = (image.shape[2], image.shape[3])
        if not self._explained_layer:
            # One picture tells; as floats it can have a gradient even where all parameters are frozen.
            small = image[:1] if image.is_floating_point() else image[:1] / 255
            first = {**{key: value[:1] for key, value in batch.items()}, "image": small.requires_grad_()}
            score = partial(self._score, first, goal if goal is None else goal[:1])
            self._explained_layer = last_maps(self.task, score, size)
        return heat(self.task, self._explained_layer, partial(self._score, batch, goal), size).cpu()

    def _score(self, batch: Batch, toward: Tensor | None) -> Tensor:
        """What is explained: one number a picture (B)."""
        if toward is not None:
            similarity: Tensor = cosine_similarity(self._embedding(batch), toward)
            return similarity
        found = self.task.predict(batch)
        if "embedding" not in found and "logits" in found:
            highest: Tensor = found["logits"].amax(1)
            return highest
        embedding = found["embedding"] if "embedding" in found else self._embedding(batch)
        lengths: Tensor = torch.linalg.vector_norm(embedding, dim=1)
        if torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4):
            raise ValueError("embeddings of length 1 are explained by what they are near to: give a gallery")
        return lengths


def _alike(samples: Sequence[Sample]) -> list[list[int]]:
    """Numbers of the samples whose images have the same size, together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(tuple(sample["image"].shape), []).append(number)
    return list(groups.values())


def name_of(picture: Picture) -> str:
    """The path of a file; nothing for pictures that come from memory."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else ""


def film_of(film: Picture, channels: Literal[1, 3], order: Order = "RGB") -> Video:
    """A film; ``order`` is that of colours in arrays and tensors.

    Raises:
        ValueError: it is none, or of a form that is not understood.
    """
    if isinstance(film, str | os.PathLike):
        return VideoFile(film, channels)
    if isinstance(film, Video):
        return film
    if isinstance(film, np.ndarray | Tensor) and film.ndim == 4 and len(film):
        frames = torch.stack([image_of(frame, channels, order) for frame in film])
        return VideoInMemory((frames * 255).round().to(torch.uint8) if frames.is_floating_point() else frames)
    shape = f" {tuple(film.shape)}" if isinstance(film, np.ndarray | Tensor) else ""
    raise ValueError(
        f"a film is a path, an array (T x H x W x 3) or a tensor (T x C x H x W), not a {type(film).__name__}{shape}"
    )


def image_of(picture: Picture, channels: Literal[1, 3], order: Order = "RGB") -> Tensor:
    """A picture as uint8 (float tensors stay float), C x H x W; ``order`` is that of colours in arrays and tensors.

    Raises:
        ValueError: it is none, or of a form that is not understood, or there is no such order.
        OSError: a file cannot be read.
    """
    if order not in ("RGB", "BGR"):
        raise ValueError(f"the order of colours is RGB or BGR, not {order!r}")
    if isinstance(picture, str | os.PathLike):
        return read_image(picture, channels)
    if isinstance(picture, Image.Image):
        return _from_pil(picture, channels)
    if isinstance(picture, np.ndarray):
        array = picture.squeeze(2) if picture.ndim == 3 and picture.shape[2] == 1 else picture
        if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
            raise ValueError(f"an array is uint8, H x W or H x W x 3, not {picture.dtype} {picture.shape}")
        if not array.size:
            raise ValueError(f"an array has pixels, not {picture.shape}")
        if order == "BGR" and array.ndim == 3:
            array = array[:, :, ::-1]
        return _from_pil(Image.fromarray(np.ascontiguousarray(array)), channels)
    if isinstance(picture, Tensor):
        if picture.ndim != 3 or picture.shape[0] not in (1, 3):
            raise ValueError(f"a tensor is C x H x W of 1 or 3 channels, not {tuple(picture.shape)}")
        if not picture.is_floating_point() and picture.dtype != torch.uint8:
            raise ValueError(f"a tensor is uint8, or float in 0 to 1, not {picture.dtype}")
        if not picture.numel():
            raise ValueError(f"a tensor has pixels, not {tuple(picture.shape)}")
        image = picture.detach().cpu()
        if order == "BGR" and len(image) == 3:
            image = image.flip(0)
        if len(image) == channels:
            return image
        if channels == 3:
            return image.expand(3, -1, -1)
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        grey: Tensor = (image.float() * weights).sum(0, keepdim=True)
        return grey if image.is_floating_point() else grey.round().to(torch.uint8)
    raise ValueError(f"a picture is a path, a PIL image, an array or a tensor, not a {type(picture).__name__}")


def _from_pil(picture: Image.Image, channels: Literal[1, 3]) -> Tensor:
    upright = ImageOps.exif_transpose(picture).convert("RGB" if channels == 3 else "L")
    return torch.from_numpy(np.array(upright).reshape(upright.height, upright.width, channels)).permute(2, 0, 1)
