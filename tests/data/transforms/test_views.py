"""Several views of an image, from the transform to the training step."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import ConfigError
from opabinia.contracts import Sample
from opabinia.data.collate import collate, resize_batch
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import evaluation_requests, training_requests
from opabinia.data.settings import Stream
from opabinia.data.sources import DigitScenes, Synthetic, Unlabeled
from opabinia.data.transforms.augment import RandomGaussianBlur
from opabinia.data.transforms.views import View, Views
from opabinia.engine.loop.nonfinite import suspect_samples
from opabinia.engine.loop.prefetch import _move
from opabinia.runtime.durations import Duration
from opabinia.training.run_folder import resolve
from opabinia.training.samples import read_dataset_info

LARGE = [
    v2.RandomResizedCrop(16, scale=(0.3, 1.0)),
    v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
    RandomGaussianBlur(),
]
SMALL = [v2.RandomResizedCrop(8, scale=(0.1, 0.3)), v2.RandomSolarize(128, 0.5)]
VIEWS = Views(views=[View(transforms=LARGE, count=2), View(transforms=SMALL, count=3)])


def sample_of(channels: int = 1) -> Sample:
    pixels = torch.arange(channels * 400).reshape(channels, 20, 20) % 256
    return {"image": tv_tensors.Image(pixels.to(torch.uint8)), "label": 3, "id": "a"}


def with_patch_mask(sample: Sample) -> Sample:
    return {**sample, "patch_mask": torch.rand(4) < 0.5}


# --- one sample -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_views_replace_the_image(channels: int) -> None:
    before = sample_of(channels)
    original = before["image"].clone()
    sample = VIEWS(before)
    assert sample.keys() == {"views", "label", "id"} and torch.equal(before["image"], original)
    assert [tuple(view.shape) for view in sample["views"]] == [(channels, 16, 16)] * 2 + [(channels, 8, 8)] * 3
    assert all(view.dtype == torch.uint8 for view in sample["views"])
    first, second = sample["views"][:2]
    assert not torch.equal(first, second), "each view has its own random numbers"


def test_in_place_changes_of_a_view_do_not_affect_others() -> None:
    def blackened(sample: Sample) -> Sample:
        sample["image"].zero_()
        return sample

    sample = Views(views=[View(transforms=[blackened]), View(transforms=[])])(sample_of())
    assert [int(view.max()) for view in sample["views"]] == [0, 255]


def test_masks_are_those_of_the_first_views() -> None:
    masked, plain = View(transforms=[with_patch_mask], count=2), View(transforms=[])
    sample = Views(views=[masked, plain])(sample_of())
    assert len(sample["views"]) == 3 and [mask.shape for mask in sample["patch_masks"]] == [(4,), (4,)]
    assert "patch_mask" not in sample and "patch_masks" not in Views(views=[plain])(sample_of())
    with pytest.raises(ValueError, match="views with a patch mask come before those without"):
        Views(views=[plain, masked])(sample_of())
    with pytest.raises(ValueError, match="views: at least one"):
        Views(views=[])


# --- batches ----------------------------------------------------------------------------------------------------------


def test_views_are_collated_to_a_tuple_of_batches() -> None:
    samples = [
        Views(views=[View(transforms=[with_patch_mask], count=2), View(transforms=SMALL)])(sample_of())
        for _ in range(3)
    ]
    batch = collate(samples)
    assert type(batch["views"]) is type(batch["patch_masks"]) is tuple
    assert [tuple(view.shape) for view in batch["views"]] == [(3, 1, 20, 20)] * 2 + [(3, 1, 8, 8)]
    assert torch.equal(batch["views"][1][2], samples[2]["views"][1]) and type(batch["views"][1]) is Tensor
    assert [(tuple(mask.shape), mask.dtype) for mask in batch["patch_masks"]] == [((3, 4), torch.bool)] * 2
    assert batch["label"].tolist() == [3, 3, 3]
    moved = _move(batch, torch.device("meta"))
    assert type(moved["views"]) is tuple and {view.device.type for view in moved["views"]} == {"meta"}
    assert moved["patch_masks"][0].is_meta and moved["id"] == ["a", "a", "a"]
    assert collate([{"id": "a", "n": (1, 2)}, {"id": "b", "n": (1, 2, 3)}])["n"] == [(1, 2), (1, 2, 3)]


def test_views_that_cannot_be_collated_are_named() -> None:
    small, large = (Views(views=[View(transforms=[]), View(transforms=[v2.Resize(side)])]) for side in ((8, 8), (9, 9)))
    with pytest.raises(ValueError, match=r"'views\.1' differs in size: a has 1 x 8 x 8, b has 1 x 9 x 9"):
        collate([small(sample_of()), large({**sample_of(), "id": "b"})])
    with pytest.raises(ValueError, match="each view has a size of its own"):
        resize_batch(collate([small(sample_of())]), (12, 12))


@pytest.mark.gpu
def test_views_are_pinned() -> None:
    for _, batch in make_loader(workers=1, pin_memory=True).iterate(0):
        assert type(batch["views"]) is tuple and all(view.is_pinned() for view in batch["views"])
        assert all(view.is_cuda for view in _move(batch, torch.device("cuda"))["views"])


def test_a_sample_is_suspect_if_one_of_its_views_is() -> None:
    views = [torch.zeros(3, 1, 4, 4) for _ in range(3)]
    assert suspect_samples({"views": tuple(views), "id": list("abc")}) == list("abc")
    views[1][2, 0, 1, 1] = torch.nan
    assert suspect_samples({"views": tuple(views), "id": list("abc")}) == ["c"]


# --- the same on any number of workers, and from any step on ----------------------------------------------------------


def make_loader(workers: int = 0, **keys: Any) -> Loader:
    source = Unlabeled(source=Synthetic(samples=20, channels=1, size=20))
    plan = ConstantPlan(20, 6, Duration.parse("2ep"))
    requests = training_requests(plan, partial(epoch_order, 5, n=20, shuffle=True), 0, 1)
    return Loader(BatchReader(source, (VIEWS,), seed=5), requests, num_workers=workers, **keys)


def test_views_do_not_depend_on_workers_and_start() -> None:
    expected = [(batch["id"], batch["views"]) for _, batch in make_loader().iterate(0)]
    assert [len(ids) for ids, _ in expected] == [6, 6, 6, 2] * 2
    with closing(make_loader(2)) as loader:
        for (_, batch), (ids, views) in zip(loader.iterate(3), expected[3:], strict=True):
            assert batch["id"] == ids and all(map(torch.equal, batch["views"], views))
    views_by_id: dict[str, list[Tensor]] = {}
    for ids, views in expected:
        for number, sample_id in enumerate(ids):
            views_by_id.setdefault(sample_id, []).append(views[0][number])
    assert len(views_by_id) == 20
    assert all(not torch.equal(*pair) for pair in views_by_id.values()), "other views in the next epoch"


# --- errors, dataset info ---------------------------------------------------------------------------------------------


VIEW_KEY = "data.train.transforms.0.views.0"


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        ("transforms=[RandomAfine]", [f"{VIEW_KEY}.transforms.0", "RandomAffine"]),
        ("transforms=[{name: ColorJitter, brightnes: 0.3}]", [f"{VIEW_KEY}.transforms.0", "brightness"]),
        ("count=0", [f"{VIEW_KEY}.count", "0"]),
        ("cuont=2", [VIEW_KEY, "count"]),
    ],
)
def test_config_errors_in_a_view_name_their_key(override: str, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        resolve("selfsup/digits_simclr", [f"{VIEW_KEY}.{override}"])
    assert all(text in str(error.value) for text in messages), str(error.value)


def test_dataset_info_is_that_of_the_first_view() -> None:
    color_views = Views(views=[View(transforms=[v2.RGB()], count=2)])
    info = read_dataset_info(Stream(source=Unlabeled(source=DigitScenes(split="val")), transforms=[color_views]))
    assert (info.channels, info.samples, info.classes, info.boxes) == (3, 400, (), False)


def test_a_failing_transform_is_named_with_the_sample() -> None:
    source = Synthetic(samples=4, channels=1, size=20)
    failing_views = Views(views=[View(transforms=[], count=2), View(transforms=[v2.Identity(), v2.RandomCrop(50)])])
    location = r"views\.1\.transforms\.1: Required crop size"
    with pytest.raises(DataError, match=rf"sample 0 \(.*\), Views: {location}"):
        BatchReader(source, (failing_views,), seed=0).batch(next(iter(evaluation_requests(4, 2, 0, 1)(0))))
