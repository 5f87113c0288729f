"""Evaluation sizes, several crops, and timm's policies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Sample
from opabinia.data.transforms.evaluation import resize_and_crop, resize_and_crops, resize_side
from opabinia.data.transforms.policies import timm_policy
from opabinia.runtime.seeds import seed_sample


def sample(channels: int = 3, height: int = 48, width: int = 64) -> Sample:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)
    return {"image": tv_tensors.Image(pixels), "label": 1, "id": "one"}


@pytest.mark.parametrize(
    ("size", "crop", "side"),
    [
        *((224, 0.875, 256), (224, 224 / 232, 232), (224, 0.9, 248), (380, 380 / 412, 412)),
        *((384, 1.0, 384), (300, 0.875, 342)),
    ],
)
def test_basecls_sizes(size: int, crop: float, side: int) -> None:
    assert resize_side(size, crop) == side


def test_the_crop_is_the_center_of_the_resized_image() -> None:
    result = resize_and_crop(sample(), size=28)["image"]
    expected = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])(sample()["image"])
    assert torch.equal(result, expected)


@pytest.mark.parametrize("crops", [5, 10])
def test_crops(crops: Any) -> None:
    views = resize_and_crops(sample(), size=28, crops=crops)["image"]
    assert views.shape == (crops, 3, 28, 28)
    assert torch.equal(views[4], resize_and_crop(sample(), size=28)["image"])
    assert crops == 5 or torch.equal(views[9], views[4].flip(-1))


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "3a", "augmix-m3-w3"])
@pytest.mark.parametrize("channels", [1, 3])
def test_policies_are_seeded(policy: str, channels: int) -> None:
    def drawn(seed: int) -> torch.Tensor:
        seed_sample(seed)
        return torch.stack([timm_policy(sample(channels), policy=policy)["image"] for _ in range(4)])

    assert drawn(1).shape == (4, channels, 48, 64) and drawn(1).dtype == torch.uint8
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))


def test_unknown_policies_raise() -> None:
    with pytest.raises(ValueError, match="timm has no policy 'strong'"):
        timm_policy(sample(), policy="strong")
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        timm_policy(sample(2), policy="3a")


@pytest.mark.parametrize(
    ("name", "value"),
    [("Rotate", 27.0), ("ShearX", 0.27), ("TranslateXRel", 0.405), ("ColorIncreasing", 0.81), ("SolarizeAdd", 99)],
)
def test_parameters_at_magnitude_9_are_those_of_basecls(name: str, value: float) -> None:
    from timm.data.auto_augment import LEVEL_TO_ARG

    (result,) = LEVEL_TO_ARG[name](9, {"translate_pct": 0.45})[:1]
    result = result - 1 if name == "ColorIncreasing" else result
    assert abs(result) == pytest.approx(value)
