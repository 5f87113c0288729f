"""Rules that rename weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor

from opabinia.models.weights.translation import Weights

Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Pairs of a regular expression that is searched in a name and its replacement, applied in turn."""


def rename_weights(weights: Weights, rules: Rules) -> dict[str, Tensor]:
    """Return weights under other names."""
    renamed = {}
    for name, tensor in weights.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed
