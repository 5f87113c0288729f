"""Trained models: built from a config and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from opabinia.config import ConfigError, Problem, build, register
from opabinia.contracts import DatasetInfo, Task, TaskPart, Transform, TransformPart
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.models.projectors import without_projectors
from opabinia.training.model import make_task, place, set_up
from opabinia.training.run_folder import chosen_checkpoint, read_chosen, resolve, validation_sets, views_of
from opabinia.training.settings import Evaluation, Training


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
        task: the model.
        transforms: of the validation data.
        views: clips and crops in which the validation data sees a video.
        train: for the device and the precision.
        evaluate: for the batch size.

    Raises:
        ConfigError: the weights do not fit, or there is no such device.
    """
    where, _ = set_up(replace(train, device=device or train.device, cudnn_benchmark=False))
    return TrainedModel(
        task=place(trained_task(task, snapshot, best_weights(snapshot, evaluate)), train, where),
        transforms=transforms,
        dataset_info=dataset_info_from(snapshot),
        channels=snapshot.state.get("source_channels", 3),
        device=where,
        precision=train.precision,
        batch_size=evaluate.batch_size or 32,
        views=views,
    )


def dataset_info_from(snapshot: Snapshot) -> DatasetInfo:
    """Return the description of the data that a checkpoint was trained on."""
    dataset_info = snapshot.state["facts"]
    saved: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in dataset_info.items()
    }
    return DatasetInfo(**saved)


def best_weights(snapshot: Snapshot, evaluate: Evaluation) -> str:
    """Return which weights of a checkpoint to use: ``ema`` if it has them and they are evaluated, else ``model``."""
    return "ema" if "ema" in snapshot.tensors and evaluate.weights != "raw" else "model"


def trained_task(task: Callable[[DatasetInfo], Task], snapshot: Snapshot, weights: str = "model") -> Task:
    """Build the task with the weights of a checkpoint: ``model``, or their moving average ``ema``.

    Raises:
        ConfigError: the weights do not fit.
    """
    model = make_task(task, dataset_info_from(snapshot), snapshot.state["seed"])
    try:
        model.load_state_dict(without_projectors(snapshot.tensors[weights]))
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
        "plugins": config.get("plugins"),
    }
    trained: TrainedModel = build(parts, None, "predictor", resolved.origins)(read_chosen(path), device)
    return trained
