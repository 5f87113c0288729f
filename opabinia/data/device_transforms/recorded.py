"""Images that record the operations applied to them instead of computing them.

A transform draws its random numbers from its own generator as always, in the same order; only the computation is
deferred.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

RECORDED_OPS = "recorded_ops"
"""Key of a sample: the operations still to be applied to its image."""


class ImageOp(NamedTuple):
    """One operation on an image.

    Attributes:
        name: of a torchvision functional, or of an operation of ``kernels``.
        values: its arguments, in the order in which they were given.
        keywords: names of the last of them, which were given by keyword.
    """

    name: str
    values: tuple[Any, ...]
    keywords: tuple[str, ...] = ()


class RecordedImage(tv_tensors.Image):  # type: ignore[misc]
    """An image without pixels. Each operation returns another one of the same size and type.

    Attributes:
        ops: recorded so far.
        is_clip: whether it stands for the frames of a clip.
    """

    ops: tuple[ImageOp, ...] = ()
    is_clip: bool = False

    @classmethod
    def like(cls, image: Tensor) -> RecordedImage:
        """Return one of the size of ``image`` without any operation."""
        blank = torch.empty(image.shape, dtype=image.dtype, device="meta").as_subclass(cls)
        blank.is_clip = image.is_clip if isinstance(image, RecordedImage) else isinstance(image, tv_tensors.Video)
        return blank

    def then(self, op: ImageOp) -> RecordedImage:
        """Return the image after one more operation, which does not change its size."""
        image = RecordedImage.like(self)
        image.ops = (*self.ops, op)
        return image


_FUNCTIONALS = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "equalize",
    "erase",
    "horizontal_flip",
    "invert",
    "permute_channels",
    "posterize",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "vertical_flip",
]
"""torchvision's functionals that can be recorded."""


def _record(name: str, image: RecordedImage, *values: Any, **keywords: Any) -> RecordedImage:
    if image.is_clip and name == "rgb_to_grayscale":  # torchvision does not apply it to videos
        return image
    return image.then(ImageOp(name, (*values, *keywords.values()), tuple(keywords)))


for _name in _FUNCTIONALS:
    v2.functional.register_kernel(getattr(F, _name), RecordedImage)(partial(_record, _name))
