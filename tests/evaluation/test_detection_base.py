"""Detection evaluators accept resized images and reject transforms that move objects in them."""

from collections.abc import Callable
from typing import Any

import pytest
from torchvision.transforms import v2

from opabinia.contracts import DataMismatch
from opabinia.data.collate import collate
from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.evaluation.detection.base import check_only_resized


def batch(transform: Callable[[Any], Any]) -> dict[str, Any]:
    scenes = DigitScenes(split="val")
    return collate([transform(scenes[index]) for index in range(6)], 32)


@pytest.mark.parametrize(
    "transform",
    [v2.Identity(), v2.Resize((64, 96)), v2.Resize((300, 300)), v2.ColorJitter(0.5)],
    ids=["none", "smaller", "larger", "colors"],
)
def test_images_may_be_resized(transform: v2.Transform) -> None:
    check_only_resized(batch(transform))


@pytest.mark.parametrize(
    "transform",
    [v2.CenterCrop(100), v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.Pad(16)],
    ids=["crop", "mirror", "upside_down", "pad"],
)
def test_objects_may_not_be_moved(transform: v2.Transform) -> None:
    with pytest.raises(DataMismatch, match=r"\d+ of \d+ objects lie elsewhere .* may resize images, and nothing else"):
        check_only_resized(batch(transform))


def test_batches_without_boxes_are_not_checked() -> None:
    check_only_resized({"id": ["a"]})
