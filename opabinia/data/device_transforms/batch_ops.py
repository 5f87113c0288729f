"""Group the recorded operations of the images in a batch, so that each group is applied at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opabinia.data.device_transforms.kernels import KERNELS, call_functional
from opabinia.data.device_transforms.recorded import ImageOp

BatchOp = tuple[str, Tensor | None, Any]
"""An operation, the rows of the batch that it applies to (int64; None: all), and its arguments: of operations in
:data:`KERNELS` a tensor (float32) with a row for each image, of others the values and keywords that all
images share."""

BATCH_OPS = "batch_ops"
"""Key of a batch: a list of operations for its images, or one for each of its views."""


class _PendingOp(NamedTuple):
    """An operation on one image. Those with the same key can be applied together."""

    key: str
    name: str
    arguments: Any


def group_ops(ops: Sequence[Sequence[ImageOp]]) -> list[BatchOp]:
    """Return the operations on B images, grouped greedily: next comes the one that most images wait for.

    Args:
        ops: of each image, in order.
    """
    pending = [[_pending(op) for op in reversed(image_ops)] for image_ops in ops]
    groups: list[BatchOp] = []
    while any(pending):
        waiting: defaultdict[str, list[int]] = defaultdict(list)  # rows by the key of their next operation
        for row, image_ops in enumerate(pending):
            if image_ops:
                waiting[image_ops[-1].key].append(row)
        rows = max(waiting.values(), key=len)
        taken = [pending[row].pop() for row in rows]
        which = None if len(rows) == len(pending) else torch.tensor(rows)
        name, arguments = taken[0].name, taken[0].arguments
        groups.append((name, which, torch.tensor([op.arguments for op in taken]) if name in KERNELS else arguments))
    return groups


def _pending(op: ImageOp) -> _PendingOp:
    if op.name not in KERNELS:
        return _PendingOp(repr(op), op.name, (op.values, op.keywords))
    arguments = [float(number) for number in KERNELS[op.name].arguments(*op.values)]
    return _PendingOp(f"{op.name} {len(arguments)}", op.name, arguments)


def apply_ops(images: Tensor, ops: Sequence[BatchOp]) -> Tensor:
    """Apply operations to images (uint8, B x C x H x W, or clips, B x T x C x H x W), which may be overwritten."""
    for name, rows, arguments in ops:
        selected = images if rows is None else images[rows]
        if name in KERNELS:
            selected = KERNELS[name].apply(selected, arguments)
        else:
            selected = call_functional(name, selected, *arguments)
        if rows is None:
            images = selected
        else:
            images[rows] = selected
    return images
