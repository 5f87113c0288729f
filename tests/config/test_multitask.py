"""The datasets of the tasks of a multi-task config are read where they are written."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from opabinia.config import ConfigError
from opabinia.config.datasets import training_sets, validation_sets, with_sets, with_validation_sets
from opabinia.config.paths import check_run
from opabinia.training.dry_run import dry_run
from opabinia.training.run_folder import build_parts
from opabinia.training.run_folder import resolve as resolve_config
from opabinia.training.streams import training_streams

TRAIN = {"source": "digits"}
VAL = {"source": {"name": "digits", "split": "val"}}
TASKS: dict[str, Any] = {
    "a": {"task": "classification", "batch_share": 0.5, "data": {"train": TRAIN, "val": VAL, "mix": ["mixup"]}},
    "b": {"task": {"name": "classification"}, "data": {"train": TRAIN, "val": [VAL, {**VAL, "prefix": "again"}]}},
    "c": {"task": "classification", "stream": "a"},
}
TIMM = {"name": "timm", "model": "test_resnet"}


def resolve(
    folder: Path, tasks: dict[str, Any], *overrides: str, plugins: tuple[str, ...] = (), **sections: Any
) -> Any:
    path = folder / "tasks.yaml"
    data = {"batch_size": 8, **sections}
    content: dict[str, Any] = {
        "task": {"name": "multitask", "backbone": TIMM, "tasks": tasks},
        "data": data,
        "optimizer": "sgd",
        "plugins": list(plugins),
    }
    path.write_text(yaml.safe_dump({**content, "train": {"length": "1it"}}, sort_keys=False))
    return resolve_config(path, overrides)


def test_datasets_stay_where_they_are_written(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, TASKS, "task.tasks.a.data.train.source.split=val", "task.alternate=true")
    config = resolved.config
    assert config["data"]["train"] is None and config["data"]["val"] is None
    train = training_sets(config)
    assert list(train) == ["a", "b"] and train["a"]["source"] == {"name": "digits", "split": "val"}
    prefixes = [("a/val", "a"), ("b/val", "b"), ("b/again", "b"), ("c/val", "c")]
    assert [(val["prefix"], val["task"]) for val in validation_sets(config)] == prefixes
    parts = build_parts(resolved).keywords
    assert [(val.prefix, val.task) for val in parts["data"].validation] == prefixes
    assert list(training_streams(parts["task"], parts["data"])) == ["a", "b"]
    tasks = config["task"]["tasks"]
    assert all(task["task"]["backbone"] == {"name": "shared"} for task in tasks.values())
    origin = resolved.origins["task.tasks.a.data.train.source.split"]
    assert origin == "command line: task.tasks.a.data.train.source.split=val"


def test_a_resumed_run_reads_its_config_as_it_is(tmp_path: Path) -> None:
    config = resolve(tmp_path, TASKS).config
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert resolve_config(tmp_path).config == config


def test_datasets_of_a_command_replace_those_of_the_tasks(tmp_path: Path) -> None:
    config = resolve(tmp_path, TASKS).config
    chosen = validation_sets(config)[1]
    for changed_config, trained in (
        (with_validation_sets(config, [chosen]), ["a", "b"]),
        (with_sets(config, {"source": {}}, [chosen]), [""]),
    ):
        assert validation_sets(changed_config) == [chosen] and list(training_sets(changed_config)) == trained


def changed(name: str, **keys: Any) -> dict[str, Any]:
    return {**TASKS, name: {**TASKS[name], **keys}}


NESTED = {"name": "multitask", "tasks": {"d": {"task": "classification"}}}
MISTYPED = ("task.tasks.b.data.train.source.splt", ": unknown key (found 1); did you mean 'split'?")
MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("a", {"task": {"name": "classification", "backbone": TIMM}}, "task.tasks.a.task.backbone", "the tasks share"),
    ("b", {"task": {"name": "classification", "mean": [0.1]}}, "task.tasks.b.task.mean", "the tasks share the mean"),
    ("c", {"stream": "d"}, "task.tasks.c.stream", "there is no task of this name (found 'd'); tasks: a, b, c"),
    ("c", {"stream": "c"}, "task.tasks.c", "it has no training data: give it data.train, or name the task"),
    ("c", {"stream": None}, "task.tasks.c", "it has no training data"),
    ("b", {"data": None}, "task.tasks.b", "it has no training data"),
    ("b", {"stream": "a"}, "task.tasks.b.stream", "it has training data of its own, too"),
    ("b", {"data": {"val": VAL}, "stream": "c"}, "task.tasks.b.stream", "c has no training data of its own; name"),
    ("b", {"task": NESTED}, "task.tasks.b.task", "a multi-task run cannot be within another"),
    ("b", {"task": "multitask"}, "task.tasks.b.task", "a multi-task run cannot be within another"),
    ("b", {"data": {"train": TRAIN, "batch_size": 4}}, "task.tasks.b.data.batch_size", "unknown key"),
    ("b", {"data": {"train": {"source": {}}}}, "task.tasks.b.data.train.source.name", "missing"),
    ("b", {"data": {"train": TRAIN, "val": "x"}}, "task.tasks.b.data.val", "expected"),
    ("b", {"data": {"val": VAL}}, "task.tasks.b", "it has no training data"),
    ("b", {"data": {"train": TRAIN, "val": {**VAL, "task": "a"}}}, "task.tasks.b.data.val.task", "evaluates that task"),
    ("b", {"data": {"train": "x"}}, "task.tasks.b.data.train", "expected"),
    ("c", {"data": {"sampler": "weighted"}}, "task.tasks.c.stream", "it has training data of its own, too"),
    ("c", {"batch_share": 0.5}, "task.tasks.c.batch_share", "the share of its images is task.tasks.a.batch_share"),
    ("b", {"data": {"train": {"source": {"name": "digits", "splt": 1}}}}, *MISTYPED),
    ("b", {"batch_shar": 0.1}, "task.tasks.b.batch_shar", "did you mean 'batch_share'"),
    ("b", {"batch_share": 2.0}, "task.tasks.b.batch_share", "expected a number"),
    ("b", {"weight": -1}, "task.tasks.b.weight", "expected a number >= 0"),
]


def test_each_mistake_is_one_problem(tmp_path: Path) -> None:
    for name, keys, path, text in MISTAKES:
        with pytest.raises(ConfigError) as caught:
            resolve(tmp_path, changed(name, **keys))
        (problem,) = caught.value.problems
        assert problem.path == path and text in str(problem), str(problem)
        assert problem.where.startswith((str(tmp_path), "command line")), str(problem)


def test_not_all_tasks_can_be_null(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.tasks: expected a mapping .*\(not empty\)"):
        resolve(tmp_path, TASKS, *(f"task.tasks.{name}=null" for name in TASKS))


def test_an_override_with_a_mistyped_name(tmp_path: Path) -> None:
    tasks = {"boxes": TASKS["a"], "maps": TASKS["b"]}
    with pytest.raises(ConfigError) as caught:
        resolve(tmp_path, tasks, "task.tasks.box.weight=2")
    place = "command line: task.tasks.box.weight=2: task.tasks.box"
    message = (
        "there is no task of this name, and a new one needs its key task; did you mean 'boxes'? tasks: boxes, maps"
    )
    assert str(caught.value) == f"{place}: {message}"
    with pytest.raises(ConfigError, match=r"task\.tasks\.box\.task: missing; a task is required"):
        resolve(tmp_path, {"box": {"weight": 2}})


def test_batch_shares_and_scores_are_checked_without_building(tmp_path: Path) -> None:
    cases = (
        (
            "task.tasks.b.batch_share=0.6",
            "task.tasks.a.batch_share: the shares of the streams sum to 1.1 (a 0.5, b 0.6)",
        ),
        ("task.tasks.a.batch_share=1", "task.tasks.a.batch_share: the given shares sum to 1 and leave nothing for b"),
        ("task.tasks.b.batch_share=0", "task.tasks.b.batch_share: expected a number above 0"),
        (
            "checkpoint.best=a/val/top1 - bb/val/loss",
            "the score 'bb/val/loss'; did you mean 'b/val/loss'? validation s",
        ),
        ("checkpoint.best=a/val_ema/top1", "checkpoint.best: no evaluation computes the score 'a/val_ema/top1'; did"),
        ("checkpoint.best=a * b", "checkpoint.best: 'a * b' is neither a score nor a sum"),
    )
    for override, text in cases:
        with pytest.raises(ConfigError) as caught:
            check_run(resolve(tmp_path, TASKS, override))
        assert text in str(caught.value), str(caught.value)
    check_run(resolve(tmp_path, TASKS, "checkpoint.best=a/val_ema/top1 - b/again/loss", "ema={decay: 0.9}"))
    check_run(resolve_config("classification/digits", ["checkpoint.best=val/top1"]))


def test_a_task_without_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counts_only.py").write_text(
        "from opabinia.config import register\nfrom opabinia.contracts import DatasetInfo, Task\n\n\n"
        '@register.task\nclass CountsOnly(Task):\n    """Counts."""\n\n'
        "    def __init__(self, info: DatasetInfo, /): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve(tmp_path, changed("b", task="counts_only"), plugins=("counts_only",))
    (problem,) = caught.value.problems
    assert problem.path == "task.tasks.b.task" and "counts_only has no backbone to share" in str(problem)


def test_options_that_belong_to_tasks(tmp_path: Path) -> None:
    for override, text in (
        ("data.train={source: digits}", "data.train: each task of the run has its own: task.tasks.NAME.data.train"),
        ("data.sampler=weighted", "data.sampler: each task"),
        ("data.mix=[mixup]", "data.mix: each task"),
        ("data.shuffle=false", "data.shuffle: each task"),
        ("data.augment_on=device", "data.augment_on: images of a multi-task run are augmented by the workers"),
        ("data.batch_size=auto", "data.batch_size: auto cannot divide a batch among the streams"),
    ):
        with pytest.raises(ConfigError, match=text):
            resolve(tmp_path, TASKS, override)
    with pytest.raises(ConfigError, match=r"data\.train: missing; a section is required"):
        resolve_config("classification/digits", ["data.train=null"])


def test_a_task_on_the_stream_of_another_task_may_have_its_own_validation_data(tmp_path: Path) -> None:
    for val, prefixes in (
        (VAL, ["c/val"]),
        (None, ["c/val"]),
        ([], []),
        ([VAL, {**VAL, "prefix": "again"}], ["c/val", "c/again"]),
    ):
        config = resolve(tmp_path, changed("c", data={"val": val})).config
        assert [val_set["prefix"] for val_set in validation_sets(config) if val_set["task"] == "c"] == prefixes
        assert list(training_sets(config)) == ["a", "b"]


def test_tasks_and_streams_that_do_not_fit(tmp_path: Path) -> None:
    """These errors are reported when the run is built."""
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"a.b": TASKS["b"]}, "'a.b' cannot name a task"),
        ({"values": TASKS["b"]}, "'values' cannot name a task"),
        (
            changed("c", task="simclr"),
            "task.tasks.c: a batch does not go through: SimCLR learns from 2 views or more of an image",
        ),
        (changed("c", task="deepcluster"), "deepcluster clusters all images before each epoch"),
    )
    for tasks, text in cases:
        with pytest.raises(ConfigError) as caught:
            build(resolve(tmp_path, tasks))
        assert text in str(caught.value)
    with pytest.raises(ConfigError, match="there is no task 'nope'; tasks: a, b, c"):
        build(resolve(tmp_path, TASKS, val={**VAL, "task": "nope"}))


def build(resolved: Any) -> None:
    dry_run(build_parts(resolved).keywords)
