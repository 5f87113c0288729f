"""Classification heads: features (B x D) to logits (B x K), some with a margin in training.

The margin rules are pure functions of cosines. A negative label stands for none of the K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Fraction, Head, NonNegative, Positive
from opabinia.runtime.seeds import random_words

Margin = Callable[[Tensor, Tensor], Tensor]
"""Map cosines (B x K) and labels (B) to the logits of the training loss."""

# --- margins --------------------------------------------------------------------------------------------------------


def cosface_logits(cosines: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """``scale * (cos - margin)`` for the true class, ``scale * cos`` for the others (Wang et al. 2018, CosFace).

    Args:
        cosines: B x K.
        labels: int64, B.

    Example: cosine 0.9 of the true class with scale 30 and margin 0.35: 16.5.
    """
    target, column = _target_cosines(cosines, labels)
    return scale * _replace_targets(cosines, labels, column, target - margin)


def arcface_logits(
    cosines: Tensor, labels: Tensor, *, scale: float, margin: float, beyond_pi: Literal["line", "cosine"] = "line"
) -> Tensor:
    """``scale * cos(angle + margin)`` for the true class, ``scale * cos`` for the others (Deng et al. 2019, ArcFace).

    The angle itself, whose gradient is infinite at cosines of 1 and -1, is not computed; there the derivative with
    respect to the cosine is ``cos(margin)``. Cosines outside of -1..1, from rounding, are clamped.

    Args:
        cosines: B x K.
        labels: int64, B.
        margin: in radians.
        beyond_pi: rule where angle + margin exceeds pi. ``line``: the cosine, shifted to continue where the curve ends
            at -1, so that a smaller angle always gives a larger logit. ``cosine``: the plain formula, with which the
            logit rises again as the angle grows (FastReID).

    Example: cosine 0.9 of the true class with scale 30 and margin 0.5: 17.4254.
    """
    target, column = _target_cosines(cosines, labels)
    target = target.clamp(-1, 1)
    squared = 1 - target * target
    # The root has no gradient at 0; the inner `where` keeps its infinity out of the backward pass.
    positive = squared > 0
    sines = torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)
    shifted = target * math.cos(margin) - sines * math.sin(margin)
    if beyond_pi == "line":
        limit = -math.cos(margin)
        shifted = torch.where(target > limit, shifted, target - limit - 1)
    return scale * _replace_targets(cosines, labels, column, shifted)


def circle_logits(cosines: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """Logits of the circle loss with class-level labels (Sun et al. 2020, section 3.2).

    For the true class ``scale * a * (cos - (1 - margin))`` with ``a = max(0, 1 + margin - cos)``; for the others
    ``scale * a * (cos - margin)`` with ``a = max(0, cos + margin)``. No gradient flows through a.

    Args:
        cosines: B x K.
        labels: int64, B.

    Example: cosine 0.9 of the true class with scale 64 and margin 0.35: 7.2.
    """
    target, column = _target_cosines(cosines, labels)
    others = (cosines.detach() + margin).clamp(min=0) * (cosines - margin)
    target = (1 + margin - target.detach()).clamp(min=0) * (target - (1 - margin))
    return scale * _replace_targets(others, labels, column, target)


def _target_cosines(cosines: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines of the true classes (B x 1) and their columns; class 0 for negative labels."""
    column = labels.clamp(min=0)[:, None]
    return cosines.gather(1, column), column


def _replace_targets(logits: Tensor, labels: Tensor, column: Tensor, target: Tensor) -> Tensor:
    """Replace the logits of the true classes by ``target`` (B x 1); rows with a negative label stay unchanged."""
    target = torch.where(labels[:, None] < 0, logits.gather(1, column), target)
    return logits.scatter(1, column, target)


# --- layers ---------------------------------------------------------------------------------------------------------


@register.head(name="linear")
class LinearHead(Head):
    """Linear classifier without bias: scaled dot products of the features with one vector per class (Luo et al. 2019,
    section 3.5).

    Args:
        features: D.
        classes: K.
        scale: multiplies the products.
    """

    def __init__(self, features: int, classes: int, /, *, scale: Positive = 1.0) -> None:
        super().__init__()
        self.weight = _init_weight(features, classes)
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """B x D to B x K."""
        return self.scale * F.linear(features, self.weight)

    def extra_repr(self) -> str:
        """Shape and scale."""
        return _describe(self.weight, self.scale)


class CosineHead(Head):
    """Scaled cosines of the features with one vector per class, computed in float32.

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines.
        margin: maps cosines to training logits; it includes the scale.
    """

    def __init__(self, features: int, classes: int, scale: float, margin: Margin) -> None:
        super().__init__()
        self.weight = _init_weight(features, classes)
        self.scale = scale
        self.margin = margin

    def forward(self, features: Tensor) -> Tensor:
        """B x D to B x K."""
        with torch.autocast(features.device.type, enabled=False):
            cosines = F.linear(F.normalize(features.float()), F.normalize(self.weight.float()))
            return self.scale * cosines

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Training logits (B x K), from the output of :meth:`forward` and labels (int64, B)."""
        return self.margin(logits / self.scale, labels)

    def extra_repr(self) -> str:
        """Shape, scale and margin."""
        return f"{_describe(self.weight, self.scale)}, margin={self.margin}"


def _init_weight(features: int, classes: int) -> nn.Parameter:
    """Draw weights from N(0, 0.01^2), as FastReID does."""
    return nn.Parameter(torch.empty(classes, features).normal_(std=0.01))


def _describe(weight: Tensor, scale: float) -> str:
    classes, features = weight.shape
    return f"features={features}, classes={classes}, scale={scale:g}"


def sample_classes(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """Choose the classes that a step learns from: those of its batch and random others (An et al. 2021, Partial FC,
    section 3.2).

    Args:
        labels: labels of the whole batch (int64, B).
        classes: K.
        share: fraction of the classes that is chosen, unless the batch has more. The host waits for the device only if
            there are fewer of these classes than samples.
        seed: seed of the choice, which is the same on every device.

    Returns: the chosen classes, sorted (int64, S).
    """
    count = round(share * classes)
    if len(labels) > count:
        count = max(count, len(torch.unique(labels)))
    words = random_words(classes, seed, labels.device)
    words[labels] = 2**32  # above all others
    return words.topk(count).indices.sort().values


# --- parts ----------------------------------------------------------------------------------------------------------


@register.head
def cosface(features: int, classes: int, /, *, scale: Positive = 64.0, margin: NonNegative = 0.35) -> Head:
    """Cosine classifier with a margin on the cosine of the true class (Wang et al. 2018, CosFace, section 3; with
    margin 0 a scaled cosine classifier).

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines (the paper's s, section 4.1).
        margin: subtracted from the cosine of the true class (section 4.2).
    """
    return CosineHead(features, classes, scale, partial(cosface_logits, scale=scale, margin=margin))


@register.head
def arcface(
    features: int,
    classes: int,
    /,
    *,
    scale: Positive = 64.0,
    margin: NonNegative = 0.5,
    beyond_pi: Literal["line", "cosine"] = "line",
) -> Head:
    """Cosine classifier with an additive margin on the angle of the true class (Deng et al. 2019, ArcFace, section
    2.1).

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines.
        margin: in radians, at most pi.
        beyond_pi: rule where angle + margin exceeds pi. ``line``: the logit keeps falling, linearly in the cosine;
            ``cosine``: it rises again, as in FastReID.

    Raises:
        ValueError: the margin is above pi.
    """
    if margin > math.pi:
        raise ValueError(f"margin: it is an angle in radians, 0 to 3.14159, not {margin:g}")
    rule = partial(arcface_logits, scale=scale, margin=margin, beyond_pi=beyond_pi)
    return CosineHead(features, classes, scale, rule)


@register.head
def circle(features: int, classes: int, /, *, scale: Positive = 256.0, margin: Fraction = 0.25) -> Head:
    """Cosine classifier that weights each cosine by its distance from the optimum (Sun et al. 2020, Circle Loss,
    section 3.2).

    Args:
        features: D.
        classes: K.
        scale: multiplies the weighted cosines. The defaults are the paper's for face recognition; FastReID's recipes
            for people use 64 and a margin of 0.35.
        margin: relaxation: cosines should be above 1 - margin (true class) and below margin (others).
    """
    return CosineHead(features, classes, scale, partial(circle_logits, scale=scale, margin=margin))
