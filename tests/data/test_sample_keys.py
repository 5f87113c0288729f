"""Custom annotations: declared by type, transformed and collated with the image."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Sample, Transform
from opabinia.data import register_sample_key, sample_keys
from opabinia.data.collate import collate, resize_batch
from opabinia.data.device_transforms.recorded import RECORDED_OPS
from opabinia.data.device_transforms.split import with_recording
from opabinia.data.transforms.combine import Mosaic
from opabinia.data.transforms.crops import RandomCrop, RandomResizedCrop, Resize, fixed_size_crop
from opabinia.data.transforms.instances import RandomHorizontalFlip, RandomVerticalFlip, select_objects
from opabinia.data.transforms.sizes import ResizeScale, ResizeShortestEdge


@pytest.fixture(autouse=True)
def restore_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_keys, "OBJECT_KEYS", list(sample_keys.OBJECT_KEYS))
    monkeypatch.setattr(sample_keys, "_IGNORE_VALUES", dict(sample_keys._IGNORE_VALUES))


def segmentation(height: int = 48, width: int = 64, key: str = "mask") -> Sample:
    """Return an image of four uniform quarters and a map with the same quarters; the pixel value gives the class."""
    quarters = torch.zeros(height, width, dtype=torch.int64)
    quarters[height // 2 :] += 2
    quarters[:, width // 2 :] += 1
    image = (quarters * 60 + 20).to(torch.uint8).expand(3, -1, -1).clone()
    return {"image": tv_tensors.Image(image), key: tv_tensors.Mask(quarters), "id": f"{height}x{width}"}


def agreement(image: Tensor, labels: Tensor) -> float:
    """Return the share of labeled pixels whose class matches the image."""
    classes = ((image[0].float() - 20) / 60).round()
    labeled = labels != 255
    return float((classes == labels)[labeled].float().mean())


TRANSFORMS: list[Transform] = [
    RandomResizedCrop(size=40, scale=(0.2, 0.8)),
    Resize(size=[30, 50]),
    RandomHorizontalFlip(p=1.0),
    RandomVerticalFlip(p=1.0),
    RandomCrop(kind="absolute", size=(32, 40)),
    ResizeShortestEdge(short_edge_length=[24, 31]),
    ResizeScale(size=(60, 60), scale=(0.5, 1.5)),
    partial(fixed_size_crop, size=(40, 80)),
    v2.RandomAffine(0, translate=(0.1, 0.1)),
]


@pytest.mark.parametrize(
    "transform", TRANSFORMS, ids=lambda transform: getattr(transform, "func", type(transform)).__name__
)
def test_image_and_map_stay_aligned(transform: Transform) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        result = transform(segmentation())
        assert isinstance(result["mask"], tv_tensors.Mask) and result["mask"].dtype == torch.int64
        assert result["mask"].shape == result["image"].shape[-2:]
        padded = isinstance(transform, v2.RandomAffine)  # fills image and map with 0
        assert agreement(result["image"], result["mask"]) > (0.8 if padded else 0.95)


def test_padding_of_a_crop_has_the_ignore_value() -> None:
    result = fixed_size_crop(segmentation(48, 64), size=(60, 70))
    assert result["mask"].shape == (60, 70)
    assert (result["mask"][48:] == 255).all() and (result["mask"][:, 64:] == 255).all()
    assert (result["mask"][:48, :64] != 255).all()


def test_maps_of_several_sizes_are_padded_with_their_ignore_value() -> None:
    register_sample_key("depth", ignore_value=7)
    samples = [{**segmentation(height, width), "depth": segmentation(height, width)["mask"]} for height, width in SIZES]
    batch = collate(samples, size_multiple=32)
    assert batch["image"].shape == (2, 3, 64, 64) and batch["image_sizes"] == SIZES
    for key, ignored in {"mask": 255, "depth": 7}.items():
        assert batch[key].shape == (2, 64, 64) and batch[key].dtype == torch.int64
        for row, (height, width) in enumerate(SIZES):
            assert torch.equal(batch[key][row, :height, :width], samples[row][key].as_subclass(Tensor))
            assert (batch[key][row, height:] == ignored).all() and (batch[key][row, :, width:] == ignored).all()


SIZES = [(48, 64), (30, 50)]


def test_batches_are_resized_with_their_maps() -> None:
    resized = resize_batch(collate([segmentation(), segmentation()]), (24, 32))
    assert resized["mask"].shape == (2, 24, 32)
    assert all(agreement(image, labels) > 0.95 for image, labels in zip(resized["image"], resized["mask"], strict=True))


def test_the_map_is_transformed_by_the_workers_if_the_image_is_on_the_device() -> None:
    sample = segmentation()
    (record,) = with_recording([RandomHorizontalFlip(p=1.0)])
    result = record(sample)
    assert [op.name for op in result[RECORDED_OPS]] == ["horizontal_flip"]
    assert torch.equal(result["mask"].as_subclass(Tensor), sample["mask"].flip(-1).as_subclass(Tensor))


def test_combinations_refuse_maps() -> None:
    boxes = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(48, 64))
    with pytest.raises(ValueError, match="Mosaic does not combine maps such as 'mask'"):
        Mosaic().combine({**segmentation(), "boxes": boxes}, segmentation)


def test_declared_keys_have_a_row_for_each_object() -> None:
    register_sample_key("track_ids", per_object=True)
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[0.0, 0, 4, 4], [2, 2, 9, 9]]), format="XYXY", canvas_size=(9, 9))
    sample = {"image": tv_tensors.Image(torch.zeros(3, 9, 9)), "boxes": boxes, "track_ids": torch.tensor([5, 6])}
    assert select_objects(sample, torch.tensor([False, True]))["track_ids"].tolist() == [6]
    batch = collate([sample, sample], size_multiple=1)
    assert [ids.tolist() for ids in batch["track_ids"]] == [[5, 6], [5, 6]]
    for arguments in ({}, {"per_object": True, "ignore_value": 0}):
        with pytest.raises(ValueError, match="either per_object=True or an ignore_value"):
            register_sample_key("depth", **arguments)
