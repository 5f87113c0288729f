"""Samples to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.transforms.v2.functional import resize

from opabinia.contracts import Batch, Sample


def collate(samples: Sequence[Sample]) -> Batch:
    """Make one batch of B >= 1 samples that have the same keys.

    Tensors and arrays are stacked (tv_tensors come out as plain tensors); truth values become a bool tensor, whole
    numbers int64, other numbers float32, each of shape B; everything else (ids, texts) a list of B.

    Raises:
        ValueError: tensors of one key differ in shape, or samples in their keys. The text names the samples.
    """
    names = [str(sample.get("id", f"sample {i} of the batch")) for i, sample in enumerate(samples)]
    for name, sample in zip(names, samples, strict=True):
        if sample.keys() != samples[0].keys():
            raise ValueError(f"{names[0]} has the keys {sorted(samples[0])}, {name} has {sorted(sample)}")
    return {key: _column(key, [sample[key] for sample in samples], names) for key in samples[0]}


def _column(key: str, values: list[Any], names: list[str]) -> Any:
    if all(isinstance(value, Tensor | np.ndarray) for value in values):
        return _stack(key, [torch.as_tensor(value).as_subclass(Tensor) for value in values], names)
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
    stacked: Tensor = default_collate(values)
    return stacked


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a single number"


def resized(batch: Batch, shape: Sequence[int]) -> Batch:
    """The batch with its images (B x C x H x W) at another size: ``shape`` is (height, width)."""
    return {**batch, "image": resize(batch["image"], list(shape), antialias=True)}
