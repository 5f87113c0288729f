"""Group the recorded operations of the images in a batch, so that each group is applied at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.data.device_transforms.kernels import KERNELS
from opabinia.data.device_transforms.recorded import ImageOp

BatchOp = tuple[str, Tensor | None, Any]
"""An operation, the rows of the batch that it applies to (int64; None: all), and its arguments: of operations in
:data:`KERNELS` a tensor (float32) with a row for each image, of others the keyword arguments that all images share."""

BATCH_OPS = "batch_ops"
"""Key of a batch: a list of operations for its images, or one for each of its views."""


def group_ops(ops: Sequence[Sequence[ImageOp]]) -> list[BatchOp]:
    """Return the operations on B images, grouped greedily: next comes the one that most images wait for.

    Args:
        ops: of each image, in order.
    """
    pending = [[(_group_of(op), op) for op in reversed(image_ops)] for image_ops in ops]
    groups: list[BatchOp] = []
    while any(pending):
        waiting: defaultdict[str, list[int]] = defaultdict(list)  # rows by the group of their next operation
        for row, image_ops in enumerate(pending):
            if image_ops:
                waiting[image_ops[-1][0]].append(row)
        rows = max(waiting.values(), key=len)
        grouped = [pending[row].pop()[1] for row in rows]
        which = None if len(rows) == len(pending) else torch.tensor(rows)
        name, arguments = grouped[0]
        groups.append((name, which, torch.tensor([op.arguments for op in grouped]) if name in KERNELS else arguments))
    return groups


def _group_of(op: ImageOp) -> str:
    """Return a text that is equal for operations that can be applied together."""
    return f"{op.name} {len(op.arguments)}" if op.name in KERNELS else repr(op)


def apply_ops(images: Tensor, ops: Sequence[BatchOp]) -> Tensor:
    """Apply operations to images (uint8, B x C x H x W, or clips, B x T x C x H x W), which may be overwritten."""
    for name, rows, arguments in ops:
        selected = images if rows is None else images[rows]
        changed = KERNELS[name](selected, arguments) if name in KERNELS else getattr(F, name)(selected, **arguments)
        if rows is None:
            images = changed
        else:
            images[rows] = changed
    return images
