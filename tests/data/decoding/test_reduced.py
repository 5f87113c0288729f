"""Reduced decoding: JPEG images are decoded at the size and region that a transform needs."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import GlobalBatch, Sample
from opabinia.data.decoding.images import Box, EncodedImage, decode_sample
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import Request
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.transforms.crops import RandomResizedCrop, Resize
from opabinia.data.transforms.instances import DropEmptyObjects
from opabinia.runtime.seeds import seed_sample

WIDTH, HEIGHT = 250, 187  # odd, so that smaller sizes are rounded


def make_photo(seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Return an image with smooth colors, edges and some noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(smooth).astype(np.int64) + rng.integers(-6, 7, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (240, 30, 60)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", channels: int = 3, **options: object) -> EncodedImage:
    content = BytesIO()
    image.save(content, kind, **options)
    return EncodedImage(content.getvalue(), "image", channels)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_in_full_size_has_the_same_pixels(channels: int) -> None:
    image = encode(make_photo(), channels=channels, quality=90)
    assert image.size == (HEIGHT, WIDTH)
    part = image.crop(Box(20, 31, 100, 60), (90, 60))
    assert part.dtype == torch.uint8
    assert torch.equal(part, image.decode()[:, 20:120, 31:91])
    for box in (Box(15, 0, 2, 14), Box(0, 15, 14, 2)):  # at half the resolution both edges are rounded to 8
        assert 0 not in image.crop(box, (1, 1)).shape


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"restart_marker_blocks": 5}, {"progressive": True}, {"optimize": True}], ids=str
)
def test_rows_above_the_end_of_partial_decoding_are_the_same(subsampling: int, options: dict[str, object]) -> None:
    """Also with chroma subsampling, where upsampling uses the row below."""
    image = encode(make_photo(), quality=90, subsampling=subsampling, **options)
    for factor in (1, 2, 4, 8):
        full = image._decode_above(HEIGHT, factor)
        assert full.shape == (-(-HEIGHT // factor), -(-WIDTH // factor), 3)
        for row in range(1, HEIGHT + 1, 3):
            partial = image._decode_above(row, factor)
            count = round(row / factor)
            assert len(partial) >= count and np.array_equal(partial[:count], full[:count])
    stopped = image._decode_above(10, 1)
    assert len(stopped) == (HEIGHT if "progressive" in options else 16)


@pytest.mark.parametrize(("size", "channels"), [(12, 3), (24, 1), (48, 3)])
def test_a_crop_is_the_same_up_to_half_a_pixel(size: int, channels: int) -> None:
    """The tolerance that docs/data_loading.md states: ends are rounded to whole pixels of the smaller image, and beyond
    that pixels differ by less than 3 of 255 on average (here: edges, much noise)."""
    transform, differences = RandomResizedCrop(size=size), []
    for seed in range(12):
        image = encode(make_photo(seed), channels=channels, quality=90)
        sample: Sample = {"image": image, "label": 1, "id": "a"}
        seed_sample(seed)
        box = Box(**transform.make_params([image.decode()]))
        drawn = torch.rand(1)
        seed_sample(seed)
        reduced = decode_sample(transform.of_encoded(sample))
        assert torch.rand(1) == drawn, "as many random numbers are drawn"
        assert isinstance(reduced["image"], tv_tensors.Image) and (reduced["label"], reduced["id"]) == (1, "a")
        factor = max(scale for scale in (1, 2, 4, 8) if scale == 1 or min(box.height, box.width) >= scale * size)
        top, left, bottom, right = (
            round(end / factor) * factor for end in (box.top, box.left, box.top + box.height, box.left + box.width)
        )
        full = F.resize(image.decode()[:, top:bottom, left:right], [size, size], antialias=True)
        differences.append((reduced["image"].float() - full.float()).abs().mean().item())
    assert np.mean(differences) < 3 and max(differences) < 6


@pytest.mark.parametrize(
    "keys", [{"size": 20}, {"size": [48, 30]}, {"size": 40, "max_size": 50}, {"size": 400}], ids=str
)
def test_a_resized_image_differs_little(keys: dict[str, Any]) -> None:
    """As for a crop: by less than 4 of 255 on average, once its ends are rounded; not at all if no smaller size
    fits."""
    differences = []
    for seed in range(4):
        image = encode(make_photo(seed), quality=90)
        result = decode_sample(Resize(**keys).of_encoded({"image": image, "id": "a"}))
        height, width = v2.Resize(**keys)(image.decode()).shape[-2:]
        assert isinstance(result["image"], tv_tensors.Image) and result["image"].shape == (3, height, width)
        factor = max(scale for scale in (1, 2, 4, 8) if scale == 1 or min(HEIGHT / height, WIDTH / width) >= scale)
        bottom, right = round(HEIGHT / factor) * factor, round(WIDTH / factor) * factor
        full = F.resize(image.decode()[:, :bottom, :right], [height, width], antialias=True)
        differences.append((result["image"].float() - full.float()).abs().mean().item())
    assert np.mean(differences) < 4 and (max(differences) == 0 or keys["size"] != 400)


def test_crops_have_the_same_distribution_as_torchvisions() -> None:
    """Area, aspect ratio and position have the same mean, deviation and extremes."""
    crop, torchvision_crop = RandomResizedCrop(size=8, scale=(0.1, 0.6)), v2.RandomResizedCrop(8, scale=(0.1, 0.6))
    result = []
    for transform in (crop, torchvision_crop):
        torch.manual_seed(0)
        image = torch.empty(3, 300, 500)
        rows = [transform.make_params([image]) for _ in range(4000)]
        boxes = np.array([[row[name] for name in Box._fields] for row in rows], dtype=np.float64)
        top, left, height, width = boxes.T
        assert (boxes.min(), (top + height).max(), (left + width).max()) == (0, 300, 500)
        columns = height * width / 150_000, np.log(width / height), (top + height / 2) / 300, (left + width / 2) / 500
        result.append([(column.mean(), column.std()) for column in columns])
    np.testing.assert_allclose(result[0], result[1], atol=0.012)
    for height, width in ((10, 1000), (1000, 10), (1, 1), (7, 9)):  # no crop fits: the center
        image = torch.empty(3, height, width)
        crops = [cls(8, scale=(2, 3)).make_params([image]) for cls in (RandomResizedCrop, v2.RandomResizedCrop)]
        assert crops[0] == crops[1]


def encode_rotated(image: Image.Image, orientation: int) -> EncodedImage:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, exif=exif.tobytes())


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(encode(make_photo(), "PNG"), id="png"),
        pytest.param(encode(make_photo(), "WEBP", lossless=True), id="webp"),
        pytest.param(encode(make_photo().convert("CMYK")), id="cmyk"),
        pytest.param(encode_rotated(make_photo(), 6), id="turned"),
    ],
)
def test_other_formats_are_decoded_in_full(image: EncodedImage) -> None:
    assert image.size is None and encode_rotated(make_photo(), 1).size == (HEIGHT, WIDTH)
    transform = RandomResizedCrop(size=20)
    seed_sample(3)
    result = transform.of_encoded({"image": image})["image"]
    seed_sample(3)
    assert torch.equal(result, transform({"image": tv_tensors.Image(image.decode())})["image"])


def test_invalid_content_raises_with_the_name() -> None:
    for content in (b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0 no image"):
        with pytest.raises(ValueError, match=r"image cannot be decoded"):
            RandomResizedCrop(size=20).of_encoded({"image": EncodedImage(content, "image", 3)})


def test_a_truncated_image_is_decoded_as_in_full_decoding() -> None:
    """Missing data are gray or raise an error, as in full decoding."""
    image = encode(make_photo(), quality=90)
    truncated = EncodedImage(image.content[: len(image.content) // 2], "image", 3)
    outcomes = []
    for decode in (lambda: truncated.crop(Box(0, 0, HEIGHT, WIDTH), (HEIGHT, WIDTH)), truncated.decode):
        try:
            outcomes.append(decode())
        except ValueError as error:
            outcomes.append(str(error))  # type: ignore[arg-type]
    reduced, full = outcomes
    assert type(reduced) is type(full)
    assert reduced == full if isinstance(reduced, str) else torch.equal(reduced, full)


# --- through the loader -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    (tmp_path / "cat").mkdir()
    for number in range(4):
        make_photo(number).save(tmp_path / "cat" / f"{number}.jpg", quality=90)
    return ImageFolder(root=tmp_path)


def test_the_first_transform_decodes_the_images(folder: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RandomResizedCrop(size=24)
    transforms = [DropEmptyObjects(first), v2.RandomHorizontalFlip()]
    request = Request(GlobalBatch(step=0, epoch=0, first=0, count=4), np.arange(4), np.arange(4))
    full = BatchReader(folder, transforms, seed=5).batch(request)
    reduced = BatchReader(folder, transforms, seed=5, reduced=True).batch(request)
    assert reduced["id"] == full["id"] and reduced["image"].shape == full["image"].shape
    assert not torch.equal(reduced["image"], full["image"])
    assert (reduced["image"].float() - full["image"].float()).abs().mean() < 8

    later = [v2.RandomHorizontalFlip(), first]
    decoded, same = (BatchReader(folder, later, seed=5, reduced=on).batch(request) for on in (False, True))
    assert torch.equal(decoded["image"], same["image"]), "another first transform receives decoded images"
    monkeypatch.setattr(EncodedImage, "decode", None)  # nothing is decoded in full
    repeated = BatchReader(folder, transforms, seed=5, reduced=True).batch(request)
    assert torch.equal(repeated["image"], reduced["image"])
