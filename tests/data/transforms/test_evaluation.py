"""Evaluation sizes, several crops, and timm's policies."""

from __future__ import annotations

from functools import partial

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


def test_basecls_sizes() -> None:
    sizes = [(224, 0.875), (224, 224 / 232), (224, 0.9), (380, 380 / 412), (384, 1.0), (300, 0.875)]
    assert [resize_side(size, crop) for size, crop in sizes] == [256, 232, 248, 412, 384, 342]


def test_crops_of_the_resized_image() -> None:
    center = resize_and_crop(sample(), size=28)["image"]
    assert torch.equal(center, v2.Compose([v2.Resize(32), v2.CenterCrop(28)])(sample()["image"]))
    for crops in (5, 10):
        views = resize_and_crops(sample(), size=28, crops=crops)["image"]  # type: ignore[arg-type]
        assert views.shape == (crops, 3, 28, 28) and torch.equal(views[4], center)
    assert torch.equal(views[9], views[4].flip(-1))
    annotated = {**sample(), "mask": tv_tensors.Mask(torch.zeros(48, 64))}
    for refused in (partial(resize_and_crop, size=20), partial(timm_policy, policy="3a")):
        with pytest.raises(ValueError, match="boxes and masks would not follow"):
            refused(annotated)


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "3a", "augmix-m3-w3"])
def test_policies_are_seeded(policy: str) -> None:
    def drawn(channels: int, seed: int) -> torch.Tensor:
        seed_sample(seed)
        return torch.stack([timm_policy(sample(channels), policy=policy)["image"] for _ in range(4)])

    for channels in (1, 3):
        first = drawn(channels, 1)
        assert first.shape == (4, channels, 48, 64) and first.dtype == torch.uint8
        assert torch.equal(drawn(channels, 1), first) and not torch.equal(first, drawn(channels, 2))


def test_unknown_policies_raise() -> None:
    with pytest.raises(ValueError, match="timm has no policy 'strong'"):
        timm_policy(sample(), policy="strong")
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        timm_policy(sample(2), policy="3a")
