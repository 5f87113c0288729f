"""Multi-task configs: the inner tasks take backbone and normalization from the multi-task one."""

from __future__ import annotations

from opabinia.config.datasets import MULTITASK
from opabinia.config.errors import Problem, listing, nearest
from opabinia.config.tree import BROKEN, Node

_SHARED = ("backbone", "mean", "std")
"""Keys that inner tasks take from the multi-task one."""


def share_backbone(root: Node, problems: list[Problem]) -> Node:
    """Return the config with the backbone ``shared`` for each inner task of a multi-task run; other configs are
    returned as they are.

    Args:
        root: references are resolved.
        problems: gets the mistakes.
    """
    task = _section(root, "task")
    tasks = _section(task, "tasks")
    if task is None or tasks is None or _plain(task, "name") != MULTITASK:
        return root
    entries = {name: _with_shared_backbone(name, node, problems) for name, node in tasks.value.items()}
    known = [name for name, node in entries.items() if not isinstance(node.value, dict) or "task" in node.value]
    for name in [name for name in entries if name not in known] if known else ():
        message = "there is no task of this name, and a new one needs its key task"
        where, suggestion = _written(entries.pop(name)), nearest(name, known)
        problems.append(Problem(where, f"task.tasks.{name}", message, "", suggestion, f"tasks: {listing(known)}"))
    return _with(root, task=_with(task, tasks=Node(entries, tasks.where)))


def _written(node: Node) -> str:
    """Return the place of the first value in a section."""
    return _written(next(iter(node.value.values()))) if isinstance(node.value, dict) and node.value else node.where


def _with(node: Node, **children: Node) -> Node:
    return Node({**node.value, **children}, node.where)


def _section(node: Node | None, key: str) -> Node | None:
    """Return the mapping at a key; None if there is none."""
    inner = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return inner if inner is not None and isinstance(inner.value, dict) else None


def _plain(node: Node, key: str) -> object:
    inner = node.value.get(key)
    return inner.value if inner is not None else None


def _with_shared_backbone(name: str, node: Node, problems: list[Problem]) -> Node:
    """Return the entry of a task whose backbone is ``shared``."""
    inner = node.value.get("task") if isinstance(node.value, dict) else None
    if inner is None or not isinstance(inner.value, dict | str):
        return node
    section = dict(inner.value) if isinstance(inner.value, dict) else {"name": inner}
    if "name" in section and section["name"].value == MULTITASK:
        problems.append(Problem(inner.where, f"task.tasks.{name}.task", "a multi-task run cannot be within another"))
        return _with(node, task=Node(BROKEN, inner.where))
    for key in _SHARED:
        given = section.get(key)
        if given is not None and given.value is not None and not _is_shared(given):
            message = f"the tasks share the {key} of task.{key}; omit it here"
            problems.append(Problem(given.where, f"task.tasks.{name}.task.{key}", message))
            del section[key]
    section.setdefault("backbone", Node("shared", inner.where))
    return Node({**node.value, "task": Node(section, inner.where)}, node.where)


def _is_shared(backbone: Node) -> bool:
    """Return whether a backbone is the shared one, or is built on it, as that of videos on one of images."""
    if not isinstance(backbone.value, dict):
        return bool(backbone.value == "shared")
    inner = backbone.value.get("backbone")
    return _plain(backbone, "name") == "shared" or (inner is not None and _is_shared(inner))
