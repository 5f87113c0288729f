"""Multi-task configs: the datasets of the tasks become streams and validation sets of ``data``.

``task.tasks.NAME.data`` is written beside its task; ``data`` of the composed config has all of them, as every command
reads it::

    task.tasks.NAME.data.train        data.train.source.streams.NAME
    task.tasks.NAME.data.val          data.val, with the prefix NAME/val and task: NAME
    task.tasks.NAME.batch_share       data.train.source.streams.NAME.share
"""

from __future__ import annotations

from opabinia.config.errors import Problem, listing
from opabinia.config.tree import BROKEN, Node

_TASK = "multitask"
_SHARED = ("backbone", "mean", "std")
"""Keys that inner tasks take from the multi-task one."""


def move_datasets(root: Node, problems: list[Problem]) -> Node:
    """Return the config with the datasets of its tasks under ``data``; other configs are returned as they are.

    Args:
        root: references are resolved.
        problems: gets the mistakes.
    """
    task = _section(root, "task")
    tasks = _section(task, "tasks")
    if task is None or tasks is None or _plain(task, "name") != _TASK:
        return root
    entries = {name: _with_shared_backbone(name, node, problems) for name, node in tasks.value.items()}
    there = _section(_section(_section(root, "data"), "train"), "source")
    for name in (_section(there, "streams") or Node({}, "")).value:
        if given := _section(entries.get(name), "data"):
            message = f"its data is under data.train.source.streams.{name} and data.val, too: write it in one place"
            problems.append(Problem(_written(given), f"task.tasks.{name}.data", message))
            entries[name] = _without(entries[name], "data")
    moved = {name: node for name, node in entries.items() if _section(node, "data") is not None}
    changed = {}
    if moved:
        data = _section(root, "data") or Node({}, task.where)
        changed = {"data": _with_streams(data, moved, task.where, problems)}
        changed["data"].value["val"].value.extend(_validation(entries, problems))
        kept = ("data", "batch_share")
        entries = {name: _without(node, *kept) if name in moved else node for name, node in entries.items()}
    return Node({**root.value, "task": _with(task, tasks=Node(entries, tasks.where)), **changed}, root.where)


def _with_streams(data: Node, entries: dict[str, Node], where: str, problems: list[Problem]) -> Node:
    """Return the section ``data`` with the training data of tasks as streams, and a list of validation sets."""
    train = _section(data, "train") or Node({}, where)
    source = _section(train, "source") or Node({}, where)
    if (name := _plain(source, "name")) not in (None, "mixture"):
        message = "the tasks have training data of their own; leave this out"
        problems.append(Problem(source.where, "data.train.source", message, str(name)))
        source = Node({}, where)
    source = Node({"name": Node("mixture", where), **source.value}, source.where)
    streams = _section(source, "streams") or Node({}, where)
    added = {name: _stream(node) for name, node in entries.items()}
    source = _with(source, streams=_with(streams, **added))
    validation = Node(_listed(data.value.get("val")), where)
    data = Node({"drop_last": Node(True, where), **data.value}, data.where)
    return _with(data, train=_with(train, source=source), val=validation)


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


def _listed(node: Node | None) -> list[Node]:
    if node is None or node.value is None:
        return []
    return list(node.value) if isinstance(node.value, list) else [node]


def _without(node: Node, *keys: str) -> Node:
    return Node({key: child for key, child in node.value.items() if key not in keys}, node.where)


def _with_shared_backbone(name: str, node: Node, problems: list[Problem]) -> Node:
    """Return the entry of a task whose backbone is ``shared``."""
    inner = node.value.get("task") if isinstance(node.value, dict) else None
    if inner is None or not isinstance(inner.value, dict | str):
        return node
    section = dict(inner.value) if isinstance(inner.value, dict) else {"name": inner}
    if "name" in section and section["name"].value == _TASK:
        problems.append(Problem(inner.where, f"task.tasks.{name}.task", "a multi-task run cannot be within another"))
        return _with(node, task=Node(BROKEN, inner.where))
    for key in _SHARED:
        given = section.get(key)
        if given is not None and given.value is not None and not _is_shared(given):
            message = f"the tasks share the {key} of task.{key}; leave it out here"
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


def _stream(node: Node) -> Node:
    """Return the stream of a task's training data."""
    data = node.value["data"]
    train = _section(data, "train")
    own = _without(data, "train", "val").value
    share = {"share": node.value["batch_share"]} if "batch_share" in node.value else {}
    return Node({**(train.value if train else {}), **own, **share}, data.where)


def _validation(entries: dict[str, Node], problems: list[Problem]) -> list[Node]:
    """Return the validation sets of all tasks; a task without data has those of its ``stream``."""
    streams = []
    for name, node in entries.items():
        source = _section(node, "data")
        if source is None and isinstance(node.value, dict) and isinstance(stream := _plain(node, "stream"), str):
            if stream not in entries:
                message, known = "there is no task of this name", f"tasks: {listing(list(entries))}"
                place = node.value["stream"].where
                problems.append(Problem(place, f"task.tasks.{name}.stream", message, stream, "", known))
                continue
            source = _section(entries[stream], "data")
        for val in _listed(source.value.get("val")) if source else []:
            prefix = (_plain(val, "prefix") if isinstance(val.value, dict) else None) or "val"
            keys = {"prefix": Node(f"{name}/{prefix}", val.where), "task": Node(name, val.where)}
            streams.append(_with(val, **keys) if isinstance(val.value, dict) else val)
    return streams
