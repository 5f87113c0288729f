"""Images that record the operations applied to them instead of computing them.

A transform draws its random numbers from its own generator as always, in the same order; only the computation is
deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
        name: of a kernel (:mod:`opabinia.data.device_transforms.kernels`), which takes numbers for each image, or of a
            torchvision functional, which takes the same arguments for all images.
        arguments: numbers for the kernel, or keyword arguments of the functional.
    """

    name: str
    arguments: tuple[float, ...] | dict[str, Any]


class RecordedImage(tv_tensors.Image):  # type: ignore[misc]
    """An image without pixels. Each operation returns another one of the same size and type.

    Attributes:
        ops: recorded so far.
        is_clip: whether it stands for the frames of a clip.
    """

    ops: tuple[ImageOp, ...]
    is_clip: bool

    @classmethod
    def like(cls, image: Tensor, ops: tuple[ImageOp, ...] = ()) -> RecordedImage:
        """Return one of the size of ``image`` with these operations."""
        blank = torch.empty(image.shape, dtype=image.dtype, device="meta").as_subclass(cls)
        blank.ops = ops
        blank.is_clip = image.is_clip if isinstance(image, RecordedImage) else isinstance(image, tv_tensors.Video)
        return blank

    def then(self, name: str, arguments: Iterable[float] | dict[str, Any]) -> RecordedImage:
        """Return the image after one more operation, which does not change its size."""
        arguments = arguments if isinstance(arguments, dict) else tuple(map(float, arguments))
        return RecordedImage.like(self, (*self.ops, ImageOp(name, arguments)))


_SHARED_ARGUMENTS = [
    *(F.autocontrast, F.equalize, F.horizontal_flip, F.invert, F.posterize, F.rgb_to_grayscale, F.solarize),
    F.vertical_flip,
]
"""torchvision's functionals that are applied to all images with the same arguments at once."""

_OWN_ARGUMENTS: dict[Callable[..., Any], Callable[..., Sequence[float]]] = {
    F.adjust_brightness: lambda brightness_factor: (brightness_factor,),
    F.adjust_contrast: lambda contrast_factor: (contrast_factor, 1 - contrast_factor),
    F.adjust_hue: lambda hue_factor: (hue_factor,),
    F.adjust_saturation: lambda saturation_factor: (saturation_factor, 1 - saturation_factor),
    F.adjust_sharpness: lambda sharpness_factor: (1 - sharpness_factor,),
    F.erase: lambda i, j, h, w, v, inplace: (i, j, h, w, *v.flatten().tolist()),
    F.permute_channels: lambda permutation: permutation.tolist(),
}
"""torchvision's functionals with a kernel of the same name, and the numbers that it takes (factors subtracted from 1 in
double precision, as for one image)."""


def _record_shared(name: str, image: RecordedImage, **arguments: Any) -> RecordedImage:
    if image.is_clip and name == "rgb_to_grayscale":  # torchvision does not apply it to videos
        return image
    return image.then(name, arguments)


def _record_own(
    name: str, numbers: Callable[..., Sequence[float]], image: RecordedImage, *values: Any, **keywords: Any
) -> RecordedImage:
    return image.then(name, numbers(*values, **keywords))


def _record_affine(
    image: RecordedImage,
    *,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    center: Sequence[float] | None,
    interpolation: Any,
    fill: Any,
) -> RecordedImage:
    middle = [position - side / 2 for position, side in zip(center or (), reversed(image.shape[-2:]), strict=False)]
    matrix = _get_inverse_affine_matrix(middle or [0.0, 0.0], angle, list(map(float, translate)), scale, list(shear))
    return _record_warp(image, matrix, interpolation, fill)


def _record_rotation(image: RecordedImage, **arguments: Any) -> RecordedImage:
    angle = arguments["angle"]
    if angle % 90 == 0:  # right angles are exact
        return image.then("rotate", arguments)
    matrix = _get_inverse_affine_matrix([0.0, 0.0], -(angle % 360), [0.0, 0.0], 1.0, [0.0, 0.0])
    return _record_warp(image, matrix, arguments["interpolation"], arguments["fill"])


def _record_warp(image: RecordedImage, matrix: list[float], interpolation: Any, fill: Any) -> RecordedImage:
    """Record an operation whose matrix (2 x 3) maps output to input positions, both in pixels from the center."""
    height, width = image.shape[-2:]
    halves = np.array([[width], [height]], dtype=np.float32) / 2
    scaled = (np.array(matrix, dtype=np.float32).reshape(2, 3) / halves).T.ravel().tolist()
    color = [] if fill is None else np.ravel(fill).astype(float).tolist()
    return image.then(f"warp_{v2.InterpolationMode(interpolation).value}", (*scaled, *color))


v2.functional.register_kernel(F.affine, RecordedImage)(_record_affine)
v2.functional.register_kernel(F.rotate, RecordedImage)(_record_rotation)
for _functional in _SHARED_ARGUMENTS:
    v2.functional.register_kernel(_functional, RecordedImage)(partial(_record_shared, _functional.__name__))
for _functional, _numbers in _OWN_ARGUMENTS.items():
    v2.functional.register_kernel(_functional, RecordedImage)(partial(_record_own, _functional.__name__, _numbers))
