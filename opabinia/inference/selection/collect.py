"""The unlabeled images, what a model predicts for them, and the labeled images that it was trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import ConfigError, Problem
from opabinia.config.datasets import subtasks
from opabinia.config.errors import listing
from opabinia.contracts import EMBEDDING, Predictions, Source
from opabinia.data.check.image_hash import ImageHash, compute_hash, connect, find_near_pairs
from opabinia.data.errors import DataError
from opabinia.evaluation.selection.batches import Floats, Ints, unit_rows
from opabinia.evaluation.selection.uncertainty import Measure
from opabinia.inference.extract import FEATURES, extract
from opabinia.inference.input_files import read_batches
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.selection.scoring import UNCERTAINTY, score
from opabinia.inference.splits import TRAIN, open_split
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.storage import shown_path
from opabinia.training.run_folder import resolve
from opabinia.visualization.video_strips import representative_image


@dataclass(frozen=True)
class Collected:
    """The images that can be read.

    Attributes:
        paths: paths of N images.
        captions: the prediction of each in words.
        uncertainty: uncertainty of each (N); None if the model predicts no classes.
        features: float32, N x D, rows of length 1; None without.
        groups: group of near-duplicates of each (int64, N).
        errors: messages about files that cannot be read.
    """

    paths: list[Path]
    captions: list[str]
    uncertainty: Floats | None
    features: Floats | None
    groups: Ints
    errors: list[str] = field(default_factory=list)


def collect(
    predictor: Predictor,
    paths: Sequence[Path],
    measure: Measure,
    *,
    embed: bool,
    check: Callable[[Collection[str]], object],
) -> Collected:
    """Predict images, with their uncertainty, features and near-duplicates.

    Args:
        predictor: the model.
        paths: files.
        measure: measure of uncertainty.
        embed: compute features.
        check: called with the names of the predictions of the first image, before others are predicted.

    Raises:
        ConfigError: no file can be read; or what ``check`` raises.
        DataError: features or uncertainty of an image are not finite.
    """
    errors, read = list[str](), list[Path]()
    captions, hashes = list[str](), list[ImageHash | None]()
    columns: dict[str, list[NDArray[Any]]] = {}
    predict = partial(score, predictor, measure, embed)
    with progress_bar("predict", len(paths), unit="images") as bar:
        for batch in read_batches(predictor, paths, errors):
            rows = predictor.outputs(batch.samples, predict)
            for (path, original, _), row in bar.track(zip(batch, rows, strict=True)):
                if not read:
                    check(row)
                for name in (UNCERTAINTY, EMBEDDING):
                    if name in row:
                        columns.setdefault(name, []).append(_finite(row[name].numpy(), name, path))
                captions.append(caption(predictor, row))
                hashes.append(compute_hash(representative_image(original)[None]))
                read.append(path)
    if not read:
        raise ConfigError(Problem("command line", "", "no image can be read: " + "; ".join(errors[:3])))
    uncertainty, features = (np.stack(columns[name]) if name in columns else None for name in (UNCERTAINTY, EMBEDDING))
    unit = None if features is None else unit_rows(features.reshape(len(features), -1))
    groups = connect(find_near_pairs(hashes), len(hashes))  # small and uniform images are alone
    return Collected(read, captions, uncertainty, unit, groups, errors)


def _finite(values: NDArray[Any], name: str, path: Path) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise DataError(f"{shown_path(path)}: its {name} is not finite; the model may have diverged")
    return values


def caption(predictor: Predictor, row: Predictions) -> str:
    """Return the prediction for an image in words."""
    shown = {name: value for name, value in row.items() if name not in (UNCERTAINTY, EMBEDDING)}
    if not shown or not predictor.classes:
        return ""
    presenter = predictor.presenter(shown)
    return ", ".join(presenter.caption(presenter.readable(shown))) or "nothing"


# --- labeled images ---------------------------------------------------------------------------------------------------


def open_labeled(model: RunModel, task: str) -> Source | None:
    """Return the training data of a run; None if it is not here.

    Args:
        model: the model of the run.
        task: name of a task of a multi-task run; empty otherwise.
    """
    try:
        return open_split(resolve(model.run, model.overrides), training_split(model, task))
    except (ConfigError, DataError):
        return None


def training_split(model: RunModel, task: str) -> str:
    """Return the name of the training data of a run, of a multi-task run that of the stream of a task.

    Raises:
        ConfigError: there is no such task, or none is given.
    """
    tasks = subtasks(resolve(model.run, model.overrides).config)
    if not tasks:
        return TRAIN
    if task not in tasks:
        message = f"there is no {task!r}" if task else f"{model.run} has several tasks: give one"
        raise ConfigError(Problem("command line", "--task", message, allowed=f"tasks: {listing(list(tasks))}"))
    return f"{tasks[task]['stream'] or task}/{TRAIN}"


def files_of(source: Source) -> set[str]:
    """Return the real paths of all files of a source."""
    return {os.path.realpath(os.fsdecode(path)) for index in range(len(source)) for path in source.paths(index)}


def labeled_features(model: RunModel, task: str, out: Path) -> Floats:
    """Return the features of the training data of a run (float32, L x D, rows of length 1), kept in the folder ``out``.

    Raises:
        ConfigError, DataError: the data cannot be read.
    """
    (folder,) = extract(model, out, splits=[training_split(model, task)], task=task)
    features: Floats = unit_rows(np.load(folder / f"{FEATURES}.npy"))
    return features
