"""torchvision's transforms v2, registered under their own names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from annotated_types import Interval
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import adapt, register
from opabinia.data.transforms import crops, instances

# It erases pixels of images only, and is meant to.
warnings.filterwarnings("ignore", "RandomErasing.. is currently passing through", UserWarning)

_NORMALIZATION = "images stay uint8 up to the device, where the task normalizes them once (its mean and std)"
_TENSORS = "samples hold tensors from the start, and batches plain ones"
_BATCHES = "works on batches; see the mix family"
_SEVERAL = "returns several images for one"

EXCLUDED = {
    "Compose": "the list of transforms is one",
    "ConvertBoundingBoxFormat": "boxes are left, top, right, bottom everywhere",
    "ConvertImageDtype": _NORMALIZATION,
    "CutMix": _BATCHES,
    "FiveCrop": _SEVERAL,
    "Lambda": "takes a function; register it as a transform of its own",
    "LinearTransformation": "takes tensors",
    "MixUp": _BATCHES,
    "Normalize": _NORMALIZATION,
    "SanitizeKeyPoints": "keypoints are rows of the objects; those that leave an image become unknown",
    "PILToTensor": _TENSORS,
    "TenCrop": _SEVERAL,
    "ToDtype": _NORMALIZATION,
    "ToImage": _TENSORS,
    "ToPILImage": _TENSORS,
    "ToPureTensor": _TENSORS,
    "ToTensor": _TENSORS,
    "Transform": "the base class",
    "UniformTemporalSubsample": "the transform clip samples the frames of a video",
}
"""torchvision's transforms that are not registered, each with the reason."""

for _name, _reason in EXCLUDED.items():
    register.transform.mark_unsupported(_name, _reason)

_REPLACEMENTS = (
    instances.RandomHorizontalFlip,
    crops.RandomIoUCrop,
    crops.RandomResizedCrop,
    crops.Resize,
    instances.RandomVerticalFlip,
    instances.SanitizeBoundingBoxes,
)
"""Used instead of torchvision's transforms of the same names."""


_TYPES = {"RandAugment": {"num_ops": Annotated[int, Interval(ge=0, le=100)]}}


def _dropping_empty_objects(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def wrapper(**arguments: Any) -> instances.DropEmptyObjects:
        if "fill" in arguments:  # of the image; outside it no object has pixels
            arguments["fill"] = {tv_tensors.Mask: 0, "others": arguments["fill"]}
        return instances.DropEmptyObjects(make(**arguments))

    return wrapper


_CLASSES = dict(inspect.getmembers(v2, inspect.isclass)) | {cls.__name__: cls for cls in _REPLACEMENTS}
for _name, _class in _CLASSES.items():
    if issubclass(_class, v2.Transform) and _name not in EXCLUDED:
        register.transform(name=_name)(_dropping_empty_objects(adapt(_class, narrower=_TYPES.get(_name, {}))))
