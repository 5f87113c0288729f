"""Cross entropy over classes, for labels and for mixed (soft) targets."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Fraction


@register.loss
def cross_entropy(logits: Tensor, targets: Tensor, /, *, label_smoothing: Fraction = 0.0) -> Tensor:
    """Mean cross entropy; smoothing spreads e evenly over all K classes (Szegedy et al. 2016, section 7; torch's e/K).

    Args:
        logits: B x K.
        targets: class numbers (int64, B) or probabilities (float, B x K).
        label_smoothing: share e of the target that is spread over all classes.

    Example: logits [2, 1, 0.1], class 0: 0.4170; with ``label_smoothing=0.1``: 0.5137.
    """
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
