"""Transforms of an image with its boxes, masks and points together."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.contracts import GroundTruth, Sample, Transform
from opabinia.data.sample_keys import OBJECT_KEYS
from opabinia.data.transforms.augment import lighting
from opabinia.data.transforms.crops import RandomCrop, RandomIoUCrop, fixed_size_crop
from opabinia.data.transforms.evaluation import resize_and_crop
from opabinia.data.transforms.instances import (
    RandomHorizontalFlip,
    RandomVerticalFlip,
    SanitizeBoundingBoxes,
    boxes_from_masks,
)
from opabinia.data.transforms.sizes import ResizeScale, ResizeShortestEdge, fit_within, shortest_edge_size
from opabinia.runtime.seeds import seed_sample
from tests.data.transforms.test_transforms import REGISTERED, SETTINGS

BOXES = [[8, 4, 16, 12], [0, 0, 60, 40], [50, 30, 60, 40], [20, 10, 21, 30]]
HEIGHT, WIDTH = 40, 60


def sample(boxes: list[list[int]] | None = None, *, channels: int = 3) -> Sample:
    """Return an image of 40 x 60 with filled boxes; keypoints: the top left and top right corners, and the center."""
    boxes = BOXES if boxes is None else boxes
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    left, top, right, bottom = corners.unbind(1)
    points = torch.stack([left, top, right, top, (left + right) / 2, (top + bottom) / 2], 1).reshape(-1, 3, 2)
    masks = torch.zeros(len(boxes), HEIGHT, WIDTH, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes, strict=True):
        mask[y1:y2, x1:x2] = 1
    pixels = torch.arange(channels * HEIGHT * WIDTH).reshape(channels, HEIGHT, WIDTH) % 251
    size = (HEIGHT, WIDTH)
    empty = np.zeros((0, 4))
    return {
        "image": tv_tensors.Image(pixels.to(torch.uint8)),
        "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size),
        "labels": torch.arange(len(boxes)),
        "masks": tv_tensors.Mask(masks),
        "keypoints": tv_tensors.KeyPoints(points, canvas_size=size),
        "visibility": torch.full((len(boxes), 3), 2),
        "flip_pairs": [1, 0, 2],
        "id": "one",
        "original_size": size,
        "ground_truth": GroundTruth(1, size, *[empty[:, 0].astype(int)], empty, *[empty[:, 0]] * 3),
    }


def registered(name: str, **keys: Any) -> Transform:
    target: Any = register.entries["transform"][name].target
    transform: Transform = target(**keys)
    return transform


def assert_consistent(result: Sample) -> None:
    """Assert that every key has the same objects, and that boxes and visible keypoints lie in the image."""
    height, width = result["image"].shape[-2:]
    (count,) = {len(result[key]) for key in OBJECT_KEYS}
    boxes, points = result["boxes"], result["keypoints"]
    assert type(boxes) is tv_tensors.BoundingBoxes and boxes.canvas_size == (height, width)
    assert type(points) is tv_tensors.KeyPoints and points.canvas_size == (height, width)
    assert type(result["masks"]) is tv_tensors.Mask and result["masks"].shape == (count, height, width)
    assert result["masks"].flatten(1).any(1).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all() and (boxes >= 0).all()
    assert (boxes[:, 2:] <= torch.tensor([width, height])).all()
    visible = points[result["visibility"] > 0]
    assert (visible >= 0).all() and (visible <= torch.tensor([width, height])).all()
    assert result["labels"].dtype == result["visibility"].dtype == torch.int64 and boxes.dtype == torch.float32


# --- all registered transforms ----------------------------------------------------------------------------------------

OWN: dict[str, dict[str, Any]] = {
    "boxes_from_masks": {},
    "fixed_size_crop": {"size": (30, 70)},
    "pca_lighting": {},
    "random_crop": {"kind": "relative", "size": (0.5, 0.5)},
    "resize_scale": {"size": (40, 40)},
    "resize_shortest_edge": {"short_edge_length": 7},
}
FUNCTIONS = {"boxes_from_masks": boxes_from_masks, "fixed_size_crop": fixed_size_crop, "pca_lighting": lighting}
POLICIES = {"AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"}
CONTAINERS = {"RandomApply", "RandomChoice", "RandomOrder"}


def make_transform(name: str) -> Transform:
    if name in FUNCTIONS:
        return partial(FUNCTIONS[name], **OWN[name])
    if name in CONTAINERS:
        return registered(name, transforms=[registered("RandomCrop", size=[20, 20])])
    return registered(name, **(OWN | SETTINGS).get(name, {}))


@pytest.mark.filterwarnings("ignore:The image decoding and encoding")  # JPEG still uses what torchvision deprecates
@pytest.mark.filterwarnings("ignore:RandomErasing")  # it warns that objects are not changed
@pytest.mark.parametrize("name", sorted({*REGISTERED, *OWN} - POLICIES))
def test_objects_are_consistent_after(name: str) -> None:
    transform = make_transform(name)
    for seed in range(5):
        seed_sample(seed)
        before = sample(BOXES if seed else [])
        after = transform(before)
        assert_consistent(after)
        assert after.keys() == before.keys()
        assert after["ground_truth"] is before["ground_truth"] and after["flip_pairs"] == [1, 0, 2]
        assert after["labels"].tolist() == sorted(after["labels"].tolist())


def test_transforms_of_images_alone_refuse_boxes() -> None:
    for name in sorted(POLICIES):
        with pytest.raises(TypeError, match="BoundingBoxes"):
            registered(name)(sample())
    with pytest.raises(ValueError, match="boxes and masks would not follow; take resize_shortest_edge"):
        resize_and_crop(sample(), size=8)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "short", "longest", "result"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((500, 333), 800, 1333, (1201, 800)),
        ((600, 1333), 800, 1333, (600, 1333)),
        ((1080, 1920), 800, 1333, (750, 1333)),
        ((375, 1242), 800, 1333, (402, 1333)),
        ((427, 640), 640, 1333, (640, 959)),
        ((3, 1000), 800, 1333, (4, 1333)),
        ((1, 4000), 800, 1333, (1, 1333)),
        ((480, 640), 240, None, (240, 320)),
    ],
)
def test_detectron2s_shortest_edge(size: Any, short: int, longest: int | None, result: Any) -> None:
    assert shortest_edge_size(*size, short, longest) == result
    if max(size) <= 1000:
        image = {"image": tv_tensors.Image(torch.zeros(1, *size, dtype=torch.uint8))}
        assert ResizeShortestEdge(short_edge_length=short, max_size=longest)(image)["image"].shape[1:] == result


def test_masks_stay_in_their_boxes() -> None:
    """A side of a mask lies within half a pixel of that of its box; torchvision's are up to one pixel further."""
    for short in (20, 30, 67, 100):
        result = ResizeShortestEdge(short_edge_length=short)(sample([[10, 10, 30, 30], [17, 3, 42, 39]]))
        assert type(result["masks"]) is tv_tensors.Mask and result["masks"].dtype == torch.uint8
        assert torch.allclose(boxes_from_masks(result)["boxes"], result["boxes"], rtol=0, atol=0.5 + 1e-4)


def test_objects_are_scaled_per_axis() -> None:
    """40 x 60 to 7: 7 x 10.5, rounded to 11; so x scales by 11 / 60 and y by 7 / 40."""
    result = ResizeShortestEdge(short_edge_length=7)(sample(BOXES[:3]))
    assert result["image"].shape[1:] == (7, 11)
    factors = torch.tensor([11 / 60, 7 / 40])
    assert torch.allclose(result["boxes"], torch.tensor(BOXES[:3]) * factors.repeat(2), rtol=0, atol=1e-5)
    assert torch.allclose(result["keypoints"], sample(BOXES[:3])["keypoints"] * factors, rtol=0, atol=1e-5)
    with_empty = ResizeShortestEdge(short_edge_length=7)(sample())
    assert with_empty["labels"].tolist() == [0, 1, 2], "at this size the last mask, one pixel wide, is empty"


@pytest.mark.parametrize(
    ("keys", "sides"),
    [
        ({"short_edge_length": [8, 12, 20]}, {8, 12, 20}),
        ({"short_edge_length": [8, 12], "sampling": "range"}, {8, 9, 10, 11, 12}),
        ({"short_edge_length": 9}, {9}),
        ({"short_edge_length": [9, 9], "sampling": "range"}, {9}),
    ],
)
def test_short_sides_are_drawn(keys: Any, sides: set[int]) -> None:
    seed_sample(1)
    state = torch.get_rng_state()
    image = {"image": tv_tensors.Image(torch.zeros(1, 10, 12))}
    assert {ResizeShortestEdge(**keys)(image)["image"].shape[1] for _ in range(80)} == sides
    assert keys["short_edge_length"] != 9 or torch.equal(torch.get_rng_state(), state), "nothing is drawn"


def test_a_range_needs_two_lengths() -> None:
    for short in (8, [8], [12, 8], [8, 9, 10]):
        with pytest.raises(ValueError, match="short_edge_length: a range is two lengths, the smaller first"):
            ResizeShortestEdge(short_edge_length=short, sampling="range")


def test_detectron2s_resize_scale() -> None:
    sizes = [((480, 640), 1536.0), ((640, 480), 1024.0), ((480, 640), 102.4), ((3, 1000), 50.0)]
    assert [fit_within(*size, (side, side)) for size, side in sizes] == [(1152, 1536), (1024, 768), (77, 102), (1, 50)]


def test_the_scale_is_drawn_from_its_range() -> None:
    fixed = ResizeScale(size=(100, 100), scale=(1.5, 1.5))(sample())
    assert fixed["image"].shape[1:] == (100, 150)
    assert fixed["boxes"].tolist() == (torch.tensor(BOXES) * 2.5).tolist()
    sides = []
    for seed in range(100):
        seed_sample(seed)
        sides.append(ResizeScale(size=(40, 60), scale=(0.5, 2.0))(sample())["image"].shape[1])
    assert 20 <= min(sides) < 24 and 76 < max(sides) <= 80
    with pytest.raises(ValueError, match=r"scale: the minimum of \[2, 1\] is above the maximum; write \[1, 2\]"):
        ResizeScale(scale=(2, 1))


# --- crops ------------------------------------------------------------------------------------------------------------


def test_sizes_of_detectron2s_crops() -> None:
    for kind, size, image, result in (
        ("relative", (0.5, 0.25), (101, 203), (51, 51)),
        ("absolute", (300, 50), (101, 203), (101, 50)),
        ("absolute_range", (300, 400), (101, 203), (101, 203)),
        ("relative_range", (1, 1), (101, 203), (101, 203)),
        ("relative", (0.01, 1), (3, 20), (1, 20)),
    ):
        assert RandomCrop(kind=kind, size=size).size(*image) == result  # type: ignore[arg-type]


def test_random_crop_sizes() -> None:
    for kind, size, heights, widths in (
        ("absolute_range", (8, 12), {8, 9, 10, 11, 12}, {8, 9, 10, 11, 12}),
        ("absolute_range", (38, 90), {38, 39, 40}, {*range(38, 61)}),
        ("relative_range", (0.9, 0.95), {36, 37, 38, 39, 40}, {57, 58, 59, 60}),
    ):
        seed_sample(0)
        crop = RandomCrop(kind=kind, size=size)  # type: ignore[arg-type]
        drawn = [crop.size(HEIGHT, WIDTH) for _ in range(400)]
        assert ({height for height, _ in drawn}, {width for _, width in drawn}) == (heights, widths)


def test_objects_of_a_crop_match_its_pixels() -> None:
    """Every position occurs, and the objects equal those of a crop by slicing."""
    before = sample()
    positions = set()
    for seed in range(200):
        seed_sample(seed)
        result = RandomCrop(kind="absolute", size=(36, 57))(before)
        first = int(result["image"][0, 0, 0])
        ((top, left),) = [(y, x) for y in range(5) for x in range(4) if int(before["image"][0, y, x]) == first]
        positions.add((top, left))
        window = np.s_[..., top : top + 36, left : left + 57]
        assert torch.equal(result["image"], before["image"][window])
        assert torch.equal(result["masks"], before["masks"][window][result["labels"]])
        clipped = torch.tensor(BOXES) - torch.tensor([left, top, left, top])
        clipped = clipped.clamp(min=0).minimum(torch.tensor([57, 36, 57, 36]))
        assert result["boxes"].tolist() == clipped[result["labels"]].tolist()
        assert torch.equal(result["keypoints"], before["keypoints"][result["labels"]] - torch.tensor([left, top]))
    assert len(positions) == 20


def test_a_crop_can_be_placed_around_an_object() -> None:
    """Each crop contains a small object as a whole; a larger object covers the crop."""
    starts = set()
    for seed in range(40):
        seed_sample(seed)
        crop = RandomCrop(kind="absolute", size=(10, 12), object_probability=1.0)
        result = crop(sample([[50, 30, 54, 36]]))
        (box,) = result["boxes"].tolist()
        assert (box[2] - box[0], box[3] - box[1]) == (4, 6) and result["masks"].sum() == 24
        starts.add((box[0], box[1]))
        assert crop(sample([[4, 2, 40, 38]]))["boxes"].tolist() == [[0, 0, 12, 10]]
        assert not len(crop(sample([]))["boxes"])
    assert {left for left, _ in starts} == set(range(2, 9)) and {top for _, top in starts} == set(range(5))


def test_objects_with_little_visible_area_are_dropped() -> None:
    """Of four objects of 10 x 10 in a row 0, 4, 6 and 10 columns are in the crop; half of the third's mask is."""
    boxes = [[0, 0, 10, 10], [4, 10, 14, 20], [6, 20, 16, 30], [20, 0, 30, 10]]
    before = sample(boxes)
    before["masks"][2, 20:30, 14:16] = 0  # four of eight columns are visible
    crop = {"kind": "absolute", "size": (40, 50)}
    seed = next(seed for seed in range(400) if seed_sample(seed) or RandomCrop(**crop)(before)["labels"][0] == 1)  # type: ignore[arg-type, func-returns-value]
    for min_visible, expected in ((0.0, [1, 2, 3]), (0.45, [2, 3]), (0.55, [3])):
        seed_sample(seed)
        result = RandomCrop(**crop, min_visible=min_visible)(before)  # type: ignore[arg-type]
        assert result["labels"].tolist() == expected
        assert_consistent(result)
    seed_sample(seed)
    assert RandomCrop(**crop, min_visible=0.55)(without_masks(before))["labels"].tolist() == [2, 3]  # type: ignore[arg-type]


def without_masks(of: Sample) -> Sample:
    return {key: value for key, value in of.items() if key != "masks"}


def test_boxes_are_those_of_the_cropped_masks() -> None:
    """An L of 10 to 40 by 5 to 30, with a stem 5 wide and a foot 5 high: without the stem the top is 25."""
    before = sample([[10, 5, 40, 30]])
    before["masks"][0, 5:25, 15:40] = 0
    boxes = set()
    for seed in range(200):
        seed_sample(seed)
        boxes.add(tuple(RandomCrop(kind="absolute", size=(40, 40))(before)["boxes"][0].tolist()))
    expected = {(10 - left, 5 if left < 15 else 25, min(40 - left, 40), 30) for left in range(21)}
    assert boxes == {(max(0, box[0]), *box[1:]) for box in expected}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "relative", "size": (0.5, 2)}, r"relative takes shares of the image, at most 1, not \[0.5, 2\]"),
        ({"kind": "absolute", "size": (0.9, 0.9)}, r"absolute takes whole pixels, not \[0.9, 0.9\]"),
        ({"kind": "absolute_range", "size": (9, 8)}, r"\[9, 8\] is above the maximum; write \[8, 9\]"),
    ],
)
def test_invalid_crop_sizes_raise(keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomCrop(**keys)


def test_a_fixed_size_crop_crops_and_pads() -> None:
    result = fixed_size_crop(sample(), size=(30, 70))
    assert result["image"].shape == (3, 30, 70)
    assert (result["image"][:, :, 60:] == 128).all() and not (result["image"][:, :, :60] == 128).all()
    assert not result["masks"][:, :, 60:].any()
    assert_consistent(result)
    assert fixed_size_crop(sample(), size=(50, 70))["boxes"].tolist() == BOXES
    seed_sample(3)
    plain = fixed_size_crop(
        without_masks(sample([[0, 0, 60, 40], [0, 0, 1, 1], [59, 39, 60, 40]])), size=(20, 20), fill=None
    )
    assert plain["labels"].tolist() == [0] and plain["boxes"].tolist() == [[0, 0, 20, 20]]
    assert plain["visibility"][0, :2].tolist() == [0, 0] and "masks" not in plain
    small = fixed_size_crop(sample(), size=(50, 50), fill=None)
    assert small["image"].shape == (3, 40, 50)
    assert (fixed_size_crop(sample(), size=(50, 70), fill=0)["image"][:, 40:] == 0).all()
    seed_sample(0)
    crops = [fixed_size_crop(sample([[2, 2, 58, 38]]), size=(38, 58))["boxes"][0] for _ in range(100)]
    corners = {(2 - int(box[1]), 2 - int(box[0])) for box in crops}
    assert corners == {(top, left) for top in range(3) for left in range(3)}, "drawn on both axes"


def test_iou_crops() -> None:
    """They keep objects whose center is inside, and leave images without objects unchanged."""
    empty = sample([])
    assert RandomIoUCrop()(empty) is empty
    flat = {**sample(), "image": tv_tensors.Image(torch.zeros(3, 3, 60, dtype=torch.uint8))}
    assert RandomIoUCrop()(flat) is flat
    with pytest.raises(ValueError, match=r"add 1.0 to \[0.3, 0.9\]"):
        RandomIoUCrop(sampler_options=[0.3, 0.9])
    crop = registered("RandomIoUCrop", sampler_options=[0.0, 1.0])
    seed_sample(0)
    kept = [crop(sample())["labels"].tolist() for _ in range(60)]
    assert [0, 1, 2, 3] in kept and [1] in kept and all(kept)


# --- flips ------------------------------------------------------------------------------------------------------------


def test_horizontal_flip() -> None:
    """In an image 60 wide, 8 to 16 becomes 44 to 52; left and right corners are swapped."""
    before = sample()
    before["visibility"] = torch.tensor([[2, 1, 0]] * 4)
    result = RandomHorizontalFlip(p=1.0)(before)
    assert torch.equal(result["image"], before["image"].flip(-1)) and torch.equal(
        result["masks"], before["masks"].flip(-1)
    )
    assert result["boxes"][0].tolist() == [44, 4, 52, 12]
    assert result["keypoints"][0].tolist() == [[44, 4], [52, 4], [48, 8]]
    assert result["visibility"].tolist() == [[1, 2, 0]] * 4
    assert_consistent(result)
    restored = RandomHorizontalFlip(p=1.0)(result)
    assert all(torch.equal(restored[key], before[key]) for key in (*OBJECT_KEYS, "image"))
    unpickled = pickle.loads(pickle.dumps(registered("RandomHorizontalFlip", p=1.0)))
    assert torch.equal(unpickled(before)["boxes"], result["boxes"])
    assert unpickled.__name__ == "RandomHorizontalFlip", "the name in error messages"


def test_flips_are_drawn_as_torchvisions() -> None:
    before = sample()
    result = RandomVerticalFlip(p=1.0)(before)
    assert result["boxes"][0].tolist() == [8, 28, 16, 36]
    assert result["keypoints"][0].tolist() == [[8, 36], [16, 36], [12, 32]]
    assert torch.equal(result["visibility"], before["visibility"])
    for flip in (RandomHorizontalFlip, RandomVerticalFlip):
        torchvision_flip = getattr(v2, flip.__name__)()
        for seed in range(20):
            seed_sample(seed)
            result = flip()(sample())
            seed_sample(seed)
            assert torch.equal(torchvision_flip(sample())["image"], result["image"])
        assert flip(p=0.0)(before) is before


def test_keypoints_rotate_with_boxes_and_masks() -> None:
    """By 90 degrees: torchvision's rotation has coordinates from the edge of the first pixel, as we do."""
    result = registered("RandomRotation", degrees=[90, 90], expand=True)(sample())
    assert result["image"].shape == (3, 60, 40)
    assert result["boxes"][0].tolist() == [4, 44, 12, 52]
    assert torch.allclose(result["keypoints"][0], torch.tensor([[4.0, 52], [4, 44], [8, 48]]))
    assert boxes_from_masks(result)["boxes"].tolist() == result["boxes"].tolist()
    rotated = registered("RandomRotation", degrees=[45, 45])(sample([[20, 10, 40, 30]]))
    before, after = (result["boxes"][0] for result in (rotated, boxes_from_masks(rotated)))
    assert after[2] - after[0] == pytest.approx(20 * 2**0.5, abs=1.5), "boxes around masks are narrower"
    assert (after[:2] >= before[:2] - 1).all() and (after[2:] <= before[2:] + 1).all()


# --- boxes ------------------------------------------------------------------------------------------------------------


def test_boxes_around_masks() -> None:
    before = sample([[8, 4, 16, 12], [0, 0, 60, 40], [59, 39, 60, 40], [5, 5, 6, 6]])
    before["boxes"] = tv_tensors.wrap(before["boxes"] + 1.5, like=before["boxes"])
    before["masks"][3] = 0
    result = boxes_from_masks(before)
    assert result["boxes"].tolist() == [[8, 4, 16, 12], [0, 0, 60, 40], [59, 39, 60, 40]]
    assert_consistent(result)
    assert len(boxes_from_masks(sample([]))["boxes"]) == 0
    plain = without_masks(before)
    assert boxes_from_masks(plain) is plain


def test_small_objects_are_dropped_with_all_their_keys() -> None:
    result = SanitizeBoundingBoxes(min_size=2)(sample())
    assert result["labels"].tolist() == [0, 1, 2]
    assert_consistent(result)
    assert SanitizeBoundingBoxes(min_area=65)(sample())["labels"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="the sample has no boxes"):
        SanitizeBoundingBoxes()({"image": sample()["image"]})


# --- colors ----------------------------------------------------------------------------------------------------------


def test_light_adds_one_color_to_all_pixels() -> None:
    before = sample()
    before["image"] = tv_tensors.Image(torch.full((3, 4, 5), 128, dtype=torch.uint8))
    colors = []
    seed_sample(0)
    for _ in range(300):
        result = lighting(before)["image"]
        assert type(result) is tv_tensors.Image and result.dtype == torch.uint8
        assert (result == result[:, :1, :1]).all()
        colors.append(result[:, 0, 0].float() - 128)
    spread = torch.stack(colors)
    # 255 x 0.1 x 0.2175 along the first axis, which is nearly gray: about 3.2 in each channel.
    assert spread.std(0).tolist() == pytest.approx([3.2, 3.2, 3.2], abs=0.5)
    assert torch.equal(lighting(before, std=0)["image"], before["image"])
    with pytest.raises(ValueError, match="3 channels, not 1"):
        lighting(sample(channels=1))
