"""Deferred decoding of crops: the same batches and errors as with immediate decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import Sample
from opabinia.data.collate import collate
from opabinia.data.decoding.cache import CachedSource, with_cache
from opabinia.data.decoding.images import Box
from opabinia.data.decoding.resized import ResizedCrop, decode_large
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.transforms.crops import RandomResizedCrop, Resize
from opabinia.data.transforms.instances import DropEmptyObjects, RandomHorizontalFlip
from tests.data.decoding.test_cache import write_photos
from tests.data.decoding.test_reduced import encode, make_photo

CROP = DropEmptyObjects(RandomResizedCrop(size=[32, 24]))
FLIP = DropEmptyObjects(RandomHorizontalFlip(p=0.5))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write JPEGs, and PNGs, which do not support partial decoding."""
    return write_photos(tmp_path / "photos")


def images(source: Any, *transforms: Any, workers: int = 0, **options: Any) -> torch.Tensor:
    reader = BatchReader(source, transforms, seed=3, reduced=True, **options)
    loader = Loader(reader, evaluation_requests(len(source), 5, 0, 1), num_workers=workers)
    try:
        return torch.cat([batch["image"] for _, batch in loader.iterate()])
    finally:
        loader.close()


def decode_now(sample: Sample) -> Sample:
    """Check that the image is decoded."""
    assert isinstance(sample["image"], torch.Tensor)
    return sample


def test_pixels_do_not_depend_on_when_they_are_decoded(root: Path) -> None:
    uncached, cached = ImageFolder(root=root), with_cache(ImageFolder(root=root), "ram", None, "train")
    for source in (uncached, CachedSource(uncached, None), cached, cached):  # the last iteration reads cached images
        for transforms in ([CROP], [CROP, FLIP], [Resize(size=[20, 40]), FLIP], [FLIP, CROP, FLIP]):
            expected = images(source, *transforms, decode_now)
            assert torch.equal(images(source, *transforms), expected)
    assert torch.equal(images(cached, CROP, FLIP, workers=1), images(cached, CROP, FLIP, decode_now))
    with pytest.raises(DataError, match=r"collate: 'image' differs in size: cat/0.jpg has 3 x 25 x 20"):
        images(uncached, Resize(size=20), FLIP)


def test_a_batch_of_crops_and_images() -> None:
    crop = ResizedCrop(encode(make_photo()), Box(5, 7, 90, 110), (64, 60), "bilinear")
    batch = collate([{"image": crop}, {"image": crop.mirror()}, {"image": crop.decode()}])["image"]
    full = F.resize(crop.image.decode()[:, 5:95, 7:117], [64, 60], antialias=True)
    assert torch.equal(batch, torch.stack([full, full.flip(-1), full]))
    gray = RandomResizedCrop(size=20).of_encoded({"image": encode(make_photo(), channels=1)})
    assert collate([gray])["image"].shape == (1, 1, 20, 20)


def test_large_files_are_decoded_immediately() -> None:
    """A batch of large files would need more memory than its pixels."""
    image = encode(make_photo(), quality=90)
    for size, is_large in ((300, False), (8, True)):
        sample = RandomResizedCrop(size=size).of_encoded({"image": image})
        assert isinstance(decode_large(sample)["image"], torch.Tensor) == is_large


def test_a_broken_image_is_named_and_replaced(root: Path) -> None:
    path = root / "cat" / "5.jpg"
    path.write_bytes(path.read_bytes()[:600])
    source = ImageFolder(root=root)
    with pytest.raises(DataError, match=r"sample 5 \(cat/5.jpg\), RandomResizedCrop: .* be decoded"):
        images(source, CROP, FLIP)
    for on_error, count in (("replace", 10), ("skip", 9)):
        result = images(source, CROP, FLIP, on_error=on_error)
        assert len(result) == count
        assert torch.equal(result, images(source, CROP, FLIP, decode_now, on_error=on_error))
