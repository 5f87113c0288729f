"""Keys of a sample that are annotations: which are transformed and collated together with the image.

The type of a value decides (``torchvision.tv_tensors``):

- ``BoundingBoxes``, ``KeyPoints`` and a ``Mask`` of N x H x W (instance masks) have one row per object of the image.
- A ``Mask`` of H x W is a dense map with one value per pixel, such as a segmentation map.

Plain tensors that belong to the objects (``labels``, ``visible``) and the ignore value of a map cannot be seen from the
type; :func:`register_sample_key` declares them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchvision import tv_tensors

from opabinia.contracts import Sample

OBJECT_KEYS = ["boxes", "labels", "masks", "keypoints", "visibility"]
"""Keys with one row per object of the image."""

GROUND_TRUTH_KEYS = {"ground_truth", "ground_truth_map"}
"""Keys that evaluators read. Training batches do not have them."""

_IGNORE_VALUES = {"mask": 255}


def register_sample_key(key: str, *, per_object: bool = False, ignore_value: int | None = None) -> None:
    """Declare how a key of samples is handled. Call it once, when the plug-in is imported.

    Args:
        key: the key, such as ``"track_ids"`` or ``"depth"``.
        per_object: the value is a tensor with one row per object, like ``labels``: rows of dropped objects are dropped,
            and batches have a list of B tensors.
        ignore_value: the value is a map (``tv_tensors.Mask``, H x W), and this value marks pixels without a label. It
            fills what padding adds. ``mask`` has 255; so has any map without a declaration.

    Raises:
        ValueError: neither or both are given.

    Example: ``register_sample_key("depth", ignore_value=0)``
    """
    if per_object == (ignore_value is not None):
        raise ValueError(f"{key}: give either per_object=True or an ignore_value")
    if ignore_value is not None:
        _IGNORE_VALUES[key] = ignore_value
    elif key not in OBJECT_KEYS:
        OBJECT_KEYS.append(key)


def ignore_value(key: str) -> int:
    """Return the value of pixels without a label in the map ``key``."""
    return _IGNORE_VALUES.get(key, _IGNORE_VALUES["mask"])


def object_keys(sample: Sample) -> list[str]:
    """Return the keys of ``sample`` with one row per object."""
    return [key for key, value in sample.items() if key in OBJECT_KEYS or _has_rows(value)]


def map_keys(sample: Sample) -> list[str]:
    """Return the keys of ``sample`` that are dense maps (H x W)."""
    return [key for key, value in sample.items() if isinstance(value, tv_tensors.Mask) and value.ndim == 2]


def batch_map_keys(batch: dict[str, Any]) -> list[str]:
    """Return the keys of a batch that are declared as dense maps; types are lost in batches."""
    return [key for key in batch if key in _IGNORE_VALUES]


def has_annotations(sample: Sample) -> bool:
    """Return whether ``sample`` has boxes, masks or keypoints, which must be transformed together with the image."""
    return any(isinstance(value, _ANNOTATIONS) for value in sample.values())


def object_tensors(sample: Sample) -> dict[str, Tensor]:
    """Return the annotations of the objects in ``sample`` as plain tensors."""
    return {key: sample[key].as_subclass(Tensor) for key in object_keys(sample)}


_ANNOTATIONS = (tv_tensors.BoundingBoxes, tv_tensors.KeyPoints, tv_tensors.Mask)


def _has_rows(value: Any) -> bool:
    return isinstance(value, _ANNOTATIONS) and not (isinstance(value, tv_tensors.Mask) and value.ndim == 2)
