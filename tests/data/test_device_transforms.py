"""What is done on the device gives what workers would have given, to the last bit; here the device is the CPU."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Batch, DatasetInfo, Row, Sample, Transform
from opabinia.data import Data, Stream
from opabinia.data.batch_mixing import cutmix, mixup, one_of, random_patch
from opabinia.data.device_transforms.apply import (
    AGENDA,
    OnDevice,
    agenda,
    by_batch,
    changed,
    noted,
    noting,
    parted,
    work_shared,
)
from opabinia.data.device_transforms.recorded import CHANGES
from opabinia.data.loader import DataError, Loader, Reader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import EachOnce, order
from opabinia.data.transforms.augment import Blur, Erase, lighting
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import RandomHorizontalFlip, Tidied
from opabinia.data.transforms.patch_masks import random_patches
from opabinia.data.transforms.policies import timm_policy
from opabinia.data.transforms.views import View, Views
from opabinia.engine.loop.prefetch import Feeding
from opabinia.runtime.durations import Duration
from opabinia.runtime.seeds import seed_sample
from opabinia.training.loaders import make_training_loader

N = 11
JITTER = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
CROP = Tidied(RandomResizedCrop(24, antialias=True))
TAIL: Sequence[Transform] = (Tidied(RandomHorizontalFlip()), Tidied(JITTER), Erase())


class Noise:
    """Pictures of noise."""

    channels = 3
    classes = ("a", "b", "c")

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Sample:
        pixels = torch.randint(256, (3, 30, 33), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)
        return {"image": tv_tensors.Image(pixels), "label": index % 3, "id": str(index)}


class Boxed(Noise):
    has_boxes = True


EACH: dict[str, Sequence[Transform]] = {
    "flip": [RandomHorizontalFlip()],
    "upside down": [v2.RandomVerticalFlip()],
    "brightness": [v2.ColorJitter(brightness=0.9)],
    "contrast": [v2.ColorJitter(contrast=0.9)],
    "saturation": [v2.ColorJitter(saturation=0.9)],
    "hue": [v2.ColorJitter(hue=0.5)],
    "jitter": [JITTER],
    "distort": [v2.RandomPhotometricDistort()],
    "channels": [v2.RandomChannelPermutation()],
    "grey": [v2.RandomGrayscale(0.5)],
    "invert": [v2.RandomInvert()],
    "posterize": [v2.RandomPosterize(3)],
    "solarize": [v2.RandomSolarize(128)],
    "equalize": [v2.RandomEqualize()],
    "autocontrast": [v2.RandomAutocontrast()],
    "sharpness": [v2.RandomAdjustSharpness(2)],
    "erase": [Erase()],
    "erase twice": [v2.RandomErasing(0.7, value=116), Erase(mean=[0.1, 0.5, 0.9])],
    "blur": [Blur(sigma=(0.1, 4.0))],
    "lighting": [partial(lighting, strength=0.5)],
    "rand": [v2.RandAugment(3)],
    "trivial": [v2.TrivialAugmentWide()],
    "auto": [v2.AutoAugment()],
    "choice": [v2.RandomChoice([Blur(sigma=(0.1, 1.0)), Blur(sigma=(1.0, 2.0)), v2.ColorJitter(0.4)])],
    "order": [v2.RandomOrder([v2.RandomInvert(), RandomHorizontalFlip(), v2.RandomErasing()])],
    "all": [*TAIL, v2.RandomSolarize(100), Blur(), v2.RandAugment(1)],
}


def samples(shape: tuple[int, ...], kind: Any = tv_tensors.Image) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    return [{"image": kind(torch.randint(20, 220, shape, dtype=torch.uint8, generator=generator))} for _ in range(N)]


def made(sample: Sample, seed: int, transforms: Sequence[Transform]) -> tuple[Sample, float]:
    """The sample after the transforms, and what is drawn next."""
    seed_sample(seed)
    for transform in transforms:
        sample = transform(sample)
    return sample, float(torch.rand(()))


def both(given: list[Sample], transforms: Sequence[Transform]) -> tuple[Tensor, Tensor]:
    """What comes of the transforms one by one, and by batch."""
    alone = [made(one, seed, transforms) for seed, one in enumerate(given)]
    notes = [made(one, seed, noted(transforms)) for seed, one in enumerate(given)]
    assert [one[1] for one in alone] == [one[1] for one in notes], "both have drawn as much"
    assert all(note["image"] is one["image"] for (note, _), one in zip(notes, given, strict=True))
    wanted, pixels = (torch.stack([one["image"].as_subclass(Tensor) for one, _ in part]) for part in (alone, notes))
    return wanted, changed(pixels, agenda([one[CHANGES] for one, _ in notes]))


@pytest.mark.parametrize("name", EACH)
def test_by_batch_as_one_by_one(name: str) -> None:
    for shape in ((3, 5, 4), (3, 17, 20)):
        wanted, found = both(samples(shape), EACH[name])
        assert torch.equal(wanted, found)
    before = torch.stack([one["image"].as_subclass(Tensor) for one in samples(shape)])
    assert not torch.equal(before, found)


@pytest.mark.parametrize("name", ["jitter", "grey", "erase", "blur", "rand", "all", "channels", "lighting"])
def test_clips_by_batch(name: str) -> None:
    wanted, found = both(samples((3, 3, 12, 14), tv_tensors.Video), EACH[name])
    assert torch.equal(wanted, found)


@pytest.mark.parametrize("name", ["jitter", "grey", "erase", "blur", "flip", "trivial"])
def test_grey_pictures_by_batch(name: str) -> None:
    wanted, found = both(samples((1, 12, 14)), EACH[name])
    assert torch.equal(wanted, found)


def test_many_pictures_need_few_entries() -> None:
    given = [made(one, seed, noted([JITTER])) for seed, one in enumerate(samples((3, 8, 8)) * 12)]
    entries = agenda([one[CHANGES] for one, _ in given])
    assert len(given) == 132
    assert len(entries) < 16, "four changes in any order"


# --- where the cut is -------------------------------------------------------------------------------------------------


def test_from_the_last_on_that_cannot_be_done_by_batch() -> None:
    policy = partial(timm_policy, policy="3a")
    assert parted([CROP, *TAIL]) == ([CROP], list(TAIL))
    assert parted([*TAIL, policy, TAIL[0]]) == ([*TAIL, policy], [TAIL[0]])
    assert parted([]) == ([], [])
    assert not by_batch(v2.RandomApply([v2.ColorJitter(0.4), CROP]))
    assert not by_batch(v2.RandomErasing(value="random"))
    assert not by_batch(lambda sample: sample)


def test_what_goes_where_is_told() -> None:
    views = Views(views=[View(transforms=[CROP, Blur()]), View(transforms=[CROP], count=2)])
    mixes = (partial(mixup, alpha=0.2),)
    for source, transforms, text in (
        (Noise(), (CROP, *TAIL[1:]), "workers do RandomResizedCrop, the device RandomApply, Erase, mixup"),
        (Noise(), (), "workers do nothing, the device mixup"),
        (Boxed(), TAIL[2:], "pictures differ in size or have things in them; workers do Erase, the device mixup"),
    ):
        assert work_shared(Reader(source, transforms, mixes)) == text
    first, second = "workers do RandomResizedCrop, the device Blur", "workers do RandomResizedCrop, the device nothing"
    assert work_shared(Reader(Noise(), (views,))) == f"view 1: {first}; view 2: {second}"


def test_boxes_stay_with_their_pictures() -> None:
    assert noting(Reader(Boxed(), TAIL)).transforms == TAIL
    assert noting(Reader(Noise(), TAIL, size_multiple=32)).transforms == TAIL


def test_pictures_of_floats_are_refused() -> None:
    with pytest.raises(ValueError, match=r"takes pictures of uint8, not torch\.float32"):
        made({"image": tv_tensors.Image(torch.rand(3, 8, 8))}, 0, noted(TAIL))


class Overwritten(v2.RandomInvert):  # type: ignore[misc]
    """Does what nobody notes."""

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        return value.float()


def test_what_is_not_noted_is_not_lost() -> None:
    with pytest.raises(ValueError, match=r"Overwritten cannot be done on the device; set data\.augment_on to workers"):
        made(samples((3, 8, 8))[0], 0, noted([Overwritten(1.0)]))


# --- batches ----------------------------------------------------------------------------------------------------------


def batches(
    augment_on: str,
    transforms: Sequence[Transform],
    mix: Any = (),
    workers: int = 0,
    start: int = 0,
    shapes: bool = False,
) -> list[tuple[Row, Batch]]:
    plan = ConstantPlan(N, 4, Duration(2, "ep"))
    reader = Reader(Noise(), transforms, mix, DatasetInfo(N, classes=Noise.classes), seed=3)

    def requests(first: int) -> Any:
        for one in training_requests(plan, partial(order, 3, n=N, shuffle=True), 0, 1)(first):
            yield one._replace(row=replace(one.row, shape=(16, 16))) if shapes else one

    on_device = augment_on == "device"
    loader = Loader(noting(reader) if on_device else reader, requests, workers=workers)
    feeding = Feeding(loader, torch.device("cpu"), OnDevice(reader) if on_device else None)
    try:
        return list(feeding.iterate(start))
    finally:
        feeding.close()


def assert_same(left: list[tuple[Row, Batch]], right: list[tuple[Row, Batch]]) -> None:
    assert [row for row, _ in left] == [row for row, _ in right]
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        assert a["id"] == b["id"]
        assert torch.equal(a["label"], b["label"])
        for key in ("image", "views", "patch_mask", "patch_masks"):
            one, other = (part.get(key, ()) for part in (a, b))
            assert len(one) == len(other)
            assert all(map(torch.equal, one, other))


MIX = partial(one_of, mixes=[partial(mixup, alpha=0.8), partial(cutmix, alpha=1.0, per="pair"), random_patch])
VIEWS = Views(
    views=[
        View(transforms=[CROP, Blur(), partial(random_patches, patch_size=8)]),
        View(transforms=[Tidied(RandomResizedCrop(12, antialias=True)), *TAIL], count=2),
        View(transforms=[CROP]),
    ]
)


@pytest.mark.parametrize(
    ("transforms", "mix", "shapes"),
    [
        ((CROP, *TAIL), (), False),
        ((CROP, *TAIL), (MIX,), False),
        ((CROP, *TAIL), (MIX,), True),
        ((CROP, v2.RandomInvert(), partial(random_patches, patch_size=8)), (), False),
        ((), (MIX,), False),
        ((VIEWS,), (), False),
    ],
    ids=["tail", "mixed", "resized", "patch masks", "mixes alone", "views"],
)
def test_the_same_batches(transforms: Sequence[Transform], mix: Any, shapes: bool) -> None:
    wanted = batches("workers", transforms, mix, shapes=shapes)
    assert_same(wanted, batches("device", transforms, mix, shapes=shapes))
    assert_same(wanted[4:], batches("device", transforms, mix, start=4, shapes=shapes))


@pytest.mark.parametrize("transforms", [(CROP, *TAIL), (VIEWS,)], ids=["tail", "views"])
def test_any_number_of_workers(transforms: Sequence[Transform]) -> None:
    wanted = batches("device", transforms)
    assert_same(wanted, batches("device", transforms, workers=2))


def test_workers_send_bytes() -> None:
    reader = Reader(Noise(), (CROP, *TAIL), (partial(mixup, alpha=0.2),), DatasetInfo(N, classes=Noise.classes))
    request = next(iter(training_requests(ConstantPlan(N, 4, Duration(1, "ep")), EachOnce(N, 0, True).order, 0, 1)(0)))
    sent, whole = noting(reader).batch(request), reader.batch(request)
    assert (sent["image"].dtype, whole["image"].dtype) == (torch.uint8, torch.float32)
    assert AGENDA in sent
    assert CHANGES not in sent


def test_what_goes_wrong_in_a_mix_is_told() -> None:
    reader = Reader(Noise(), (CROP, *TAIL), (partial(mixup, alpha=0.2),), DatasetInfo(N))
    with pytest.raises(DataError, match="step 0, mixup: ValueError: mixup blends labels, and this data has no classes"):
        OnDevice(reader)({"image": torch.zeros(2, 3, 4, 4), "label": torch.zeros(2)}, Row(0, 0, 0, 2))


def test_generators_stay_as_they_were() -> None:
    seed_sample(5)
    before = torch.get_rng_state()
    batches("device", (CROP, *TAIL), (MIX,))
    assert torch.equal(before, torch.get_rng_state())


def test_the_key_of_the_config(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(source=Noise(), transforms=[CROP, *TAIL])
    plan, found = ConstantPlan(N, 4, Duration(1, "ep")), {}
    for augment_on in ("workers", "device"):
        data = Data(train=stream, batch_size=4, mix=[MIX], augment_on=augment_on)  # type: ignore[arg-type]
        with caplog.at_level(logging.INFO):
            loader = make_training_loader(
                data, plan, EachOnce(N, 0, True), DatasetInfo(N, classes=Noise.classes), 0, torch.device("cpu")
            )
        found[augment_on] = list(loader.iterate())
    assert_same(found["workers"], found["device"])
