"""Evaluators in addition to those of the task: in a run (``evaluate.evaluators``) and by ``opabinia eval``."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo, Evaluator, Task
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.low_shot import LowShot
from opabinia.training import dry_run, launch
from opabinia.training.validation import _task_and_additional

RECIPE = """
plugins: [tests.faults.parts]
task: {name: classification, backbone: tiny, mean: [0.3], std: [0.38]}
data:
  train: {source: {name: some_digits, n: 96, split: train}}
  val: {source: {name: some_digits, n: 60, split: val}}
  batch_size: 24
  num_workers: 0
optimizer: {name: sgd, lr: 0.1}
train: {length: 8it, log_every: 100, num_threads: 1}
evaluate:
  every: 4it
  evaluators:
    often: {evaluator: {name: knn, k: 5}, every: 2it}
    always: {evaluator: collapse}
checkpoint: {every: 4it}
loggers: []
seed: 3
"""
TASK_SCORES = {"top1", "top5", "mean_recall", "macro_f1", "ece", "nll"}
KNN, COLLAPSE = {"knn_top1", "knn_top5"}, {"spread", "rank", "uniformity"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "measured.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def finished_run(recipe: Path) -> Path:
    """An uninterrupted run."""
    return launch.train(str(recipe), ["ema={decay: 0.5}"], out=recipe.parent, name="whole")[0]


def scores(folder: Path) -> dict[int, dict[str, float]]:
    """Read the scores of the metrics log, by step."""
    scores_by_step: dict[int, dict[str, float]] = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line: dict[str, Any] = json.loads(text)
        line_scores = {name: value for name, value in line.items() if name.startswith(("val", "other"))}
        if line_scores:
            assert not line_scores.keys() & scores_by_step.get(line["step"], {}).keys(), "logged twice"
            scores_by_step.setdefault(line["step"], {}).update(line_scores)
    return scores_by_step


def names(prefix: str, *groups: set[str]) -> set[str]:
    return {f"{prefix}/{name}" for group in groups for name in group}


def test_evaluators_have_their_own_periods_and_evaluate_ema_weights_too(finished_run: Path) -> None:
    scores_by_step = scores(finished_run)
    all_names = names("val", TASK_SCORES, COLLAPSE, KNN) | names("val_ema", TASK_SCORES, COLLAPSE, KNN)
    knn_names = names("val", KNN) | names("val_ema", KNN)
    assert {step: set(line) for step, line in scores_by_step.items()} == {
        2: knn_names,
        4: all_names,
        6: knn_names,
        8: all_names,
    }
    assert scores_by_step[4]["val/spread"] != scores_by_step[4]["val_ema/spread"]
    assert json.loads((finished_run / "results.json").read_text()).keys() == all_names


def test_a_resumed_run_has_the_scores_of_an_uninterrupted_one(recipe: Path, finished_run: Path) -> None:
    changes = ["ema={decay: 0.5}", "train.length=4it"]
    folder, _ = launch.train(str(recipe), changes, out=recipe.parent, name="resumed")
    assert set(scores(folder)) == {2, 4}
    launch.train(str(recipe), ["train.length=8it"], out=recipe.parent, name="resumed", resume="last")
    assert scores(folder) == scores(finished_run)


def test_an_evaluator_of_a_single_set(recipe: Path) -> None:
    val = "{source: {name: some_digits, n: 30, split: val}, prefix: %s}"
    changes = [f"data.val=[{val % 'val'}, {val % 'other'}]", "evaluate.evaluators.often.on=other", "train.length=2it"]
    folder, _ = launch.train(str(recipe), changes, out=recipe.parent, name="sets")
    assert set(scores(folder)[2]) == names("val", TASK_SCORES, COLLAPSE) | names("other", TASK_SCORES, COLLAPSE, KNN)


UNDERIVED = "Underived does not derive from opabinia.contracts.Evaluator"
SIMCLR = (
    "task={name: simclr, backbone: tiny, mean: [0.3], std: [0.38]}",
    "data.train.transforms=[{name: views, views: [{count: 2, transforms: []}]}]",
    "evaluate.evaluators=null",
)
UNLABELED = "data.train.source={name: unlabeled, source: {name: some_digits, n: 96, split: train}}"
ADDED = "evaluate.evaluators.%s.evaluator=%s"
PROBE = ADDED % ("probe", "{name: linear_probe, %s}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([ADDED % ("twice", "knn")], "two evaluators compute the score 'val/knn_top1': remove one"),
        (["evaluate.evaluators.often.on=vla"], "there is no validation set 'vla'.*'val'"),
        ([ADDED % ("often", "kn")], "there is no evaluator of this name .*did you mean 'knn'"),
        ([ADDED % ("often", "underived")], f"evaluate.evaluators: {UNDERIVED}"),
        ([ADDED % ("always", "underived")], f"evaluate.evaluators: {UNDERIVED}"),
        ([PROBE % "layers: [backbone.layer.0]"], "there is no layer 'backbone.layer.0'; near: backbone.layers.0"),
        ([PROBE % "validation_fraction: 0"], "validation_fraction is 0"),
        ([ADDED % ("probe", "{name: low_shot, shots: [0]}")], "shots"),
        ([*SIMCLR, PROBE % "layers: [projector]"], "the task does not use layer 'projector' in predict"),
        (
            [*SIMCLR, UNLABELED, "evaluate.evaluators.often={evaluator: knn, every: 2it}"],
            "evaluate.evaluators: Knn: learns the 0 classes of the training data, and val_often has 10 others",
        ),
    ],
    ids=[
        *("twice", "another set", "a name", "not derived, own period", "not derived", "a layer", "nothing held out"),
        *("no shots", "an unused layer", "no classes"),
    ],
)
def test_invalid_evaluators_are_refused_before_the_first_step(recipe: Path, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dry_run.dry_run(launch.build_parts(launch.resolve(str(recipe), changes)).keywords)
    if "projector" in message:
        return
    with pytest.raises(ConfigError, match=message):
        launch.train(str(recipe), changes, out=recipe.parent, name="wrong")
    assert not (recipe.parent / "measured" / "wrong" / "config.yaml").exists()


# --- on a finished run ------------------------------------------------------------------------------------------------


def test_an_evaluation_has_the_scores_of_training_and_learns_from_the_training_data(finished_run: Path) -> None:
    """If it learned from the evaluated samples, each would be its own neighbour."""
    results = launch.evaluate(finished_run, checkpoint="last", weights="both")
    assert results == json.loads((finished_run / "results.json").read_text())
    changes = ["evaluate.evaluators.often.evaluator.k=1", "evaluate.weights=raw"]
    assert 0.1 < launch.evaluate(finished_run, changes, checkpoint="last")["val/knn_top1"] < 1


def test_the_training_data_is_opened_only_for_evaluators_that_learn(finished_run: Path) -> None:
    missing_data = ["data.train.source={name: image_folder, root: nowhere}", "evaluate.weights=raw"]
    with pytest.raises(ConfigError, match="nowhere"):
        launch.evaluate(finished_run, missing_data, checkpoint="last")
    results = launch.evaluate(finished_run, [*missing_data, "evaluate.evaluators=null"], checkpoint="last")
    assert set(results) == names("val", TASK_SCORES)


def test_any_evaluator_applies_to_any_run_with_embeddings(finished_run: Path) -> None:
    probe = "{evaluator: {name: linear_probe, layers: [embedding, backbone.layers.0], epochs: 5}}"
    shots = "{evaluator: {name: low_shot, shots: [1, 2], repeats: 2}}"
    changes = [
        f"evaluate.evaluators={{probe: {probe}, shots: {shots}, groups: {{evaluator: clustering}}}}",
        "evaluate.evaluators.svm.evaluator={name: linear_svm, costs: [1.0]}",
        "evaluate.weights=raw",
    ]
    results = launch.evaluate(finished_run, changes, checkpoint="last")
    added = {"linear_top1", "linear_top5", "low_shot_1", "low_shot_2", "nmi", "ari", "purity", "matched", "svm_top1"}
    assert set(results) == names("val", TASK_SCORES, KNN, COLLAPSE, added)
    details = json.loads((finished_run / "eval" / "val" / "details.json").read_text())
    assert {"linear_probe", "low_shot", "clusters", "linear_svm"} <= details.keys()
    assert [row["layer"] for row in details["linear_probe"]["layers"]] == ["embedding", "backbone.layers.0"]


# --- without labels ---------------------------------------------------------------------------------------------------


def kinds(recipe: Path, dataset_info: DatasetInfo, training: DatasetInfo | None = None) -> list[type]:
    parts = launch.build_parts(launch.resolve(str(recipe), SIMCLR[:1])).keywords
    return [type(evaluator) for evaluator in parts["task"](training or dataset_info).evaluators(dataset_info)]


def test_self_supervised_tasks_use_labels_only_if_there_is_one_per_image(recipe: Path) -> None:
    labelled = DatasetInfo(samples=9, channels=1, classes=("a", "b"))
    assert kinds(recipe, labelled) == [Knn, Collapse]
    assert kinds(recipe, DatasetInfo(samples=9, channels=1)) == [Collapse]
    assert kinds(recipe, labelled, DatasetInfo(samples=9, channels=1)) == [Collapse]
    assert kinds(recipe, DatasetInfo(samples=9, channels=1, classes=("a", "b"), multi_label=True)) == [Collapse]


class Evaluated(Task):
    """A task with its own evaluators."""

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [Knn(dataset_info), Collapse(dataset_info)]


def test_an_additional_evaluator_replaces_one_with_the_same_scores() -> None:
    """``--evaluator knn`` with other options, for a task that has it already; the order of scores is kept."""
    dataset_info = DatasetInfo(samples=4, classes=("a", "b"))
    knn = partial(Knn, k=3)
    assert [type(item) for item in _task_and_additional([knn], Evaluated(), dataset_info)] == [Knn, Collapse]
    assert [type(item) for item in _task_and_additional([Collapse], Evaluated(), dataset_info)] == [Knn, Collapse]
    assert [type(item) for item in _task_and_additional([LowShot], Evaluated(), dataset_info)] == [
        Knn,
        Collapse,
        LowShot,
    ]
    assert _task_and_additional([knn], Evaluated(), dataset_info)[0]._options["k"] == 3  # type: ignore[attr-defined]
