"""A network that runs out of memory for large batches, as on a small GPU."""

import os

import torch
from torch import Tensor

from opabinia.config import register
from tests.faults.parts import Tiny

ROOM = "OPABINIA_TEST_ROOM"
"""Samples that fit into this process."""


@register.backbone
class Narrow(Tiny):
    """``tiny`` with a limit of the batch size."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > int(os.environ[ROOM]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return super().forward(images)
