"""Transforms of images with any number of channels, in 8 bits or in 0..1, and which are refused for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors

from opabinia.config import build
from opabinia.contracts import Channels, Pixels, Transform
from opabinia.data.transforms.channels import ChannelJitter, check_transforms
from opabinia.data.transforms.combine import Mosaic


def built(*transforms: Any) -> list[Transform]:
    transforms_of: Callable[[], list[Transform]] = build({"transforms": list(transforms)}, command="preprocessing")
    return transforms_of()


def seeded(transform: Transform, image: Tensor, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    np.random.seed(seed)
    result: Tensor = transform({"image": tv_tensors.Image(image)})["image"]
    return result


NESTED = {"name": "RandomApply", "p": 0.5, "transforms": [{"name": "RandomPosterize", "bits": 4}]}
VIEWS = {"name": "views", "views": [{"count": 2, "transforms": [{"name": "RandomGrayscale"}]}]}


@pytest.mark.parametrize("channels", [5, Pixels(count=3, max_value=65535)])
def test_transforms_of_8_bit_colors_are_named_with_the_channels(channels: Channels) -> None:
    transforms = built(
        {"name": "RandomHorizontalFlip"},
        {"name": "ColorJitter", "hue": 0.1},
        NESTED,
        VIEWS,
        {"name": "timm_policy", "policy": "rand-m9"},
        {"name": "pca_lighting"},
        {"name": "JPEG", "quality": 50},
    )
    with pytest.raises(ValueError) as error:
        check_transforms(transforms, channels)
    text = str(error.value)
    assert text.startswith("ColorJitter, RandomPosterize, RandomGrayscale, timm_policy, pca_lighting, JPEG: ")
    assert str(channels) in text and "channel_jitter" in text
    check_transforms(transforms, 3)


ALLOWED = [
    {"name": "RandomResizedCrop", "size": 16},
    {"name": "RandomHorizontalFlip", "p": 1.0},
    {"name": "RandomAffine", "degrees": 10, "translate": [0.1, 0.1]},
    {"name": "Resize", "size": [16, 16]},
    {"name": "random_erase", "probability": 1.0},
    {"name": "RandomErasing", "p": 1.0},
    {"name": "random_gaussian_blur", "probability": 1.0},
    {"name": "fixed_size_crop", "size": [40, 40]},
    {"name": "channel_jitter", "noise": 0.05},
]


@pytest.mark.parametrize("transform", ALLOWED, ids=lambda transform: transform["name"])
def test_other_transforms_do_the_same_to_images_in_0_to_1_as_to_those_of_8_bits(transform: dict[str, Any]) -> None:
    (made,) = built(transform)
    check_transforms([made], 5)
    coarse = torch.randint(0, 256, (5, 4, 4), dtype=torch.uint8).repeat_interleave(8, 1).repeat_interleave(8, 2)
    bytes_, floats = seeded(made, coarse), seeded(made, coarse / 255)
    assert bytes_.dtype == torch.uint8 and floats.dtype == torch.float32
    assert floats.min() >= 0 and floats.max() <= 1.001
    tolerance = (
        60 if transform["name"] == "RandomErasing" else 1.01
    )  # its fill is 0 for both, noise is not rounded alike
    assert (bytes_.float() - 255 * floats).abs().max() <= tolerance


def test_each_channel_is_changed_by_factors_of_its_own() -> None:
    image = torch.full((3, 8, 8), 0.5)
    image[:, :4] = 0.25
    changed = seeded(ChannelJitter(brightness=0.2, contrast=0.0), image)
    ratios = changed.mean((1, 2)) / image.mean((1, 2))
    assert len(ratios.unique()) == 3 and (ratios >= 0.8).all() and (ratios <= 1.2).all()
    assert torch.allclose(changed[:, 7, 7] - changed[:, 0, 0], torch.full((3,), 0.25))
    contrasts = seeded(ChannelJitter(brightness=0.0, contrast=0.5), image)
    assert torch.allclose(contrasts.mean((1, 2)), image.mean((1, 2)))
    assert len((contrasts[:, 7, 7] - contrasts[:, 0, 0]).unique()) == 3
    assert torch.equal(seeded(ChannelJitter(probability=0.0), image), image)


def test_mosaics_of_images_in_0_to_1_are_filled_in_their_range() -> None:
    empty = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(8, 8))
    labels = torch.zeros(0, dtype=torch.int64)
    sample = {"image": tv_tensors.Image(torch.ones(5, 8, 8)), "boxes": empty, "labels": labels}
    np.random.seed(0)
    mosaic = Mosaic(size=16, scale=0.9)
    images = torch.stack([mosaic.combine(sample, lambda: sample)["image"].as_subclass(Tensor) for _ in range(8)])
    assert images.dtype == torch.float32
    assert images.unique().tolist() == pytest.approx([114 / 255, 1.0])
