"""Images that record the operations applied to them instead of computing them.

A transform draws its random numbers from its own generator as always, in the same order; only the computation is
deferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

# Both functions begin with this matrix; they wait for the device and take one matrix for all images.
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix

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
    "autocontrast",
    "equalize",
    "erase",
    "horizontal_flip",
    "invert",
    "permute_channels",
    "posterize",
    "rgb_to_grayscale",
    "solarize",
    "vertical_flip",
]
"""torchvision's functionals that can be recorded."""


def _record(name: str, image: RecordedImage, *values: Any, **keywords: Any) -> RecordedImage:
    if image.is_clip and name == "rgb_to_grayscale":  # torchvision does not apply it to videos
        return image
    return image.then(ImageOp(name, (*values, *keywords.values()), tuple(keywords)))


def _record_affine(
    image: RecordedImage,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    interpolation: str | v2.InterpolationMode = v2.InterpolationMode.NEAREST,
    fill: Any = None,
    center: Sequence[float] | None = None,
) -> RecordedImage:
    middle = [position - side / 2 for position, side in zip(center or (), reversed(image.shape[-2:]), strict=False)]
    matrix = _get_inverse_affine_matrix(middle or [0.0, 0.0], angle, list(map(float, translate)), scale, list(shear))
    return _record_warp(image, matrix, interpolation, fill)


def _record_rotation(
    image: RecordedImage,
    angle: float,
    interpolation: str | v2.InterpolationMode = v2.InterpolationMode.NEAREST,
    expand: bool = False,
    center: Sequence[float] | None = None,
    fill: Any = None,
) -> RecordedImage:
    if angle % 90 == 0 or expand or center is not None:  # right angles are exact
        return _record("rotate", image, angle, interpolation, expand, center, fill)
    matrix = _get_inverse_affine_matrix([0.0, 0.0], -(angle % 360), [0.0, 0.0], 1.0, [0.0, 0.0])
    return _record_warp(image, matrix, interpolation, fill)


def _record_warp(image: RecordedImage, matrix: list[float], interpolation: Any, fill: Any) -> RecordedImage:
    """Record an operation whose matrix (2 x 3) maps output to input positions, both in pixels from the center."""
    height, width = image.shape[-2:]
    halves = np.array([[width], [height]], dtype=np.float32) / 2
    scaled = (np.array(matrix, dtype=np.float32).reshape(2, 3) / halves).T.ravel().tolist()
    color = [] if fill is None else np.ravel(fill).astype(float).tolist()
    return image.then(ImageOp(f"warp_{v2.InterpolationMode(interpolation).value}", (*scaled, *color)))


v2.functional.register_kernel(F.affine, RecordedImage)(_record_affine)
v2.functional.register_kernel(F.rotate, RecordedImage)(_record_rotation)
for _name in _FUNCTIONALS:
    v2.functional.register_kernel(getattr(F, _name), RecordedImage)(partial(_record, _name))
