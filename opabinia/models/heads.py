"""Heads: classifiers of features (B x D) to logits (B x K), some with a margin that is there in training only.

The rules of the margins are pure functions of cosines. A label below 0 stands for none of the K classes.
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

Margin = Callable[[Tensor, Tensor], Tensor]
"""From cosines (B x K) and labels (B) to the logits to be trained."""

# --- rules ----------------------------------------------------------------------------------------------------------


def cosface_logits(cosines: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """``scale * (cos - margin)`` for the right class, ``scale * cos`` for the others (Wang et al. 2018, CosFace).

    Args:
        cosines: B x K.
        labels: int64, B.

    Example: cosine 0.9 of the right class with scale 30 and margin 0.35: 16.5.
    """
    right, column = _right(cosines, labels)
    return scale * _replaced(cosines, labels, column, right - margin)


def arcface_logits(
    cosines: Tensor,
    labels: Tensor,
    *,
    scale: float,
    margin: float,
    beyond: Literal["line", "cosine"] = "line",
) -> Tensor:
    """``scale * cos(angle + margin)`` for the right class, ``scale * cos`` for the others (Deng et al. 2019, ArcFace).

    It is computed without the angle, whose gradient is infinite at cosines of 1 and -1; there that of the cosine is
    ``cos(margin)``. Cosines that rounding took out of -1..1 count as the nearest end.

    Args:
        cosines: B x K.
        labels: int64, B.
        margin: in radians.
        beyond: where angle + margin exceeds pi. ``line``: the cosine goes on, moved to where the curve ends at -1, so
            that a smaller angle always gives a larger logit. ``cosine``: the plain formula, by which the logit rises
            again as the angle grows (FastReID).

    Example: cosine 0.9 of the right class with scale 30 and margin 0.5: 17.4254.
    """
    right, column = _right(cosines, labels)
    right = right.clamp(-1, 1)
    squared = 1 - right * right
    # The root has no gradient at 0; the inner choice keeps its infinity out of the backward pass.
    inside = squared > 0
    sines = torch.where(inside, torch.where(inside, squared, 1).sqrt(), 0)
    moved = right * math.cos(margin) - sines * math.sin(margin)
    if beyond == "line":
        last = -math.cos(margin)
        moved = torch.where(right > last, moved, right - last - 1)
    return scale * _replaced(cosines, labels, column, moved)


def circle_logits(cosines: Tensor, labels: Tensor, *, scale: float, margin: float) -> Tensor:
    """Logits of the circle loss with class-level labels (Sun et al. 2020, section 3.2).

    For the right class ``scale * a * (cos - (1 - margin))`` with ``a = max(0, 1 + margin - cos)``; for the others
    ``scale * a * (cos - margin)`` with ``a = max(0, cos + margin)``. No gradient flows through a.

    Args:
        cosines: B x K.
        labels: int64, B.

    Example: cosine 0.9 of the right class with scale 64 and margin 0.35: 7.2.
    """
    right, column = _right(cosines, labels)
    wrong = (cosines.detach() + margin).clamp(min=0) * (cosines - margin)
    right = (1 + margin - right.detach()).clamp(min=0) * (right - (1 - margin))
    return scale * _replaced(wrong, labels, column, right)


def _right(cosines: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines of the right classes (B x 1) and where they stand; of a label below 0 those of class 0."""
    column = labels.clamp(min=0)[:, None]
    return cosines.gather(1, column), column


def _replaced(logits: Tensor, labels: Tensor, column: Tensor, right: Tensor) -> Tensor:
    """``logits`` with those of the right classes (B x 1) put in; rows of a label below 0 stay as they are."""
    right = torch.where(labels[:, None] < 0, logits.gather(1, column), right)
    return logits.scatter(1, column, right)


# --- layers ---------------------------------------------------------------------------------------------------------


class LinearHead(Head):
    """Products of the features with a vector for each class.

    Args:
        features: D.
        classes: K.
        scale: multiplies the products.
    """

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = _drawn(features, classes)
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """B x D to B x K."""
        return self.scale * F.linear(features, self.weight)

    def extra_repr(self) -> str:
        """Shape and scale."""
        return _shown(self.weight, self.scale)


class CosineHead(Head):
    """Cosines of the features with a vector for each class, scaled; computed in float32.

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines.
        margin: the rule for logits to be trained; it scales them itself.
    """

    def __init__(self, features: int, classes: int, scale: float, margin: Margin) -> None:
        super().__init__()
        self.weight = _drawn(features, classes)
        self.scale = scale
        self.margin = margin

    def forward(self, features: Tensor) -> Tensor:
        """B x D to B x K."""
        with torch.autocast(features.device.type, enabled=False):
            cosines = F.linear(F.normalize(features.float()), F.normalize(self.weight.float()))
            return self.scale * cosines

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits to be trained (B x K), from those of :meth:`forward` and the labels (int64, B)."""
        return self.margin(logits / self.scale, labels)

    def extra_repr(self) -> str:
        """Shape, scale and rule."""
        return f"{_shown(self.weight, self.scale)}, margin={self.margin}"


def _drawn(features: int, classes: int) -> nn.Parameter:
    """Weights from N(0, 0.01^2), as FastReID's."""
    return nn.Parameter(torch.empty(classes, features).normal_(std=0.01))


def _shown(weight: Tensor, scale: float) -> str:
    classes, features = weight.shape
    return f"features={features}, classes={classes}, scale={scale:g}"


# --- parts ----------------------------------------------------------------------------------------------------------


@register.head
def linear(features: int, classes: int, /, *, scale: Positive = 1.0) -> Head:
    """A linear layer without bias (Luo et al. 2019, section 3.5).

    Args:
        features: D.
        classes: K.
        scale: multiplies the logits.
    """
    return LinearHead(features, classes, scale)


@register.head
def cosface(features: int, classes: int, /, *, scale: Positive = 64.0, margin: NonNegative = 0.35) -> Head:
    """Cosines, of which that of the right class has to be larger than the others by a margin (Wang et al. 2018,
    CosFace, section 3; with margin 0 a scaled cosine classifier).

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines (the paper's s, section 4.1).
        margin: what is taken from the cosine of the right class (section 4.2).
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
    beyond: Literal["line", "cosine"] = "line",
) -> Head:
    """Cosines, where a margin is added to the angle of the right class (Deng et al. 2019, ArcFace, section 2.1).

    Args:
        features: D.
        classes: K.
        scale: multiplies the cosines.
        margin: in radians, at most pi.
        beyond: where angle and margin together exceed pi. ``line``: the logit goes on falling, in a line; ``cosine``:
            it rises again, as in FastReID.

    Raises:
        ValueError: the margin is above pi.
    """
    if margin > math.pi:
        raise ValueError(f"margin: it is an angle in radians, 0 to 3.14159, not {margin:g}")
    rule = partial(arcface_logits, scale=scale, margin=margin, beyond=beyond)
    return CosineHead(features, classes, scale, rule)


@register.head
def circle(features: int, classes: int, /, *, scale: Positive = 256.0, margin: Fraction = 0.25) -> Head:
    """Cosines, each weighted by how far it is from where it should be (Sun et al. 2020, Circle Loss, section 3.2).

    Args:
        features: D.
        classes: K.
        scale: multiplies the weighted cosines. The paper's numbers are those of its face recognition; FastReID's
            recipes for people take 64 and a margin of 0.35.
        margin: how far from 0 and 1 cosines are allowed to be.
    """
    return CosineHead(features, classes, scale, partial(circle_logits, scale=scale, margin=margin))
