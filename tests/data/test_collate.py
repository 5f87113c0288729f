from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors

from opabinia.contracts import InstanceMasks, Sample
from opabinia.data.collate import collate, pad_images, resize_batch
from opabinia.data.sample_keys import OBJECT_KEYS
from opabinia.engine.loop.step import split_micro_batches

VALUES: dict[str, tuple[list[Any], list[Any], torch.dtype]] = {
    "label": ([0, 1], [0, 1], torch.int64),
    "weight": ([0.0, 0.5], [0, 0.5], torch.float32),
    "mixed": ([1, 0.5], [1, 0.5], torch.float32),
    "crowd": ([False, True], [False, True], torch.bool),
    "count": ([np.int32(0), np.int32(1)], [0, 1], torch.int64),
    "depth": ([np.zeros(2), np.ones(2)], [[0, 0], [1, 1]], torch.float64),
}


def test_a_batch_of_all_types() -> None:
    samples: list[Sample] = [
        {
            "image": tv_tensors.Image(torch.full((1, 2, 3), i, dtype=torch.uint8)),
            **{key: values[i] for key, (values, _, _) in VALUES.items()},
            "id": f"a/{i}",
            "note": None,
        }
        for i in range(2)
    ]
    batch = collate(samples)
    assert list(batch) == list(samples[0])
    assert type(batch["image"]) is torch.Tensor
    assert (batch["image"].shape, batch["image"].dtype) == ((2, 1, 2, 3), torch.uint8)
    for key, (_, expected, dtype) in VALUES.items():
        assert (batch[key].tolist(), batch[key].dtype) == (expected, dtype)
    assert batch["id"] == ["a/0", "a/1"] and batch["note"] == [None, None]


def test_samples_that_form_no_batch_are_named() -> None:
    samples = [{"image": torch.zeros(3, 4, width), "id": f"cats/{width}.jpg"} for width in (5, 5, 7)]
    with pytest.raises(ValueError) as error:
        collate(samples)
    assert str(error.value) == (
        "'image' differs in size: cats/5.jpg has 3 x 4 x 5, cats/7.jpg has 3 x 4 x 7; "
        "add Resize with CenterCrop, or RandomResizedCrop, to the transforms"
    )
    with pytest.raises(ValueError, match=r"a has the keys \['id', 'label'\], sample 1 of the batch has \['label'\]"):
        collate([{"id": "a", "label": 1}, {"label": 1}])


# --- objects, images of different sizes -------------------------------------------------------------------------------


def make_sample(height: int, width: int, boxes: list[list[float]], name: str = "one", *, channels: int = 3) -> Sample:
    """Return a white image with these objects, each of a different class."""
    count, size = len(boxes), (height, width)
    return {
        "image": tv_tensors.Image(torch.full((channels, *size), 255, dtype=torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(torch.tensor(boxes).reshape(-1, 4), format="XYXY", canvas_size=size),
        "labels": torch.arange(count),
        "masks": tv_tensors.Mask(torch.ones(count, *size, dtype=torch.uint8)),
        "keypoints": tv_tensors.KeyPoints(torch.arange(count * 4.0).reshape(count, 2, 2), canvas_size=size),
        "visibility": torch.full((count, 2), 2),
        "flip_pairs": [1, 0],
        "id": name,
        "original_size": (2 * height, 2 * width),
        "ground_truth": f"ground truth of {name}",
    }


def make_samples() -> list[Sample]:
    return [
        make_sample(30, 40, [[0.0, 0, 9, 9], [5, 5, 5, 20], [1, 2, 30, 4], [8, 9, 7, 12]], "a"),
        make_sample(50, 20, [], "b"),
        make_sample(33, 33, [[3.0, 3, 4, 4]], "c"),
    ]


def test_images_are_padded_to_the_next_multiple() -> None:
    for multiple, size in ((1, (50, 40)), (8, (56, 40)), (32, (64, 64)), (50, (50, 50))):  # 32: detectron2's
        for channels in (1, 3):
            images = [torch.full((channels, *sides), 7, dtype=torch.uint8) for sides in ((30, 40), (50, 20))]
            batch = pad_images(images, multiple)
            assert batch.shape == (2, channels, *size) and batch.dtype == torch.uint8
            for image, (height, width) in zip(batch, ((30, 40), (50, 20)), strict=True):
                assert (image[:, :height, :width] == 7).all()
                assert image.sum(dtype=torch.int64) == 7 * channels * height * width


def test_a_batch_of_images_with_objects() -> None:
    samples = make_samples()
    batch = collate(samples, 32)
    assert batch.keys() == {*samples[0], "image_sizes"}
    with pytest.raises(ValueError, match="boxes do not follow; take resize_shortest_edge"):
        resize_batch(batch, (64, 64))
    assert batch["image"].shape == (3, 3, 64, 64) and type(batch["image"]) is Tensor
    assert batch["image_sizes"] == [(30, 40), (50, 20), (33, 33)]
    assert batch["original_size"] == [(60, 80), (100, 40), (66, 66)]
    assert batch["id"] == ["a", "b", "c"] and batch["ground_truth"] == [f"ground truth of {name}" for name in "abc"]
    assert batch["flip_pairs"] == [[1, 0]] * 3
    assert [len(boxes) for boxes in batch["boxes"]] == [2, 0, 1]
    assert all(type(value) is Tensor for key in OBJECT_KEYS for value in batch[key])
    for runs, (height, width) in zip(batch["masks"], batch["image_sizes"], strict=True):
        mask = InstanceMasks(runs, (64, 64)).dense()
        assert mask.sum() == len(mask) * height * width == mask[:, :height, :width].sum()


def test_objects_without_area_are_dropped_with_all_their_keys() -> None:
    batch = collate(make_samples(), 32)
    assert batch["boxes"][0].tolist() == [[0, 0, 9, 9], [1, 2, 30, 4]]
    assert batch["labels"][0].tolist() == [0, 2]
    assert batch["keypoints"][0].tolist() == [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    assert [len(batch[key][0]) for key in OBJECT_KEYS] == [2] * 5


def test_a_batch_without_objects() -> None:
    batch = collate([make_sample(30, 40, []), make_sample(20, 50, [[5.0, 5, 5, 9]])], 32)
    assert [[tuple(value.shape) for value in batch[key]] for key in OBJECT_KEYS] == [
        [(0, 4)] * 2,
        [(0,)] * 2,
        [(0, 0, 2)] * 2,
        [(0, 2, 2)] * 2,
        [(0, 2)] * 2,
    ]
    assert batch["boxes"][0].dtype == torch.float32 and batch["labels"][0].dtype == torch.int64


def test_images_without_annotations() -> None:
    """As in prediction."""
    sample = {key: make_sample(30, 40, [])[key] for key in ("image", "id", "original_size")}
    batch = collate([sample, sample], 16)
    assert batch.keys() == {"image", "id", "original_size", "image_sizes"}
    assert batch["image"].shape == (2, 3, 32, 48)


def test_images_that_differ_in_more_than_size() -> None:
    gray, real = make_sample(4, 5, [], "gray", channels=1), make_sample(4, 5, [], "float")
    real["image"] = torch.zeros(3, 4, 5)
    for other, message in (
        (gray, "a has 3 x 30 x 40 of torch.uint8, gray has 1 x 4 x 5 of torch.uint8; RGB"),
        (real, "float has 3 x 4 x 5 of torch.float32"),
    ):
        with pytest.raises(ValueError, match=f"'image' differs in more than its size: .*{message}"):
            collate([make_samples()[0], other], 32)


def test_micro_batches_of_objects() -> None:
    """Each micro-batch has the objects of its samples, also if an image has as many objects as the batch has images."""
    batch = collate([make_sample(30, 40, [[0.0, 0, 9, 9]] * 3, "x"), *make_samples()[1:]], 32)
    for size, counts in ((1, [1, 1, 1]), (2, [2, 1])):
        micro_batches = list(split_micro_batches(batch, size))
        assert [count for _, count in micro_batches] == counts
        for key, values in batch.items():
            split_values: list[Any] = [value for micro_batch, _ in micro_batches for value in micro_batch[key]]
            for split_value, value in zip(split_values, values, strict=True):
                assert torch.equal(split_value, value) if isinstance(value, Tensor) else split_value is value
