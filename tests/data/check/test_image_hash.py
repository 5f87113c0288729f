"""Sketches of images, and pairs that look alike."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from opabinia.data.check.image_hash import ImageHash, compute_hash, connected_groups, find_near_pairs
from tests.data.check.images import drawn


def sketch(image: Image.Image) -> ImageHash:
    found = compute_hash(torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0))
    assert found is not None
    return found


def compressed(image: Image.Image, quality: int) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def test_the_hash_is_that_of_darker_to_the_right() -> None:
    fading = np.tile(np.linspace(250, 0, 90, dtype=np.uint8)[None, :, None], (64, 1, 3))
    assert sketch(Image.fromarray(fading)).hashes.tolist() == [2**64 - 1]
    assert sketch(Image.fromarray(fading[:, ::-1].copy())).hashes.tolist() == [0]


def test_compression_and_another_size_are_found_and_other_images_are_not() -> None:
    images = [drawn(number, (160, 120)) for number in range(40)]
    changed = [compressed(images[0], 20), images[1].resize((88, 66)), images[2].resize((320, 240))]
    found = find_near_pairs([sketch(one) for one in [*images, *changed]], 4)
    assert found.tolist() == [[0, 40], [1, 41], [2, 42]]


def test_small_and_empty_images_have_no_sketch() -> None:
    assert compute_hash(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)) is None
    assert compute_hash(torch.randint(0, 256, (1, 3, 63, 90), dtype=torch.uint8)) is None
    video = torch.zeros(3, 1, 64, 64, dtype=torch.uint8)
    video[2, :, :, :30] = 200
    assert compute_hash(video) is not None, "one frame with something in it is enough"


def test_videos_are_alike_when_every_frame_is() -> None:
    video = torch.stack([torch.from_numpy(np.array(drawn(number))).permute(2, 0, 1) for number in range(3)])
    other = video.clone()
    other[2] = torch.from_numpy(np.array(drawn(9))).permute(2, 0, 1)
    found = [
        one
        for one in (compute_hash(video), compute_hash(video.clamp(max=254) + 1), compute_hash(other))
        if one is not None
    ]
    assert find_near_pairs(found, 4).tolist() == [[0, 1]]


def test_no_pair_is_missed() -> None:
    """Against all pairs, with hashes of few bits, so that there are many near ones, and equal copies."""
    generator = np.random.default_rng(0)
    hashes = (generator.random((200, 64)) < 0.05) @ (1 << np.arange(64, dtype=np.uint64))
    copies = generator.integers(0, 256, (1, 864), dtype=np.uint8)
    sketches = [ImageHash(np.array([one], dtype=np.uint64), copies) for one in hashes]
    distances = np.bitwise_count(hashes[:, None] ^ hashes[None])
    for most in (0, 4, 12):
        expected = np.argwhere(np.triu(distances <= most, 1)).tolist()
        assert len(expected) > most and find_near_pairs(sketches, most).tolist() == expected


def test_groups() -> None:
    found = connected_groups(np.array([[1, 5], [5, 7], [2, 3]]), 9)
    assert [one.tolist() for one in found] == [[1, 5, 7], [2, 3]]
    assert connected_groups(find_near_pairs([], 4), 0) == []
