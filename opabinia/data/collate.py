"""Samples to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2.functional import InterpolationMode, resize

from opabinia.contracts import WEAK_IMAGE, Batch, InstanceMasks, Sample
from opabinia.data.decoding.images import planar
from opabinia.data.decoding.resized import ResizedCrop
from opabinia.data.sample_keys import batch_map_keys, ignore_value, map_keys, object_keys, object_tensors


def collate(samples: Sequence[Sample], size_multiple: int | None = None) -> Batch:
    """Make one batch of B >= 1 samples with the same keys.

    Tensors and arrays are stacked (tv_tensors become plain tensors), tuples of V of them (views) become tuples of V;
    booleans become a bool tensor, integers int64, other numbers float32, each of shape B; everything else (ids, texts)
    a list of B.

    With ``size_multiple`` images may differ in size. Images and maps (such as a segmentation map, H x W) are padded at
    the right and bottom, images with 0, maps with their ignore value; ``image_sizes`` has the size of each image
    without padding. Annotations with one row per object (``boxes``, ``masks`` ...) stay in lists of B; objects with an
    empty box are dropped (:mod:`opabinia.data.sample_keys` decides what is what). ``masks`` become runs of pixels of
    the padded images, see :class:`opabinia.contracts.InstanceMasks`.

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
    of_objects, maps = object_keys(samples[0]), map_keys(samples[0])
    images = [key for key in ("image", WEAK_IMAGE) if key in samples[0]]
    plain = samples[0].keys() - {*of_objects, *maps, *images, "original_size"}
    batch = {key: _column(key, [sample[key] for sample in samples], names) for key in samples[0] if key in plain}
    objects = [_without_empty_boxes(sample) for sample in samples]
    batch |= {key: [tensors[key] for tensors in objects] for key in of_objects}
    batch["image_sizes"] = [tuple(sample["image"].shape[-2:]) for sample in samples]
    if "original_size" in samples[0]:
        batch["original_size"] = [tuple(sample["original_size"]) for sample in samples]
    for key in images:
        views = [sample[key].as_subclass(Tensor) for sample in samples]
        _check_same_type(views, names)
        batch[key] = pad_images(views, size_multiple)
    size = batch["image"].shape[-2:]
    for key in maps:
        batch[key] = torch.stack([_pad(sample[key].as_subclass(Tensor), size, ignore_value(key)) for sample in samples])
    if "masks" in batch:
        batch["masks"] = [InstanceMasks.encode(masks, size).runs for masks in batch["masks"]]
    return batch


def _without_empty_boxes(sample: Sample) -> dict[str, Tensor]:
    objects = object_tensors(sample)
    if "boxes" not in objects:
        return objects
    boxes = objects["boxes"]
    kept = ((boxes[:, 2:] > boxes[:, :2]) if boxes.shape[1] == 4 else boxes[:, 2:4] > 0).all(1)
    # No masks where they are not annotated.
    return objects if kept.all() else {key: value[kept] if len(value) else value for key, value in objects.items()}


def _check_same_type(images: Sequence[Tensor], names: Sequence[str]) -> None:
    first = images[0]
    for name, image in zip(names, images, strict=True):
        if (image.shape[:-2], image.dtype) != (first.shape[:-2], first.dtype):
            raise ValueError(
                f"'image' differs in more than its size: {names[0]} has {_size(first)} of {first.dtype}, "
                f"{name} has {_size(image)} of {image.dtype}; RGB or Grayscale among the transforms makes all alike"
            )


def pad_images(images: Sequence[Tensor], multiple: int) -> Tensor:
    """Pad images (C x h x w) with 0 at the right and bottom to one B x C x H x W; H and W are multiples of
    ``multiple``."""
    height, width = (
        -(-max(sides) // multiple) * multiple for sides in zip(*(image.shape[-2:] for image in images), strict=True)
    )
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for row, image in zip(batch, images, strict=True):
        row[:, : image.shape[-2], : image.shape[-1]].copy_(image)
    return batch


def _pad(values: Tensor, size: Sequence[int], value: int) -> Tensor:
    """Pad a map (h x w) at the right and bottom to ``size`` (height, width)."""
    return pad(values, [0, size[1] - values.shape[1], 0, size[0] - values.shape[0]], value=value)


def _column(key: str, values: list[Any], names: list[str]) -> Any:
    if any(isinstance(value, ResizedCrop) for value in values):
        _check_same_shape(key, values, names)
        return _decode(values)
    if all(isinstance(value, Tensor | np.ndarray) for value in values):
        return _stack(key, [torch.as_tensor(value).as_subclass(Tensor) for value in values], names)
    if all(isinstance(value, tuple) for value in values) and len({len(value) for value in values}) == 1:
        columns = enumerate(zip(*values, strict=True))
        return tuple(_column(f"{key}.{number}", list(column), names) for number, column in columns)
    for types, dtype in _NUMBER_TYPES:
        if all(isinstance(value, types) for value in values):
            return torch.tensor(values, dtype=dtype)
    return values


# bool is an int, and int is accepted among floats: the order matters.
_NUMBER_TYPES: tuple[tuple[tuple[type, ...], torch.dtype], ...] = (
    ((bool, np.bool_), torch.bool),
    ((int, np.integer), torch.int64),
    ((int, float, np.number), torch.float32),
)


def _decode(values: list[ResizedCrop | Tensor]) -> Tensor:
    """Decode images straight into a batch."""
    batch = torch.empty(len(values), *values[0].shape, dtype=torch.uint8)
    for pixels, value in zip(batch.numpy(), values, strict=True):
        if isinstance(value, ResizedCrop):
            value.decode_into(pixels)
        else:
            pixels[:] = value.numpy()
    return batch


def _stack(key: str, values: list[Tensor], names: list[str]) -> Tensor:
    _check_same_shape(key, values, names)
    # Images (uint8, C x H x W) are made planar first: decoders return interleaved channels.
    return torch.stack([planar(value) if value.dtype == torch.uint8 and value.ndim == 3 else value for value in values])


def _check_same_shape(key: str, values: Sequence[Any], names: Sequence[str]) -> None:
    for name, value in zip(names, values, strict=True):
        if value.shape != values[0].shape:
            raise ValueError(
                f"{key!r} differs in size: {names[0]} has {_size(values[0])}, {name} has {_size(value)}; "
                "add Resize with CenterCrop, or RandomResizedCrop, to the transforms"
            )


def _size(value: Any) -> str:
    return " x ".join(map(str, value.shape)) or "a single number"


def is_clip_shape(shape: Sequence[int]) -> bool:
    """Return whether a batch shape is that of clips, (frames, height, width), and not (height, width)."""
    return len(shape) == 3


def resize_batch(batch: Batch, shape: Sequence[int]) -> Batch:
    """Resize the images of a batch (B x C x H x W, or clips, B x T x C x H x W), and its maps (B x H x W) with them.

    Transforms of clips read the wanted shape from the sample (``shape``), so that unneeded frames are not decoded: the
    number of frames must be right already. They may also crop to that size; what differs is resized here.

    Args:
        batch: collated samples.
        shape: (height, width); of clips (frames, height, width).

    Raises:
        ValueError: the batch has boxes, which would not follow, or views, which have sizes of their own; or the
            transforms made clips of another length.
    """
    if is_clip_shape(shape):
        images = batch["image"]
        frames = images.shape[1] if images.ndim == 5 else None
        if frames != shape[0]:
            made = f"clips of {frames}" if frames else "images"
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
        raise ValueError(
            "shapes: boxes do not follow; take resize_shortest_edge with several sizes among the transforms"
        )
    maps = {key: resize(batch[key], list(shape), InterpolationMode.NEAREST_EXACT) for key in batch_map_keys(batch)}
    return {**batch, **maps, "image": resize(batch["image"], list(shape), antialias=True)}
