"""What is made of a trained checkpoint: scores, and what takes pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from opabinia.config import ConfigError, Problem, register
from opabinia.contracts import Clock, Facts, Run, Task, TaskPart, TransformPart
from opabinia.data import Data
from opabinia.engine.checkpoint import Snapshot
from opabinia.engine.evaluate import Validation, evaluation_run, learns
from opabinia.engine.journal import Journal
from opabinia.engine.moments import Moments
from opabinia.pieces.models import make_task, placed, set_up
from opabinia.pieces.validation import make_validation, refuse_other_classes, scores_offered, with_average
from opabinia.predictor import Predictor
from opabinia.settings import Evaluation, Training
from opabinia.tasks.distill import student_weights


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
    if any(learns(model, one) for one in validation):
        data = replace(data, train=training_data().train)
        refuse_other_classes(model, validation, data.train.source.classes)
        validation = sets(data)
    session = Run(
        task=model,
        optimizer=None,
        loader=None,
        journal=Journal(None),
        clock=Clock(),
        checkpoints=None,
        evaluate=lambda takes: {},
        scores={},
        folder=folder,
    )
    return evaluation_run(session, Moments(parts["hooks"] or {}), validation, device)


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
) -> Predictor:
    """A trained task that takes pictures.

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
    return Predictor(
        placed(trained_task(task, snapshot, best_weights(snapshot, evaluate)), train, where),
        transforms,
        facts_from(snapshot),
        channels=snapshot.state.get("source_channels", 3),
        device=where,
        precision=train.precision,
        batch_size=evaluate.batch_size or 32,
        views=views,
    )


def facts_from(snapshot: Snapshot) -> Facts:
    """The facts of the data that a checkpoint was trained on."""
    facts = snapshot.state["facts"]
    saved: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in facts.items()}
    return Facts(**saved)


def best_weights(snapshot: Snapshot, evaluate: Evaluation) -> str:
    """Which weights of a checkpoint to use: the averaged ones, if there are some and they are what is evaluated."""
    return "ema" if "ema" in snapshot.tensors and evaluate.weights != "raw" else "model"


def trained_task(task: Callable[[Facts], Task], snapshot: Snapshot, weights: str = "model") -> Task:
    """The task with the weights of a checkpoint: ``model``, or ``ema``, their average.

    Raises:
        ConfigError: they do not fit.
    """
    model = make_task(task, facts_from(snapshot), snapshot.state["seed"])
    try:
        model.load_state_dict(student_weights(snapshot.tensors[weights]))
    except RuntimeError as error:
        raise ConfigError(Problem("", "task", f"the weights do not fit: {error}")) from error
    return model
