"""Conversion of PaddleVideo's SlowFast configs, with or without multigrid training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node, read_file, read_text
from opabinia.migration.foreign_config import ForeignConfig, SourceValue, set_value
from opabinia.migration.recipe import Recipe

BACKBONE = "ResNetSlowFast"

LONG_CYCLE = [{"value": value} for value in ([0.25, 0.7071], [0.5, 0.7071], [0.5, 1], [1, 1])]
"""PaddleVideo's default."""

BY_DATA = "follows from the data or the model"
REASONS = {
    "OPTIMIZER.name": "always SGD with momentum",
    "OPTIMIZER.weight_decay.name": "always L2",
    "OPTIMIZER.learning_rate.name": "follows from the other keys",
    "OPTIMIZER.learning_rate.max_epoch": "the key epochs is used",
    "OPTIMIZER.learning_rate.iter_step": "the learning rate changes with every step",
    "MODEL.framework": "the task is video",
    "MODEL.backbone.width_per_group": BY_DATA,
    "MODEL.backbone.bn_norm_type": "see shapes.bn_base_size",
    "MODEL.head": BY_DATA,
    "METRIC": "follows from the task",
    "model_name": "the run's name is --name",
    "log_level": "see train.log_every",
    "PIPELINE.train.decode_sampler.name": "always the transform clip",
    "PIPELINE.train.transform.Image2Array": "clips are arrays",
    "PIPELINE.train.transform.PackOutput": "the model slowfast splits its pathways",
    "PIPELINE.train.transform.Normalization.tensor_shape": BY_DATA,
    "PIPELINE.valid": "validation uses center clips with the sizes of training",
    "PIPELINE.test": "views have the sizes of training",
    "MULTIGRID.default_batch_size": "PaddleVideo sets it at run time",
    "MULTIGRID.default_temporal_size": "PaddleVideo sets it at run time",
    "MULTIGRID.default_crop_size": "PaddleVideo sets it at run time",
    "MULTIGRID.long_cycle_sampling_rate": "PaddleVideo sets it at run time",
    "DATASET.train.format": "the source is always a list of videos",
    "DATASET.valid.format": "the source is always a list of videos",
    "DATASET.test": "the source is always a list of videos",
}


def convert(file: Path, gpus: int, overrides: Sequence[str] = ()) -> Recipe:
    """Convert a config of PaddleVideo; the batch size per GPU becomes the total.

    Args:
        file: the YAML file.
        gpus: number of GPUs of the original training.
        overrides: changes such as ``OPTIMIZER.momentum=0.8``; lists of steps cannot be changed.

    Raises:
        ConfigError: the config cannot be read, its model is not supported, or a required value is missing.
    """
    tree = _read(file, overrides)
    foreign = ForeignConfig("PaddleVideo", str(file), dict(_leaves(tree)), {}, REASONS)
    if (name := foreign("MODEL.backbone.name")) != BACKBONE:
        raise foreign.problem("MODEL.backbone.name", f"{show(name)} is not supported", f"supported: {BACKBONE}")
    recipe = Recipe(foreign)
    _task(recipe)
    _data(recipe, gpus)
    _optimizer(recipe)
    every, batches = foreign("PRECISEBN.preciseBN_interval"), foreign("PRECISEBN.num_iters_preciseBN", 200)
    if every is not None:
        hook = {"name": "precise_bn", "every": f"{every}ep", "batches": batches}
        recipe.put("hooks.precise_bn", hook, "PRECISEBN.preciseBN_interval", "PRECISEBN.num_iters_preciseBN")
    recipe.put("train.length", f"{foreign.number('epochs')}ep", "epochs")
    recipe.put("evaluate.every", f"{foreign('val_interval', 1)}ep", "val_interval")
    recipe.note("validation uses center clips and crops; PaddleVideo's configs use random ones")
    recipe.finish()
    return recipe


def _read(file: Path, overrides: Sequence[str]) -> Node:
    problems: list[Problem] = []
    tree = read_file(file, problems)
    for text in overrides:
        where = f"command line: {text[:80]}"
        key, equals, value = text.partition("=")
        node = read_text(value, problems, lambda _line, where=where: where) if equals else None  # type: ignore[misc]
        if node is None or not all(key.split(".")):
            problems.append(Problem(where, "", "a change is written as OPTIMIZER.momentum=0.8"))
        else:
            tree = set_value(tree, key.split("."), node)
    if problems or tree is None or not isinstance(tree.value, dict):
        raise ConfigError(problems or Problem(str(file), "", "is not a mapping of keys to values"))
    return tree


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, SourceValue]]:
    """Yield every value with its path; lists of transforms with one name each are treated as mappings."""
    sections: Any = node.value
    if isinstance(sections, list) and all(isinstance(item.value, dict) and len(item.value) == 1 for item in sections):
        steps = {name: child for item in sections for name, child in item.value.items()}
        sections = steps if len(steps) == len(sections) else sections
    if not isinstance(sections, Mapping) or not sections:
        yield path, SourceValue(node.plain(), node.where)
        return
    for key, child in sections.items():
        yield from _leaves(child, f"{path}.{key}".lstrip("."))


# --- sections ---------------------------------------------------------------------------------------------------------


def _task(recipe: Recipe) -> None:
    keys = {"depth": "depth", "alpha": "alpha", "beta": "beta", "fusion_kernel": "fusion_kernel_sz"}
    recipe.put("task.name", "video")
    recipe.put("task.backbone.name", "slowfast", "MODEL.backbone.name")
    for key, source_key in keys.items():
        _convert_if_set(recipe, f"MODEL.backbone.{source_key}", f"task.backbone.{key}")
    recipe.put("task.dropout", recipe.foreign("MODEL.head.dropout_rate", 0.5), "MODEL.head.dropout_rate")
    for name in ("mean", "std"):
        _convert_if_set(recipe, f"PIPELINE.train.transform.Normalization.{name}", f"task.{name}")


def _convert_if_set(recipe: Recipe, source_key: str, key: str) -> None:
    if (value := recipe.foreign(source_key)) is not None:
        recipe.put(key, value, source_key)


def _data(recipe: Recipe, gpus: int) -> None:
    foreign = recipe.foreign
    steps, sampler = "PIPELINE.train.transform", "PIPELINE.train.decode_sampler"
    stride = foreign(f"{sampler}.sampling_rate")
    clip = {"name": "clip", "frames": foreign.number(f"{sampler}.num_frames")}
    clip |= {"stride": stride} if stride is not None else {}
    size = foreign.number(f"{steps}.MultiCrop.target_size")
    sides = [foreign.number(f"{steps}.JitterScale.{end}") for end in ("min_size", "max_size")]
    train_transforms = [clip, {"name": "scale_jitter", "size": size, "scale": sides}]
    flip = f"{steps}.RandomFlip"
    if flip in foreign:
        probability = foreign(f"{flip}.p")
        foreign(flip)
        train_transforms.append(
            {"name": "clip_flip", **({"probability": probability} if probability is not None else {})}
        )
    val_transforms = [{**clip, "position": "middle"}, {"name": "three_crop", "size": size}]
    recipe.put("data.train.source", _source(recipe, "train"), "DATASET.train.file_path")
    recipe.put("data.train.transforms", train_transforms, f"{sampler}.num_frames", f"{steps}.MultiCrop.target_size")
    val_sets: list[dict[str, Any]] = [{"source": _source(recipe, "valid"), "transforms": val_transforms}]
    clips, crops = (foreign(f"DATASET.test.num_{name}") for name in ("ensemble_views", "spatial_crops"))
    if clips is not None and crops is not None:
        views = {"name": "video_views", "source": _source(recipe, "test"), "clips": clips, "crops": crops}
        val_sets.append({"prefix": "views", "every": "0ep", "source": views, "transforms": val_transforms})
    recipe.put("data.val", val_sets, "DATASET.valid.file_path", "DATASET.test.num_ensemble_views")
    gpu_batch = foreign.number("DATASET.batch_size")
    recipe.put("data.batch_size", gpu_batch * gpus, "DATASET.batch_size")
    recipe.put("data.num_workers", foreign("DATASET.num_workers", 0), "DATASET.num_workers")
    recipe.note(f"data.batch_size: {gpu_batch} samples per GPU on {gpus} GPUs are {gpu_batch * gpus} in total")


def _source(recipe: Recipe, split: str) -> dict[str, Any]:
    files = {
        "file": recipe.foreign(f"DATASET.{split}.file_path"),
        "root": recipe.foreign(f"DATASET.{split}.data_prefix"),
    }
    return {"name": "video_list", **{key: value for key, value in files.items() if value is not None}}


def _optimizer(recipe: Recipe) -> None:
    """Set ``optimizer``, ``schedule`` and, for multigrid training, ``shapes``."""
    foreign, rate = recipe.foreign, "OPTIMIZER.learning_rate"
    steps = _numbers(foreign, f"{rate}.steps")
    base = f"{rate}.step_base_lr" if steps else f"{rate}.cosine_base_lr"
    lr, gamma = foreign.number(base), foreign(f"{rate}.gamma", 0.1)
    lrs = _numbers(foreign, f"{rate}.lrs")
    if not lr:
        raise foreign.problem(base, "must not be 0")
    if any(abs(factor - gamma**power) > 1e-6 * factor for power, factor in enumerate(lrs)):
        raise foreign.problem(f"{rate}.lrs", f"{show(lrs)} are not powers of gamma ({gamma})")
    cycles = _cycles(foreign)
    long_cycle = cycles.get("long_cycle")
    # The first shape has larger batches and, by the same factor, a higher learning rate.
    first_factor = round(1 / (long_cycle[0][0] * long_cycle[0][1] ** 2)) if long_cycle else 1
    schedule: dict[str, Any] = {"name": "cosine", "warmup_rule": "sliced"}
    if cycles:
        recipe.put("shapes", _shapes(foreign, steps, gamma, cycles), "MULTIGRID.LONG_CYCLE", "MULTIGRID.SHORT_CYCLE")
        schedule = {"name": "constant"}
    elif steps:
        schedule = {"name": "multi_step", "milestones": [f"{step}ep" for step in steps[1:]], "gamma": gamma}
    warmup = {
        "warmup": f"{foreign(f'{rate}.warmup_epochs', 0)}ep",
        "warmup_factor": foreign(f"{rate}.warmup_start_lr", lr) / (lr * first_factor),
    }
    recipe.put("schedule", {**schedule, **warmup}, *foreign.keys(rate))
    recipe.put("optimizer.name", "sgd")
    recipe.put("optimizer.lr", lr, base)
    keys = {
        "momentum": ("momentum", 0.9),
        "nesterov": ("use_nesterov", False),
        "weight_decay": ("weight_decay.value", 0.0),
    }
    for key, (source_key, default) in keys.items():
        recipe.put(f"optimizer.{key}", foreign(f"OPTIMIZER.{source_key}", default), f"OPTIMIZER.{source_key}")


def _numbers(foreign: ForeignConfig, path: str) -> list[Any]:
    """Return a list of numbers; empty if it is not set."""
    values = foreign(path) or []
    if not isinstance(values, list) or any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in values
    ):
        raise foreign.problem(path, f"expected a list of numbers, got {show(values)}")
    return values


def _cycles(foreign: ForeignConfig) -> dict[str, Any]:
    """Return ``long_cycle`` and ``short_cycle``; empty without multigrid training."""
    long, short = (bool(foreign(f"MULTIGRID.{name}_CYCLE", False)) for name in ("LONG", "SHORT"))
    path = "MULTIGRID.long_cycle_factors"
    factors = [entry.get("value") for entry in foreign(path, LONG_CYCLE) if isinstance(entry, dict)]
    if any(not isinstance(pair, list) or len(pair) != 2 or not all(pair) for pair in factors):
        raise foreign.problem(path, f"{show(factors)}: expected pairs of numbers")
    short_factors = foreign("MULTIGRID.short_cycle_factors") or [0.5, 0.7071]
    return (
        {"long_cycle": factors if long else [], "short_cycle": short_factors if short else []} if long or short else {}
    )


def _shapes(foreign: ForeignConfig, steps: Any, gamma: float, cycles: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": "multigrid",
        "frames": foreign.number("PIPELINE.train.decode_sampler.num_frames"),
        "size": foreign.number("PIPELINE.train.transform.MultiCrop.target_size"),
        "milestones": steps[1:],
        "gamma": gamma,
        "epoch_factor": foreign("MULTIGRID.epoch_factor", 1.5),
        "bn_base_size": foreign("MULTIGRID.bn_base_size", 8),
        **cycles,
    }
