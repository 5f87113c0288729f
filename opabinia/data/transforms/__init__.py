"""Changes to a sample: torchvision's transforms v2, under their own names, and some of ours.

They take the whole sample: the image (and boxes, masks, points) changes, the label and the id pass through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torchvision.transforms import v2

from opabinia.config import adapt, register
from opabinia.data.transforms import augment as augment
from opabinia.data.transforms import clips as clips
from opabinia.data.transforms import combine as combine
from opabinia.data.transforms import crops, instances
from opabinia.data.transforms import evaluation as evaluation
from opabinia.data.transforms import patch_masks as patch_masks
from opabinia.data.transforms import policies as policies
from opabinia.data.transforms import sizes as sizes
from opabinia.data.transforms import views as views

_NORMALISED = "images stay uint8 up to the device, where the task normalises them once (its mean and std)"
_TENSORS = "samples hold tensors from the start, and batches plain ones"
_BATCHES = "works on batches; see the mix family"
_SEVERAL = "gives several images of one"

LEFT_OUT = {
    "Compose": "the list of transforms is one",
    "ConvertBoundingBoxFormat": "boxes are left, top, right, bottom everywhere",
    "ConvertImageDtype": _NORMALISED,
    "CutMix": _BATCHES,
    "FiveCrop": _SEVERAL,
    "Lambda": "takes a function; register it as a transform of its own",
    "LinearTransformation": "takes tensors",
    "MixUp": _BATCHES,
    "Normalize": _NORMALISED,
    "SanitizeKeyPoints": "points are the rows of things; those that leave a picture become unknown",
    "PILToTensor": _TENSORS,
    "TenCrop": _SEVERAL,
    "ToDtype": _NORMALISED,
    "ToImage": _TENSORS,
    "ToPILImage": _TENSORS,
    "ToPureTensor": _TENSORS,
    "ToTensor": _TENSORS,
    "Transform": "the base of all",
    "UniformTemporalSubsample": "picks frames of a film",
}
"""torchvision's transforms that are not registered, each with the reason."""

for _name, _reason in LEFT_OUT.items():
    register.transform.leave_out(_name, _reason)

_OURS = (
    instances.RandomHorizontalFlip,
    crops.RandomIoUCrop,
    crops.RandomResizedCrop,
    crops.Resize,
    instances.RandomVerticalFlip,
    instances.SanitizeBoundingBoxes,
)
"""In place of torchvision's with these names."""


def _tidying(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(**keys: Any) -> instances.Tidied:
        return instances.Tidied(make(**keys))

    return made


_CLASSES = dict(inspect.getmembers(v2, inspect.isclass)) | {one.__name__: one for one in _OURS}
for _name, _class in _CLASSES.items():
    if issubclass(_class, v2.Transform) and _name not in LEFT_OUT:
        register.transform(name=_name)(_tidying(adapt(_class)))
