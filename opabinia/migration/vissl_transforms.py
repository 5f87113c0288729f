"""VISSL's lists of transforms as ours: what is done to every view of an image, and where they begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opabinia.config.errors import show

Step = dict[str, Any]
Made = list[Step]

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers."""


class Views(NamedTuple):
    """What a list of transforms says.

    Attributes:
        steps: transforms of ours.
        number: views of an image; 0 where the image itself goes on.
        mean: of the pixels, if it says so.
        std: their deviation, likewise.
        turned: whether images are turned, to be asked by how much.
        left: names of transforms that are not here.
    """

    steps: Made
    number: int
    mean: list[float] | None
    std: list[float] | None
    turned: bool
    left: list[str]


def read(transforms: list[Any]) -> Views:
    """What a list of transforms says.

    Raises:
        ValueError: an entry is no transform, or has values that cannot be taken over.
    """
    before: Made = []
    views: list[Made] = []
    normal: Mapping[str, Any] = {}
    turned, left = False, []
    for one in transforms:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise ValueError(f"{show(one)} is no transform: {{name: ..., ...}} is needed")
        name = one["name"]
        if name in ("ImgReplicatePil", "ImgPilToMultiCrop"):
            views = _begun(one)
        elif name == "ImgPilMultiCropRandomApply":
            left += _for_some(one, views)
        elif name == "ImgRotatePil":
            turned = True
        elif name == "Normalize":
            normal = one
        elif name in PARTS:
            for view in views or [before]:
                view += PARTS[name](one)
        elif name != "ToTensor":
            left.append(name)
    steps = [*before, {"name": "views", "views": _grouped(views)}] if views else before
    return Views(steps, len(views), normal.get("mean"), normal.get("std"), turned, left)


def _begun(one: Mapping[str, Any]) -> list[Made]:
    """The beginnings of views."""
    if one["name"] == "ImgReplicatePil":
        return [[] for _ in range(_count(one.get("num_times", 2)))]
    sizes, counts, scales = (one.get(key) for key in ("size_crops", "num_crops", "crop_scales"))
    lists = [sizes, counts, scales]
    if any(not isinstance(values, list) or len(values) != len(sizes or []) for values in lists):
        raise ValueError(f"{show(one)}: size_crops, num_crops and crop_scales are lists of one length")
    assert isinstance(sizes, list) and isinstance(counts, list) and isinstance(scales, list)
    return [
        [{"name": "RandomResizedCrop", "size": size, "scale": scale}]
        for size, count, scale in zip(sizes, counts, scales, strict=True)
        for _ in range(_count(count))
    ]


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
        raise ValueError(f"{show(value)}: a number of views from 1 to 100 is needed")
    return value


def _for_some(one: Mapping[str, Any], views: list[Made]) -> list[str]:
    """Transforms with a probability for each view; names of those that are not here."""
    chances, inner = one.get("prob"), one.get("transforms")
    if not isinstance(chances, list) or len(chances) != len(views) or not isinstance(inner, list):
        raise ValueError(f"{show(one)}: prob is a list with an entry for each of the {len(views)} views")
    left = []
    for step in inner:
        name = step.get("name") if isinstance(step, dict) else None
        if name not in PARTS:
            left.append(str(name))
            continue
        for view, chance in zip(views, chances, strict=True):
            view += _sometimes(PARTS[name](step), chance)
    return left


def _sometimes(steps: Made, chance: float) -> Made:
    """Steps with a probability; one that has a probability of its own, which is 1, gets it."""
    if chance <= 0:
        return []
    if chance >= 1:
        return steps
    own = {"blur": "probability", "RandomSolarize": "p"}.get(steps[0]["name"], "")
    if len(steps) == 1 and own and steps[0][own] == 1:
        return [{**steps[0], own: chance}]
    return [{"name": "RandomApply", "p": chance, "transforms": steps}]


def _grouped(views: list[Made]) -> list[dict[str, Any]]:
    """Like ones together."""
    groups: list[dict[str, Any]] = []
    for view in views:
        if groups and groups[-1]["transforms"] == view:
            groups[-1]["count"] += 1
        else:
            groups.append({"count": 1, "transforms": view})
    return groups


# --- single transforms ------------------------------------------------------------------------------------------------


def _taken(name: str, *keys: str) -> Callable[[Mapping[str, Any]], Made]:
    """One that has the same keys here."""
    return lambda one: [{"name": name, **{key: one[key] for key in keys if key in one}}]


def _resized(name: str, *keys: str) -> Callable[[Mapping[str, Any]], Made]:
    """One with a number for the interpolation."""

    def made(one: Mapping[str, Any]) -> Made:
        [step] = _taken(name, "size", *keys)(one)
        if "interpolation" in one:
            number = one["interpolation"]
            if isinstance(number, list | dict) or number not in INTERPOLATIONS:
                raise ValueError(f"interpolation: {show(number)} is not known here; known are {list(INTERPOLATIONS)}")
            step["interpolation"] = INTERPOLATIONS[number]
        return [step]

    return made


def _distorted(one: Mapping[str, Any]) -> Made:
    """SimCLR's colours: jitter with 0.8, grey with 0.2."""
    strength = one.get("strength", 1.0)
    if not isinstance(strength, int | float):
        raise ValueError(f"strength: {show(strength)}: a number is needed")
    amounts = {key: round(0.8 * strength, 6) for key in ("brightness", "contrast", "saturation")}
    jitter = {"name": "ColorJitter", **amounts, "hue": round(0.2 * strength, 6)}
    return [{"name": "RandomApply", "p": 0.8, "transforms": [jitter]}, {"name": "RandomGrayscale", "p": 0.2}]


def _blurred(one: Mapping[str, Any]) -> Made:
    sigma = [one.get("radius_min", 0.1), one.get("radius_max", 2.0)]
    return [{"name": "blur", "probability": one.get("p", 0.5), "sigma": sigma}]


def _random(one: Mapping[str, Any]) -> Made:
    magnitude, layers, std = one.get("magnitude", 9), one.get("num_layers", 2), one.get("magnitude_std", 0)
    increasing = "-inc1" if one.get("increasing_severity") else ""
    return [{"name": "timm_policy", "policy": f"rand-m{magnitude}-n{layers}-mstd{std}{increasing}"}]


PARTS: dict[str, Callable[[Mapping[str, Any]], Made]] = {
    "RandomResizedCrop": _resized("RandomResizedCrop", "scale", "ratio"),
    "Resize": _resized("Resize"),
    "CenterCrop": _taken("CenterCrop", "size"),
    "RandomCrop": _taken("RandomCrop", "size", "padding"),
    "RandomHorizontalFlip": _taken("RandomHorizontalFlip", "p"),
    "RandomGrayscale": _taken("RandomGrayscale", "p"),
    "ColorJitter": _taken("ColorJitter", "brightness", "contrast", "saturation", "hue"),
    "ImgPilColorDistortion": _distorted,
    "ImgPilGaussianBlur": _blurred,
    "ImgPilRandomSolarize": lambda one: [{"name": "RandomSolarize", "threshold": 128, "p": one.get("p", 0.5)}],
    "RandAugment": _random,
}
"""Transforms that are here, under VISSL's names."""
