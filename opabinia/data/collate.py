"""Samples to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import default_collate
from torchvision.transforms.v2.functional import resize

from opabinia.contracts import Batch, Sample
from opabinia.data.decoding.images import planar


def collate(samples: Sequence[Sample], size_multiple: int | None = None) -> Batch:
    """Make one batch of B >= 1 samples that have the same keys.

    With ``size_multiple`` images may differ in size: they are padded with 0 (``image_sizes`` tells what is image), and
    what there is of things (``boxes``, ``masks`` ...) stays in lists (see :data:`opabinia.contracts.Batch`). Things
    whose box has no width or height left are taken out.

    Tensors and arrays are stacked (tv_tensors come out as plain tensors), tuples of V of them (views) become tuples of
    V; truth values become a bool tensor, whole numbers int64, other numbers float32, each of shape B; everything else
    (ids, texts) a list of B.

    Raises:
        ValueError: tensors of one key differ in shape (images: in channels or type), or samples in their keys. The text
            names the samples.
    """
    names = [str(sample.get("id", f"sample {i} of the batch")) for i, sample in enumerate(samples)]
    for name, sample in zip(names, samples, strict=True):
        if sample.keys() != samples[0].keys():
            raise ValueError(f"{names[0]} has the keys {sorted(samples[0])}, {name} has {sorted(sample)}")
    if size_multiple is None:
        return {key: _column(key, [sample[key] for sample in samples], names) for key in samples[0]}
    things = [_with_area(sample) for sample in samples]
    plain = [key for key in samples[0] if key not in (*OF_THINGS, "image", "original_size")]
    batch = {key: _column(key, [sample[key] for sample in samples], names) for key in plain}
    batch |= {key: [sample[key] for sample in things] for key in OF_THINGS if key in samples[0]}
    batch["image_sizes"] = [tuple(sample["image"].shape[-2:]) for sample in samples]
    if "original_size" in samples[0]:
        batch["original_size"] = [tuple(sample["original_size"]) for sample in samples]
    images = [sample["image"].as_subclass(Tensor) for sample in samples]
    _refuse_different(images, names)
    batch["image"] = padded(images, size_multiple)
    if "masks" in batch:
        height, width = batch["image"].shape[-2:]
        batch["masks"] = [pad(one, [0, width - one.shape[-1], 0, height - one.shape[-2]]) for one in batch["masks"]]
    return batch


OF_THINGS = ("boxes", "labels", "masks", "keypoints", "visible")
"""Keys of a sample that have a row for each thing in its image."""


def _with_area(sample: Sample) -> dict[str, Tensor]:
    """Plain tensors of the things in a sample, without those whose box is empty."""
    things = {key: sample[key].as_subclass(Tensor) for key in OF_THINGS if key in sample}
    if "boxes" not in things:
        return things
    kept = (things["boxes"][:, 2:] > things["boxes"][:, :2]).all(1)
    return things if kept.all() else {key: value[kept] for key, value in things.items()}


def _refuse_different(images: Sequence[Tensor], names: Sequence[str]) -> None:
    first = images[0]
    for name, image in zip(names, images, strict=True):
        if (image.shape[:-2], image.dtype) != (first.shape[:-2], first.dtype):
            raise ValueError(
                f"'image' differs in more than its size: {names[0]} has {_size(first)} of {first.dtype}, "
                f"{name} has {_size(image)} of {image.dtype}; RGB or Grayscale among the transforms makes all alike"
            )


def padded(images: Sequence[Tensor], multiple: int) -> Tensor:
    """Images (C x h x w) at the upper left of one B x C x H x W of zeros, H and W being multiples of ``multiple``."""
    height, width = (
        -(-max(side) // multiple) * multiple for side in zip(*(one.shape[-2:] for one in images), strict=True)
    )
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[-2], : image.shape[-1]].copy_(image)
    return batch


def _column(key: str, values: list[Any], names: list[str]) -> Any:
    if all(isinstance(value, Tensor | np.ndarray) for value in values):
        return _stack(key, [torch.as_tensor(value).as_subclass(Tensor) for value in values], names)
    if all(isinstance(value, tuple) for value in values) and len({len(value) for value in values}) == 1:
        return tuple(
            _column(f"{key}.{number}", list(one), names) for number, one in enumerate(zip(*values, strict=True))
        )
    for kinds, dtype in _NUMBERS:
        if all(isinstance(value, kinds) for value in values):
            return torch.tensor(values, dtype=dtype)
    return values


_NUMBERS: tuple[tuple[tuple[type, ...], torch.dtype], ...] = (
    ((bool, np.bool_), torch.bool),
    ((int, np.integer), torch.int64),
    ((int, float, np.number), torch.float32),
)


def _stack(key: str, values: list[Tensor], names: list[str]) -> Tensor:
    for name, value in zip(names, values, strict=True):
        if value.shape != values[0].shape:
            raise ValueError(
                f"{key!r} differs in size: {names[0]} has {_size(values[0])}, {name} has {_size(value)}; "
                "add Resize with CenterCrop, or RandomResizedCrop, to the transforms"
            )
    # In a worker it stacks straight into shared memory, which saves a copy.
    stacked: Tensor = default_collate([planar(value) if _is_picture(value) else value for value in values])
    return stacked


def _is_picture(value: Tensor) -> bool:
    return value.dtype == torch.uint8 and value.ndim == len(("channels", "height", "width"))


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a single number"


def is_of_clips(shape: Sequence[int]) -> bool:
    """Whether a shape over time is (frames, height, width), and not (height, width)."""
    return len(shape) == len(("frames", "height", "width"))


def resized(batch: Batch, shape: Sequence[int]) -> Batch:
    """The batch with its images (B x C x H x W, or clips, B x T x C x H x W) at another size: ``shape`` is (height,
    width), of clips (frames, height, width).

    The transforms are told the shape of clips (``shape`` of a sample), since frames that are not wanted need not be
    decoded: these must be as many. A crop of that size, too, is theirs to make; what is left is resized as pictures
    are.

    Raises:
        ValueError: there are things in them, whose places would no longer be right, or several views in their place; or
            the transforms have made clips of other lengths.
    """
    if is_of_clips(shape):
        images = batch["image"]
        frames = images.shape[1] if images.ndim > len("BCHW") else None
        if frames != shape[0]:
            made = f"clips of {frames}" if frames else "pictures"
            raise ValueError(
                f"shapes: clips of {shape[0]} frames are wanted, and the transforms made {made}; take transforms that "
                "read `shape` of a sample, such as clip"
            )
        if tuple(images.shape[-2:]) == tuple(shape[-2:]):
            return batch
        return {**batch, "image": resize(images, list(shape[-2:]), antialias=True)}
    if "views" in batch:
        raise ValueError("shapes: each view has a size of its own; write it into the transforms of the views")
    if "image_sizes" in batch:
        raise ValueError("shapes: boxes do not follow; take resize_shortest with several sizes among the transforms")
    return {**batch, "image": resize(batch["image"], list(shape), antialias=True)}
