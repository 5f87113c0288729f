"""Changes to a sample: torchvision's transforms v2, under their own names, and some of ours.

They take the whole sample: the image (and boxes, masks) changes, the label and the id pass through.
"""

from __future__ import annotations

import inspect

from torchvision.transforms import v2

from opabinia.config import adapt, register
from opabinia.data.transforms import augment as augment
from opabinia.data.transforms import evaluation as evaluation
from opabinia.data.transforms import policies as policies

_NORMALISED = "images stay uint8 up to the device, where the task normalises them once (its mean and std)"
_TENSORS = "samples hold tensors from the start, and batches plain ones"
_BATCHES = "works on batches; see the mix family"
_SEVERAL = "gives several images of one"

LEFT_OUT = {
    "Compose": "the list of transforms is one",
    "ConvertImageDtype": _NORMALISED,
    "CutMix": _BATCHES,
    "FiveCrop": _SEVERAL,
    "Lambda": "takes a function; register it as a transform of its own",
    "LinearTransformation": "takes tensors",
    "MixUp": _BATCHES,
    "Normalize": _NORMALISED,
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

for _name, _class in inspect.getmembers(v2, inspect.isclass):
    if issubclass(_class, v2.Transform) and _name not in LEFT_OUT:
        register.transform(name=_name)(adapt(_class))
