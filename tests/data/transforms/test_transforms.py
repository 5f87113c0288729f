import inspect
from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.data.transforms.torchvision_v2 import EXCLUDED
from opabinia.runtime.seeds import seed_sample

CLASSES = {name for name, cls in inspect.getmembers(v2, inspect.isclass) if issubclass(cls, v2.Transform)}
REGISTERED = sorted(CLASSES - EXCLUDED.keys())
BOXES = {"RandomIoUCrop", "SanitizeBoundingBoxes"}  # they need boxes, and raise without

SETTINGS: dict[str, dict[str, Any]] = {
    "CenterCrop": {"size": 8},
    "GaussianBlur": {"kernel_size": 3},
    "JPEG": {"quality": 50},
    "Pad": {"padding": [1, 2]},
    "RandomAdjustSharpness": {"sharpness_factor": 2.0},
    "RandomAffine": {"degrees": 10},
    "RandomApply": {"transforms": [v2.RGB()]},
    "RandomChoice": {"transforms": [v2.RGB()]},
    "RandomCrop": {"size": [8, 8]},
    "RandomOrder": {"transforms": [v2.RGB()]},
    "RandomPosterize": {"bits": 3},
    "RandomResize": {"min_size": 8, "max_size": 12},
    "RandomResizedCrop": {"size": 8},
    "RandomRotation": {"degrees": 10},
    "RandomShortestSize": {"min_size": 8},
    "RandomSolarize": {"threshold": 128.0},
    "Resize": {"size": 8},
    "ScaleJitter": {"target_size": (20, 20)},
    "SetClampingMode": {"clamping_mode": "soft"},
}


def test_every_transform_is_registered_or_excluded_with_a_reason() -> None:
    assert EXCLUDED.keys() <= CLASSES
    assert set(REGISTERED) <= register.entries["transform"].keys()
    assert not EXCLUDED.keys() & register.entries["transform"].keys()
    assert all(len(reason) > 8 for reason in EXCLUDED.values())


@pytest.mark.filterwarnings("ignore:The image decoding and encoding")  # JPEG still uses what 0.29 deprecates
@pytest.mark.parametrize("name", REGISTERED)
def test_every_transform_accepts_a_sample(name: str) -> None:
    pixels = torch.arange(3 * 48 * 56).reshape(3, 48, 56) % 256
    sample: dict[str, Any] = {"image": tv_tensors.Image(pixels.to(torch.uint8)), "label": 3, "id": "a/b"}
    if name in BOXES:
        boxes = tv_tensors.BoundingBoxes([[1, 1, 9, 9]], format="XYXY", canvas_size=(48, 56))
        sample |= {"boxes": boxes, "labels": torch.tensor([1])}
    make: Any = register.entries["transform"][name].target
    results = []
    for _ in range(2):
        seed_sample(7)
        results.append(make(**SETTINGS.get(name, {}))(dict(sample)))
    first, second = results
    assert first["image"].dtype == torch.uint8 and first["image"].ndim == 3
    assert (first["label"], first["id"]) == (3, "a/b")
    assert torch.equal(first["image"], second["image"]), "the transform uses a generator that is not seeded"
