"""Pictures that note what would be done to them, in the place of having it done.

A transform draws its random numbers from its own generator as it always does, in the same order; only what it computes
with them is left for later (:mod:`opabinia.data.device_transforms.apply`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

CHANGES = "changes"
"""Key of a sample: what is left to be done to its picture."""


class Change(NamedTuple):
    """One change to a picture.

    Attributes:
        name: torchvision's functional of this name, or one of ours.
        values: its arguments, in the order in which they were given.
        keys: names of the last of them; those before have been given without one.
    """

    name: str
    values: tuple[Any, ...]
    keys: tuple[str, ...] = ()


class Recorded(tv_tensors.Image):  # type: ignore[misc]
    """A picture without pixels. Each change gives another one of the same size and type.

    Attributes:
        changes: so far.
        film: whether it stands for the frames of a clip.
    """

    changes: tuple[Change, ...] = ()
    film: bool = False

    @classmethod
    def like(cls, image: Tensor) -> Recorded:
        """One to which nothing has been done yet, as large as ``image``."""
        blank = torch.empty(image.shape, dtype=image.dtype, device="meta").as_subclass(cls)
        blank.film = image.film if isinstance(image, Recorded) else isinstance(image, tv_tensors.Video)
        return blank

    def then(self, change: Change) -> Recorded:
        """The picture after one more change, which leaves its size as it is."""
        changed = Recorded.like(self)
        changed.changes = (*self.changes, change)
        return changed


KNOWN = (
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "equalize",
    "erase",
    "horizontal_flip",
    "invert",
    "permute_channels",
    "posterize",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "vertical_flip",
)
"""torchvision's functionals that are noted."""


NOT_OF_FILMS = ("rgb_to_grayscale",)
"""What torchvision leaves as it is where it is a film."""


def _noted(name: str, image: Recorded, *values: Any, **keys: Any) -> Recorded:
    if image.film and name in NOT_OF_FILMS:
        return image
    return image.then(Change(name, (*values, *keys.values()), tuple(keys)))


def _note(name: str) -> None:
    kernel: Callable[..., Any] = partial(_noted, name)
    v2.functional.register_kernel(getattr(F, name), Recorded)(kernel)


for _name in KNOWN:
    _note(_name)
