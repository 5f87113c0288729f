"""Networks between a backbone's vectors and what self-supervised losses compare."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int], *, last_norm: bool = False, last_bias: bool = True) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them.

    Args:
        widths: of the input, of each layer in between, and of the output.
        last_norm: whether a batch norm without weights ends it (MoCo v3, SimSiam).
        last_bias: whether the last linear layer has a bias.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)
