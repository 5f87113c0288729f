"""Predictions at the thresholds of each class that an evaluation has chosen (evaluator ``class_thresholds``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opabinia.contracts import Detections

DEFAULT = 0.5
"""Minimum score of detections that are shown, of classes without a threshold."""


class ChosenThresholds(NamedTuple):
    """Minimum scores by class, and the file that they are from."""

    values: dict[str, float]
    file: Path


def chosen_thresholds(run: Path, checkpoint: str) -> ChosenThresholds | None:
    """Return the thresholds that an evaluation of a checkpoint has chosen on the first validation set of its run; None:
    there was none, or the run has several tasks.

    Args:
        run: the run folder.
        checkpoint: name of a checkpoint, or ``best`` or ``last``.

    Raises:
        InvalidFile: the file is damaged.
    """
    # Imported here because a prediction does not need them.
    from opabinia.config.datasets import subtasks, validation_sets
    from opabinia.evaluation.class_thresholds import FILE
    from opabinia.runtime.json_files import read_json
    from opabinia.training.run_folder import chosen_checkpoint, resolve

    if not any(run.glob(f"eval/**/{FILE}")):
        return None
    config = resolve(run, ()).config
    sets, name = validation_sets(config), chosen_checkpoint(run, checkpoint).name
    if subtasks(config) or not sets:
        return None
    folder = run / "eval" / sets[0]["prefix"]
    if (folder / FILE).is_file() and name == f"step-{read_json(folder / 'details.json', dict[str, Any])['step']:08d}":
        file = folder / FILE
    else:
        file = folder / name / FILE  # an evaluation of another checkpoint than the tables of the run are from
    return ChosenThresholds(read_json(file, dict[str, float]), file) if file.is_file() else None


def apply_thresholds(
    prediction: Mapping[str, Tensor], thresholds: Mapping[str, float], classes: tuple[str, ...]
) -> dict[str, Tensor]:
    """Return the prediction for one sample at minimum scores of each class.

    Detections below that of their class, or below 0.5 of a class without one, become padding. Class probabilities get
    ``present`` (bool, K): the classes that reach it.

    Args:
        prediction: as the task predicts it.
        thresholds: minimum score by class.
        classes: names in the order of the labels.
    """
    minima = torch.tensor([thresholds.get(name, DEFAULT) for name in classes], dtype=torch.float64)
    if "boxes" in prediction:
        labels, scores = prediction["labels"], prediction["scores"].double()
        kept = (labels >= 0) & (scores >= minima[labels.clamp(min=0)])
        order = (~kept).long().argsort(stable=True)
        rows = {name: values[order] for name, values in prediction.items() if name in Detections._fields}
        return {**prediction, **rows, "labels": rows["labels"].where(kept[order], rows["labels"].new_tensor(-1))}
    if "probabilities" not in prediction:
        return dict(prediction)
    return {**prediction, "present": prediction["probabilities"].double() >= minima}
