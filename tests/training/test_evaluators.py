"""Evaluators beside a task's own: in a run, by ``evaluate.evaluators``, and afterwards, by ``opabinia eval``."""

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
OWN = {"top1", "top5", "mean_recall", "macro_f1", "ece", "nll"}
KNN, COLLAPSE = {"knn_top1", "knn_top5"}, {"spread", "rank", "uniformity"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "measured.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    """A run that nothing disturbed."""
    return launch.train(str(recipe), ["ema={momentum: 0.5}"], out=recipe.parent, name="whole")[0]


def scores(folder: Path) -> dict[int, dict[str, float]]:
    """What the journal has of evaluations, by step."""
    found: dict[int, dict[str, float]] = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line: dict[str, Any] = json.loads(text)
        own = {name: value for name, value in line.items() if name.startswith(("val", "other"))}
        if own:
            assert not own.keys() & found.get(line["step"], {}).keys(), "logged twice"
            found.setdefault(line["step"], {}).update(own)
    return found


def names(prefix: str, *groups: set[str]) -> set[str]:
    return {f"{prefix}/{name}" for group in groups for name in group}


def test_measures_have_periods_of_their_own_and_are_reported_of_averaged_weights_too(whole: Path) -> None:
    found = scores(whole)
    seldom = names("val", OWN, COLLAPSE, KNN) | names("val_ema", OWN, COLLAPSE, KNN)
    often = names("val", KNN) | names("val_ema", KNN)
    assert {step: set(line) for step, line in found.items()} == {2: often, 4: seldom, 6: often, 8: seldom}
    assert found[4]["val/spread"] != found[4]["val_ema/spread"]
    assert json.loads((whole / "results.json").read_text()).keys() == seldom


def test_a_resumed_run_measures_as_one_that_nothing_disturbed(recipe: Path, whole: Path) -> None:
    changes = ["ema={momentum: 0.5}", "train.length=4it"]
    folder, _ = launch.train(str(recipe), changes, out=recipe.parent, name="halves")
    assert set(scores(folder)) == {2, 4}
    launch.train(str(recipe), ["train.length=8it"], out=recipe.parent, name="halves", resume="last")
    assert scores(folder) == scores(whole)


def test_a_measure_of_one_set(recipe: Path) -> None:
    val = "{source: {name: some_digits, n: 30, split: val}, prefix: %s}"
    changes = [f"data.val=[{val % 'val'}, {val % 'other'}]", "evaluate.evaluators.often.on=other", "train.length=2it"]
    folder, _ = launch.train(str(recipe), changes, out=recipe.parent, name="sets")
    assert set(scores(folder)[2]) == names("val", OWN, COLLAPSE) | names("other", OWN, COLLAPSE, KNN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("evaluate.evaluators.twice.evaluator=knn", "two evaluators compute the score 'val/knn_top1': remove one"),
        ("evaluate.evaluators.often.on=vla", "there is no validation set 'vla'.*'val'"),
        ("evaluate.evaluators.often.evaluator=kn", "there is no evaluator of this name .*did you mean 'knn'"),
        (
            "evaluate.evaluators.probe.evaluator={name: linear_probe, layers: [backbone.layer.0]}",
            "there is no layer 'backbone.layer.0'; near: backbone.layers.0",
        ),
        (
            "evaluate.evaluators.probe.evaluator={name: linear_probe, validation_fraction: 0}",
            "validation_fraction is 0",
        ),
        ("evaluate.evaluators.probe.evaluator={name: low_shot, shots: [0]}", "shots"),
    ],
    ids=["twice", "another set", "another name", "another layer", "nothing held out", "no shots"],
)
def test_what_cannot_be_measured_is_reported_before_the_first_step(recipe: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch.train(str(recipe), [change], out=recipe.parent, name="wrong")
    assert not (recipe.parent / "measured" / "wrong" / "config.yaml").exists()
    with pytest.raises(ConfigError, match=message):
        dry_run.dry_run(launch.build_parts(launch.resolve(str(recipe), [change])).keywords)


def test_a_layer_that_is_not_used_is_reported_by_a_rehearsal(recipe: Path) -> None:
    """As a projector, which self-supervised learning throws away."""
    changes = [
        "task={name: simclr, backbone: tiny, mean: [0.3], std: [0.38]}",
        "data.train.transforms=[{name: views, views: [{count: 2, transforms: []}]}]",
        "evaluate.evaluators=null",
        "evaluate.evaluators.probe.evaluator={name: linear_probe, layers: [projector]}",
    ]
    with pytest.raises(ConfigError, match="the task does not use layer 'projector' in predict"):
        dry_run.dry_run(launch.build_parts(launch.resolve(str(recipe), changes)).keywords)


def test_classes_that_the_training_data_has_not_cannot_be_learned(recipe: Path) -> None:
    changes = [
        "task={name: simclr, backbone: tiny, mean: [0.3], std: [0.38]}",
        "evaluate.evaluators=null",
        "evaluate.evaluators.often={evaluator: knn, every: 2it}",
        "data.train.source={name: unlabeled, source: {name: some_digits, n: 96, split: train}}",
        "data.train.transforms=[{name: views, views: [{count: 2, transforms: []}]}]",
    ]
    message = "evaluate.evaluators: Knn: learns the 0 classes of the training data, and val_often has 10 others"
    with pytest.raises(ConfigError, match=message):
        launch.train(str(recipe), changes, out=recipe.parent, name="wrong")
    with pytest.raises(ConfigError, match=message):
        dry_run.dry_run(launch.build_parts(launch.resolve(str(recipe), changes)).keywords)


# --- on a finished run ------------------------------------------------------------------------------------------------


def test_a_finished_run_is_measured_as_it_was_in_training(whole: Path) -> None:
    found = launch.evaluate(whole, checkpoint="last", weights="both")
    assert found == json.loads((whole / "results.json").read_text())


def test_evaluators_learn_from_the_training_data_and_not_from_the_set_itself(whole: Path) -> None:
    """Among the samples themselves each would find itself."""
    changes = ["evaluate.evaluators.often.evaluator.k=1", "evaluate.weights=raw"]
    assert 0.1 < launch.evaluate(whole, changes, checkpoint="last")["val/knn_top1"] < 1


def test_the_training_data_is_opened_only_to_learn_from(whole: Path) -> None:
    gone = ["data.train.source={name: image_folder, root: nowhere}", "evaluate.weights=raw"]
    with pytest.raises(ConfigError, match="nowhere"):
        launch.evaluate(whole, gone, checkpoint="last")
    found = launch.evaluate(whole, [*gone, "evaluate.evaluators=null"], checkpoint="last")
    assert set(found) == names("val", OWN)


def test_any_measure_of_any_run_with_embeddings(whole: Path) -> None:
    probe = "{evaluator: {name: linear_probe, layers: [embedding, backbone.layers.0], epochs: 5}}"
    shots = "{evaluator: {name: low_shot, shots: [1, 2], repeats: 2}}"
    changes = [
        f"evaluate.evaluators={{probe: {probe}, shots: {shots}, groups: {{evaluator: clustering}}}}",
        "evaluate.evaluators.svm.evaluator={name: linear_svm, costs: [1.0]}",
        "evaluate.weights=raw",
    ]
    found = launch.evaluate(whole, changes, checkpoint="last")
    added = {"linear_top1", "linear_top5", "low_shot_1", "low_shot_2", "nmi", "ari", "purity", "matched", "svm_top1"}
    assert set(found) == names("val", OWN, KNN, COLLAPSE, added)
    details = json.loads((whole / "eval" / "val" / "details.json").read_text())
    assert {"linear_probe", "low_shot", "clusters", "linear_svm"} <= details.keys()
    assert [row["layer"] for row in details["linear_probe"]["layers"]] == ["embedding", "backbone.layers.0"]


# --- without labels ---------------------------------------------------------------------------------------------------


def kinds(recipe: Path, dataset_info: DatasetInfo, training: DatasetInfo | None = None) -> list[type]:
    changes = ["task={name: simclr, backbone: tiny, mean: [0.3], std: [0.38]}"]
    parts = launch.build_parts(launch.resolve(str(recipe), changes)).keywords
    return [type(one) for one in parts["task"](training or dataset_info).evaluators(dataset_info)]


def test_self_supervised_tasks_are_judged_by_labels_only_where_there_is_one_an_image(recipe: Path) -> None:
    labelled = DatasetInfo(samples=9, channels=1, classes=("a", "b"))
    assert kinds(recipe, labelled) == [Knn, Collapse]
    assert kinds(recipe, DatasetInfo(samples=9, channels=1)) == [Collapse]
    assert kinds(recipe, labelled, DatasetInfo(samples=9, channels=1)) == [Collapse]
    assert kinds(recipe, DatasetInfo(samples=9, channels=1, classes=("a", "b"), multi_label=True)) == [Collapse]


class Measured(Task):
    """A task with evaluators of its own."""

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [Knn(dataset_info), Collapse(dataset_info)]


def test_a_measure_stands_in_for_the_evaluator_that_gives_its_scores() -> None:
    """``--measure knn`` of a task that has it already, with other keys; its score stays the first one."""
    dataset_info = DatasetInfo(samples=4, classes=("a", "b"))
    other = partial(Knn, k=3)
    assert [type(one) for one in _task_and_additional([other], Measured(), dataset_info)] == [Knn, Collapse]
    assert [type(one) for one in _task_and_additional([Collapse], Measured(), dataset_info)] == [Knn, Collapse]
    assert [type(one) for one in _task_and_additional([LowShot], Measured(), dataset_info)] == [Knn, Collapse, LowShot]
    assert _task_and_additional([other], Measured(), dataset_info)[0]._options["k"] == 3  # type: ignore[attr-defined]
