"""Image hashes and near-duplicate pairs."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from opabinia.data.check.image_hash import ImageHash, compute_hash, connected_groups, find_near_pairs
from tests.data.check.images import drawn


def image_hash(image: Image.Image) -> ImageHash:
    result = compute_hash(torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0))
    assert result is not None
    return result


def compressed(image: Image.Image, quality: int) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def test_hash_bits_are_set_where_the_image_gets_darker_to_the_right() -> None:
    gradient = np.tile(np.linspace(250, 0, 90, dtype=np.uint8)[None, :, None], (64, 1, 3))
    assert image_hash(Image.fromarray(gradient)).hashes.tolist() == [2**64 - 1]
    assert image_hash(Image.fromarray(gradient[:, ::-1].copy())).hashes.tolist() == [0]
    assert compute_hash(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)) is None, "uniform"
    assert compute_hash(torch.randint(0, 256, (1, 3, 63, 90), dtype=torch.uint8)) is None, "small"
    video = torch.zeros(3, 1, 64, 64, dtype=torch.uint8)
    video[2, :, :, :30] = 200
    assert compute_hash(video) is not None, "one frame that is not uniform is enough"


def test_near_pairs_are_compressed_or_resized_copies() -> None:
    images = [drawn(number, (160, 120)) for number in range(40)]
    changed = [compressed(images[0], 20), images[1].resize((88, 66)), images[2].resize((320, 240))]
    pairs = find_near_pairs([image_hash(image) for image in [*images, *changed]], 4)
    assert pairs.tolist() == [[0, 40], [1, 41], [2, 42]]


def test_videos_are_near_duplicates_if_every_frame_is() -> None:
    video = torch.stack([torch.from_numpy(np.array(drawn(number))).permute(2, 0, 1) for number in range(3)])
    other = video.clone()
    other[2] = torch.from_numpy(np.array(drawn(9))).permute(2, 0, 1)
    hashes: Any = [compute_hash(video), compute_hash(video.clamp(max=254) + 1), compute_hash(other)]
    assert find_near_pairs(hashes, 4).tolist() == [[0, 1]]


def test_no_pair_is_missed() -> None:
    """Compare with all pairs, of hashes with few bits, so that many are near or equal."""
    generator = np.random.default_rng(0)
    hashes = (generator.random((200, 64)) < 0.05) @ (1 << np.arange(64, dtype=np.uint64))
    copies = generator.integers(0, 256, (1, 864), dtype=np.uint8)
    image_hashes = [ImageHash(np.array([value], dtype=np.uint64), copies) for value in hashes]
    distances = np.bitwise_count(hashes[:, None] ^ hashes[None])
    for max_distance in (0, 4, 12):
        expected = np.argwhere(np.triu(distances <= max_distance, 1)).tolist()
        assert len(expected) > max_distance and find_near_pairs(image_hashes, max_distance).tolist() == expected


def test_connected_groups() -> None:
    groups = connected_groups(np.array([[1, 5], [5, 7], [2, 3]]), 9)
    assert [group.tolist() for group in groups] == [[1, 5, 7], [2, 3]]
    assert connected_groups(find_near_pairs([], 4), 0) == []
