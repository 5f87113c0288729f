"""Samples for the comparison of an exported model with the original, and for the calibration of INT8."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.contracts import ExportModule, GlobalBatch, Sample, are_8bit_images, channel_count
from opabinia.data import ValidationStream
from opabinia.data.errors import DataError
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import Request
from opabinia.inference.predictor import Predictor
from opabinia.inference.splits import TRAIN, select_split, sets_for
from opabinia.runtime.text import plural
from opabinia.tasks.dense_base import PaddedExport, padded_inputs
from opabinia.tasks.multitask import Multitask
from opabinia.training.run_folder import build_parts

COMPARED = 8
"""Number of samples on which models are compared."""

SIDE, FRAMES = 256, 64
"""Side in pixels of random images, and frames of random videos."""


def select_samples(
    resolved: Resolved, predictor: Predictor, count: int, tasks: Sequence[str] = ()
) -> tuple[list[Sample], str]:
    """Return transformed samples at even distances from the validation data, or random ones if it cannot be read, and a
    description of their origin.

    Args:
        resolved: the run's config.
        predictor: transforms random images.
        count: number of samples.
        tasks: tasks of a multi-task run; the validation data is that of the first one that has some.
    """
    try:
        prefixes = sets_for(resolved, tasks)
        if not prefixes:
            raise ValueError("the run has no validation set")
        samples = split_samples(resolved, prefixes[0], count)
        return samples, f"{plural(len(samples), 'sample')} of the validation data"
    except (ConfigError, DataError, OSError, ValueError) as error:
        logging.getLogger("opabinia").info("the validation data cannot be read: %s", error)
    generator = torch.Generator().manual_seed(0)
    shape = (*([FRAMES] if predictor.takes_video else []), channel_count(predictor.channels), SIDE, SIDE)
    images = (torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8) for _ in range(count))
    if not are_8bit_images(predictor.channels):
        images = (image / 255 for image in images)
    origin = f"{count} random {'videos' if predictor.takes_video else 'images'} (the validation data cannot be read)"
    return [predictor.sample(image) for image in images], origin


def split_samples(resolved: Resolved, split: str, count: int) -> list[Sample]:
    """Return ``image`` of samples at even distances from a split, read with validation transforms.

    Raises:
        ConfigError: there is no such split, or its data does not exist.
        DataError: a sample cannot be read.
    """
    stream: ValidationStream = build_parts(select_split(resolved, split)).keywords["data"].validation[0]
    total = len(stream.source)
    reader = BatchReader(stream.source, stream.transforms)
    samples: list[Sample] = []
    for number in np.linspace(0, total - 1, min(count, total)).astype(np.int64):
        index = np.array([number])
        batch = reader.read(Request(GlobalBatch(step=0, epoch=0, first=int(number), count=1), index, index)).batch
        if batch is not None:
            samples.append({"image": batch["image"][0]})
    return samples


def fitting_tasks(resolved: Resolved, task: Multitask, size: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the tasks whose validation images a graph for images of one size takes, or that have none, and for each
    other task a line about it.

    Args:
        resolved: the run's config.
        task: the model.
        size: height and width of the images; tasks that pad theirs take smaller ones, too.
    """
    fitting, others = list[str](), list[str]()
    for name, subtask in task.tasks.items():
        prefixes = sets_for(resolved, [name])
        try:
            samples = split_samples(resolved, prefixes[0], COMPARED) if prefixes else []
        except (ConfigError, DataError, OSError, ValueError):
            samples = []
        multiple = task.size_multiple_of(name) or 1
        images = [padded_inputs([sample], multiple)["image"] for sample in samples]
        smaller = isinstance(subtask.export_module(), PaddedExport)
        wrong = [
            image
            for image in images
            for side, most in zip(image.shape[-2:], size, strict=True)
            if (side > most if smaller else side != most)
        ]
        if wrong:
            sides = " x ".join(map(str, wrong[0].shape[-2:]))
            others.append(f"{name}: its validation images have {sides} pixels; the file takes {size[0]} x {size[1]}")
        else:
            fitting.append(name)
    return fitting, others


def calibration_inputs(
    resolved: Resolved, module: ExportModule, compared: Sequence[Sample], count: int, tasks: Sequence[str] = ()
) -> list[dict[str, Tensor]]:
    """Return images of the training split, read with the validation transforms, as inputs of a graph, one at a time.

    Args:
        resolved: the run's config.
        module: the model.
        compared: samples of the graph's size.
        count: maximum number of images.
        tasks: tasks of a multi-task run; the images are those of the first one.

    Raises:
        ConfigError: the split has no images, they cannot be read, or they have another size than the graph takes.
    """
    reason = "the split has no images"
    split = TRAIN
    if tasks:
        split = f"{resolved.config['task']['tasks'][tasks[0]]['stream'] or tasks[0]}/{TRAIN}"
    try:
        samples = split_samples(resolved, split, count)
        expected, actual = module.inputs(compared)["image"], module.inputs([*compared, *samples])
        if actual["image"].shape[1:] != expected.shape[1:]:
            largest, size = (" x ".join(map(str, image.shape[-2:])) for image in (actual["image"], expected))
            reason, samples = f"{largest} pixels; the graph takes {size}: end data.val.transforms with that size", []
    except ConfigError as error:  # reported for training and validation data, which the split stands for
        reason, samples = error.problems[0].message, []
    except (OSError, ValueError) as error:
        reason, samples = str(error), []
    if not samples:
        raise ConfigError(Problem("", "data.train", f"INT8 is calibrated with images of the training split: {reason}"))
    rows = range(len(expected), len(actual["image"]))
    return [{name: value[row : row + 1] for name, value in actual.items()} for row in rows]
