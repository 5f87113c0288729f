"""Data augmentation that torchvision has only in another form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.contracts import Fraction, NonNegative, Positive, Sample
from opabinia.data.device_transforms.kernels import add_color, blur
from opabinia.data.transforms.sizes import check_range


@register.transform(name="random_erase")
@dataclass(frozen=True, kw_only=True)
class RandomErase:
    """Fill a random rectangle with the mean of the images, which is 0 after the task's normalization.

    Zhong et al. 2020, Random Erasing; torchvision's ``RandomErasing`` with a value for each channel. The values are
    rounded for uint8, so after normalization they lie within 0.5 / 255 / std of 0.

    Args:
        probability: of erasing.
        scale: minimum and maximum share of the image that is filled (default: the paper's).
        ratio: minimum and maximum of the rectangle's height over its width, drawn uniformly on a logarithmic scale.
        mean: of the images in 0..1, per channel or one for all, as in the task; null takes ImageNet's for color images,
            0.5 otherwise.

    Raises:
        ValueError: the minimum of a range is above its maximum.
    """

    probability: Fraction = 0.5
    scale: tuple[Fraction, Fraction] = (0.02, 0.4)
    ratio: tuple[Positive, Positive] = (0.3, 1 / 0.3)
    mean: list[Fraction] | None = None

    def __post_init__(self) -> None:
        check_range("scale", self.scale)
        check_range("ratio", self.ratio)

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample, with a part of its image erased or unchanged.

        Raises:
            ValueError: the number of means is not the number of channels.
        """
        channels = sample["image"].shape[-3]
        mean = self.mean or ([0.485, 0.456, 0.406] if channels == 3 else [0.5])
        if len(mean) not in (1, channels):
            raise ValueError(f"mean: {mean} are {len(mean)} values for images of {channels} channels")
        # One value per channel, which torchvision accepts though its annotation says a number.
        is_float = sample["image"].is_floating_point()
        fill = [value if is_float else round(255 * value) for value in mean]
        erased: Sample = v2.RandomErasing(self.probability, self.scale, self.ratio, value=fill)(sample)
        return erased


@register.transform(name="random_gaussian_blur")
@dataclass(frozen=True, kw_only=True)
class RandomGaussianBlur:
    """Blur an image with a Gaussian, as self-supervised methods do (Chen et al. 2020, SimCLR, appendix A).

    torchvision's ``GaussianBlur`` uses one kernel size for every sigma, and takes eighteen times as long at the 23
    pixels that the paper uses for 224.

    Args:
        probability: of blurring (default: the paper's; BYOL and DINO: 1 for the first view, 0.1 for the second).
        sigma: minimum and maximum standard deviation, in pixels (default: the paper's; VISSL's ``radius``).

    Raises:
        ValueError: the minimum is above the maximum.
    """

    probability: Fraction = 0.5
    sigma: tuple[Positive, Positive] = (0.1, 2.0)

    def __post_init__(self) -> None:
        check_range("sigma", self.sigma)

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample, with its image blurred or unchanged."""
        if torch.rand(()) >= self.probability:
            return sample
        low, high = self.sigma
        sigma = low + (high - low) * float(torch.rand(()))
        return {**sample, "image": blur(sample["image"], sigma, math.ceil(3 * high))}


@register.transform(name="pca_lighting")
def lighting(sample: Sample, /, *, std: NonNegative = 0.1) -> Sample:
    """Add one random color to all pixels, drawn along the principal components of ImageNet's colors (Krizhevsky et al.
    2012, section 4.1; detectron2's RandomLighting, whose ``scale`` is 255 times as large for the same change).

    Args:
        std: standard deviation of the random factor of each component (default: the paper's).

    Raises:
        ValueError: the image does not have three channels.
    """
    image = sample["image"]
    if image.shape[-3] != 3:
        raise ValueError(f"pca_lighting needs images with 3 channels, not {image.shape[-3]}")
    color = 255 * (_PRINCIPAL_COMPONENTS @ (torch.randn(3) * std * _DEVIATIONS))
    return {**sample, "image": add_color(image, color.tolist())}


_DEVIATIONS = torch.tensor([0.2175, 0.0188, 0.0045])
_PRINCIPAL_COMPONENTS = torch.tensor(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
"""Principal components of red, green and blue in 0 to 1 over ImageNet, one in each column."""
