"""Transforms that combine several samples: objects match their pixels, whichever process runs them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Batch, CombiningTransform, GlobalBatch, InstanceMasks, Sample
from opabinia.data.collate import collate
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sample_keys import OBJECT_KEYS
from opabinia.data.sampling.requests import Request
from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.data.transforms.combine import CopyPaste, MixupBoxes, Mosaic
from opabinia.runtime.seeds import seed_sample

Make = Callable[..., Any]


def make_image(height: int, width: int, values: Sequence[int], *, points: bool = False) -> Sample:
    """Return an image with objects: rectangles of these values next to each other; the background is 10."""
    image = torch.full((1, height, width), 10, dtype=torch.uint8)
    spacing = width // max(1, len(values))
    corners = [(column * spacing + 1, 2, (column + 1) * spacing - 1, height - 3) for column in range(len(values))]
    masks = torch.zeros(len(values), height, width, dtype=torch.uint8)
    for mask, value, (left, top, right, bottom) in zip(masks, values, corners, strict=True):
        image[:, top:bottom, left:right] = value
        mask[top:bottom, left:right] = 1
    boxes = torch.tensor(corners, dtype=torch.float32).reshape(-1, 4)
    sample: Sample = {
        "image": tv_tensors.Image(image),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.tensor(values, dtype=torch.int64),
        "masks": tv_tensors.Mask(masks),
        "id": f"image {values}",
        "original_size": (height, width),
        "ground_truth": f"of {values}",
    }
    if points:
        centers = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
        sample["keypoints"] = tv_tensors.KeyPoints(centers, canvas_size=(height, width))
        sample["visibility"] = torch.full((len(values), 1), 2)
    return sample


SOURCES = (
    make_image(48, 64, [50, 60]),
    make_image(64, 32, [70]),
    make_image(64, 64, [80, 90, 100]),
    make_image(20, 64, [120]),
)


def combined(transform: CombiningTransform, samples: Sequence[Sample], seed: int = 0) -> Sample:
    others: Iterator[Sample] = iter(samples[1:])
    seed_sample(seed)
    return transform.combine(samples[0], lambda: next(others))


def pixel_box(image: Tensor, value: int) -> list[float]:
    """Return the smallest box around all pixels with this value."""
    rows, columns = (image[0] == value).nonzero().T
    return [float(edge) for edge in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]


# --- mosaic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [True, False])
def test_objects_of_a_mosaic_match_their_pixels(masks: bool) -> None:
    num_objects = 0
    sources = [{key: value for key, value in source.items() if masks or key != "masks"} for source in SOURCES]
    areas = {
        value: float((source["image"] == value).sum()) for source in SOURCES for value in source["labels"].tolist()
    }
    for seed in range(25):
        sample = combined(Mosaic(size=64, scale=0.0), sources, seed)
        assert sample["image"].shape == (1, 64, 64) and sample["image"].dtype == torch.uint8
        for row, (label, box) in enumerate(zip(sample["labels"].tolist(), sample["boxes"].tolist(), strict=True)):
            assert pixel_box(sample["image"], label) == box
            assert not masks or torch.equal(sample["masks"][row].bool(), sample["image"][0] == label)
        dropped = areas.keys() - set(sample["labels"].tolist())
        for value in dropped & set(sample["image"].unique().tolist()):
            left, top, right, bottom = pixel_box(sample["image"], value)
            assert min(right - left, bottom - top) <= 2 or (right - left) * (bottom - top) <= 0.1 * areas[value]
        num_objects += len(sample["labels"])
        assert all(sample[key] == sources[0][key] for key in ("id", "ground_truth", "original_size"))
    assert num_objects > 50


def test_a_mosaic_scales_images_and_objects_within_its_range() -> None:
    widths = []
    for seed in range(60):
        sample = combined(Mosaic(size=128, shift=0.0), [make_image(64, 64, [50 + number]) for number in range(4)], seed)
        for label, box, mask in zip(sample["labels"].tolist(), sample["boxes"], sample["masks"], strict=True):
            padded = torch.nn.functional.pad(1 - mask[None].float(), [3] * 4, value=1)
            core = torch.nn.functional.max_pool2d(padded, 7, 1) == 0  # resizing blurs the edges
            assert core.any() and (sample["image"][core] == label).all()
            assert (box - torch.tensor(pixel_box(mask[None], 1))).abs().max() <= 1.5
        boxes = sample["boxes"].as_subclass(Tensor)
        inside = (boxes[:, :2] > 0).all(1) & (boxes[:, 2:] < 128).all(1)
        widths += (boxes[inside, 2] - boxes[inside, 0]).tolist()
    assert 62 <= min(widths) < 80 and max(widths) > 100, "62 pixels of 64 in 128: times 2, and 0.5 to 1.5"


def test_a_mosaic_without_objects() -> None:
    """It fills what no image covers."""
    images = [make_image(64, 64, [], points=True)] * 4
    samples = [combined(Mosaic(size=64, fill=0), images, seed) for seed in range(25)]
    filled = [float((sample["image"] == 0).float().mean()) for sample in samples]
    assert min(filled) == 0 and 0.1 < max(filled) < 0.5
    shapes = [tuple(samples[0][key].shape) for key in OBJECT_KEYS]
    assert shapes == [(0, 4), (0,), (0, 64, 64), (0, 1, 2), (0, 1)]


def test_keypoints_outside_a_mosaic_are_not_visible() -> None:
    num_outside = 0
    images = [make_image(64, 64, [50 + number], points=True) for number in range(4)]
    for seed in range(20):
        sample = combined(Mosaic(size=64, min_area=0.0), images, seed)
        points, visibility = sample["keypoints"][:, 0].as_subclass(Tensor), sample["visibility"][:, 0]
        inside = ((points >= 0) & (points <= 64)).all(1)
        assert torch.equal(visibility, 2 * inside)
        for label, (column, row) in zip(sample["labels"][inside].tolist(), points[inside].long().tolist(), strict=True):
            pixel = int(sample["image"][0, min(row, 63), min(column, 63)])
            assert abs(pixel - label) <= 70, "the object itself or its edge"
        num_outside += int((~inside).sum())
    assert num_outside


# --- mixup ------------------------------------------------------------------------------------------------------------


def test_images_of_two_sizes_are_blended_with_all_their_objects() -> None:
    first, second = make_image(48, 64, [50, 60], points=True), make_image(64, 32, [200], points=True)
    sample = combined(MixupBoxes(), [first, second], seed=3)
    seed_sample(3)
    np.random.random()
    weight = np.random.beta(1.5, 1.5)
    padded = [
        torch.nn.functional.pad(image, [0, 64 - image.shape[2], 0, 64 - image.shape[1]])
        for image in (first["image"], second["image"])
    ]
    expected = weight * padded[0].double() + (1 - weight) * padded[1].double()
    assert (sample["image"].double() - expected).abs().max() <= 0.5 + 1e-4
    assert sample["image"].dtype == torch.uint8
    assert sample["labels"].tolist() == [50, 60, 200]
    for key in ("boxes", "keypoints", "visibility"):
        assert torch.equal(sample[key].as_subclass(Tensor), torch.cat([first[key], second[key]]))
    assert sample["masks"].shape == (3, 64, 64)
    assert torch.equal(sample["masks"][0, :48], first["masks"][0]) and not sample["masks"][2, :, 32:].any()
    assert sample["boxes"].canvas_size == (64, 64)


# --- copy and paste ---------------------------------------------------------------------------------------------------


def test_objects_are_pasted_by_their_masks() -> None:
    first, second = make_image(48, 64, [50, 60], points=True), make_image(40, 60, [200, 210, 220], points=True)
    sizes = set()
    for seed in range(20):
        sample = combined(CopyPaste(), [first, second], seed)
        for label, box, mask in zip(sample["labels"].tolist(), sample["boxes"].tolist(), sample["masks"], strict=True):
            assert torch.equal(mask.bool(), sample["image"][0] == label)
            assert box == pixel_box(sample["image"], label)
        assert sample["image"].unique().numel() == 1 + len(sample["labels"]), "hidden objects are dropped"
        sizes.add(len(sample["labels"]))
    assert sizes >= {2, 3, 4}


def test_nearly_hidden_objects_can_be_dropped() -> None:
    small, large = make_image(30, 40, [50]), make_image(26, 60, [200])
    assert combined(CopyPaste(paste_probability=1.0), [small, large])["labels"].tolist() == [50, 200]
    assert combined(CopyPaste(paste_probability=1.0, min_visible=0.3), [small, large])["labels"].tolist() == [200]
    assert combined(CopyPaste(paste_probability=0.0), [small, large])["labels"].tolist() == [50]
    assert combined(CopyPaste(paste_probability=1.0), [large, make_image(26, 60, [99])])["labels"].tolist() == [99]


def test_keypoints_below_a_pasted_object_are_hidden() -> None:
    first, second = make_image(64, 64, [50, 60], points=True), make_image(64, 20, [200], points=True)
    sample = combined(CopyPaste(paste_probability=1.0), [first, second])
    assert sample["labels"].tolist() == [50, 60, 200]
    assert sample["visibility"].flatten().tolist() == [1, 2, 2]


# --- all combining transforms -----------------------------------------------------------------------------------------


WITHOUT_MASKS = {key: value for key, value in SOURCES[0].items() if key != "masks"}
PLAIN: Sample = {"image": SOURCES[0]["image"], "label": 1, "id": "plain"}


@pytest.mark.parametrize(
    ("make", "samples", "message"),
    [
        (Mosaic, [PLAIN] * 4, "needs boxes of the objects, which this data does not have"),
        (MixupBoxes, [PLAIN] * 4, "needs boxes of the objects, which this data does not have"),
        (CopyPaste, [PLAIN] * 4, "needs boxes of the objects, which this data does not have"),
        (CopyPaste, [WITHOUT_MASKS] * 2, "CopyPaste needs masks of the objects"),
        (Mosaic, [WITHOUT_MASKS, *SOURCES], "masks: annotated in some of the images"),
        (MixupBoxes, [WITHOUT_MASKS, *SOURCES], "masks: annotated in some of the images"),
    ],
)
def test_samples_that_cannot_be_combined(make: Make, samples: list[Sample], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        combined(make(), samples)


@pytest.mark.parametrize("make", [Mosaic, MixupBoxes, CopyPaste])
def test_probability_and_unchanged_inputs(make: Make) -> None:
    assert combined(make(probability=0.0), SOURCES) is SOURCES[0]
    results = [combined(make(probability=0.5), SOURCES, seed) for seed in range(40)]
    assert 8 < sum(result is SOURCES[0] for result in results) < 32
    assert collate(results[:8], size_multiple=32)["ground_truth"] == [SOURCES[0]["ground_truth"]] * 8
    samples = [make_image(48, 64, [50 + number], points=True) for number in range(4)]
    combined(make(), samples)
    for number, sample in enumerate(samples):
        fresh = make_image(48, 64, [50 + number], points=True)
        assert all(torch.equal(sample[key], fresh[key]) for key in ("image", *OBJECT_KEYS))
    assert isinstance(make(), CombiningTransform)
    with pytest.raises(ValueError, match=r"belongs into the list data\.train\.transforms itself"):
        make()(SOURCES[0])


# --- in the loader ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes() -> DigitScenes:
    return DigitScenes(split="val", masks=True, keypoints=True)


TRANSFORMS = (
    v2.RandomPhotometricDistort(p=0.5),
    Mosaic(size=96, probability=0.7),
    MixupBoxes(probability=0.5),
    CopyPaste(probability=0.5),
)


def reader(source: DigitScenes, seed: int = 1) -> BatchReader:
    return BatchReader(source, TRANSFORMS, seed=seed, size_multiple=32)


def request(positions: Sequence[int], epoch: int = 0) -> Request:
    numbers = np.array(positions)
    return Request(GlobalBatch(step=0, epoch=epoch, first=int(numbers[0]), count=len(numbers)), numbers, numbers * 7)


def content(batch: Batch, number: int) -> list[Any]:
    """Return the contents of one sample of a batch."""
    height, width = batch["image_sizes"][number]
    rows = [batch[key][number].tolist() for key in ("boxes", "labels", "keypoints", "visibility")]
    masks = InstanceMasks(batch["masks"][number], batch["image"].shape[-2:]).dense()[:, :height, :width]
    return [batch["id"][number], batch["image"][number, :, :height, :width].tolist(), masks.tolist(), *rows]


def test_a_sample_does_not_depend_on_the_rest_of_its_batch(scenes: DigitScenes) -> None:
    full_batch = reader(scenes).batch(request(range(6)))
    part = reader(scenes).batch(request([4, 1]))
    assert content(part, 0) == content(full_batch, 4) and content(part, 1) == content(full_batch, 1)
    others = [reader(scenes, seed=2).batch(request([4])), reader(scenes).batch(request([4], epoch=1))]
    assert all(content(batch, 0) != content(full_batch, 4) for batch in others)
    loader = Loader(reader(scenes), lambda start: [request(range(6))], num_workers=1)
    ((_, from_worker),) = loader.iterate()
    loader.close()
    assert all(content(from_worker, number) == content(full_batch, number) for number in range(6))


def test_additional_samples_differ_and_leave_the_generators_unchanged(scenes: DigitScenes) -> None:
    states, ids = [], []

    class Watch:
        def __call__(self, sample: Sample) -> Sample:
            raise NotImplementedError

        def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
            before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
            others = [another() for _ in range(3)]
            states.append(before == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))  # type: ignore[index]
            ids.append({sample["id"], *(other["id"] for other in others)})
            return sample

    BatchReader(scenes, (*TRANSFORMS[:2], Watch()), seed=1, size_multiple=32).batch(request(range(5)))
    assert all(states)
    assert all(len(sample_ids) == 4 for sample_ids in ids) and len(set.union(*ids)) > 12


def test_errors_name_the_transform_and_the_sample(scenes: DigitScenes) -> None:
    bare = BatchReader(DigitScenes(split="val"), (CopyPaste(),), size_multiple=32)
    with pytest.raises(DataError, match=r"sample 7 \(val/000007\.png\), CopyPaste: CopyPaste needs masks"):
        bare.batch(request([1]))
