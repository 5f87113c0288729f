"""The datasets of a complete config: those of ``data``, and in a multi-task run those of each task,
``task.tasks.NAME.data``. Every command that looks for the datasets of a config asks here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opabinia.config.errors import listing, nearest

MULTITASK = "multitask"
SECTIONS = ("task", "data", "distill", "semi_supervised")
"""Sections of a config that :func:`dataset_problems` reads."""
Section = dict[str, Any]


def subtasks(config: Mapping[str, Any]) -> dict[str, Section]:
    """Return the sections of the tasks of a multi-task run by name."""
    task = config["task"]
    return dict(task["tasks"]) if task["name"] == MULTITASK else {}


def training_sets(config: Mapping[str, Any]) -> dict[str, Section]:
    """Return the sections ``train`` of the streams by name; that of a run of one task has an empty name."""
    streams = {name: section["data"]["train"] for name, section in subtasks(config).items() if section["data"]}
    return {name: train for name, train in streams.items() if train} or {"": config["data"]["train"]}


def validation_sets(config: Mapping[str, Any]) -> list[Section]:
    """Return the sections of the validation sets, those of tasks with the names of their tasks in ``prefix``; a task
    without its own has those of its stream."""
    tasks = subtasks(config)
    task_sets = task_validation({name: (_data(task).get("val"), task["stream"]) for name, task in tasks.items()})
    of_tasks = [{**section, "prefix": f"{name}/{section['prefix']}", "task": name} for name, section in task_sets]
    return [*_listed(config["data"]["val"]), *of_tasks]


def task_validation(tasks: Mapping[str, tuple[Any, str | None]]) -> list[tuple[str, Any]]:
    """Return the validation sets of the tasks of a multi-task run, each with the name of its task.

    Args:
        tasks: for each, its validation sets (one, a list, or None: those of its stream), and its stream.
    """

    def sets_of(name: str) -> list[Any]:
        val, stream = tasks[name]
        return sets_of(stream) if val is None and stream and stream in tasks and stream != name else _listed(val)

    return [(name, val_set) for name in tasks for val_set in sets_of(name)]


def _listed(val: Any) -> list[Any]:
    return val if isinstance(val, list) else [val] if val else []


def with_sets(config: Mapping[str, Any], train: Section | None, val: Sequence[Section]) -> dict[str, Any]:
    """Return the config with these datasets instead of its own, for a command that does not train.

    Args:
        config: a complete config.
        train: section of the training data, in the order of the source; None: there is none.
        val: those of the validation sets.
    """
    data = {**config["data"], "train": train, "sampler": None}
    return with_validation_sets({**without_task_data(config), "data": data}, val)


def with_validation_sets(config: Mapping[str, Any], val: Sequence[Section]) -> dict[str, Any]:
    """Return the config with these sections of validation sets instead of its own."""
    tasks = {
        name: {**section, "data": section["data"] and {**section["data"], "val": []}}
        for name, section in subtasks(config).items()
    }
    task = {**config["task"], "tasks": tasks} if tasks else config["task"]
    return {**config, "task": task, "data": {**config["data"], "val": val[0] if len(val) == 1 else list(val)}}


def without_task_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete config without the datasets of the tasks of a multi-task run."""
    tasks = {name: {**section, "data": None} for name, section in subtasks(config).items()}
    return {**config, "task": {**config["task"], "tasks": tasks}} if tasks else dict(config)


def dataset_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, str, str]]:
    """Yield the mistakes in the datasets of a complete config, of which it reads :data:`SECTIONS`: path, message, the
    value found (``...``: none), the nearest valid choice, and the valid choices."""
    data, tasks = config["data"], subtasks(config)
    if config.get("semi_supervised"):
        yield from _semi_supervised_problems(config)
    if not tasks:
        if data.get("train", ...) is None:
            yield "data.train", "missing", ..., "", "a section is required"
        return
    for key in ("train", "sampler", "mix"):
        if data[key]:
            yield f"data.{key}", f"each task of the run has its own: task.tasks.NAME.data.{key}", ..., "", ""
    if not data["shuffle"]:
        yield "data.shuffle", "each task of the run has its own: task.tasks.NAME.data.shuffle", ..., "", ""
    if data["augment_on"] != "workers":
        yield "data.augment_on", "images of a multi-task run are augmented by the workers", data["augment_on"], "", ""
    if data["batch_size"] == "auto":
        message = "auto cannot divide a batch among the streams of a multi-task run: give a number"
        yield "data.batch_size", message, ..., "", ""
    trained = [name for name in tasks if _data(tasks[name]).get("train")]
    from opabinia.runtime.shares import remaining_share  # predictions of other runs do not need it

    problems = [problem for name in tasks for problem in _stream_problems(name, tasks, trained)]
    yield from problems
    try:
        if not problems:
            remaining_share({name: tasks[name]["batch_share"] for name in trained})
    except ValueError as error:
        key, _, message = str(error).partition(": ")
        yield f"task.{key}", message, ..., "", ""


def _semi_supervised_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, str, str]]:
    """Yield the sections and values that exclude unlabeled images."""
    data = config["data"]
    if subtasks(config):
        yield "semi_supervised", "a multi-task run cannot learn from unlabeled images", ..., "", ""
    if config.get("distill"):
        message = "a run is distilled or semi-supervised, not both: omit distill or semi_supervised"
        yield "semi_supervised", message, ..., "", ""
    if data["augment_on"] != "workers":
        message = "images of a semi-supervised run are augmented by the workers"
        yield "data.augment_on", message, data["augment_on"], "", ""
    if data["batch_size"] == "auto":
        message = "auto cannot divide a batch among labeled and unlabeled images: give a number"
        yield "data.batch_size", message, ..., "", ""


def _stream_problems(
    name: str, tasks: Mapping[str, Section], trained: Sequence[str]
) -> Iterator[tuple[str, str, Any, str, str]]:
    """Yield the mistakes in the data of a task; ``trained``: tasks with training data of their own."""
    path, section, stream = f"task.tasks.{name}", _data(tasks[name]), tasks[name]["stream"]
    if any(val_set.get("task") not in (None, name) for val_set in _listed(section.get("val"))):
        yield f"{path}.data.val.task", "the data of a task evaluates that task: omit it", ..., "", ""
    if stream in (None, name):
        if name not in trained:
            message = "it has no training data: give it data.train, or name the task from whose images it learns in"
            yield path, f"{message} stream", ..., "", ""
    elif section.get("train") or section.get("sampler") or section.get("mix") or not section.get("shuffle", True):
        message = f"it has training data of its own, too: omit stream, or {path}.data.train"
        yield f"{path}.stream", message, stream, "", ""
    elif stream not in tasks:
        known = f"tasks: {listing(list(tasks))}"
        yield f"{path}.stream", "there is no task of this name", stream, nearest(stream, tasks), known
    elif stream not in trained:
        known = f"name the task that has it: {tasks[stream]['stream']}" if tasks[stream]["stream"] else ""
        yield f"{path}.stream", f"{stream} has no training data of its own", ..., "", known
    elif tasks[name]["batch_share"] is not None:
        message = f"the share of its images is task.tasks.{stream}.batch_share"
        yield f"{path}.batch_share", message, tasks[name]["batch_share"], "", ""


def _data(task: Section) -> Section:
    return task["data"] or {}
