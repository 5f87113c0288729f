"""Random erasing, random patches and blur."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors

from opabinia.contracts import Batch, DatasetInfo, Sample
from opabinia.data.batch_mixing import random_patch
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur
from opabinia.models.layers import Normalize
from opabinia.runtime.seeds import seed_sample

DATASET_INFO = DatasetInfo(samples=100, classes=("a", "b"))


def sample_of(channels: int = 3, height: int = 96, width: int = 48) -> Sample:
    pixels = torch.full((channels, height, width), 7, dtype=torch.uint8)
    return {"image": tv_tensors.Image(pixels), "label": 3, "id": "a/b", "camera": 1}


def box_of(changed: Tensor) -> tuple[int, int]:
    """Return height and width of the one rectangle that is true in a mask (H x W)."""
    rows, columns = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
    inside = changed[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    assert inside.all()
    return inside.shape[0], inside.shape[1]


# --- erasing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_erased_pixels_are_zero_after_normalization(channels: int) -> None:
    mean, std = ([0.5], [0.5]) if channels == 1 else ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    for seed in range(40):
        seed_sample(seed)
        sample = sample_of(channels)
        erased = RandomErase(probability=1.0)(sample)
        assert isinstance(erased["image"], tv_tensors.Image) and erased["image"].dtype == torch.uint8
        assert {**erased, "image": 0} == {**sample, "image": 0}
        assert bool((sample["image"] == 7).all()), "the input sample was changed"
        changed = (erased["image"] != 7).all(0)
        height, width = box_of(changed)
        assert 0.02 * 0.9 <= height * width / (96 * 48) <= 0.4 * 1.1
        assert 0.3 * 0.8 <= height / width <= 1 / 0.3 / 0.8
        normalized = Normalize(mean, std, channels)(erased["image"][None])[0]
        assert normalized[:, changed].abs().max() <= 0.5 / 255 / min(std) + 1e-6


def test_probability_and_mean_of_erasing() -> None:
    def erased(seed: int, **keys: Any) -> Tensor:
        seed_sample(seed)
        image: Tensor = RandomErase(**keys)(sample_of())["image"]
        return image

    assert sum(bool((erased(seed) != 7).any()) for seed in range(400)) == pytest.approx(200, abs=40)
    assert not any(bool((erased(seed, probability=0.0) != 7).any()) for seed in range(20))
    assert set(erased(1, probability=1.0, mean=[0.2]).unique().tolist()) == {7, 51}
    assert torch.equal(erased(5, probability=1.0), erased(5, probability=1.0))


def test_invalid_erasing_options_raise() -> None:
    for keys, message in (
        ({"scale": (0.4, 0.02)}, r"scale: the minimum of \[0.4, 0.02\] is above the maximum; write \[0.02, 0.4\]"),
        ({"ratio": (3.0, 0.3)}, r"ratio: the minimum of \[3.0, 0.3\] is above the maximum"),
        ({"mean": [0.1, 0.2]}, r"mean: \[0.1, 0.2\] are 2 values for images of 3 channels"),
    ):
        with pytest.raises(ValueError, match=message):
            RandomErase(**keys)(sample_of())  # type: ignore[arg-type]


# --- patches ----------------------------------------------------------------------------------------------------------


def batch_of(count: int) -> Batch:
    """Return a batch in which every image has its own gray value."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 3, 96, 48).contiguous()
    return {"image": images, "label": torch.arange(count) % 2, "id": [str(number) for number in range(count)]}


def patched(batch: Batch, seed: int = 3, **keys: Any) -> Batch:
    seed_sample(seed)
    return random_patch(batch, DATASET_INFO, **keys)


def test_a_patch_is_a_rectangle_of_another_image() -> None:
    batch = batch_of(64)
    result = patched(batch, probability=1.0)
    shapes = []
    for number, image in enumerate(result["image"]):
        (other,) = set(image.unique().tolist()) - {number}
        assert other in range(64)
        height, width = box_of((image == other).all(0))
        assert 0.01 * 0.6 <= height * width / (96 * 48) <= 0.5 * 1.1
        shapes.append(height / width)
    assert len(shapes) == 64 and max(shapes) > 1 > min(shapes)
    assert result["label"] is batch["label"] and result["id"] == batch["id"]
    assert torch.equal(batch["image"], batch_of(64)["image"]), "the input batch was changed"


def test_about_half_of_the_images_get_a_patch() -> None:
    batch = batch_of(200)
    result = (patched(batch)["image"] != batch["image"]).flatten(1).any(1)
    assert int(result.sum()) == pytest.approx(100, abs=30)
    assert torch.equal(patched(batch, probability=0.0)["image"], batch["image"])
    assert torch.equal(patched(batch_of(1), probability=1.0)["image"], batch_of(1)["image"]), "there is no other image"
    with pytest.raises(ValueError, match=r"area: the minimum of \[0.5, 0.1\] is above the maximum"):
        patched(batch_of(2), area=(0.5, 0.1))
    assert torch.equal(patched(batch)["image"], patched(batch)["image"]), "nothing depends on earlier batches"
    assert not torch.equal(patched(batch, seed=4)["image"], patched(batch)["image"])


def test_patches_are_flipped() -> None:
    images = torch.arange(48, dtype=torch.uint8).expand(2, 1, 32, 48).contiguous()
    images[1] += 100
    for flip, step in ((0.0, 1), (1.0, -1)):
        image = patched({**batch_of(2), "image": images}, probability=1.0, flip=flip, area=(0.2, 0.3))["image"][0, 0]
        row = image[(image >= 100).any(1)][0].int()
        steps = row[row >= 100].diff()
        assert len(steps) and bool((steps == step).all())


# --- blur -------------------------------------------------------------------------------------------------------------


def blurred(image: Tensor, sigma: float) -> Tensor:
    blur = RandomGaussianBlur(probability=1.0, sigma=(sigma, sigma))
    result: Tensor = blur({"image": tv_tensors.Image(image)})["image"]
    return result


def test_a_blur_of_a_single_color_changes_nothing() -> None:
    image = torch.full((1, 2, 3), 77, dtype=torch.uint8)
    assert torch.equal(blurred(image, 5.0), image)
    assert torch.equal(blurred(image[:, :1, :1], 5.0), image[:, :1, :1])


def test_probability_and_sigma_of_the_blur() -> None:
    point = torch.zeros(1, 33, 33, dtype=torch.uint8)
    point[0, 16, 16] = 255
    sample = {"image": tv_tensors.Image(point), "id": "a", "label": 3}
    torch.manual_seed(0)
    blur = RandomGaussianBlur(probability=0.3, sigma=(1.0, 2.0))
    outputs = [blur(sample) for _ in range(400)]
    changed = [output["image"] for output in outputs if not torch.equal(output["image"], point)]
    assert len(changed) / 400 == pytest.approx(0.3, abs=0.1), "four standard deviations"
    peaks = torch.tensor([float(image.max()) for image in changed]) / 255
    # The peak of a Gaussian is 1 / (2 pi sigma^2).
    assert 1 / (8 * math.pi) - 0.01 < peaks.min() < 0.06 and 0.12 < peaks.max() < 1 / (2 * math.pi) + 0.01
    assert isinstance(outputs[0]["image"], tv_tensors.Image) and (outputs[0]["id"], outputs[0]["label"]) == ("a", 3)
    with pytest.raises(ValueError, match=r"sigma: the minimum of \[2.0, 1.0\] is above the maximum"):
        RandomGaussianBlur(sigma=(2.0, 1.0))
