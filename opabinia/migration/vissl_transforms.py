"""Conversion of VISSL's lists of transforms to views of an image and their transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opabinia.config.errors import show

Step = dict[str, Any]
Steps = list[Step]

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Interpolation modes by Pillow's numbers."""


class Views(NamedTuple):
    """A converted list of transforms.

    Attributes:
        steps: Opabinia's transforms.
        num_views: number of views of an image; 0 without views.
        mean: mean of the pixels, if the list normalizes them.
        std: their standard deviation, likewise.
        pretext: ``rotation``, ``jigsaw`` or ``pirl`` if images are rotated or cut into patches; empty otherwise.
        unsupported: names of transforms that are not supported.
    """

    steps: Steps
    num_views: int
    mean: list[float] | None
    std: list[float] | None
    pretext: str
    unsupported: list[str]

    @property
    def several_sizes(self) -> bool:
        """Whether views are cropped to several sizes."""
        views = self.steps[-1]["views"] if self.num_views else []
        sizes = {show(step["size"]) for view in views for step in view["transforms"] if "size" in step}
        return len(sizes) > 1


PRETEXTS = {
    **{"ImgRotatePil": "rotation", "ImgPatchesFromTensor": "jigsaw", "ShuffleImgPatches": "jigsaw"},
    "ImgPilToPatchesAndImage": "pirl",
}
"""Pretext tasks by the transforms of their images."""

NO_VIEWS = Views([], 0, None, None, "", [])
"""The views of a model that is not trained."""


def read(transforms: list[Any]) -> Views:
    """Convert a list of transforms.

    Raises:
        ValueError: an entry is not a transform, or has a value that is not supported.
    """
    common: Steps = []
    views: list[Steps] = []
    normalize: Mapping[str, Any] = {}
    pretext, unsupported = "", []
    for transform in transforms:
        if not isinstance(transform, dict) or not isinstance(transform.get("name"), str):
            raise ValueError(f"{show(transform)} is not a transform: expected {{name: ..., ...}}")
        name = transform["name"]
        pretext = PRETEXTS.get(name, pretext)
        if name in PRETEXTS and transform.get("num_patches", 9) != 9:
            raise ValueError(f"num_patches: {show(transform['num_patches'])} is not supported; supported: 9")
        if name in ("ImgReplicatePil", "ImgPilToMultiCrop", "ImgPilToPatchesAndImage"):
            views = _start_views(transform)
        elif name == "ImgPilMultiCropRandomApply":
            unsupported += _apply_per_view(transform, views)
        elif name == "MaskedImageModeling":
            for view in views[:2]:
                view.append(_patch_mask(transform))
        elif name == "Normalize":
            normalize = transform
        elif name in CONVERTERS:
            for view in views or [common]:
                view += CONVERTERS[name](transform)
        elif name not in ("ToTensor", "MNISTImgPil2RGB", *PRETEXTS):  # images are read with three channels
            unsupported.append(name)
    steps = [*common, {"name": "views", "views": _group_views(views)}] if views else common
    return Views(steps, len(views), normalize.get("mean"), normalize.get("std"), pretext, unsupported)


def _start_views(transform: Mapping[str, Any]) -> list[Steps]:
    """Return the first transforms of every view."""
    if transform["name"] == "ImgReplicatePil":
        return [[] for _ in range(_count(transform.get("num_times", 2)))]
    if transform["name"] == "ImgPilToPatchesAndImage":
        kinds = (("image", 224, [0.08, 1.0]), ("patches", 255, [0.6, 1.0]))
        return [
            [_crop(transform.get(f"crop_size_{kind}", size), transform.get(f"crop_scale_{kind}", scale))]
            for kind, size, scale in kinds
        ]
    sizes, counts, scales = (transform.get(key) for key in ("size_crops", "num_crops", "crop_scales"))
    lists = [sizes, counts, scales]
    if any(not isinstance(values, list) or len(values) != len(sizes or []) for values in lists):
        raise ValueError(f"{show(transform)}: size_crops, num_crops and crop_scales must be lists of the same length")
    assert isinstance(sizes, list) and isinstance(counts, list) and isinstance(scales, list)
    return [
        [_crop(size, scale)]
        for size, count, scale in zip(sizes, counts, scales, strict=True)
        for _ in range(_count(count))
    ]


def _crop(size: Any, scale: Any) -> Step:
    return {"name": "RandomResizedCrop", "size": size, "scale": scale}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
        raise ValueError(f"{show(value)}: expected a number of views from 1 to 100")
    return value


def _apply_per_view(transform: Mapping[str, Any], views: list[Steps]) -> list[str]:
    """Add transforms with a probability for each view; return the names of unsupported ones."""
    probabilities, inner = transform.get("prob"), transform.get("transforms")
    if not isinstance(probabilities, list) or len(probabilities) != len(views) or not isinstance(inner, list):
        raise ValueError(f"{show(transform)}: prob must be a list with an entry for each of the {len(views)} views")
    unsupported = []
    for step in inner:
        name = step.get("name") if isinstance(step, dict) else None
        if name not in CONVERTERS:
            unsupported.append(str(name))
            continue
        for view, probability in zip(views, probabilities, strict=True):
            view += _with_probability(CONVERTERS[name](step), probability)
    return unsupported


def _with_probability(steps: Steps, probability: float) -> Steps:
    """Apply transforms with a probability: by the transform's own parameter if that is 1, else by RandomApply."""
    if probability <= 0:
        return []
    if probability >= 1:
        return steps
    parameter = {"random_gaussian_blur": "probability", "RandomSolarize": "p"}.get(steps[0]["name"], "")
    if len(steps) == 1 and parameter and steps[0][parameter] == 1:
        return [{**steps[0], parameter: probability}]
    return [{"name": "RandomApply", "p": probability, "transforms": steps}]


def _group_views(views: list[Steps]) -> list[dict[str, Any]]:
    """Group consecutive views with the same transforms."""
    groups: list[dict[str, Any]] = []
    for view in views:
        if groups and groups[-1]["transforms"] == view:
            groups[-1]["count"] += 1
        else:
            groups.append({"count": 1, "transforms": view})
    return groups


# --- single transforms ------------------------------------------------------------------------------------------------


def _same_keys(name: str, *keys: str) -> Callable[[Mapping[str, Any]], Steps]:
    """Return a converter of a transform whose keys have the same names in torchvision."""
    return lambda transform: [{"name": name, **{key: transform[key] for key in keys if key in transform}}]


def _resize(name: str, *keys: str) -> Callable[[Mapping[str, Any]], Steps]:
    """Return a converter of a transform whose interpolation is transform of Pillow's numbers."""

    def convert(transform: Mapping[str, Any]) -> Steps:
        [step] = _same_keys(name, "size", *keys)(transform)
        if "interpolation" in transform:
            number = transform["interpolation"]
            if isinstance(number, list | dict) or number not in INTERPOLATIONS:
                raise ValueError(f"interpolation: {show(number)} is not supported; known are {list(INTERPOLATIONS)}")
            step["interpolation"] = INTERPOLATIONS[number]
        return [step]

    return convert


def _color_distortion(transform: Mapping[str, Any]) -> Steps:
    """Convert SimCLR's color distortion: jitter with probability 0.8, grayscale with 0.2."""
    strength = transform.get("strength", 1.0)
    if not isinstance(strength, int | float):
        raise ValueError(f"strength: expected a number, got {show(strength)}")
    amounts = {key: round(0.8 * strength, 6) for key in ("brightness", "contrast", "saturation")}
    jitter = {"name": "ColorJitter", **amounts, "hue": round(0.2 * strength, 6)}
    return [{"name": "RandomApply", "p": 0.8, "transforms": [jitter]}, {"name": "RandomGrayscale", "p": 0.2}]


def _blur(transform: Mapping[str, Any]) -> Steps:
    sigma = [transform.get("radius_min", 0.1), transform.get("radius_max", 2.0)]
    return [{"name": "random_gaussian_blur", "probability": transform.get("p", 0.5), "sigma": sigma}]


def _rand_augment(transform: Mapping[str, Any]) -> Steps:
    magnitude, layers, std = (
        transform.get("magnitude", 9),
        transform.get("num_layers", 2),
        transform.get("magnitude_std", 0),
    )
    increasing = "-inc1" if transform.get("increasing_severity") else ""
    return [{"name": "timm_policy", "policy": f"rand-m{magnitude}-n{layers}-mstd{std}{increasing}"}]


def _patch_mask(transform: Mapping[str, Any]) -> Step:
    """Convert iBOT's masks: one of two shares of patches, of which the first masks none.

    Raises:
        ValueError: the shares are others.
    """
    means, spreads = transform.get("pred_ratio_mean", [0.3]), transform.get("pred_ratio_var", [0.0])
    match means, spreads:
        case [float() | int() as mean], [float() | int() as spread]:
            none = 0.0
        case [0, float() | int() as mean], [0, float() | int() as spread]:
            none = 0.5
        case _:
            raise ValueError(f"pred_ratio_mean {show(means)}: expected one share, or 0 and another one")
    ratio = [round(mean - spread, 6), round(mean + spread, 6)]
    patch = transform.get("patch_size", 16)
    return {"name": "block_patch_mask", "patch_size": patch, "mask_ratio": ratio, "no_mask_probability": none}


CONVERTERS: dict[str, Callable[[Mapping[str, Any]], Steps]] = {
    "RandomResizedCrop": _resize("RandomResizedCrop", "scale", "ratio"),
    "Resize": _resize("Resize"),
    "CenterCrop": _same_keys("CenterCrop", "size"),
    "RandomCrop": _same_keys("RandomCrop", "size", "padding"),
    "RandomHorizontalFlip": _same_keys("RandomHorizontalFlip", "p"),
    "RandomGrayscale": _same_keys("RandomGrayscale", "p"),
    "ColorJitter": _same_keys("ColorJitter", "brightness", "contrast", "saturation", "hue"),
    "ImgPilColorDistortion": _color_distortion,
    "ImgPilGaussianBlur": _blur,
    "ImgPilRandomSolarize": lambda transform: [
        {"name": "RandomSolarize", "threshold": 128, "p": transform.get("p", 0.5)}
    ],
    "RandAugment": _rand_augment,
    "RandomErasing": _same_keys("RandomErasing", "p", "scale", "ratio", "value"),
}
"""Converters of the supported transforms, by VISSL's names."""
