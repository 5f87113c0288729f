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


def test_a_batch_of_all_types() -> None:
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
    with pytest.raises(ValueError) as error:
        collate(samples)
    assert str(error.value) == (
        "'image' differs in size: cats/5.jpg has 3 x 4 x 5, cats/7.jpg has 3 x 4 x 7; "
        "add Resize with CenterCrop, or RandomResizedCrop, to the transforms"
    )


def test_samples_with_different_keys() -> None:
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


def test_detectron2s_padding() -> None:
    """30 x 40 and 50 x 20 to a multiple of 32 are 64 x 64."""
    images = [torch.full((3, *size), 7, dtype=torch.uint8) for size in ((30, 40), (50, 20))]
    batch = pad_images(images, 32)
    assert batch.shape == (2, 3, 64, 64) and batch.dtype == torch.uint8
    for image, (height, width) in zip(batch, ((30, 40), (50, 20)), strict=True):
        assert (image[:, :height, :width] == 7).all()
        assert image.sum(dtype=torch.int64) == 7 * 3 * height * width


@pytest.mark.parametrize(("multiple", "size"), [(1, (50, 40)), (8, (56, 40)), (50, (50, 50))])
@pytest.mark.parametrize("channels", [1, 3])
def test_sides_are_padded_to_the_next_multiple(multiple: int, size: tuple[int, int], channels: int) -> None:
    samples = [make_sample(30, 40, [], channels=channels), make_sample(50, 20, [], channels=channels)]
    assert collate(samples, multiple)["image"].shape == (2, channels, *size)


def test_a_batch_of_images_with_objects() -> None:
    samples = make_samples()
    batch = collate(samples, 32)
    assert batch.keys() == {*samples[0], "image_sizes"}
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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            make_sample(4, 5, [], "grey", channels=1),
            "a has 3 x 30 x 40 of torch.uint8, grey has 1 x 4 x 5 of torch.uint8; RGB",
        ),
        ({**make_sample(4, 5, [], "float"), "image": torch.zeros(3, 4, 5)}, "float has 3 x 4 x 5 of torch.float32"),
    ],
    ids=["channels", "type"],
)
def test_images_that_differ_in_more_than_size(other: Sample, message: str) -> None:
    with pytest.raises(ValueError, match=f"'image' differs in more than its size: .*{message}"):
        collate([make_samples()[0], other], 32)


def test_resizing_a_batch_with_boxes_raises() -> None:
    with pytest.raises(ValueError, match="boxes do not follow; take resize_shortest_edge"):
        resize_batch(collate(make_samples(), 32), (64, 64))


@pytest.mark.parametrize("size", [1, 2])
def test_micro_batches_of_objects(size: int) -> None:
    """Each micro-batch has the objects of its samples, also if an image has as many objects as the batch has images."""
    samples = [make_sample(30, 40, [[0.0, 0, 9, 9]] * 3, "x"), *make_samples()[1:]]
    batch = collate(samples, 32)
    micro_batches = list(split_micro_batches(batch, size))
    assert [count for _, count in micro_batches] == ([1, 1, 1] if size == 1 else [2, 1])
    for key, values in batch.items():
        split_values: list[Any] = [value for micro_batch, _ in micro_batches for value in micro_batch[key]]
        assert len(split_values) == len(values) == 3
        assert all(
            torch.equal(a, b) if isinstance(a, Tensor) else a is b for a, b in zip(split_values, values, strict=True)
        )
