"""A trained task that takes pictures: what :func:`opabinia.load` gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision import tv_tensors

from opabinia.contracts import Facts, Sample, Task, Transform
from opabinia.data.collate import collate
from opabinia.data.decode import read_image
from opabinia.engine.evaluate import to_device
from opabinia.runtime.device import autocast
from opabinia.runtime.seeds import generators_kept

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8] | Tensor
"""A path, a PIL image, an array (uint8, H x W x 3 in the order red, green, blue, or H x W grey), or a tensor (uint8, or
float in 0 to 1; C x H x W, red, green, blue)."""


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

    Args:
        task: the trained model.
        transforms: of the validation data.
        facts: of the training data.
        channels: of pictures as they are read, before the transforms: 1 grey, 3 colour.
        device: where the model computes.
        precision: of its forward passes.
        batch_size: pictures in one forward pass.

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
        facts: Facts,
        *,
        channels: Literal[1, 3] = 3,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
        batch_size: int = 32,
    ) -> None:
        self.device = torch.device(device)
        self.task = task.eval().to(self.device)
        self.transforms, self.facts, self.channels = list(transforms), facts, channels
        self.precision, self.batch_size = precision, batch_size

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.facts.classes

    @overload
    def __call__(self, pictures: Picture) -> Prediction: ...

    @overload
    def __call__(self, pictures: list[Picture] | tuple[Picture, ...]) -> list[Prediction]: ...

    def __call__(self, pictures: Picture | list[Picture] | tuple[Picture, ...]) -> Prediction | list[Prediction]:
        """Predictions for a list of pictures in its order, or for a single one.

        Raises:
            ValueError: something is no picture, or of a form that is not understood; the text says which.
            OSError: a file cannot be read.
        """
        if isinstance(pictures, list | tuple):
            found: list[Prediction] = []
            for start in range(0, len(pictures), self.batch_size):
                found += self.batch([self.sample(picture) for picture in pictures[start : start + self.batch_size]])
            return found
        return self.batch([self.sample(pictures)])[0]

    def sample(self, picture: Picture) -> Sample:
        """The picture as the model is to see it."""
        sample: Sample = {"image": tv_tensors.Image(image_of(picture, self.channels)), "id": name_of(picture)}
        with generators_kept():
            for transform in self.transforms:
                sample = transform(sample)
        return sample

    def batch(self, samples: Sequence[Sample]) -> list[Prediction]:
        """Predictions for transformed samples of the same size, as one batch."""
        batch = to_device(collate(samples), self.device)
        with torch.no_grad(), autocast(self.device, self.precision):
            rows = self.task.predict(batch)
        on_host = {name: (value.float() if value.is_floating_point() else value).cpu() for name, value in rows.items()}
        each = ({name: value[number] for name, value in on_host.items()} for number in range(len(samples)))
        return [Prediction(tensors, self.task.readable(tensors)) for tensors in each]


def name_of(picture: Picture) -> str:
    """The path of a file; nothing for pictures that come from memory."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else ""


def image_of(picture: Picture, channels: Literal[1, 3]) -> Tensor:
    """A picture as uint8 (float tensors stay float), C x H x W.

    Raises:
        ValueError: it is none, or of a form that is not understood.
        OSError: a file cannot be read.
    """
    if isinstance(picture, str | os.PathLike):
        return read_image(picture, channels)
    if isinstance(picture, Image.Image):
        return _from_pil(picture, channels)
    if isinstance(picture, np.ndarray):
        array = picture.squeeze(2) if picture.ndim == 3 and picture.shape[2] == 1 else picture
        if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
            raise ValueError(f"an array is uint8, H x W or H x W x 3 (RGB), not {picture.dtype} {picture.shape}")
        return _from_pil(Image.fromarray(array), channels)
    if isinstance(picture, Tensor):
        if picture.ndim != 3 or picture.shape[0] not in (1, 3):
            raise ValueError(f"a tensor is C x H x W of 1 or 3 channels, not {tuple(picture.shape)}")
        if not picture.is_floating_point() and picture.dtype != torch.uint8:
            raise ValueError(f"a tensor is uint8, or float in 0 to 1, not {picture.dtype}")
        image = picture.detach().cpu()
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
