"""Projection heads of self-supervised methods, between the backbone and the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(widths: Sequence[int], *, last_norm: bool = False, last_bias: bool = True) -> nn.Sequential:
    """Build an MLP with batch norm and ReLU between its linear layers.

    Args:
        widths: widths of the input, of each hidden layer, and of the output.
        last_norm: end with a batch norm without weights (MoCo v3, SimSiam).
        last_bias: whether the last linear layer has a bias.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)


class UnitRows(nn.Module):
    """A weight-normalized linear layer without bias: dot products with K unit vectors, each times a length.

    Args:
        width: D, of the vectors.
        outputs: K.
        learn_length: learn the lengths; otherwise they stay 1.
    """

    def __init__(self, width: int, outputs: int, *, learn_length: bool = False) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(outputs, width))
        nn.init.kaiming_uniform_(self.direction, a=math.sqrt(5))  # as torch's linear layers, and so the paper's
        self.length = nn.Parameter(torch.ones(outputs)) if learn_length else None

    def forward(self, vectors: Tensor) -> Tensor:
        """... x D to ... x K."""
        logits = F.linear(vectors, F.normalize(self.direction, dim=1))
        return logits if self.length is None else logits * self.length


class DinoHead(nn.Module):
    """Projection head of DINO: vectors or tokens (... x D) to logits (... x K) by an MLP with GELU and a bottleneck,
    whose normalized output is compared with K prototypes (Caron et al. 2021, DINO, section 3.1 and appendix C).

    Args:
        width: D.
        outputs: K.
        hidden: width of the MLP's hidden layers.
        bottleneck: width of its output.
        norm_last_layer: keep the prototypes at length 1; otherwise their lengths are learned, which is better for large
            vision transformers if training does not diverge.
        norm: a batch norm after each hidden layer (the authors' ``use_bn_in_head``).

    Attributes:
        last: the prototypes.
    """

    def __init__(
        self,
        width: int,
        outputs: int = 65536,
        *,
        hidden: int = 2048,
        bottleneck: int = 256,
        norm_last_layer: bool = True,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, hidden))
        for after in (hidden, bottleneck):
            self.mlp.extend([nn.BatchNorm1d(hidden), nn.GELU()] if norm else [nn.GELU()])
            self.mlp.append(nn.Linear(hidden, after))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                # The paper's 0.02 at its widths. In narrow layers vectors would nearly vanish before they are
                # normalized, and gradients explode.
                nn.init.trunc_normal_(layer.weight, std=0.02 * max(1.0, math.sqrt(384 / layer.in_features)))
                nn.init.zeros_(layer.bias)
        self.last = UnitRows(bottleneck, outputs, learn_length=not norm_last_layer)

    def forward(self, vectors: Tensor) -> Tensor:
        """... x D to ... x K."""
        logits: Tensor = self.last(F.normalize(self.mlp(vectors), dim=-1))
        return logits


PROJECTOR = "distill_projector"
"""Prefix of the layers that are trained and saved beside the student and are useless without its teachers."""


def without_projectors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a distilled task that the task has without teachers."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PROJECTOR)}
