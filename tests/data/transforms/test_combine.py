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
from opabinia.data.loader import BatchReader, DataError, Loader, Request, training_requests
from opabinia.data.sample_keys import OBJECT_KEYS
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sources.digit_scenes import DigitScenes
from opabinia.data.transforms.combine import CopyPaste, MixupBoxes, Mosaic
from opabinia.runtime.durations import Duration
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
    for seed in range(40):
        sources = [{key: value for key, value in source.items() if masks or key != "masks"} for source in SOURCES]
        sample = combined(Mosaic(size=64, scale=0.0), sources, seed)
        assert sample["image"].shape == (1, 64, 64) and sample["image"].dtype == torch.uint8
        for row, (label, box) in enumerate(zip(sample["labels"].tolist(), sample["boxes"].tolist(), strict=True)):
            assert pixel_box(sample["image"], label) == box
            assert not masks or torch.equal(sample["masks"][row].bool(), sample["image"][0] == label)
        dropped = {value for source in SOURCES for value in source["labels"].tolist()} - set(sample["labels"].tolist())
        for value in dropped & set(sample["image"].unique().tolist()):
            left, top, right, bottom = pixel_box(sample["image"], value)
            area = sum(float((source["image"] == value).sum()) for source in SOURCES)
            assert min(right - left, bottom - top) <= 2 or (right - left) * (bottom - top) <= 0.1 * area
        num_objects += len(sample["labels"])
        assert (sample["id"], sample["ground_truth"], sample["original_size"]) == (
            sources[0]["id"],
            sources[0]["ground_truth"],
            (48, 64),
        )
    assert num_objects > 80


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


def test_a_mosaic_fills_what_no_image_covers() -> None:
    images = [make_image(64, 64, []) for _ in range(4)]
    filled_shares = [
        float((combined(Mosaic(size=64, fill=0), images, seed)["image"] == 0).float().mean()) for seed in range(40)
    ]
    assert min(filled_shares) == 0 and 0.1 < max(filled_shares) < 0.5


def test_a_mosaic_of_images_without_objects_has_none() -> None:
    sample = combined(Mosaic(size=32), [make_image(48, 64, [], points=True)] * 4)
    sizes = {key: tuple(sample[key].shape) for key in OBJECT_KEYS}
    assert sizes == {
        "boxes": (0, 4),
        "labels": (0,),
        "masks": (0, 32, 32),
        "keypoints": (0, 1, 2),
        "visibility": (0, 1),
    }


def test_keypoints_outside_a_mosaic_are_not_visible() -> None:
    num_outside = 0
    for seed in range(20):
        sample = combined(
            Mosaic(size=64, min_area=0.0), [make_image(64, 64, [50 + n], points=True) for n in range(4)], seed
        )
        points, visibility = sample["keypoints"][:, 0].as_subclass(Tensor), sample["visibility"][:, 0]
        inside = ((points >= 0) & (points <= 64)).all(1)
        assert torch.equal(visibility, 2 * inside)
        for label, (column, row) in zip(sample["labels"][inside].tolist(), points[inside].long().tolist(), strict=True):
            assert (
                abs(int(sample["image"][0, min(row, 63), min(column, 63)]) - label) <= 70
            )  # its own object or the edge
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


ALL: list[Any] = [pytest.param(make, id=make.__name__) for make in (Mosaic, MixupBoxes, CopyPaste)]


@pytest.mark.parametrize("make", ALL)
def test_calling_with_a_single_sample_raises(make: Make) -> None:
    transform = make()
    assert isinstance(transform, CombiningTransform)
    with pytest.raises(ValueError, match=r"belongs into the list data\.train\.transforms itself"):
        transform(SOURCES[0])


@pytest.mark.parametrize("make", ALL)
def test_data_without_objects_raises(make: Make) -> None:
    sample = {"image": SOURCES[0]["image"], "label": 1, "id": "plain"}
    with pytest.raises(ValueError, match="needs boxes of the objects, which this data does not have"):
        combined(make(), [sample] * 4)


def test_pasting_without_masks_raises() -> None:
    without_masks = {key: value for key, value in SOURCES[0].items() if key != "masks"}
    with pytest.raises(ValueError, match="CopyPaste needs masks of the objects"):
        combined(CopyPaste(), [without_masks, without_masks])


@pytest.mark.parametrize("make", [Mosaic, MixupBoxes])
def test_images_with_different_annotations_are_refused(make: Make) -> None:
    without_masks = {key: value for key, value in SOURCES[0].items() if key != "masks"}
    with pytest.raises(ValueError, match="masks: annotated in some of the images"):
        combined(make(), [without_masks, *SOURCES])


@pytest.mark.parametrize("make", ALL)
def test_probability_0_returns_the_sample_itself(make: Make) -> None:
    assert combined(make(probability=0.0), SOURCES) is SOURCES[0]
    unchanged = [combined(make(probability=0.5), SOURCES, seed) is SOURCES[0] for seed in range(60)]
    assert 15 < sum(unchanged) < 45
    batch = collate([combined(make(probability=0.5), SOURCES, seed) for seed in range(8)], size_multiple=32)
    assert batch["ground_truth"] == [SOURCES[0]["ground_truth"]] * 8


@pytest.mark.parametrize("make", ALL)
def test_a_sample_is_not_changed_in_place(make: Make) -> None:
    samples = [make_image(48, 64, [50 + number], points=True) for number in range(4)]
    combined(make(), samples)
    for number, sample in enumerate(samples):
        fresh = make_image(48, 64, [50 + number], points=True)
        assert all(torch.equal(sample[key], fresh[key]) for key in ("image", *OBJECT_KEYS))


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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_are_the_same_with_any_workers_and_processes(scenes: DigitScenes) -> None:
    plan = ConstantPlan(20, 4, Duration(2, "ep"))

    def batches(workers: int, rank: int = 0, world: int = 1, start: int = 0) -> list[Batch]:
        requests = training_requests(plan, lambda epoch: epoch_order(epoch, 3, n=20, shuffle=True), rank, world)
        loader = Loader(reader(scenes), requests, num_workers=workers)
        result = [batch for _, batch in loader.iterate(start)]
        loader.close()
        return result

    expected = [content(batch, number) for batch in batches(0) for number in range(4)]
    assert [content(batch, number) for batch in batches(2) for number in range(4)] == expected
    assert [content(batch, number) for batch in batches(0, start=7) for number in range(4)] == expected[28:]
    halves = zip(*(batches(0, rank, world=2) for rank in (0, 1)), strict=True)
    assert [content(half, number) for pair in halves for half in pair for number in (0, 1)] == expected


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
    with pytest.raises(DataError, match=r"sample 7 \(val/000007\.png\), CopyPaste: ValueError: CopyPaste needs masks"):
        bare.batch(request([1]))
