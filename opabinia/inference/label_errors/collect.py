"""The predictions of a run for the labels of one of its datasets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.build import errors_at
from opabinia.config.datasets import validation_sets
from opabinia.contracts import EMBEDDING, IGNORE_LABEL, Batch, Predictions, Source, Task
from opabinia.data.loader import Loader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.data.sources.wrapper import find_ids
from opabinia.engine.loop.layer_outputs import has_features, predict_with_layers
from opabinia.engine.loop.prefetch import prefetch, to_host, with_bar
from opabinia.evaluation.label_errors.classification import ClassificationCheck
from opabinia.evaluation.label_errors.detection import DetectionCheck
from opabinia.evaluation.label_errors.identities import IdentityCheck
from opabinia.evaluation.label_errors.multilabel import MultiLabelCheck
from opabinia.evaluation.label_errors.segmentation import SegmentationCheck
from opabinia.evaluation.label_errors.suspects import LabelCheck
from opabinia.inference.extract import sample_reader
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.splits import TRAIN, select_split, task_of
from opabinia.models.decoders.layers import resize_like
from opabinia.runtime.device import autocast
from opabinia.runtime.progress import progress_bar
from opabinia.tasks.reid.base import Reidentification
from opabinia.tasks.segmentation.task import Segmentation
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.samples import read_dataset_info


@dataclass(frozen=True, eq=False)  # a key of dictionaries
class CollectedRun:
    """The predictions of a run.

    Attributes:
        run: the run folder.
        split: name of the dataset.
        source: the dataset.
        check: holds the predictions.
        trained_on: the model was trained on these samples.
        skipped: number of samples that could not be read.
    """

    run: Path
    split: str
    source: Source
    check: LabelCheck
    trained_on: bool
    skipped: int


def find_samples(wanted: Iterable[tuple[str, CollectedRun]]) -> dict[str, int]:
    """Return the index of each sample, given by its id, in the source of its run; runs have no sample in common."""
    by_run: dict[CollectedRun, set[str]] = {}
    for name, run in wanted:
        by_run.setdefault(run, set()).add(name)
    return {name: index for run, names in by_run.items() for name, index in find_ids(run.source, names).items()}


def collect(model: RunModel, split: str | None) -> CollectedRun:
    """Predict a dataset of a run, read as in its evaluation.

    Args:
        model: the model of a run.
        split: name of the dataset; None: the first validation set.

    Raises:
        ConfigError: there is no such run, checkpoint or dataset, or its model predicts no labels.
        DataError: a sample cannot be read.
    """
    resolved = resolve(model.run, model.overrides)
    split = split or _first_validation_set(model.run, resolved)
    selected = select_split(resolved, split)
    parts, predictor = build_parts(selected).keywords, model.load(task_of(resolved, split))
    data, evaluate = parts["data"], parts["evaluate"]
    with errors_at("data"):
        (stream,) = data.validation
    with errors_at(f"data of {split}"):  # classes, channels and kind of annotations are those of training
        predictor.task.evaluators(read_dataset_info(stream, skip=data.on_error == "skip"))
    reader = sample_reader(predictor, data, stream.source, stream.transforms, resolved.config["seed"] or 0)
    samples, batch_size = len(stream.source), evaluate.batch_size or data.batch_size
    requests, workers = evaluation_requests(samples, batch_size, 0, 1), min(data.num_workers, -(-samples // batch_size))
    loader = Loader(reader, requests, num_workers=workers, pin_memory=predictor.device.type == "cuda")
    with closing(loader):
        check = _predict(model.run, split, predictor, loader, stream.source)
    is_training = split not in {section["prefix"] for section in validation_sets(resolved.config)}
    return CollectedRun(model.run, split, stream.source, check, is_training, loader.num_skipped)


def _first_validation_set(run: Path, resolved: Resolved) -> str:
    sets = validation_sets(resolved.config)
    if not sets:
        message = f"{run} has no validation data, which its model was not trained on"
        hint = f"train folds of the data (opabinia train RECIPE --folds 5), or use --split {TRAIN}"
        raise ConfigError(Problem("", "data.val", message, allowed=hint))
    return str(sets[0]["prefix"])


def _predict(run: Path, split: str, predictor: Predictor, loader: Loader, source: Source) -> LabelCheck:
    """Return the check of the labels with the predictions of all samples."""
    task, check = predictor.task, None
    layers = [EMBEDDING] if has_features(task) else []
    with (
        torch.no_grad(),
        autocast(predictor.device, predictor.precision),
        progress_bar(f"predict {run.name}: {split}", len(source)) as bar,
    ):
        for item in with_bar(prefetch(loader, predictor.device), bar):
            predictions: Predictions = {}
            if not isinstance(check, SegmentationCheck):
                wanted = layers if check is None or check.needs_embedding else []
                predictions, _ = predict_with_layers(task, item.batch, wanted)
                check = check or check_for(run, task, predictions, item.loaded)
            if isinstance(check, SegmentationCheck):
                predictions = _pixel_predictions(task, item.batch, predictions)
            check.update(to_host(dict(predictions))(), item.loaded)
    if check is None:
        raise ConfigError(Problem("", f"data of {split}", f"{run} has no samples there that can be read"))
    return check


def check_for(run: Path, task: Task, predictions: Predictions, batch: Batch) -> LabelCheck:
    """Return the check for the labels of a batch that a task predicts.

    Raises:
        ConfigError: it predicts no labels, or the batch has none.
    """
    label = batch.get("label")
    if "probabilities" in predictions and label is not None:
        return MultiLabelCheck() if label.ndim > 1 else ClassificationCheck()
    if isinstance(task, Reidentification) and label is not None:
        return IdentityCheck()
    if "boxes" in predictions and "ground_truth" in batch:
        return DetectionCheck()
    if ("pixel_logits" in predictions or isinstance(task, Segmentation)) and "mask" in batch:
        return SegmentationCheck()
    name, kinds = type(task).__name__, "classes of images, identities, bounding boxes and segmentation maps"
    message = f"{name} of {run} predicts {', '.join(predictions)}; {kinds} are compared with predicted ones"
    raise ConfigError(Problem("command line", "RUN", message))


def _pixel_predictions(task: Task, batch: Batch, predictions: Predictions) -> Predictions:
    """Return ``predicted``, the class of each pixel (uint8, B x H x W), and ``of_label``, the probability of its label.

    Args:
        task: a segmentation model.
        batch: on its device, with ``mask``.
        predictions: predictions of the task, if they are known; those of a plug-in have ``pixel_logits``.
    """
    mask = batch["mask"].long()
    if isinstance(task, Segmentation):
        logits = task.logits(batch["image"], batch["image_sizes"])
    else:
        logits = (predictions or task.predict(batch))["pixel_logits"]
    logits = resize_like(logits.float(), mask)
    labels = mask.where(mask != IGNORE_LABEL, 0).unsqueeze(1)
    return {
        "predicted": logits.argmax(1).to(torch.uint8),
        "of_label": logits.softmax(1).gather(1, labels).squeeze(1),
    }
