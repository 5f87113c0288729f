"""Embeddings of several models as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize


def join_embeddings(embeddings: Sequence[Tensor]) -> Tensor:
    """Return embeddings of several models as one: each is normalized to length 1, and they are concatenated and divided
    by the square root of their number. So the dot product of two is the mean of the models' cosine similarities, though
    the coordinates of different models have nothing in common.

    Args:
        embeddings: rows of each model (B x D).

    Returns:
        B x sum of D, of length 1.
    """
    joined: Tensor = torch.cat([normalize(rows.float(), dim=1) for rows in embeddings], 1) / len(embeddings) ** 0.5
    return joined
