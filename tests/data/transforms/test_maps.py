"""Transforms of an image with its segmentation map."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.transforms.combine import CopyPaste
from opabinia.data.transforms.crops import RandomCrop, RandomResizedCrop, Resize
from opabinia.runtime.seeds import seed_sample
from tests.data.test_sample_keys import agreement, segmentation
from tests.data.transforms.test_instances import POLICIES
from tests.data.transforms.test_transforms import BOXES, REGISTERED, SETTINGS

PADDED = {"CenterCrop", "Pad", "RandomAffine", "RandomCrop", "RandomPerspective", "RandomRotation", "RandomZoomOut"}
GEOMETRIC = PADDED | {"ElasticTransform", "RandomHorizontalFlip", "RandomVerticalFlip", "Resize", "ScaleJitter"}
GEOMETRIC |= {"RandomResize", "RandomResizedCrop", "RandomShortestSize"}
STRONG_SETTINGS: dict[str, dict[str, Any]] = {
    "CenterCrop": {"size": 60},
    "ElasticTransform": {"fill": 77},
    "Pad": {"padding": [5, 7], "fill": [7, 8, 9]},
    "RandomAffine": {"degrees": 30, "fill": 77},
    "RandomCrop": {"size": [60, 40], "pad_if_needed": True, "fill": 77},
    "RandomPerspective": {"p": 1.0, "fill": 77},
    "RandomRotation": {"degrees": [30, 40]},
    "RandomZoomOut": {"p": 1.0, "fill": 77},
    "ScaleJitter": {"target_size": (60, 60), "scale_range": (0.8, 1.2)},
}


@pytest.mark.filterwarnings("ignore:The image decoding and encoding")
def test_maps_follow_every_transform() -> None:
    """Geometric transforms move image and map together and fill maps with 255; others leave maps unchanged."""
    labels = segmentation()["mask"].to(torch.uint8)
    sample: Sample = {**segmentation(), "mask": tv_tensors.Mask(labels)}
    for name in sorted(set(REGISTERED) - BOXES - POLICIES):
        transform: Any = register.entries["transform"][name].target
        transform = transform(**{**SETTINGS.get(name, {}), **STRONG_SETTINGS.get(name, {})})
        seed_sample(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = transform(sample)
        mask = result["mask"]
        assert isinstance(mask, tv_tensors.Mask) and mask.dtype == torch.uint8, name
        assert mask.shape == result["image"].shape[-2:], name
        if name in GEOMETRIC:
            assert set(mask.unique().tolist()) <= {0, 1, 2, 3, 255}, name
            assert agreement(result["image"], mask) > 0.85, name
            assert bool((mask == 255).any()) or name not in PADDED, name
        else:
            assert torch.equal(mask, labels), name


def test_resized_maps_have_the_labels_at_the_centers_of_pixels() -> None:
    """torchvision takes the labels at the top left corners, which shifts maps by half a pixel against their images."""
    columns = torch.arange(64, dtype=torch.uint8).expand(3, 64, 64)
    sample = {"image": tv_tensors.Image(columns.clone()), "mask": tv_tensors.Mask(columns[0].clone())}
    for transform in (Resize(size=[16, 16]), RandomResizedCrop(size=16, scale=(1.0, 1.0), ratio=(1.0, 1.0))):
        result = transform(sample)
        assert result["mask"][0].tolist() == list(range(2, 64, 4)) and isinstance(result["mask"], tv_tensors.Mask)
        assert (result["image"][0].float() - result["mask"].float()).abs().max() <= 1
    pad: Any = register.entries["transform"]["Pad"].target
    boxes = tv_tensors.BoundingBoxes([[0, 0, 64, 64]], format="XYXY", canvas_size=(64, 64))
    masks = tv_tensors.Mask(torch.ones(1, 64, 64, dtype=torch.uint8))
    padded = pad(padding=2, fill=77)({**sample, "boxes": boxes, "masks": masks})
    fills = [int(padded[key][..., :2, :].unique()) for key in ("image", "mask", "masks")]
    assert fills == [77, 255, 0], "images as configured, instance masks are not"
    short = Resize(size=16)({**sample, "masks": tv_tensors.Mask(torch.ones(2, 64, 64, dtype=torch.uint8))})
    assert short["masks"].shape == (2, 16, 16)


def test_crops_with_several_classes() -> None:
    sample = segmentation(40, 40)
    sample["mask"][20:, :20] = 255
    counts = []
    for ratio in (1.0, 0.6):
        crop = RandomCrop(kind="absolute", size=(20, 20), category_max_ratio=ratio)
        count = 0
        for seed in range(30):
            seed_sample(seed)
            pixels = crop(sample)["mask"].as_subclass(Tensor).flatten().bincount(minlength=256)[:255]
            count += int(pixels.max() < 0.6 * pixels.sum())
        counts.append(count)
    assert counts[0] < 15 and counts[1] >= 28  # all ten attempts may fail
    with pytest.raises(ValueError, match="category_max_ratio is for samples with a segmentation map"):
        RandomCrop(category_max_ratio=0.75)({"image": sample["image"]})


def test_pasted_objects_are_drawn_into_the_map() -> None:
    def panoptic(height: int, width: int, label: int) -> Sample:
        mask = torch.zeros(1, height, width, dtype=torch.uint8)
        mask[:, 2:6, 2:6] = 1
        boxes = tv_tensors.BoundingBoxes([[2, 2, 6, 6]], format="XYXY", canvas_size=(height, width))
        return {
            "image": tv_tensors.Image(torch.full((3, height, width), 10 * label, dtype=torch.uint8)),
            "mask": tv_tensors.Mask(mask[0] * label),
            "masks": tv_tensors.Mask(mask),
            "boxes": boxes,
            "labels": torch.tensor([label]),
        }

    first = panoptic(12, 12, 1)
    first["mask"][4:] = 255
    result = CopyPaste(paste_probability=1.0).combine(first, lambda: panoptic(8, 20, 3))
    expected = first["mask"].clone()
    expected[2:6, 2:6] = 3
    assert torch.equal(result["mask"], expected) and isinstance(result["mask"], tv_tensors.Mask)
    assert result["labels"].tolist() == [3]  # the other object is hidden
    assert isinstance(v2.functional.horizontal_flip(result["mask"]), tv_tensors.Mask)
