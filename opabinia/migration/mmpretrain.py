"""Conversion of MMPretrain's (and MMClassification's) configs of image classifiers and self-supervised methods.

They are parsed, not executed.

For keys that a config does not set, the recipe gets the defaults of MMPretrain's classes, not Opabinia's. Networks are
timm's of the same name; those that timm does not have are a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import show
from opabinia.config.tree import Node
from opabinia.migration import openmmlab
from opabinia.migration.foreign_config import set_value
from opabinia.migration.mmpretrain_selfsup import METHODS, convert_method
from opabinia.migration.openmmlab_training import (
    at,
    build_recipe,
    convert_training,
    convert_weights,
    modernize,
    refuse_unread,
    report_malformed,
    with_pixel_stats,
)
from opabinia.migration.recipe import Recipe, Reference, lookup, to_unit_range
from opabinia.migration.tables.mmpretrain import (
    ALLOWED,
    DEFAULTS,
    DROP_PATH,
    HEADS,
    NETWORKS,
    PIPELINE_NO_EFFECT,
    REASONS,
    SIZE_KEYS,
)


def convert(file: Path, gpus: int | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of MMPretrain; the batch size per GPU becomes the total.

    Args:
        file: the Python file.
        gpus: number of GPUs of the original training; None: see
            :func:`opabinia.migration.openmmlab_training.convert_batch_size`.
        overrides: changes such as ``optim_wrapper.optimizer.lr=0.01``.

    Raises:
        ConfigError: the config cannot be read, is not an image classifier's, or has a value that is not supported.
    """
    with report_malformed(file):
        tree = _with_list_of_augments(with_pixel_stats(modernize(openmmlab.read(file, overrides))))
        recipe = build_recipe("mmpretrain", file, tree, DEFAULTS, REASONS)
        foreign = recipe.foreign
        if (kind := foreign("model.type")) not in ("ImageClassifier", *METHODS):
            supported = f"supported: ImageClassifier, {', '.join(METHODS)}"
            raise foreign.problem("model.type", f"{show(kind)} is not supported", supported)
        recipe.put("task.name", "classification")
        rgb = foreign("data_preprocessor.to_rgb", False) or str(foreign("train_dataloader.dataset.type")).startswith(
            "CIFAR"
        )
        for key in ("mean", "std"):
            recipe.convert(
                f"data_preprocessor.{key}", f"task.{key}", lambda values: to_unit_range(values)[:: 1 if rgb else -1]
            )
        convert_weights(recipe, "load_from", rgb)
        if not foreign("load_from"):
            convert_weights(recipe, "model.backbone.init_cfg.checkpoint", rgb)
        _network(recipe)
        _data(recipe, ("train", "val") if kind == "ImageClassifier" else ("train",))
        if kind == "ImageClassifier":
            _head(recipe)
            _mixes(recipe)
            refuse_unread(recipe, "model", ALLOWED)
        else:
            convert_method(recipe)
        convert_training(recipe, gpus)
    recipe.finish()
    return recipe


def _with_list_of_augments(tree: Node) -> Node:
    """Return a config whose ``model.train_cfg.augments`` is a list."""
    augments = at(tree, "model.train_cfg.augments")
    if augments is not None and isinstance(augments.value, dict):
        tree = set_value(tree, ["model", "train_cfg", "augments"], Node([augments], augments.where))
    return tree


def _network(recipe: Recipe) -> None:
    """Convert the backbone to timm's of the same name."""
    foreign, section = recipe.foreign, "model.backbone"
    kind = foreign(f"{section}.type")
    sizes = [foreign(f"{section}.{key}", default) for key, default in SIZE_KEYS.get(kind, ())]
    full_name = " ".join(str(value) for value in (kind, *sizes))
    model = NETWORKS.get(full_name)
    if model is None:
        recipe.note(f"model.backbone: no equivalent of {full_name} is known: set vars.model to one of timm's models")
        for path in foreign.keys(section):
            foreign.untyped(path)
        recipe.put("task.backbone", {"name": "timm", "model": recipe.variable("model", full_name, f"{section}.type")})
        return
    options: dict[str, Any] = {}
    drop_path = foreign.untyped(f"{section}.drop_path_rate", DROP_PATH.get(kind, 0.0))
    if (drop := foreign(f"{section}.drop_rate", 0.0)) > 0:
        options["proj_drop_rate"] = drop
    size = foreign.untyped(f"{section}.img_size", 224)
    if kind in ("VisionTransformer", "DeiT3", "SwinTransformer") and size != 224:
        options["img_size"] = size
    if window := foreign(f"{section}.stage_cfgs.block_cfgs.window_size"):
        options["window_size"] = window
    if foreign(f"{section}.norm_cfg.type") == "SyncBN":
        recipe.put("train.sync_batch_norm", True, f"{section}.norm_cfg.type")
    if not foreign(f"{section}.zero_init_residual", True):
        options["zero_init_last"] = False
    keys = tuple(f"{section}.{key}" for key in ("type", *(name for name, _ in SIZE_KEYS[kind])))
    backbone = {"name": "timm", "model": model, **({"drop_path": drop_path} if drop_path else {})}
    backbone |= {"options": options} if options else {}
    recipe.put("task.backbone", backbone, *keys)


# --- head and losses --------------------------------------------------------------------------------------------------


def _head(recipe: Recipe) -> None:
    foreign, section = recipe.foreign, "model.head"
    recipe.convert(f"{section}.type", "task.backbone.name", lambda head: lookup(HEADS)(head) and "timm")
    if foreign(f"{section}.hidden_dim") is not None:
        recipe.skip(f"{section}.hidden_dim", "the head is one linear layer, without a hidden one")
    if dropout := foreign(f"{section}.dropout_rate", 0.0):
        recipe.put("task.dropout", dropout, f"{section}.dropout_rate")
    if (weight := foreign(f"{section}.loss.loss_weight")) != 1:
        recipe.refuse(f"{section}.loss.loss_weight", f"{show(weight)} is not supported", "supported: 1")
    kind, smoothing = foreign(f"{section}.loss.type", "CrossEntropyLoss"), 0.0
    if kind == "LabelSmoothLoss":
        smoothing = _smoothing(recipe, f"{section}.loss")
    elif kind != "CrossEntropyLoss":
        supported = "supported: CrossEntropyLoss, LabelSmoothLoss"
        recipe.refuse(f"{section}.loss.type", f"{show(kind)} is not supported", supported)
    sigmoid = foreign(f"{section}.loss.use_sigmoid", False)
    loss = {"name": "binary_cross_entropy", "sum_classes": True} if sigmoid else {"name": "cross_entropy"}
    recipe.put("task.loss", {**loss, "label_smoothing": smoothing}, f"{section}.loss.type")


def _smoothing(recipe: Recipe, section: str) -> float:
    """Return the label smoothing; ``classy_vision`` divides the smoothed targets by their sum."""
    foreign = recipe.foreign
    value, mode = foreign.number(f"{section}.label_smooth_val"), foreign(f"{section}.mode", "original")
    if mode not in ("original", "classy_vision"):
        recipe.refuse(f"{section}.mode", f"{show(mode)} is not supported", "supported: original, classy_vision")
    return float(f"{value / (1 + value):.9g}") if mode == "classy_vision" else value


def _mixes(recipe: Recipe) -> None:
    """Convert mixup and CutMix, one of which is drawn for each batch."""
    key = "model.train_cfg.augments"
    names = {"Mixup": "mixup", "BatchMixup": "mixup", "CutMix": "cutmix", "BatchCutMix": "cutmix"}
    augments = recipe.foreign(key) or []
    unknown = [augment.get("type") for augment in augments if augment.get("type") not in names]
    if unknown:
        return recipe.refuse(key, f"{show(unknown)} is not supported", "supported: Mixup, CutMix")
    mixes = [{"name": names[augment["type"]], "alpha": augment.get("alpha", 1.0)} for augment in augments]
    shares = recipe.foreign("model.train_cfg.probs") or [augment.get("prob", 1 / len(mixes)) for augment in augments]
    if mixes:
        total = min(1.0, round(sum(shares), 6))
        several = [{"name": "one_of", "mixes": mixes, "weights": shares, "probability": total}]
        recipe.put("data.mix", mixes if len(mixes) == 1 and total == 1 else several, key)
    return None


# --- data -------------------------------------------------------------------------------------------------------------


def _data(recipe: Recipe, splits: Sequence[str]) -> None:
    foreign = recipe.foreign
    for split in splits:
        section = f"{split}_dataloader.dataset"
        kind, root = foreign(f"{section}.type"), foreign(f"{section}.data_root")
        if kind in ("ImageNet", "ImageNet21k", "CustomDataset") and root:
            folder = Reference(f"{recipe.variable('root', str(root).rstrip('/'), f'{section}.data_root')}/{split}")
            for key in ("data_prefix", "ann_file", "split"):
                recipe.skip(f"{section}.{key}", f"the images are in folders of their class in {folder}")
        else:
            folder = recipe.variable(split, f"path/to/{split}", f"{section}.type")
            recipe.note(
                f"{split} dataset {kind}: set vars.{split} to a folder with one folder per class, or the source"
            )
        recipe.put(f"data.{split}.source", {"name": "image_folder", "root": folder}, f"{section}.type")
        pipeline = foreign(f"{section}.pipeline") or []
        recipe.put(
            f"data.{split}.transforms", _transforms(recipe, f"{section}.pipeline", pipeline), f"{section}.pipeline"
        )
    key = "train_dataloader.sampler.type"
    if (sampler := foreign(key, "DefaultSampler")) == "RepeatAugSampler":
        repeats = foreign("train_dataloader.sampler.num_repeats", 3)
        recipe.put("data.sampler", {"name": "repeated", "num_repeats": repeats}, key)
    elif sampler != "DefaultSampler":
        recipe.skip(key, f"{sampler} is not there: every image is used once per epoch")


def _transforms(recipe: Recipe, key: str, pipeline: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert the steps of a pipeline."""
    steps: list[dict[str, Any]] = []
    resized: dict[str, Any] | None = None
    for step in pipeline:
        kind = step.get("type") if isinstance(step, dict) else step
        if kind in PIPELINE_NO_EFFECT:
            continue
        if kind in ("ResizeEdge", "Resize"):
            resized = _resize(recipe, key, step)
            steps.append(resized)
        elif kind == "CenterCrop" and resized is not None and steps[-1] is resized:
            size = _side(step.get("crop_size"))
            crop = {"name": "resize_and_crop", "size": size, "crop": float(f"{size / _side(resized['size']):.6g}")}
            steps[-1] = {**crop, "interpolation": resized["interpolation"]}
        elif kind in _STEPS:
            steps += _STEPS[kind](recipe, key, step)
        else:
            recipe.refuse(key, f"{show(kind)} is not supported")
    return steps


def _side(size: Any) -> Any:
    """Return the side of a square: mmcls writes (256, -1) for the shorter side."""
    return size[0] if isinstance(size, list) else size


def _resize(recipe: Recipe, key: str, step: dict[str, Any]) -> dict[str, Any]:
    scale = step.get("scale", step.get("size"))
    interpolation = step.get("interpolation", "bilinear")
    if step["type"] == "ResizeEdge" or (isinstance(scale, list) and scale[-1] == -1):
        if step.get("edge", "short") != "short":
            recipe.refuse(key, "ResizeEdge is supported for the short edge only")
        return {"name": "Resize", "size": [_side(scale)], "interpolation": interpolation}
    return {"name": "Resize", "size": scale if isinstance(scale, list) else [scale] * 2, "interpolation": interpolation}


def _random_crop(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    efficient = step["type"] == "EfficientNetRandomCrop"
    if efficient:
        recipe.note("EfficientNetRandomCrop becomes RandomResizedCrop, which draws its rectangles in another way")
    crop: dict[str, Any] = {"name": "RandomResizedCrop", "size": _side(step.get("scale", step.get("size")))}
    for own, names, default in (
        ("scale", ("crop_ratio_range", "scale_range"), [0.08, 1.0]),
        ("ratio", ("aspect_ratio_range", "ratio_range"), [3 / 4, 4 / 3]),
    ):
        given = next((step[name] for name in names if name in step), default)
        crop[own] = [float(f"{end:.6g}") for end in given]
    return [{**crop, "interpolation": step.get("interpolation", "bicubic" if efficient else "bilinear")}]


def _flip(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    flips = {"horizontal": "RandomHorizontalFlip", "vertical": "RandomVerticalFlip"}
    name = lookup(flips)(step.get("direction", "horizontal"))
    probability = step.get("prob", step.get("flip_prob", 0.5))
    return [{"name": name, **({"p": probability} if probability != 0.5 else {})}]


def _rand_augment(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return timm's policy of the same operations; its magnitudes are of 10."""
    if step.get("policies") != "timm_increasing":
        recipe.refuse(key, f"RandAugment with policies {show(step.get('policies'))} is not supported")
    magnitude = step.get("magnitude_level", 9) * 10 / step.get("total_level", 10)
    std = step.get("magnitude_std", 0.0)
    noise = "101" if std == "inf" else f"{std:g}"
    return [{"name": "timm_policy", "policy": f"rand-m{magnitude:g}-n{step.get('num_policies', 2)}-mstd{noise}-inc1"}]


def _auto_augment(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("policies") != "imagenet":
        recipe.refuse(key, f"AutoAugment with policies {show(step.get('policies'))} is not supported")
    return [{"name": "timm_policy", "policy": "original"}]


def _erasing(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("mode", "const") != "const":
        recipe.note("erased rectangles are filled with gray; MMPretrain fills them with noise")
    area = [step.get("min_area_ratio", 0.02), float(f"{step.get('max_area_ratio', 0.4):.6g}")]
    ratio = step.get("aspect_range", [3 / 10, 10 / 3])
    ratio = [float(f"{value:.6g}") for value in (ratio if isinstance(ratio, list) else [ratio, 1 / ratio])]
    return [{"name": "RandomErasing", "p": step.get("erase_prob", 0.5), "scale": area, "ratio": ratio, "value": 116}]


def _color(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    names = [name for name in ("brightness", "contrast", "saturation", "hue") if step.get(name)]
    return [{"name": "ColorJitter", **{name: step[name] for name in names}}]


def _efficient_center_crop(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    size = step["crop_size"]
    share = float(f"{size / (size + step.get('crop_padding', 32)):.6g}")
    return [
        {"name": "resize_and_crop", "size": size, "crop": share, "interpolation": step.get("interpolation", "bicubic")}
    ]


def _padded_crop(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    padding = {"padding": step["padding"]} if step.get("padding") else {}
    return [{"name": "RandomCrop", "size": _side(step.get("crop_size", step.get("size"))), **padding}]


def _lighting(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return PCA lighting; 55.4625 is the first eigenvalue of ImageNet's pixels in 0..255."""
    return [{"name": "pca_lighting", "std": float(f"{step.get('alphastd', 0.1) * step['eigval'][0] / 55.4625:.3g}")}]


def _multi_view(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    counts, pipelines = step["num_views"], step["transforms"]
    counts = counts if isinstance(counts, list) else [counts]
    pairs = zip(counts, pipelines, strict=False)
    return [{"name": "views", "views": [{"transforms": _transforms(recipe, key, p), "count": n} for n, p in pairs]}]


def _random_apply(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    steps = step["transforms"] if isinstance(step["transforms"], list) else [step["transforms"]]
    return [{"name": "RandomApply", "transforms": _transforms(recipe, key, steps), "p": step.get("prob", 0.5)}]


def _blur(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("magnitude_std") != "inf" or "magnitude_range" not in step:
        recipe.refuse(key, "GaussianBlur is supported with magnitude_range and magnitude_std='inf' only")
        return []
    probability = step.get("prob", 0.5)
    return [{"name": "random_gaussian_blur", "probability": probability, "sigma": step["magnitude_range"]}]


def _solarize(recipe: Recipe, key: str, step: dict[str, Any]) -> list[dict[str, Any]]:
    probability = step.get("prob", 0.5)
    return [{"name": "RandomSolarize", "threshold": step["thr"], "p": probability}] if probability else []


_STEPS: dict[str, Callable[[Recipe, str, dict[str, Any]], list[dict[str, Any]]]] = {
    "RandomResizedCrop": _random_crop,
    "EfficientNetRandomCrop": _random_crop,
    "RandomFlip": _flip,
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
    "RandomErasing": _erasing,
    "ColorJitter": _color,
    "Lighting": _lighting,
    "EfficientNetCenterCrop": _efficient_center_crop,
    "RandomCrop": _padded_crop,
    "MultiView": _multi_view,
    "RandomApply": _random_apply,
    "GaussianBlur": _blur,
    "Solarize": _solarize,
    "RandomGrayscale": lambda recipe, key, step: [{"name": "RandomGrayscale", "p": step.get("prob", 0.1)}],
    "CenterCrop": lambda recipe, key, step: [{"name": "CenterCrop", "size": _side(step["crop_size"])}],
}
