from __future__ import annotations

import torch

from opabinia.contracts import InstanceMasks


def test_the_example_of_the_documentation() -> None:
    masks = InstanceMasks.encode(torch.tensor([[[0, 1], [1, 1]]], dtype=torch.uint8), (2, 4))
    assert masks.runs.tolist() == [[[1, 2], [4, 6]]] and masks.runs.dtype == torch.int32
    assert masks.dense().tolist() == [[[0, 1, 0, 0], [1, 1, 0, 0]]]


def test_masks_are_decoded_to_what_was_encoded() -> None:
    """Empty and full masks among random ones: runs end where the next mask begins."""
    generator = torch.Generator().manual_seed(0)
    for count, height, width in [(1, 1, 1), (5, 7, 3), (6, 16, 33), (0, 4, 5), (3, 0, 4)]:
        masks = (torch.rand(count, height, width, generator=generator) < 0.5).to(torch.uint8)
        masks[1:2], masks[2:3], masks[4:5] = 1, 0, 1
        encoded = InstanceMasks.encode(masks)
        assert len(encoded) == count and encoded.size == (height, width)
        assert torch.equal(encoded.dense(), masks) and encoded.dense().dtype == torch.uint8
        for first in range(count):
            assert torch.equal(encoded.dense(slice(first, first + 2)), masks[first : first + 2])
        padded = InstanceMasks.encode(masks, (height + 2, width + 3)).dense()
        assert torch.equal(padded, torch.nn.functional.pad(masks, (0, 3, 0, 2)))


def test_many_large_masks_are_small() -> None:
    rows, columns = torch.arange(512)[:, None], torch.arange(512)
    circles = [(rows - 8 * n) ** 2 + (columns - 250) ** 2 < 100**2 for n in range(60)]
    masks = InstanceMasks.encode(torch.stack(circles))
    assert masks.runs.nbytes < 512 * 512 * 60 / 150
