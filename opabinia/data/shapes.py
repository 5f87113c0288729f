"""Sizes of batches over time: small pictures at first, which are cheap, and full ones at the end."""

from __future__ import annotations

from opabinia.config import register
from opabinia.contracts import Count, Fraction


@register.shapes
def progressive(
    progress: float, /, *, start: Count, end: Count, until: Fraction = 1.0, multiple: Count = 32
) -> tuple[int, int]:
    """Square pictures that grow with the epochs (progressive resizing; Tan and Le, EfficientNetV2, section 4).

    The transforms make pictures of size ``end``; batches of earlier epochs are shrunk.

    Args:
        start: height and width in the first epoch, in pixels.
        end: from ``until`` on.
        until: progress (0 to 1) at which the full size is reached.
        multiple: sizes in between are rounded to multiples of it.

    Example: ``{name: progressive, start: 128, end: 224, until: 0.8}``
    """
    if progress >= until:
        return end, end
    between = start + (end - start) * progress / until
    size = min(max(round(between / multiple) * multiple, min(start, end)), max(start, end))
    return size, size
