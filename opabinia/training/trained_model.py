"""Trained models: built from a config and the weights of a checkpoint."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from opabinia.config import ConfigError, Problem, build, dump, flatten, register
from opabinia.config.datasets import subtasks, validation_sets, without_task_data
from opabinia.config.errors import show
from opabinia.config.paths import ENSEMBLE_FILE, member_runs
from opabinia.contracts import Channels, DatasetInfo, Task, TaskPart, Transform, TransformPart
from opabinia.engine.checkpointing.checkpoint import BestState, Snapshot, describe_mismatch
from opabinia.models.projectors import without_projectors
from opabinia.models.weights.download import replacing_weights
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.json_files import MetricsLine, check_fields, read_json_lines, write_json
from opabinia.runtime.log import log
from opabinia.runtime.weighted_scores import weighted_score
from opabinia.training.model import make_task, place, set_up
from opabinia.training.run_folder import chosen_checkpoint, read_chosen, resolve, views_of
from opabinia.training.settings import Evaluation, Training

Weights = Literal["raw", "ema"]
"""Weights of a checkpoint: those that are trained, or their exponential moving average (EMA)."""


@register.section(name="task_transforms")
@dataclass(frozen=True, kw_only=True)
class TaskTransforms:
    """Validation transforms of tasks of a multi-task run.

    Args:
        tasks: their names.
        transforms: transforms of their validation data.
        views: clips and crops in which it sees a video.
    """

    tasks: list[str]
    transforms: Sequence[TransformPart] = ()
    views: tuple[int, int] | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A trained task with what inference needs to know of its training.

    Attributes:
        task: the model with its trained weights, on ``device``.
        transforms: transforms of the validation data.
        dataset_info: description of the training data.
        channels: channels of images as they are read.
        device: where the model computes.
        precision: precision of its forward passes.
        batch_size: images in one forward pass.
        views: clips and crops in which the validation data sees a video; None: one view, as the transforms give it.
        weights: which of the checkpoint's weights the model has.
        task_transforms: transforms of each task's validation data, of a multi-task run.
    """

    task: Task
    transforms: Sequence[Transform]
    dataset_info: DatasetInfo
    channels: Channels
    device: torch.device
    precision: str
    batch_size: int
    views: tuple[int, int] | None = None
    weights: Weights = "raw"
    task_transforms: Sequence[TaskTransforms] = ()


@register.command
def predictor(
    snapshot: Snapshot,
    device: Literal["auto", "cpu", "cuda", "mps"] | None,
    weights: Weights,
    /,
    *,
    task: TaskPart,
    transforms: Sequence[TransformPart] = (),
    views: tuple[int, int] | None = None,
    task_transforms: Sequence[TaskTransforms] = (),
    train: Training,
    evaluate: Evaluation,
) -> TrainedModel:
    """Build a trained task for inference.

    Args:
        task: the model.
        transforms: transforms of the validation data.
        views: clips and crops in which the validation data sees a video.
        task_transforms: transforms of the tasks of a multi-task run.
        train: section ``train``, for the device and the precision.
        evaluate: section ``evaluate``, for the batch size.

    Raises:
        ConfigError: the weights do not fit, or there is no such device.
    """
    where, _ = set_up(replace(train, device=device or train.device, cudnn_benchmark=False))
    return TrainedModel(
        task=place(trained_task(task, snapshot, weights), train, where),
        transforms=transforms,
        dataset_info=snapshot.state["facts"],
        channels=snapshot.state.get("source_channels", 3),
        device=where,
        precision=train.precision,
        batch_size=evaluate.batch_size or 32,
        views=views,
        weights=weights,
        task_transforms=task_transforms,
    )


@register.command
def preprocessing(*, transforms: Sequence[TransformPart] = ()) -> list[Transform]:
    """Return the transforms of an exported file's images, which its description has.

    Args:
        transforms: transforms of the validation data.
    """
    return list(transforms)


def trained_task(task: Callable[[DatasetInfo], Task], snapshot: Snapshot, weights: Weights = "raw") -> Task:
    """Build the task with weights of a checkpoint.

    Raises:
        ConfigError: the weights do not fit.
    """
    with replacing_weights():
        model = make_task(task, snapshot.state["facts"], snapshot.state["seed"])
    tensors = without_projectors(snapshot.tensors["ema" if weights == "ema" else "model"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        differences = describe_mismatch(model.state_dict(), tensors) or error
        raise ConfigError(Problem("", "task", f"the weights do not fit: {differences}")) from error
    return model


def choose_weights(path: Path, snapshot: Snapshot, evaluated: str, asked: Weights | None = None) -> Weights:
    """Return the weights of a checkpoint to use, and log why.

    Without EMA these are the raw weights. Otherwise they are those that were ``asked`` for, or the only ones that the
    run evaluates; of both those with the better score in the last evaluation up to the checkpoint, by the metric of
    ``checkpoint.best``; without such scores the EMA.

    Args:
        path: path of the checkpoint, in the ``checkpoints`` of its run.
        snapshot: its content.
        evaluated: ``evaluate.weights`` of the config.
        asked: the choice of the user; None decides.

    Raises:
        ConfigError: the checkpoint has no EMA, which was asked for.
    """
    if "ema" not in snapshot.tensors:
        if asked == "ema":
            raise ConfigError(Problem("command line", "--weights", f"{path} has no EMA of the weights; raw is right"))
        return "raw"
    if asked is not None:
        return asked
    chosen: Weights = "raw" if evaluated == "raw" else "ema"
    reason = f"evaluate.weights is {evaluated}"
    if evaluated == "both":
        saved = snapshot.state["hooks"].get("save_best", {})
        best = check_fields(saved, BestState, f"{path / 'state.json'}: hooks: save_best")
        raw, ema = (
            re.sub(r"(_ema)?/(?=[^/\s]+(\s|$))", f"{suffix}/", best.get("metric", "")) for suffix in ("", "_ema")
        )
        raw_score, ema_score = _newest_scores(path.parent.parent / "metrics.jsonl", snapshot.step, [raw, ema])
        reason = "the scores of both are not known"
        if raw_score is not None and ema_score is not None:
            sign = -1 if best.get("better") == "min" else 1
            chosen = "raw" if sign * raw_score > sign * ema_score else "ema"
            reason = f"{ema} is {ema_score:.4f}, {raw} {raw_score:.4f}"
    log.info("using the %s weights: %s (--weights raw|ema)", "EMA" if chosen == "ema" else "raw", reason)
    return chosen


def _newest_scores(file: Path, step: int, metrics: Sequence[str]) -> list[float | None]:
    """Read the newest scores in a metrics log up to a step; None: a score is unknown or not finite."""
    scores: list[float | None] = [None] * len(metrics)
    values: dict[str, float] = {}
    for line in read_json_lines(file, MetricsLine) if file.is_file() and all(metrics) else ():
        if line["step"] <= step:
            values = {name: value for name, value in line.items() if isinstance(value, float)} | values
            scores = [weighted_score(metric, values) for metric in metrics]
            if None not in scores:
                break
    return [score if score is not None and math.isfinite(score) else None for score in scores]


def load_trained(
    folder: Path | str,
    overrides: Sequence[str] = (),
    *,
    checkpoint: str = "best",
    weights: Weights | Path | str | None = None,
    classes: Sequence[str] = (),
    device: str | None = None,
) -> TrainedModel:
    """Build the trained model of a run, for which the data it was trained on is not needed, or the model of a recipe
    with the weights of a file. The model of the folds of a cross-validation is the ensemble of their runs.

    Args:
        folder: the run folder, or that of the folds, or with a file as ``weights`` the recipe.
        overrides: ``key=value``.
        checkpoint: ``best`` (without one the last), ``last``, or a checkpoint's name or path.
        weights: ``raw`` or ``ema``; None: see :func:`choose_weights`; or a file.
        classes: classes of the weights in a file, see :func:`opabinia.training.imported_weights.read_snapshot`.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``; None takes what the run's config says.

    Raises:
        ConfigError: there is no run or no such checkpoint, or it is damaged; or the weights of the file do not fit; or
            runs cannot be combined.
    """
    if len(runs := member_runs(Path(folder))) > 1:
        if weights not in (None, "raw", "ema"):
            raise ConfigError(
                Problem("command line", "--weights", f"an ensemble has raw or EMA weights, not {weights}")
            )
        changes = [word for word in overrides if not _OF_SOURCES.match(word)]
        of_members: dict[str, Any] = {"checkpoint": checkpoint, "weights": weights, "device": device}
        return _combine(runs, [load_trained(run, changes, **of_members) for run in runs], changes)
    if weights is None or weights in ("raw", "ema"):
        path = chosen_checkpoint(Path(folder), checkpoint)
        resolved, snapshot = resolve(folder, overrides), read_chosen(path)
        chosen = choose_weights(path, snapshot, resolved.config["evaluate"]["weights"], cast("Weights | None", weights))
    else:
        from opabinia.training.imported_weights import read_snapshot, resolve_with_weights

        resolved, chosen = resolve_with_weights(folder, overrides, Path(weights)), "raw"
        snapshot = read_snapshot(resolved, classes)
    config = resolved.config
    sets = validation_sets(config)
    parts = {
        "task": without_task_data(config)["task"],
        "transforms": sets[0]["transforms"] if sets else [],
        "views": views_of(sets[0]["source"]) if sets else None,
        "task_transforms": _task_transforms(config),
        "train": config["train"],
        "evaluate": config["evaluate"],
        "plugins": config.get("plugins"),
    }
    trained: TrainedModel = build(parts, None, "predictor", resolved.origins)(snapshot, device, chosen)
    return trained


def write_ensemble(runs: Sequence[Path], out: Path) -> None:
    """Write a folder of an ensemble: the config of the first run, and the paths of all.

    Raises:
        ConfigError: there is no such run, it has no checkpoint, or the runs cannot be combined.
        DiskError: the folder cannot be written.
    """
    members = [member for run in runs for member in member_runs(run)]
    _combine(members, [load_trained(run, device="cpu") for run in members], ())
    with disk_errors(out):
        out.mkdir(parents=True)
        write_atomic(out / "config.yaml", dump(resolve(members[0]).config))
    write_json(out / ENSEMBLE_FILE, {"runs": [os.path.relpath(run.resolve(), out.resolve()) for run in members]})


_OF_SOURCES = re.compile(r"(--)?\s*(data\.train|data\.val(\.\d+)?\.source|evaluate)\b")
"""Overrides that no model depends on; runs of an ensemble have other sources than its config."""


def _combine(runs: Sequence[Path], models: Sequence[TrainedModel], overrides: Sequence[str]) -> TrainedModel:
    """Return the ensemble of some models.

    Raises:
        ConfigError: their tasks cannot be combined, or they do not see images in the same way.
    """
    from opabinia.tasks.ensemble import Ensemble  # few runs need it

    facts = [_seen(resolve(run, overrides).config, model) for run, model in zip(runs, models, strict=True)]
    for run, run_facts in zip(runs, facts, strict=True):
        for name in facts[0].keys() | run_facts.keys():
            own, first = run_facts.get(name), facts[0].get(name)
            if own != first:
                message = f"cannot be combined with {runs[0]}: {name} {show(own)}, there {show(first)}"
                raise ConfigError(Problem(str(run), "", message))
    try:
        ensemble = Ensemble([model.task for model in models])
    except ValueError as error:
        raise ConfigError(Problem(str(runs[0]), "task", str(error))) from error
    return replace(models[0], task=ensemble.eval())


def _seen(config: Mapping[str, Any], model: TrainedModel) -> dict[str, Any]:
    """Return the values by dotted name in which models of an ensemble are the same."""
    from opabinia.tasks.reid.base import Reidentification  # its classes are identities, which are not predicted

    sets, task = validation_sets(config), model.task
    return flatten(
        {
            "task": config["task"]["name"],
            "classes": [] if isinstance(task, Reidentification) else list(model.dataset_info.classes),
            "channels": model.channels,
            "transforms": sets[0]["transforms"] if sets else [],
            "views": model.views and list(model.views),
            "size multiple": task.size_multiple,
        }
    )


def _task_transforms(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the validation transforms of the tasks of a multi-task config, tasks with the same ones together; those
    without a validation set have the transforms of the first one."""
    sets = validation_sets(config)
    of_tasks = {section["task"]: section for section in reversed(sets)}
    groups: list[dict[str, Any]] = []
    for name in subtasks(config):
        section = of_tasks.get(name, sets[0] if sets else {"transforms": [], "source": {"name": ""}})
        reading = {"transforms": section["transforms"], "views": views_of(section["source"])}
        group = next((group for group in groups if reading.items() <= group.items()), None)
        if group is None:
            groups.append({"tasks": [name], **reading})
        else:
            group["tasks"].append(name)
    return groups
