"""Augmentations that torchvision has in another form only."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative, Positive, Sample
from opabinia.data.device_transforms.recorded import Change, Recorded


@register.transform(name="erase")
class Erase:
    """Fill a random rectangle with the mean of the images, which is 0 once the task has normalised them.

    Zhong et al. 2020, Random Erasing; torchvision's ``RandomErasing`` with a value for each channel. Values are those
    that an image can have: what is to be 0 lies within 0.5 / 255 / std of it.

    Args:
        probability: how often.
        area: least and largest share of the image that is filled (the paper's).
        ratio: least and largest height of the rectangle over its width, drawn evenly on a logarithmic scale: tall ones
            are as frequent as wide ones.
        mean: of the images in 0..1, per channel or one for all, as the task has it; null takes ImageNet's for colour,
            0.5 otherwise.

    Raises:
        ValueError: the lower end of a range is above its upper end.
    """

    def __init__(
        self,
        *,
        probability: Fraction = 0.5,
        area: tuple[Fraction, Fraction] = (0.02, 0.4),
        ratio: tuple[Positive, Positive] = (0.3, 1 / 0.3),
        mean: list[Fraction] | None = None,
    ) -> None:
        for name, (low, high) in (("area", area), ("ratio", ratio)):
            if low > high:
                raise ValueError(f"{name}: [{low}, {high}] begins above its end; write [{high}, {low}]")
        self._probability, self._area, self._ratio, self._mean = probability, area, ratio, mean

    def __call__(self, sample: Sample) -> Sample:
        """The sample with a part of its image erased, or as it is.

        Raises:
            ValueError: there are not as many means as channels.
        """
        channels = sample["image"].shape[-3]
        mean = self._mean or ([0.485, 0.456, 0.406] if channels == 3 else [0.5])
        if len(mean) not in (1, channels):
            raise ValueError(f"mean: {mean} are {len(mean)} values for images of {channels} channels")
        # One for each channel, which torchvision takes though its annotation says a number.
        fill = [round(255 * value) for value in mean]
        erased: Sample = v2.RandomErasing(self._probability, self._area, self._ratio, value=fill)(sample)
        return erased


@register.transform(name="blur")
class Blur:
    """Blur an image with a Gaussian, as learning without labels does (Chen et al. 2020, SimCLR, appendix A).

    torchvision's ``GaussianBlur`` has one size of kernel for all it draws, and takes eighteen times as long at the 23
    pixels that the paper has for 224.

    Args:
        probability: how often (the paper's; BYOL and DINO: 1 for the first view, 0.1 for the second).
        sigma: least and largest standard deviation, in pixels (the paper's; VISSL's ``radius``).

    Raises:
        ValueError: the least is above the largest.
    """

    def __init__(self, *, probability: Fraction = 0.5, sigma: tuple[Positive, Positive] = (0.1, 2.0)) -> None:
        low, high = sigma
        if low > high:
            raise ValueError(f"sigma: [{low}, {high}] begins above its end; write [{high}, {low}]")
        self._probability, self._low, self._high = probability, low, high

    def __call__(self, sample: Sample) -> Sample:
        """The sample with its image blurred, or as it is."""
        if torch.rand(()) >= self._probability:
            return sample
        sigma = self._low + (self._high - self._low) * float(torch.rand(()))
        image = sample["image"]
        if isinstance(image, Recorded):
            values = (sigma, *image.shape[-2:], math.ceil(3 * self._high))
            return {**sample, "image": image.then(Change("blur", values))}
        return {**sample, "image": tv_tensors.wrap(blurred(image.as_subclass(Tensor), sigma), like=image)}


def blurred(image: Tensor, sigma: float) -> Tensor:
    """An image (uint8, ... x H x W) blurred with a Gaussian of ``sigma`` pixels, mirrored at its edges."""
    height, width = image.shape[-2:]
    found = image.float().reshape(-1, 1, height, width)
    for axis, side in ((-2, height), (-1, width)):
        kernel = weights_of(sigma, side)
        radius = len(kernel) // 2
        rim = (0, 0, radius, radius) if axis == -2 else (radius, radius, 0, 0)
        found = conv2d(pad(found, rim, mode="reflect"), kernel.reshape(1, 1, -1, 1).transpose(-2, axis))
    return found.round().clamp(0, 255).to(torch.uint8).reshape(image.shape)


def weights_of(sigma: float, side: int) -> Tensor:
    """A Gaussian of ``sigma`` pixels that adds up to 1 (2 x radius + 1), cut off at three sigma, or where an image of
    this side ends."""
    radius = min(math.ceil(3 * sigma), side - 1)
    kernel = (-0.5 * (torch.arange(-radius, radius + 1) / sigma).square()).exp()
    return kernel / kernel.sum()


@register.transform(name="lighting")
def lighting(sample: Sample, /, *, strength: NonNegative = 0.1) -> Sample:
    """Add the same colour to every pixel, drawn along the axes in which the colours of ImageNet differ (Krizhevsky et
    al. 2012, section 4.1; detectron2's RandomLighting, whose ``scale`` is 255 times as large for the same change).

    Args:
        strength: standard deviation of what is drawn for each axis (the paper's).

    Raises:
        ValueError: the image has not three channels.
    """
    image = sample["image"]
    if image.shape[-3] != 3:
        raise ValueError(f"colours of light need images of 3 channels, not {image.shape[-3]}")
    colour = 255 * (_AXES @ (torch.randn(3) * strength * _DEVIATIONS))
    if isinstance(image, Recorded):
        return {**sample, "image": image.then(Change("lighting", tuple(colour.tolist())))}
    changed = (image + colour[:, None, None]).round().clamp(0, 255).to(torch.uint8)
    return {**sample, "image": tv_tensors.wrap(changed, like=image)}


_DEVIATIONS = torch.tensor([0.2175, 0.0188, 0.0045])
_AXES = torch.tensor([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
"""Principal components of red, green and blue in 0 to 1 over ImageNet, one in each column."""
