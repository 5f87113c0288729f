import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from opabinia.data.collate import collate


def test_a_batch_of_everything() -> None:
    samples = [
        {
            "image": tv_tensors.Image(torch.full((1, 2, 3), i, dtype=torch.uint8)),
            "label": i,
            "weight": i / 2,
            "mixed": [1, 0.5][i],
            "crowd": bool(i),
            "count": np.int32(i),
            "depth": np.full((2,), i, dtype=np.float64),
            "id": f"a/{i}",
            "note": None,
        }
        for i in range(2)
    ]
    batch = collate(samples)
    assert list(batch) == list(samples[0])
    assert type(batch["image"]) is torch.Tensor
    assert (batch["image"].shape, batch["image"].dtype) == ((2, 1, 2, 3), torch.uint8)
    assert (batch["label"].tolist(), batch["label"].dtype) == ([0, 1], torch.int64)
    assert (batch["weight"].tolist(), batch["weight"].dtype) == ([0, 0.5], torch.float32)
    assert (batch["mixed"].tolist(), batch["mixed"].dtype) == ([1, 0.5], torch.float32)
    assert (batch["crowd"].tolist(), batch["crowd"].dtype) == ([False, True], torch.bool)
    assert (batch["count"].tolist(), batch["count"].dtype) == ([0, 1], torch.int64)
    assert (batch["depth"].tolist(), batch["depth"].dtype) == ([[0, 0], [1, 1]], torch.float64)
    assert batch["id"] == ["a/0", "a/1"]
    assert batch["note"] == [None, None]


def test_images_of_different_sizes() -> None:
    samples = [{"image": torch.zeros(3, 4, width), "id": f"cats/{width}.jpg"} for width in (5, 5, 7)]
    with pytest.raises(ValueError) as caught:
        collate(samples)
    assert str(caught.value) == (
        "'image' differs in size: cats/5.jpg has 3 x 4 x 5, cats/7.jpg has 3 x 4 x 7; "
        "add Resize with CenterCrop, or RandomResizedCrop, to the transforms"
    )


def test_samples_with_different_keys() -> None:
    with pytest.raises(ValueError, match=r"a has the keys \['id', 'label'\], sample 1 of the batch has \['label'\]"):
        collate([{"id": "a", "label": 1}, {"label": 1}])
