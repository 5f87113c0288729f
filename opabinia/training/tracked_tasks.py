"""The tasks of multi-task runs that detect objects, and that describe their appearance, for tracking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem, catalog
from opabinia.config.datasets import subtasks
from opabinia.config.errors import listing, nearest
from opabinia.contracts import Task
from opabinia.tasks.detection import Detection
from opabinia.tasks.reid.base import Reidentification

Config = Mapping[str, Any]


def detection_tasks(config: Config) -> list[str]:
    """Return the tasks of a complete multi-task config that detect objects; none of a run of one task."""
    return _tasks_of_kind(config, Detection)


def detection_task(config: Config, name: str | None = None) -> str:
    """Return the task of a complete multi-task config that detects objects; empty for a run of one task.

    Args:
        config: the config.
        name: the choice of the user; None: the only one.

    Raises:
        ConfigError: there is none, or several.
    """
    return _choose(config, Detection, "--task", "object detection", name)


def embedding_task(config: Config, name: str | None = None) -> str:
    """Return the task of a complete multi-task config for re-identification, as :func:`detection_task`."""
    return _choose(config, Reidentification, "--reid-task", "re-identification", name)


def _tasks_of_kind(config: Config, kind: type[Task]) -> list[str]:
    tasks, parts = subtasks(config), catalog(config.get("plugins") or ())
    entries = {name: parts.find("task", section["task"]["name"]) for name, section in tasks.items()}
    classes = {name: parts.load(entry) for name, entry in entries.items() if entry is not None}
    return [name for name, part in classes.items() if isinstance(part, type) and issubclass(part, kind)]


def _choose(config: Config, kind: type[Task], option: str, what: str, name: str | None) -> str:
    known, suggestion = list(subtasks(config)), ""
    if name is not None:
        if name in known:
            return name
        message = f"there is no task {name!r}" if known else "the run has one task only"
        suggestion = nearest(name, known)
    else:
        fitting = _tasks_of_kind(config, kind)
        if len(fitting) == 1 or not known:
            return "".join(fitting)
        message = f"{len(fitting) or 'none'} of the run's tasks are for {what}: name the one to use"
        known = fitting or known
    allowed = f"tasks: {listing(known)}" if known else ""
    raise ConfigError(Problem("command line", option, message, "", suggestion, allowed))
