"""The mean and std of the images that initial weights were trained on, compared with those of the task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import timm
from annotated_types import MinLen
from torch import nn
from typing_extensions import TypedDict

from opabinia.config import compose
from opabinia.models.backbones.timm import fit_channels
from opabinia.models.layers import Normalize, default_normalization
from opabinia.models.weights.checkpoints import find_checkpoint
from opabinia.models.weights.download import HUB, hub_file
from opabinia.runtime.json_files import check_fields, read_json
from opabinia.runtime.log import log

PREPROCESSING = ("preprocessor_config.json", "config.json")
"""Files of transformers and of timm on the Hugging Face Hub that have mean and std."""

Values = Annotated[list[float], MinLen(1)]


class _Task(TypedDict, total=False):
    mean: Values | None
    std: Values | None
    backbone: dict[str, Any]


class _Facts(TypedDict):
    channels: int


class _State(TypedDict):
    facts: _Facts


class _Timm(TypedDict, total=False):
    mean: Values
    std: Values


class _Preprocessing(_Timm, total=False):
    pretrained_cfg: _Timm
    do_normalize: bool
    image_mean: Values
    image_std: Values


def warn_of_other_normalization(task: nn.Module, weights: Path) -> None:
    """Log a warning if weights were trained on images with another mean or std than those of the task.

    Args:
        task: the model.
        weights: see :class:`opabinia.models.weights.init.Init`.
    """
    trained = None
    with suppress(ValueError):  # nothing that the weights need: they have been loaded
        trained = trained_normalization(weights)
    normalize = next((module for module in task.modules() if isinstance(module, Normalize)), None)
    if trained is None or normalize is None:
        return
    task_values = [values.flatten().tolist() for values in (normalize.mean, normalize.std)]
    if not all(
        np.allclose(fit_channels(theirs, len(values)), values, rtol=5e-3, atol=1e-4)
        for theirs, values in zip(trained, task_values, strict=True)
    ):
        mean, std, task_mean, task_std = ([round(value, 4) for value in values] for values in (*trained, *task_values))
        message = "init: %s was trained with the mean %s and the std %s of images, task.mean is %s and task.std %s"
        log.warning(message, weights, mean, std, task_mean, task_std)


def trained_normalization(weights: Path) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the mean and std, of images in 0..1, that weights were trained with: those of a run or of a folder of the
    Hugging Face Hub; None for other weights.

    Args:
        weights: see :class:`opabinia.models.weights.init.Init`.

    Raises:
        ValueError: there are no such weights, or a file next to them is damaged.
    """
    if str(weights).startswith(HUB):
        folder = hub_file(str(weights).removeprefix(HUB), PREPROCESSING).parent
    else:
        folder = find_checkpoint(weights) if weights.is_dir() else weights.parent
    run = folder.parent.parent
    if (folder / "state.json").is_file() and (run / "config.yaml").is_file():
        task = check_fields(compose(run).root.plain().get("task"), _Task, f"{run / 'config.yaml'}: task")
        return _of_run(task, read_json(folder / "state.json", _State)["facts"]["channels"])
    file = next((folder / name for name in PREPROCESSING if (folder / name).is_file()), None)
    return None if file is None else _of_preprocessing(read_json(file, _Preprocessing))


def _of_run(task: _Task, channels: int) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the values of a run; those that its config does not have are the defaults of its backbone."""
    mean, std = default_normalization(channels)
    backbone = task.get("backbone", {})
    if backbone.get("pretrained"):
        config = timm.get_pretrained_cfg(str(backbone.get("model"))) if backbone.get("name") == "timm" else None
        if config is None:
            return None
        mean, std = fit_channels(config.mean, channels), fit_channels(config.std, channels)
    return task.get("mean") or mean, task.get("std") or std


def _of_preprocessing(file: _Preprocessing) -> tuple[Sequence[float], Sequence[float]] | None:
    if "image_mean" in file and "image_std" in file:
        return (file["image_mean"], file["image_std"]) if file.get("do_normalize", True) else ((0.0,), (1.0,))
    config: _Timm = file.get("pretrained_cfg", file)
    return (config["mean"], config["std"]) if "mean" in config and "std" in config else None
