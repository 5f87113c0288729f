"""The description that is written with an exported model: inputs, outputs, scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opabinia.config import Resolved
from opabinia.config.datasets import validation_sets
from opabinia.contracts import are_8bit_images, pixels_of
from opabinia.engine.checkpointing.checkpoint import read_state
from opabinia.engine.loggers.metrics_log import from_json_numbers
from opabinia.inference.class_thresholds import chosen_thresholds
from opabinia.inference.predictor import Predictor
from opabinia.inference.splits import sets_for
from opabinia.models.layers import Normalize
from opabinia.runtime.json_files import read_json
from opabinia.runtime.version import __version__
from opabinia.tasks.multitask import Multitask

_RANGES = {torch.uint8: "0 to 255", torch.float32: "0 to 1"}


@dataclass(frozen=True)
class Description:
    """Description of an exported model.

    Attributes:
        name: name of the run.
        task: name of the task in the config.
        classes: names in the order of the outputs; empty if there are none.
        channels: number of channels of the images; 3 are RGB.
        pixels: how files with other channels or values than 8-bit color or gray are read
            (:class:`opabinia.contracts.Pixels`); None: 8-bit color or gray.
        size: height and width of the images.
        dtype: type of ``image``: ``uint8`` or ``float32``.
        value_range: range of its values.
        mean, std: statistics of images in 0 to 1, by which the model normalizes them itself; empty if it does not.
        transforms: transforms of the validation data, as in the config; their result is ``image``.
        resize: what they come to: ``crop`` (the shorter side is resized, and the center cropped), ``stretch``, ``fit``
            (a detector's: within ``size``) or ``shrink`` (likewise, smaller images keep their size).
        crop: share of the resized shorter side that is cropped.
        scores: scores of the last evaluation up to the checkpoint, or of the run's last one.
        step: step of the checkpoint.
        tasks: ``task``, ``classes`` and ``keypoints`` of each task of a multi-task run by its name, with which its
            outputs begin.
        keypoints: names of the keypoints of an object, in the order of the output; empty if there are none.
        thresholds: minimum scores by class that an evaluation has chosen; None: there are none.
        batch_size: number of samples that the graph takes: ``dynamic``, or the only one.
        version: version of this library.
    """

    name: str
    task: str
    classes: tuple[str, ...]
    channels: int
    size: tuple[int, int]
    dtype: str
    value_range: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    transforms: list[dict[str, Any]]
    resize: str
    crop: float
    scores: dict[str, float]
    step: int
    tasks: dict[str, dict[str, Any]]
    keypoints: tuple[str, ...] = ()
    pixels: dict[str, Any] | None = None
    thresholds: dict[str, float] | None = None
    batch_size: str = "dynamic"
    version: str = __version__

    def metadata(self) -> dict[str, str]:
        """Return texts by name, for formats that store nothing else; values that are not texts become JSON."""
        return {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in asdict(self).items()
        }


def describe(
    run: Path, checkpoint: Path, resolved: Resolved, predictor: Predictor, image: Tensor, tasks: Sequence[str]
) -> Description:
    """Describe a run's model.

    Args:
        run: the run folder.
        checkpoint: its folder.
        resolved: the run's config.
        predictor: the model.
        image: inputs (B x ... x C x H x W).
        tasks: tasks of the model of a multi-task run.
    """
    task, section = predictor.task, resolved.config["task"]
    sections = {name: section["tasks"][name]["task"] for name in tasks}
    prefixes = sets_for(resolved, tasks)
    sets = [section for section in validation_sets(resolved.config) if section["prefix"] in prefixes]
    transforms = sets[0]["transforms"] if sets else []
    resize, crop = resize_rule(transforms, min(image.shape[-2:]))
    if task.size_multiple:
        resize = "fit" if transforms else "shrink"
    state, results = read_state(checkpoint), run / "results.json"
    final = read_json(results, dict[str, float]) if results.is_file() else {}
    chosen = chosen_thresholds(run, str(checkpoint))
    normalize = next((module for module in task.modules() if isinstance(module, Normalize)), None)
    return Description(
        name="/".join(run.resolve().parts[-2:]),
        task=sections[tasks[0]]["name"] if len(tasks) == 1 else section["name"],
        classes=predictor.classes,
        channels=image.shape[-3],
        size=(image.shape[-2], image.shape[-1]),
        dtype=str(image.dtype).removeprefix("torch."),
        value_range=_RANGES.get(image.dtype, "as the transforms give it"),
        mean=_numbers(normalize.mean) if normalize else (),
        std=_numbers(normalize.std) if normalize else (),
        transforms=transforms,
        resize=resize,
        crop=crop,
        scores=from_json_numbers(state["scores"]) or final,
        step=state["step"],
        tasks={
            name: {
                "task": sections[name]["name"],
                "classes": subtask.dataset_info.classes,
                "keypoints": subtask.dataset_info.keypoints,
            }
            for name, subtask in (task.tasks.items() if isinstance(task, Multitask) else ())
        },
        keypoints=predictor.dataset_info.keypoints,
        thresholds=None if chosen is None else chosen.values,
        pixels=None if are_8bit_images(predictor.channels) else asdict(pixels_of(predictor.channels)),
    )


def resize_rule(transforms: Sequence[Mapping[str, Any]], side: int) -> tuple[str, float]:
    """Return ``resize`` and ``crop`` of a :class:`Description` for transforms that give images of this shorter side."""
    for transform in transforms:
        if transform["name"] == "resize_and_crop":
            return "crop", transform["crop"]
        size = transform.get("size") if transform["name"] == "Resize" else None
        if size is not None and np.size(size) == 1:
            return "crop", min(1.0, side / int(np.ravel(size)[0]))
    return "stretch", 1.0


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 6) for value in values.flatten().tolist())
