"""PaddleVideo's configs of SlowFast, with multigrid training or without, as configs of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node, read_file, read_text
from opabinia.migration.foreign_config import Foreign, Written, put
from opabinia.migration.recipe import Recipe

BACKBONE = "ResNetSlowFast"

LONG_CYCLE = [{"value": value} for value in ([0.25, 0.7071], [0.5, 0.7071], [0.5, 1], [1, 1])]
"""PaddleVideo's, where a config does not say it."""

BY_DATA = "follows from the data or the network"
REASONS = {
    "OPTIMIZER.name": "momentum is the optimizer sgd",
    "OPTIMIZER.weight_decay.name": "weight decay is of this kind",
    "OPTIMIZER.learning_rate.name": "told by the other keys",
    "OPTIMIZER.learning_rate.max_epoch": "epochs is taken",
    "OPTIMIZER.learning_rate.iter_step": "rates change with every step",
    "MODEL.framework": "the task is video",
    "MODEL.backbone.width_per_group": BY_DATA,
    "MODEL.backbone.bn_norm_type": "shapes.bn_base_size says how norms are split",
    "MODEL.head": BY_DATA,
    "METRIC": "the task has its scores",
    "model_name": "the run's name is --name",
    "log_level": "see train.log_every",
    "PIPELINE.train.decode_sampler.name": "the transform clip",
    "PIPELINE.train.transform.Image2Array": "clips are arrays",
    "PIPELINE.train.transform.PackOutput": "slowfast makes its own pathways",
    "PIPELINE.train.transform.Normalization.tensor_shape": BY_DATA,
    "PIPELINE.valid": "validation sees the middle of films, with the sizes of training",
    "PIPELINE.test": "views are seen with the sizes of training",
    "MULTIGRID.default_batch_size": "filled in at run time there",
    "MULTIGRID.default_temporal_size": "filled in at run time there",
    "MULTIGRID.default_crop_size": "filled in at run time there",
    "MULTIGRID.long_cycle_sampling_rate": "filled in at run time there",
    "DATASET.train.format": "the source is a list of films",
    "DATASET.valid.format": "the source is a list of films",
    "DATASET.test": "the source is a list of films",
}


def convert(file: Path, cards: int, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a config of PaddleVideo, with the batch of all cards in the place of that of each.

    Args:
        file: its YAML.
        cards: on how many it was trained.
        overrides: ``OPTIMIZER.momentum=0.8``; lists of steps are not changed so.

    Raises:
        ConfigError: it cannot be read, is of another model, or has no value where one is needed.
    """
    tree = _read(file, overrides)
    foreign = Foreign("PaddleVideo", str(file), dict(_leaves(tree)), {}, REASONS)
    if (name := foreign("MODEL.backbone.name")) != BACKBONE:
        raise foreign.problem("MODEL.backbone.name", f"{show(name)} is not known here", BACKBONE)
    recipe = Recipe(foreign)
    _task(recipe)
    _data(recipe, cards)
    _optimizer(recipe)
    every, batches = foreign("PRECISEBN.preciseBN_interval"), foreign("PRECISEBN.num_iters_preciseBN", 200)
    if every is not None:
        hook = {"name": "precise_norm", "every": f"{every}ep", "batches": batches}
        recipe.put("hooks.precise_norm", hook, "PRECISEBN.preciseBN_interval", "PRECISEBN.num_iters_preciseBN")
    recipe.put("train.length", f"{foreign.number('epochs')}ep", "epochs")
    recipe.put("evaluate.every", f"{foreign('val_interval', 1)}ep", "val_interval")
    recipe.note("validation sees the middle of films and crops; PaddleVideo's configs draw both there, too")
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
            problems.append(Problem(where, "", "a change is written OPTIMIZER.momentum=0.8"))
        else:
            tree = put(tree, key.split("."), node)
    if problems or tree is None or not isinstance(tree.value, dict):
        raise ConfigError(problems or Problem(str(file), "", "is no mapping of keys to values"))
    return tree


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Written]]:
    """Every value with its path; lists of steps with a name each are taken for mappings."""
    sections: Any = node.value
    if isinstance(sections, list) and all(isinstance(one.value, dict) and len(one.value) == 1 for one in sections):
        steps = {name: inner for one in sections for name, inner in one.value.items()}
        sections = steps if len(steps) == len(sections) else sections
    if not isinstance(sections, Mapping) or not sections:
        yield path, Written(node.plain(), node.where)
        return
    for key, inner in sections.items():
        yield from _leaves(inner, f"{path}.{key}".lstrip("."))


# --- sections ---------------------------------------------------------------------------------------------------------


def _task(recipe: Recipe) -> None:
    keys = {"depth": "depth", "alpha": "alpha", "beta": "beta", "fusion_kernel": "fusion_kernel_sz"}
    recipe.put("task.name", "video")
    recipe.put("task.backbone.name", "slowfast", "MODEL.backbone.name")
    for ours, theirs in keys.items():
        _told(recipe, f"task.backbone.{ours}", f"MODEL.backbone.{theirs}")
    recipe.put("task.dropout", recipe.foreign("MODEL.head.dropout_rate", 0.5), "MODEL.head.dropout_rate")
    for name in ("mean", "std"):
        _told(recipe, f"task.{name}", f"PIPELINE.train.transform.Normalization.{name}")


def _told(recipe: Recipe, ours: str, theirs: str) -> None:
    """A value that is taken over where there is one."""
    if (value := recipe.foreign(theirs)) is not None:
        recipe.put(ours, value, theirs)


def _data(recipe: Recipe, cards: int) -> None:
    foreign = recipe.foreign
    steps, sampler = "PIPELINE.train.transform", "PIPELINE.train.decode_sampler"
    stride = foreign(f"{sampler}.sampling_rate")
    clip = {"name": "clip", "frames": foreign.number(f"{sampler}.num_frames")}
    clip |= {"stride": stride} if stride is not None else {}
    size = foreign.number(f"{steps}.MultiCrop.target_size")
    sides = [foreign.number(f"{steps}.JitterScale.{end}") for end in ("min_size", "max_size")]
    training = [clip, {"name": "scale_jitter", "size": size, "scale": sides}]
    flipped = f"{steps}.RandomFlip"
    if flipped in foreign:
        chance = foreign(f"{flipped}.p")
        foreign(flipped)
        training.append({"name": "clip_flip", **({"probability": chance} if chance is not None else {})})
    looking = [{**clip, "place": "middle"}, {"name": "three_crop", "size": size}]
    recipe.put("data.train.source", _source(recipe, "train"), "DATASET.train.file_path")
    recipe.put("data.train.transforms", training, f"{sampler}.num_frames", f"{steps}.MultiCrop.target_size")
    sets: list[dict[str, Any]] = [{"source": _source(recipe, "valid"), "transforms": looking}]
    clips, crops = (foreign(f"DATASET.test.num_{what}") for what in ("ensemble_views", "spatial_crops"))
    if clips is not None and crops is not None:
        views = {"name": "views_of_films", "source": _source(recipe, "test"), "clips": clips, "crops": crops}
        sets.append({"prefix": "views", "every": "0ep", "source": views, "transforms": looking})
    recipe.put("data.val", sets, "DATASET.valid.file_path", "DATASET.test.num_ensemble_views")
    each = foreign.number("DATASET.batch_size")
    recipe.put("data.batch_size", each * cards, "DATASET.batch_size")
    recipe.put("data.workers", foreign("DATASET.num_workers", 0), "DATASET.num_workers")
    recipe.note(f"data.batch_size: {each} samples a card on {cards} cards are {each * cards} over all processes")


def _source(recipe: Recipe, split: str) -> dict[str, Any]:
    files = {
        "file": recipe.foreign(f"DATASET.{split}.file_path"),
        "root": recipe.foreign(f"DATASET.{split}.data_prefix"),
    }
    return {"name": "video_list", **{key: value for key, value in files.items() if value is not None}}


def _optimizer(recipe: Recipe) -> None:
    """``optimizer``, ``schedule`` and, of multigrid training, ``shapes``."""
    foreign, rate = recipe.foreign, "OPTIMIZER.learning_rate"
    steps = _numbers(foreign, f"{rate}.steps")
    base = f"{rate}.step_base_lr" if steps else f"{rate}.cosine_base_lr"
    lr, gamma = foreign.number(base), foreign(f"{rate}.gamma", 0.1)
    lrs = _numbers(foreign, f"{rate}.lrs")
    if not lr:
        raise foreign.problem(base, "must not be 0")
    if any(abs(one - gamma**power) > 1e-6 * one for power, one in enumerate(lrs)):
        raise foreign.problem(f"{rate}.lrs", f"{show(lrs)} are no powers of gamma ({gamma})")
    cycles = _cycles(foreign)
    long = cycles.get("long_cycle")
    first = round(1 / (long[0][0] * long[0][1] ** 2)) if long else 1
    schedule: dict[str, Any] = {"name": "cosine", "rule": "sliced"}
    if cycles:
        recipe.put("shapes", _shapes(foreign, steps, gamma, cycles), "MULTIGRID.LONG_CYCLE", "MULTIGRID.SHORT_CYCLE")
        schedule = {"name": "constant"}
    elif steps:
        schedule = {"name": "multi_step", "milestones": [f"{step}ep" for step in steps[1:]], "gamma": gamma}
    warmup = {
        "warmup": f"{foreign(f'{rate}.warmup_epochs', 0)}ep",
        "warmup_factor": foreign(f"{rate}.warmup_start_lr", lr) / (lr * first),
    }
    recipe.put("schedule", {**schedule, **warmup}, *foreign.keys(rate))
    recipe.put("optimizer.name", "sgd")
    recipe.put("optimizer.lr", lr, base)
    keys = {
        "momentum": ("momentum", 0.9),
        "nesterov": ("use_nesterov", False),
        "weight_decay": ("weight_decay.value", 0.0),
    }
    for ours, (theirs, default) in keys.items():
        recipe.put(f"optimizer.{ours}", foreign(f"OPTIMIZER.{theirs}", default), f"OPTIMIZER.{theirs}")


def _numbers(foreign: Foreign, path: str) -> list[Any]:
    """A list of numbers; empty where there is none."""
    values = foreign(path) or []
    if not isinstance(values, list) or any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise foreign.problem(path, f"a list of numbers is needed, and there is {show(values)}")
    return values


def _cycles(foreign: Foreign) -> dict[str, Any]:
    """``long_cycle`` and ``short_cycle``; nothing without multigrid training."""
    long, short = (bool(foreign(f"MULTIGRID.{name}_CYCLE", False)) for name in ("LONG", "SHORT"))
    path = "MULTIGRID.long_cycle_factors"
    factors = [one.get("value") for one in foreign(path, LONG_CYCLE) if isinstance(one, dict)]
    if any(not isinstance(one, list) or len(one) != 2 or not all(one) for one in factors):
        raise foreign.problem(path, f"{show(factors)}: pairs of numbers are needed")
    turns = foreign("MULTIGRID.short_cycle_factors") or [0.5, 0.7071]
    return {"long_cycle": factors if long else [], "short_cycle": turns if short else []} if long or short else {}


def _shapes(foreign: Foreign, steps: Any, gamma: float, cycles: Mapping[str, Any]) -> dict[str, Any]:
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
