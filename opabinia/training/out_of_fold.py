"""Out-of-fold predictions: each training sample is predicted by the run of a cross-validation that has not seen it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.datasets import validation_sets, with_sets
from opabinia.contracts import Batch, DatasetInfo, Evaluator, Predictions, Task
from opabinia.engine.loop.evaluate import evaluate
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.log import log
from opabinia.training.model import Models, place, set_up
from opabinia.training.run_folder import LAST, build_parts, chosen_checkpoint, read_chosen, resolve
from opabinia.training.trained_model import Weights, trained_task
from opabinia.training.validation import plan_evaluation
from opabinia.visualization.presenters.by_keys import presenter_of


def predict_out_of_fold(runs: Sequence[Path], file: Path) -> dict[str, float]:
    """Predict the held-out samples of each run after its last step, with EMA weights if they are evaluated; return the
    scores over the samples of all runs.

    ``file`` gets a line of JSON for each sample, sorted by name: its name in the data (``path``), the number of its
    ``fold``, and the task's readable prediction, as in ``predictions.jsonl`` of ``opabinia predict``. For
    a sample that is evaluated in several views it is the prediction for the first one.

    Evaluators that learn from training data give no scores over all samples. Neither do those of identities, whose
    numbers are those of a fold.

    Args:
        runs: folders of finished runs, each with one validation set.
        file: written under a temporary name and renamed.

    Raises:
        ConfigError: the data or the checkpoint of a run cannot be read.
        DiskError: the file cannot be written.
    """
    lines: dict[str, dict[str, Any]] = {}
    folds: list[_Fold] = []
    for number, run in enumerate(runs, 1):
        log.info("out-of-fold predictions of %s", run)
        folds.append(_evaluate(run, number, lines))
    with disk_errors(file):
        write_atomic(file, "".join(json.dumps(lines[name]) + "\n" for name in sorted(lines)))
    scores: dict[str, float] = {}
    for number, evaluator in enumerate(folds[0].evaluators):
        scores |= evaluator.compute([fold.states[number] for fold in folds])
    return {f"{folds[0].prefix}/{name}": score for name, score in scores.items()}


class _Fold(NamedTuple):
    """The evaluation of a run on its held-out samples.

    Attributes:
        prefix: name of its validation set.
        states: states of the evaluators whose scores over several folds have a meaning.
        evaluators: new ones of the same kinds.
    """

    prefix: str
    states: list[Any]
    evaluators: list[Evaluator]


class _Recorder(Evaluator):
    """Adds the readable predictions of a run to ``lines``, by the names of their samples."""

    def __init__(self, task: Task, trained_on: DatasetInfo, fold: int, lines: dict[str, dict[str, Any]]) -> None:
        self.better = {}
        self._task, self._trained_on, self._fold, self._lines = task, trained_on, fold, lines

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch."""
        for row, name in enumerate(batch["id"]):
            if name in self._lines:
                continue
            tensors = {
                key: value[row].float() if value.is_floating_point() else value[row]
                for key, value in predictions.items()
                if not key.startswith(("losses/", "layers/"))
            }
            readable = presenter_of(self._task, self._trained_on, tensors).readable(tensors)
            self._lines[name] = {"path": name, "fold": self._fold, **readable}

    def state(self) -> None:
        """Return nothing."""

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return no scores."""
        return {}


def _evaluate(run: Path, fold: int, lines: dict[str, dict[str, Any]]) -> _Fold:
    """Evaluate a run on its held-out samples, and add their predictions to ``lines``."""
    path, resolved = chosen_checkpoint(run, LAST), resolve(run)
    snapshot, sets = read_chosen(path), validation_sets(resolved.config)
    parts = build_parts(replace(resolved, config=with_sets(resolved.config, None, sets))).keywords
    weights: Weights = "ema" if "ema" in snapshot.tensors and parts["evaluate"].weights != "raw" else "raw"
    settings, data = parts["train"], parts["data"]
    device, _ = set_up(replace(settings, cudnn_benchmark=False))
    task = place(trained_task(parts["task"], snapshot, weights), settings, device)
    trained_on: DatasetInfo = snapshot.state["facts"]
    seed = snapshot.state["seed"]
    planned = plan_evaluation(
        Models(task), data, {}, parts["evaluate"], seed, device, settings.precision, trained_on
    ).validation
    validation = next(val_set for val_set in planned if val_set.name == sets[0]["prefix"])
    identities = data.validation[0].source.info.identities
    used: list[Evaluator] = []

    def additive(task: Task, info: DatasetInfo) -> list[Evaluator]:
        made = [] if identities else validation.evaluators(task, info)
        return [evaluator for evaluator in made if not evaluator.learns]

    def recording(task: Task, info: DatasetInfo) -> list[Evaluator]:
        used[:] = additive(task, info)
        return [*used, _Recorder(task, trained_on, fold, lines)]

    evaluate(task, replace(validation, evaluators=recording), device)
    for val_set in planned:
        val_set.close()
    return _Fold(
        f"{validation.name}_ema" if weights == "ema" else validation.name,
        [evaluator.state() for evaluator in used],
        additive(task, validation.dataset_info),
    )
