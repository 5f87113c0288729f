"""Operations on a batch of images in which every image has its own arguments.

A kernel takes images (uint8, B x ... x C x H x W) and arguments (B x N) and returns the changed images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

# The two halves of a change of hue; the public function takes one change for all images.
from torchvision.transforms.v2.functional._color import _hsv_to_rgb, _rgb_to_hsv

from opabinia.data.device_transforms.recorded import RecordedImage


def _column(arguments: Tensor, index: int, images: Tensor) -> Tensor:
    """Return one argument of each image, broadcastable to B x ... pixels."""
    return arguments[:, index].reshape(-1, *[1] * (images.ndim - 1))


def _to_uint8(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _brightness(images: Tensor, arguments: Tensor) -> Tensor:
    return _to_uint8(images.mul(_column(arguments, 0, images)))


def _blend(images: Tensor, gray: Tensor, arguments: Tensor) -> Tensor:
    factor, gray_factor = _column(arguments, 0, images), _column(arguments, 1, images)
    return _to_uint8(images.mul(factor).addcmul_(gray, gray_factor))


def _contrast(images: Tensor, arguments: Tensor) -> Tensor:
    gray = F.rgb_to_grayscale(images, num_output_channels=1).float()
    return _blend(images, gray.mean(dim=(-3, -2, -1), keepdim=True), arguments)


def _saturation(images: Tensor, arguments: Tensor) -> Tensor:
    if images.shape[-3] == 1:
        return images
    return _blend(images, F.rgb_to_grayscale(images, num_output_channels=1).float(), arguments)


def _hue(images: Tensor, arguments: Tensor) -> Tensor:
    if images.shape[-3] == 1:
        return images
    hue, saturation, value = _rgb_to_hsv(F.to_dtype(images, torch.float32, scale=True)).unbind(-3)
    hue = (hue + _column(arguments, 0, hue)).remainder_(1.0)
    adjusted: Tensor = F.to_dtype(_hsv_to_rgb(torch.stack((hue, saturation, value), -3)), torch.uint8, scale=True)
    return adjusted


def _per_channel(arguments: Tensor, images: Tensor) -> Tensor:
    """Reshape arguments (B x C) so that they broadcast to the images."""
    return arguments.reshape(len(images), *[1] * (images.ndim - 4), -1, 1, 1)


def _permute_channels(images: Tensor, arguments: Tensor) -> Tensor:
    return images.gather(-3, _per_channel(arguments.long(), images).expand_as(images))


def _erase(images: Tensor, arguments: Tensor) -> Tensor:
    rows = torch.arange(images.shape[-2], device=images.device)[:, None]
    columns = torch.arange(images.shape[-1], device=images.device)
    top, left, height, width = (_column(arguments, index, images) for index in range(4))
    inside = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    return torch.where(inside, _per_channel(arguments[:, 4:].to(torch.uint8), images), images)


def _lighting(images: Tensor, arguments: Tensor) -> Tensor:
    return _to_uint8((images + _per_channel(arguments, images)).round())


def _blur(images: Tensor, arguments: Tensor) -> Tensor:
    """Rows of ``arguments``: the vertical, then the horizontal kernel, of the same length, padded with 0."""
    height, width = images.shape[-2:]
    planes = images[0].numel() // (height * width)
    blurred = images.float().reshape(1, -1, height, width)
    for axis, kernels in zip((-2, -1), arguments.chunk(2, 1), strict=True):
        max_radius = kernels.shape[1] // 2
        radius = min(max_radius, images.shape[axis] - 1)
        kernel = kernels[:, max_radius - radius : max_radius + radius + 1].repeat_interleave(planes, 0)
        padding = (0, 0, radius, radius) if axis == -2 else (radius, radius, 0, 0)
        weight = kernel[:, None, None].transpose(-1, axis)
        blurred = conv2d(pad(blurred, padding, mode="reflect"), weight, groups=len(weight))
    return (blurred if images.is_floating_point() else _to_uint8(blurred.round_())).reshape(images.shape)


def _sharpness(images: Tensor, arguments: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return images
    output = images.float()
    kernel = torch.full((1, 1, 3, 3), 1 / 13, device=images.device)
    kernel[..., 1, 1].fill_(5 / 13)
    smooth = (
        conv2d(output.reshape(-1, 1, height, width), kernel).round_().view(*images.shape[:-2], height - 2, width - 2)
    )
    inner = output[..., 1:-1, 1:-1]
    inner.addcmul_(smooth.sub_(inner), _column(arguments, 0, images))
    return _to_uint8(output)


def _warp(images: Tensor, arguments: Tensor, mode: str) -> Tensor:
    """Rows of ``arguments``: a matrix (3 x 2) from x, y and 1 of an output position, in pixels from the center, to its
    input position in -1 to 1, and the color outside the image, black without one."""
    channels, height, width = images.shape[-3:]
    x, y = (torch.linspace((1 - side) * 0.5, (side - 1) * 0.5, side, device=images.device) for side in (width, height))
    positions = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones(height, width, device=images.device)], 2)
    matrices, colors = arguments[:, :6].view(-1, 3, 2), arguments[:, 6:]
    grids = positions.view(1, -1, 3).expand(len(images), -1, -1).bmm(matrices).view(-1, height, width, 2)
    pixels = images.reshape(-1, channels, height, width).float()
    frames = len(pixels) // len(images)
    grids, colors = grids.repeat_interleave(frames, 0), colors.repeat_interleave(frames, 0)[:, :, None, None]
    sample = partial(grid_sample, grid=grids, mode=mode, padding_mode="zeros", align_corners=False)
    warped = sample(pixels)
    if colors.shape[1]:
        inside = sample(torch.ones_like(pixels[:, :1]))
        warped = torch.where(inside < 0.5, colors, warped) if mode == "nearest" else (warped - colors) * inside + colors
    return _to_uint8(warped.round_()).view(images.shape)


KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adjust_brightness": _brightness,
    "adjust_contrast": _contrast,
    "adjust_hue": _hue,
    "adjust_saturation": _saturation,
    "adjust_sharpness": _sharpness,
    "blur": _blur,
    "erase": _erase,
    "lighting": _lighting,
    "permute_channels": _permute_channels,
    "warp_bilinear": partial(_warp, mode="bilinear"),
    "warp_nearest": partial(_warp, mode="nearest"),
}
"""Kernels by the name of the operation."""


def blur(image: Tensor, sigma: float, max_radius: int) -> Tensor:
    """Blur one image with a Gaussian of ``sigma`` pixels, cut off at three sigma, or where mirroring the image ends.
    ``max_radius``: of all images of a batch. A :class:`RecordedImage` records it."""
    kernels: list[float] = []
    for side in image.shape[-2:]:
        radius = min(math.ceil(3 * sigma), side - 1)
        kernel = (-0.5 * (torch.arange(-radius, radius + 1) / sigma).square()).exp()
        kernels += pad(kernel / kernel.sum(), [max_radius - radius] * 2).tolist()
    return _apply_to_image(image, "blur", kernels)


def add_color(image: Tensor, color: Sequence[float]) -> Tensor:
    """Add a color to all pixels of one image. A :class:`RecordedImage` records it."""
    return _apply_to_image(image, "lighting", color)


def _apply_to_image(image: Tensor, name: str, numbers: Sequence[float]) -> Tensor:
    if isinstance(image, RecordedImage):
        return image.then(name, numbers)
    changed = KERNELS[name](image.as_subclass(Tensor)[None], torch.tensor([numbers]))[0]
    return tv_tensors.wrap(changed, like=image)  # type: ignore[no-any-return]
