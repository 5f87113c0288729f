"""PaddleVideo's configs of SlowFast, with multigrid training or without, as configs of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, listing, show
from opabinia.config.tree import read_file

BACKBONE = "ResNetSlowFast"

LONG_CYCLE = [{"value": value} for value in ([0.25, 0.7071], [0.5, 0.7071], [0.5, 1], [1, 1])]
"""PaddleVideo's, where a config does not say it."""

WITHOUT_HOME = (
    *("OPTIMIZER.name", "OPTIMIZER.weight_decay.name", "OPTIMIZER.learning_rate.max_epoch", "MODEL.framework"),
    *("OPTIMIZER.learning_rate.name", "PIPELINE.train.decode_sampler.name", "MODEL.backbone.width_per_group"),
    *("MODEL.backbone.bn_norm_type", "MODEL.head.name"),
    *("MODEL.head.width_per_group", "MODEL.head.alpha", "MODEL.head.beta", "MODEL.head.num_classes"),
    *("MODEL.head.num_frames", "MODEL.head.crop_size", "MODEL.head.multigrid_short", "METRIC", "model_name"),
    *("PIPELINE.train.transform.Image2Array", "PIPELINE.train.transform.PackOutput", "PIPELINE.test", "log_level"),
    *("PIPELINE.train.transform.Normalization.tensor_shape", "OPTIMIZER.learning_rate.iter_step", "PIPELINE.valid"),
    *("MULTIGRID.default_batch_size", "MULTIGRID.default_temporal_size", "MULTIGRID.default_crop_size"),
    *("MULTIGRID.long_cycle_sampling_rate", "DATASET.train.format", "DATASET.valid.format", "DATASET.test"),
)
"""What is told by the data here, filled in at run time there, or said by something else."""


class Converted(NamedTuple):
    """A config of ours.

    Attributes:
        config: what ``opabinia train`` takes.
        notes: what a person is to know of it, a sentence each.
    """

    config: dict[str, Any]
    notes: list[str]


def convert(file: Path, cards: int) -> Converted:
    """A PaddleVideo config, with the batch of all cards in the place of that of each.

    Args:
        file: its YAML.
        cards: on how many it was trained.

    Raises:
        ConfigError: it cannot be read, is of another model, or has no value where one is needed.
    """
    problems: list[Problem] = []
    node = read_file(file, problems)
    if problems or node is None:
        raise ConfigError(problems or Problem(str(file), "", "it is empty"))
    foreign = _Foreign(str(file), node.plain())
    if (name := foreign("MODEL.backbone.name")) != BACKBONE:
        raise ConfigError(
            Problem(str(file), "MODEL.backbone.name", f"{show(name)} is not known here", allowed=BACKBONE)
        )
    per_card = foreign.number("DATASET.batch_size")
    config = {
        "task": _task(foreign),
        "data": {**_data(foreign), "batch_size": per_card * cards, "workers": foreign("DATASET.num_workers", 0)},
        **_optimizer(foreign),
        **_hooks(foreign),
        "train": {"length": f"{foreign.number('epochs')}ep"},
        "evaluate": {"every": f"{foreign('val_interval', 1)}ep"},
    }
    notes = [
        f"data.batch_size: {per_card} samples a card on {cards} cards are {per_card * cards} over all processes",
        "validation sees the middle of films and crops; PaddleVideo's configs draw both there, too",
    ]
    if left := foreign.left():
        notes.append(f"not taken over, as nothing here answers to it: {listing(left, 50)}")
    return Converted(config, notes)


class _Foreign:
    """A foreign config, which remembers what was asked for.

    Args:
        file: its name.
        tree: what is in it.
    """

    def __init__(self, file: str, tree: Any) -> None:
        self._file = file
        self._values = dict(_leaves(tree))
        self._asked: set[str] = set()

    def __call__(self, path: str, default: Any = None) -> Any:
        """The value at a path."""
        self._asked.add(path)
        return self._values.get(path, default)

    def __contains__(self, path: str) -> bool:
        """Whether there is such a value, be it null, or such a section."""
        return any(one == path or one.startswith(f"{path}.") for one in self._values)

    def number(self, path: str) -> Any:
        """The number at a path.

        Raises:
            ConfigError: there is none.
        """
        value = self(path)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(Problem(self._file, path, f"a number is needed, and there is {show(value)}"))
        return value

    def left(self) -> list[str]:
        """Paths that nobody has asked for, without those that need no home."""
        return [
            path
            for path in self._values
            if path not in self._asked and not any(f"{path}.".startswith(f"{one}.") for one in WITHOUT_HOME)
        ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; lists of steps with a name each are taken for mappings."""
    if isinstance(value, list) and value and all(isinstance(one, dict) and len(one) == 1 for one in value):
        steps = {name: keys for one in value for name, keys in one.items()}
        value = steps if len(steps) == len(value) else value
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}".lstrip("."))


# --- sections ---------------------------------------------------------------------------------------------------------


def _task(foreign: _Foreign) -> dict[str, Any]:
    keys = {"depth": "depth", "alpha": "alpha", "beta": "beta", "fusion_kernel": "fusion_kernel_sz"}
    backbone = {ours: foreign(f"MODEL.backbone.{theirs}") for ours, theirs in keys.items()}
    normalization = "PIPELINE.train.transform.Normalization"
    return {
        "name": "video",
        "backbone": {"name": "slowfast", **_told(backbone)},
        "dropout": foreign("MODEL.head.dropout_rate", 0.5),
        **_told({"mean": foreign(f"{normalization}.mean"), "std": foreign(f"{normalization}.std")}),
    }


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _data(foreign: _Foreign) -> dict[str, Any]:
    clip = {"name": "clip", **_told(_clip(foreign, "train"))}
    steps = "PIPELINE.train.transform"
    size = foreign.number(f"{steps}.MultiCrop.target_size")
    sides = [foreign.number(f"{steps}.JitterScale.{end}") for end in ("min_size", "max_size")]
    training = [clip, {"name": "scale_jitter", "size": size, "scale": sides}]
    flipped = f"{steps}.RandomFlip"
    if flipped in foreign:
        chance = foreign(f"{flipped}.p")
        foreign(flipped)
        training.append({"name": "clip_flip", **_told({"probability": chance})})
    looking = [{**clip, "place": "middle"}, {"name": "three_crop", "size": size}]
    validation = {"source": _source(foreign, "valid"), "transforms": looking}
    views = foreign("DATASET.test.num_ensemble_views"), foreign("DATASET.test.num_spatial_crops")
    tests = []
    if None not in views:
        seen = {"name": "views_of_films", "source": _source(foreign, "test"), "clips": views[0], "crops": views[1]}
        tests = [{"prefix": "views", "every": "0ep", "source": seen, "transforms": looking}]
    return {
        "train": {"source": _source(foreign, "train"), "transforms": training},
        "val": [validation, *tests],
    }


def _clip(foreign: _Foreign, split: str) -> dict[str, Any]:
    sampler = f"PIPELINE.{split}.decode_sampler"
    return {"frames": foreign.number(f"{sampler}.num_frames"), "stride": foreign(f"{sampler}.sampling_rate")}


def _source(foreign: _Foreign, split: str) -> dict[str, Any]:
    files = {"file": foreign(f"DATASET.{split}.file_path"), "root": foreign(f"DATASET.{split}.data_prefix")}
    return {"name": "video_list", **_told(files)}


def _optimizer(foreign: _Foreign) -> dict[str, Any]:
    """``optimizer``, ``schedule`` and, of multigrid training, ``shapes``."""
    rate = "OPTIMIZER.learning_rate"
    steps = foreign(f"{rate}.steps")
    lr = foreign.number(f"{rate}.step_base_lr" if steps else f"{rate}.cosine_base_lr")
    gamma = foreign(f"{rate}.gamma", 0.1)
    lrs = foreign(f"{rate}.lrs") or []
    if any(abs(one - gamma**power) > 1e-6 * one for power, one in enumerate(lrs)):
        raise ConfigError(Problem("", f"{rate}.lrs", f"{show(lrs)} are no powers of gamma ({gamma})"))
    cycles = _cycles(foreign)
    shapes = _shapes(foreign, steps, gamma, cycles) if cycles else None
    first = round(1 / (cycles["long_cycle"][0][0] * cycles["long_cycle"][0][1] ** 2)) if cycles.get("long_cycle") else 1
    warmup = {
        "warmup": f"{foreign(f'{rate}.warmup_epochs', 0)}ep",
        "warmup_factor": foreign(f"{rate}.warmup_start_lr", lr) / (lr * first),
    }
    schedule: dict[str, Any]
    if shapes:
        schedule = {"name": "constant"}
    elif steps:
        schedule = {"name": "multi_step", "milestones": [f"{step}ep" for step in steps[1:]], "gamma": gamma}
    else:
        schedule = {"name": "cosine", "rule": "sliced"}
    optimizer = {
        "name": "sgd",
        "lr": lr,
        "momentum": foreign("OPTIMIZER.momentum", 0.9),
        "nesterov": foreign("OPTIMIZER.use_nesterov", False),
        "weight_decay": foreign("OPTIMIZER.weight_decay.value", 0.0),
    }
    return {"optimizer": optimizer, "schedule": {**schedule, **warmup}, **({"shapes": shapes} if shapes else {})}


def _cycles(foreign: _Foreign) -> dict[str, Any]:
    """``long_cycle`` and ``short_cycle``; nothing without multigrid training."""
    long, short = (bool(foreign(f"MULTIGRID.{name}_CYCLE", False)) for name in ("LONG", "SHORT"))
    factors = [one["value"] for one in foreign("MULTIGRID.long_cycle_factors") or LONG_CYCLE]
    turns = foreign("MULTIGRID.short_cycle_factors") or [0.5, 0.7071]
    return {"long_cycle": factors if long else [], "short_cycle": turns if short else []} if long or short else {}


def _shapes(foreign: _Foreign, steps: Any, gamma: float, cycles: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": "multigrid",
        "frames": foreign.number("PIPELINE.train.decode_sampler.num_frames"),
        "size": foreign.number("PIPELINE.train.transform.MultiCrop.target_size"),
        "milestones": list(steps or [])[1:],
        "gamma": gamma,
        "epoch_factor": foreign("MULTIGRID.epoch_factor", 1.5),
        "bn_base_size": foreign("MULTIGRID.bn_base_size", 8),
        **cycles,
    }


def _hooks(foreign: _Foreign) -> dict[str, Any]:
    every, batches = foreign("PRECISEBN.preciseBN_interval"), foreign("PRECISEBN.num_iters_preciseBN", 200)
    if every is None:
        return {}
    return {"hooks": {"precise_norm": {"name": "precise_norm", "every": f"{every}ep", "batches": batches}}}
