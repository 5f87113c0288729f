"""Transforms applied on the device are bitwise identical to those of workers; here the device is the CPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.contracts import Batch, DatasetInfo, GlobalBatch, Sample, Source, SourceInfo, Transform
from opabinia.data.batch_mixing import cutmix, mixup, one_of, random_patch
from opabinia.data.device_transforms.apply import DeviceTransforms, describe_split, recording_reader
from opabinia.data.device_transforms.batch_ops import BATCH_OPS, apply_ops, group_ops
from opabinia.data.device_transforms.recorded import RECORDED_OPS, RecordedImage
from opabinia.data.device_transforms.split import is_batchable, split_transforms, with_recording
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import evaluation_requests, training_requests
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur, lighting
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import DropEmptyObjects, RandomHorizontalFlip
from opabinia.data.transforms.patch_masks import random_patch_mask
from opabinia.data.transforms.policies import timm_policy
from opabinia.data.transforms.views import View, Views
from opabinia.engine.loop.prefetch import DeviceLoader
from opabinia.runtime.durations import Duration
from opabinia.runtime.seeds import seed_sample
from tests.fake_gpu import GPU, WithoutBlockingCopies

N = 11
JITTER = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
CROP = DropEmptyObjects(RandomResizedCrop(24, antialias=True))
TAIL: Sequence[Transform] = (DropEmptyObjects(RandomHorizontalFlip()), DropEmptyObjects(JITTER), RandomErase())


class Noise(Source):
    """Noise images."""

    info = SourceInfo(channels=3, classes=("a", "b", "c"))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Sample:
        pixels = torch.randint(256, (3, 30, 33), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)
        return {"image": tv_tensors.Image(pixels), "label": index % 3, "id": str(index)}


class Boxed(Noise):
    info = SourceInfo(boxes=True)


TRANSFORMS: dict[str, Sequence[Transform]] = {
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
    "erase": [RandomErase()],
    "erase twice": [v2.RandomErasing(0.7, value=116), RandomErase(mean=[0.1, 0.5, 0.9])],
    "blur": [RandomGaussianBlur(sigma=(0.1, 4.0))],
    "lighting": [partial(lighting, std=0.5)],
    "rand": [v2.RandAugment(3)],
    "trivial": [v2.TrivialAugmentWide()],
    "auto": [v2.AutoAugment()],
    "bilinear": [v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)],
    "gray borders": [v2.RandAugment(3, fill=128)],
    "colored borders": [v2.RandAugment(3, interpolation=v2.InterpolationMode.BILINEAR, fill=[124, 116, 104])],
    "choice": [
        v2.RandomChoice(
            [RandomGaussianBlur(sigma=(0.1, 1.0)), RandomGaussianBlur(sigma=(1.0, 2.0)), v2.ColorJitter(0.4)]
        )
    ],
    "order": [v2.RandomOrder([v2.RandomInvert(), RandomHorizontalFlip(), v2.RandomErasing()])],
    "all": [*TAIL, v2.RandomSolarize(100), RandomGaussianBlur(), v2.RandAugment(1)],
}


def samples(shape: tuple[int, ...], kind: Any = tv_tensors.Image) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    return [{"image": kind(torch.randint(20, 220, shape, dtype=torch.uint8, generator=generator))} for _ in range(N)]


def transformed(sample: Sample, seed: int, transforms: Sequence[Transform]) -> tuple[Sample, float]:
    """Return the transformed sample and the next random number."""
    seed_sample(seed)
    for transform in transforms:
        sample = transform(sample)
    return sample, float(torch.rand(()))


def per_sample_and_batched(inputs: list[Sample], transforms: Sequence[Transform]) -> tuple[Tensor, Tensor]:
    """Return the images transformed per sample, and as a batch."""
    per_sample = [transformed(sample, seed, transforms) for seed, sample in enumerate(inputs)]
    recorded = [transformed(sample, seed, with_recording(transforms)) for seed, sample in enumerate(inputs)]
    assert [drawn for _, drawn in per_sample] == [drawn for _, drawn in recorded], "both draw as much"
    assert all(recording["image"] is sample["image"] for (recording, _), sample in zip(recorded, inputs, strict=True))
    expected, pixels = (
        torch.stack([sample["image"].as_subclass(Tensor) for sample, _ in results])
        for results in (per_sample, recorded)
    )
    return expected, apply_ops(pixels, group_ops([sample[RECORDED_OPS] for sample, _ in recorded]))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_batched_transforms_equal_those_per_sample(name: str) -> None:
    for shape in ((3, 5, 4), (3, 17, 20)):
        expected, result = per_sample_and_batched(samples(shape), TRANSFORMS[name])
        assert torch.equal(expected, result)
    before = torch.stack([sample["image"].as_subclass(Tensor) for sample in samples(shape)])
    assert not torch.equal(before, result)


@pytest.mark.parametrize(
    ("shape", "kind", "names"),
    [
        (
            (3, 3, 12, 14),
            tv_tensors.Video,
            ("jitter", "grey", "erase", "blur", "rand", "colored borders", "all", "channels", "lighting"),
        ),
        ((1, 12, 14), tv_tensors.Image, ("jitter", "grey", "erase", "blur", "flip", "trivial")),
    ],
    ids=["clips", "gray"],
)
def test_batched_transforms_of_clips_and_gray_images(shape: tuple[int, ...], kind: Any, names: Sequence[str]) -> None:
    for name in names:
        expected, result = per_sample_and_batched(samples(shape, kind), TRANSFORMS[name])
        assert torch.equal(expected, result), name


def test_rotations_by_right_angles_are_exact() -> None:
    image = samples((3, 12, 12))[0]["image"]
    for angle in (0, 90, 180, 270):
        ops = v2.functional.rotate(RecordedImage.like(image), angle).ops
        turned = apply_ops(image.as_subclass(Tensor)[None].clone(), group_ops([ops]))[0]
        assert torch.equal(turned, v2.functional.rotate(image, angle)) and ops[0].name == "rotate"


def test_many_images_need_few_operations() -> None:
    inputs = samples((3, 8, 8)) * 12
    results = [transformed(sample, seed, with_recording([JITTER])) for seed, sample in enumerate(inputs)]
    assert len(group_ops([sample[RECORDED_OPS] for sample, _ in results])) < 16, "four operations in any order"


def test_the_host_does_not_wait_for_the_device() -> None:
    for name, transforms in TRANSFORMS.items():
        recorded = [transformed(sample, 0, with_recording(transforms))[0] for sample in samples((3, 17, 20))]
        ops = group_ops([sample[RECORDED_OPS] for sample in recorded])
        with FakeTensorMode():
            on_gpu = tree_map_only(Tensor, lambda item: torch.empty(item.shape, dtype=item.dtype, device=GPU), ops)
            images = torch.empty(N, 3, 17, 20, dtype=torch.uint8, device=GPU)
            with WithoutBlockingCopies():
                assert apply_ops(images, on_gpu).shape == images.shape, name


# --- the split between workers and device -----------------------------------------------------------------------------


def test_the_device_runs_the_trailing_batchable_transforms() -> None:
    policy = partial(timm_policy, policy="3a")
    assert split_transforms([CROP, *TAIL]) == ([CROP], list(TAIL))
    assert split_transforms([*TAIL, policy, TAIL[0]]) == ([*TAIL, policy], [TAIL[0]])
    assert split_transforms([]) == ([], [])
    assert not is_batchable(v2.RandomApply([v2.ColorJitter(0.4), CROP]))
    assert not is_batchable(v2.RandomErasing(value="random"))
    assert not is_batchable(lambda sample: sample)


def test_describe_split() -> None:
    views = Views(views=[View(transforms=[CROP, RandomGaussianBlur()]), View(transforms=[CROP], count=2)])
    mixes = (partial(mixup, alpha=0.2),)
    for source, transforms, text in (
        (Noise(), (CROP, *TAIL[1:]), "workers run RandomResizedCrop, the device RandomApply, RandomErase, mixup"),
        (Noise(), (), "workers run nothing, the device mixup"),
        (Boxed(), TAIL[2:], "images differ in size or have boxes; workers run RandomErase, the device mixup"),
    ):
        assert describe_split(BatchReader(source, transforms, mixes)) == text
    of_views = [f"view {n}: workers run RandomResizedCrop, the device " for n in (1, 2)]
    assert describe_split(BatchReader(Noise(), (views,))) == f"{of_views[0]}RandomGaussianBlur; {of_views[1]}nothing"
    assert recording_reader(BatchReader(Boxed(), TAIL)).transforms == TAIL
    assert recording_reader(BatchReader(Noise(), TAIL, size_multiple=32)).transforms == TAIL


class Overwritten(v2.RandomInvert):  # type: ignore[misc]
    """An operation that recording does not know."""

    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        return value.float()


def test_what_cannot_be_recorded_raises() -> None:
    for image, transforms, message in (
        (torch.rand(3, 8, 8), TAIL, r"need images of uint8, not torch\.float32"),
        (
            torch.zeros(3, 8, 8, dtype=torch.uint8),
            [Overwritten(1.0)],
            r"Overwritten cannot be applied on the device; set data\.augment_on to workers",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            transformed({"image": tv_tensors.Image(image)}, 0, with_recording(transforms))


# --- batches ----------------------------------------------------------------------------------------------------------


def batches(
    augment_on: str,
    transforms: Sequence[Transform],
    mix: Any = (),
    workers: int = 0,
    start: int = 0,
    shapes: bool = False,
) -> list[tuple[GlobalBatch, Batch]]:
    plan = ConstantPlan(N, 4, Duration(2, "ep"))
    reader = BatchReader(Noise(), transforms, mix, DatasetInfo(N, classes=Noise.info.classes), seed=3)

    def requests(start_step: int) -> Any:
        for request in training_requests(plan, partial(epoch_order, 3, n=N, shuffle=True), 0, 1)(start_step):
            yield request._replace(global_batch=replace(request.global_batch, shape=(16, 16))) if shapes else request

    on_device = augment_on == "device"
    loader = Loader(recording_reader(reader) if on_device else reader, requests, num_workers=workers)
    device_loader = DeviceLoader(loader, torch.device("cpu"), DeviceTransforms(reader) if on_device else None)
    try:
        return list(device_loader.iterate(start))
    finally:
        device_loader.close()


def assert_same(left: list[tuple[GlobalBatch, Batch]], right: list[tuple[GlobalBatch, Batch]]) -> None:
    assert [row for row, _ in left] == [row for row, _ in right]
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        assert a["id"] == b["id"]
        assert torch.equal(a["label"], b["label"])
        for key in ("image", "views", "patch_mask", "patch_masks"):
            expected, actual = (batch.get(key, ()) for batch in (a, b))
            assert len(expected) == len(actual)
            assert all(map(torch.equal, expected, actual))


MIX = partial(one_of, mixes=[partial(mixup, alpha=0.8), partial(cutmix, alpha=1.0, per="pair"), random_patch])
VIEWS = Views(
    views=[
        View(transforms=[CROP, RandomGaussianBlur(), partial(random_patch_mask, patch_size=8)]),
        View(transforms=[DropEmptyObjects(RandomResizedCrop(12, antialias=True)), *TAIL], count=2),
        View(transforms=[CROP]),
    ]
)


@pytest.mark.parametrize(
    ("transforms", "mix", "shapes"),
    [
        ((CROP, *TAIL), (), False),
        ((CROP, *TAIL), (MIX,), False),
        ((CROP, *TAIL), (MIX,), True),
        ((CROP, v2.RandomInvert(), partial(random_patch_mask, patch_size=8)), (), False),
        ((), (MIX,), False),
        ((VIEWS,), (), False),
    ],
    ids=["tail", "mixed", "resized", "patch masks", "mixes alone", "views"],
)
def test_batches_are_the_same_on_device_and_workers(transforms: Sequence[Transform], mix: Any, shapes: bool) -> None:
    expected, state = batches("workers", transforms, mix, shapes=shapes), torch.get_rng_state()
    assert_same(expected, batches("device", transforms, mix, shapes=shapes))
    assert_same(expected[4:], batches("device", transforms, mix, start=4, shapes=shapes))
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_are_the_same_with_any_number_of_workers() -> None:
    assert_same(batches("device", (VIEWS,)), batches("device", (VIEWS,), workers=2))


def test_what_workers_send_and_errors_in_a_mix() -> None:
    reader = BatchReader(
        Noise(), (CROP, *TAIL), (partial(mixup, alpha=0.2),), DatasetInfo(N, classes=Noise.info.classes)
    )
    request = next(iter(evaluation_requests(N, 4, 0, 1)(0)))
    sent, finished = recording_reader(reader).batch(request), reader.batch(request)
    assert (sent["image"].dtype, finished["image"].dtype) == (torch.uint8, torch.float32)
    assert BATCH_OPS in sent and RECORDED_OPS not in sent
    message = "step 0, mixup: mixup mixes the class labels of images, and this data has no 'label'"
    with pytest.raises(DataError, match=message):
        DeviceTransforms(reader)({"image": torch.zeros(2, 3, 4, 4)}, GlobalBatch(0, 0, 0, 2))
