"""Losses that predict the embedding of one view from another, without negatives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_regression(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Mean negative cosine of each view's prediction and the other views' targets, from -1 to 1 (Chen and He 2021,
    SimSiam, equations 1 to 4).

    The mean is over ordered pairs of different views and over images; no gradient flows to targets. The squared
    distance of normalized vectors (Grill et al. 2020, BYOL, equation 2) is 2 + 2 times that.

    Args:
        predictions: predictions of each view (B x D), of any length; two views or more.
        targets: targets of the same views, likewise.

    Example: predictions [1, 0] and [0, 1] with targets [3, 4] and [2, 0] have the cosines 1 (with the second target)
        and 0.8 (with the first): -0.9.
    """
    # Norms are computed in float32 under autocast too.
    predicted = [F.normalize(prediction.float(), dim=1) for prediction in predictions]
    expected = [F.normalize(target.detach().float(), dim=1) for target in targets]
    pairs = permutations(range(len(predicted)), 2)
    return -torch.stack([(predicted[view] * expected[other]).sum(1) for view, other in pairs]).mean()
