"""What is made of a trained checkpoint: scores, and what takes pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from opabinia.config import ConfigError, Problem, build, live_catalog, register
from opabinia.contracts import Clock, DatasetInfo, Run, Task, TaskPart, Transform, TransformPart
from opabinia.data import Data
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop.evaluate import Validation, evaluation_run, needs_training_data
from opabinia.engine.loop.hook_dispatch import HookDispatcher
from opabinia.tasks.distillation import student_weights
from opabinia.training.model import make_task, placed, set_up
from opabinia.training.run_folder import chosen_checkpoint, read_chosen, resolve, validation_sets, views_of
from opabinia.training.settings import Evaluation, Training
from opabinia.training.validation import make_validation, refuse_other_classes, scores_offered, with_average


def evaluate(
    folder: Path, parts: Mapping[str, Any], snapshot: Snapshot, training_data: Callable[[], Data]
) -> dict[str, float]:
    """Scores of a trained model.

    Args:
        folder: the run folder.
        parts: the built parameters of :func:`train`.
        snapshot: the checkpoint; it holds the facts of the training data, too.
        training_data: opens the data with that of training, asked only where an evaluator learns from it.

    Raises:
        ConfigError: there is nothing to evaluate on, or the weights do not fit the model.
    """
    training, data = parts["train"], parts["data"]
    if not data.validation:
        raise ConfigError(Problem("", "data.val", "there is no data to evaluate on"))
    # cuDNN's trials pay in long trainings only.
    device, _ = set_up(replace(training, cudnn_benchmark=False))
    seed = snapshot.state["seed"]
    model = placed(trained_task(parts["task"], snapshot), training, device)
    averaged = trained_task(parts["task"], snapshot, "ema") if "ema" in snapshot.tensors else None
    average = placed(averaged, training, device) if averaged else None

    def sets(data: Data) -> list[Validation]:
        made = make_validation(data, parts["evaluate"], seed, device, training.precision, model.size_multiple)
        return with_average(made, average, parts["evaluate"].weights) if average else made

    validation = sets(data)
    scores_offered(model, validation)
    if any(needs_training_data(model, one) for one in validation):
        data = replace(data, train=training_data().train)
        refuse_other_classes(model, validation, data.train.source.classes)
        validation = sets(data)
    session = Run(
        task=model,
        optimizer=None,
        loader=None,
        metrics_log=MetricsLogger(None),
        clock=Clock(),
        checkpoints=None,
        evaluate=lambda takes: {},
        scores={},
        folder=folder,
    )
    return evaluation_run(session, HookDispatcher(parts["hooks"] or {}), validation, device)


@dataclass(frozen=True)
class TrainedModel:
    """A trained task with what inference needs to know of its training.

    Attributes:
        task: the model with its trained weights, on ``device``.
        transforms: of the validation data.
        facts: of the training data.
        channels: of images as they are read: 1 grey, 3 colour.
        device: where the model computes.
        precision: of its forward passes.
        batch_size: images in one forward pass.
        views: clips and crops in which the validation data sees a video; None: one view, as the transforms give it.
    """

    task: Task
    transforms: Sequence[Transform]
    dataset_info: DatasetInfo
    channels: Literal[1, 3]
    device: torch.device
    precision: str
    batch_size: int
    views: tuple[int, int] | None = None


@register.command
def predictor(
    snapshot: Snapshot,
    device: Literal["auto", "cpu", "cuda", "mps"] | None,
    /,
    *,
    task: TaskPart,
    transforms: Sequence[TransformPart] = (),
    views: tuple[int, int] | None = None,
    train: Training,
    evaluate: Evaluation,
) -> TrainedModel:
    """Build a trained task for inference.

    Args:
        task: what a batch means.
        transforms: of the validation data.
        views: how many clips and crops of a film the validation data sees.
        train: how it was trained; of it the device and the precision.
        evaluate: of it the batch size.

    Raises:
        ConfigError: the weights do not fit, or there is no such device.
    """
    where, _ = set_up(replace(train, device=device or train.device, cudnn_benchmark=False))
    return TrainedModel(
        task=placed(trained_task(task, snapshot, best_weights(snapshot, evaluate)), train, where),
        transforms=transforms,
        dataset_info=dataset_info_from(snapshot),
        channels=snapshot.state.get("source_channels", 3),
        device=where,
        precision=train.precision,
        batch_size=evaluate.batch_size or 32,
        views=views,
    )


def dataset_info_from(snapshot: Snapshot) -> DatasetInfo:
    """The facts of the data that a checkpoint was trained on."""
    dataset_info = snapshot.state["facts"]
    saved: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in dataset_info.items()}
    return DatasetInfo(**saved)


def best_weights(snapshot: Snapshot, evaluate: Evaluation) -> str:
    """Which weights of a checkpoint to use: the averaged ones, if there are some and they are what is evaluated."""
    return "ema" if "ema" in snapshot.tensors and evaluate.weights != "raw" else "model"


def trained_task(task: Callable[[DatasetInfo], Task], snapshot: Snapshot, weights: str = "model") -> Task:
    """The task with the weights of a checkpoint: ``model``, or ``ema``, their average.

    Raises:
        ConfigError: they do not fit.
    """
    model = make_task(task, dataset_info_from(snapshot), snapshot.state["seed"])
    try:
        model.load_state_dict(student_weights(snapshot.tensors[weights]))
    except RuntimeError as error:
        raise ConfigError(Problem("", "task", f"the weights do not fit: {error}")) from error
    return model


def load_trained(
    folder: Path | str, overrides: Sequence[str] = (), *, checkpoint: str = "best", device: str | None = None
) -> TrainedModel:
    """Build the trained model of a run. The data it was trained on is not needed.

    Args:
        folder: the run folder.
        overrides: ``key=value``.
        checkpoint: ``best`` (without one the last), ``last``, or a checkpoint's name or path.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``; None takes what the run's config says.

    Raises:
        ConfigError: there is no run or no such checkpoint, or it is damaged.
    """
    path = chosen_checkpoint(Path(folder), checkpoint)
    resolved = resolve(folder, overrides)
    config = resolved.config
    sets = validation_sets(config)
    parts = {
        "task": config["task"],
        "transforms": sets[0]["transforms"] if sets else [],
        "views": views_of(sets[0]["source"]) if sets else None,
        "train": config["train"],
        "evaluate": config["evaluate"],
    }
    catalog = live_catalog(config.get("plugins") or ())
    trained: TrainedModel = build(parts, catalog, "predictor", resolved.origins)(read_chosen(path), device)
    return trained
