"""Multi-task configs: the datasets of the tasks become streams and validation sets of ``data``.

``task.tasks.NAME.data`` is written next to its task; ``data`` of the composed config has all of them, as every command
reads it::

    task.tasks.NAME.data.train        data.train.source.streams.NAME
    task.tasks.NAME.data.val          data.val, with the prefix NAME/val and task: NAME
    task.tasks.NAME.batch_share       data.train.source.streams.NAME.share

The places of moved values have the keys under which they are written: ``run.yaml:12 (task.tasks.NAME.batch_share)``.
"""

from __future__ import annotations

from collections.abc import Container

from opabinia.config.errors import Problem, listing, nearest, show
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
    known = [name for name, node in entries.items() if not isinstance(node.value, dict) or "task" in node.value]
    for name in [name for name in entries if name not in known] if known else ():
        message = "there is no task of this name, and a new one needs its key task"
        where, suggestion = _written(entries.pop(name)), nearest(name, known)
        problems.append(Problem(where, f"task.tasks.{name}", message, "", suggestion, f"tasks: {listing(known)}"))
    source = _section(_section(_section(root, "data"), "train"), "source")
    there = (_section(source, "streams") or Node({}, "")).value
    for name in there:
        if given := _section(entries.get(name), "data"):
            message = f"its data is under data.train.source.streams.{name} and data.val, too: write it in one place"
            problems.append(Problem(_written(given), f"task.tasks.{name}.data", message))
            entries[name] = _without(entries[name], "data")
    _check_streams(entries, there, problems)
    moved = {name: node for name, node in entries.items() if _section(node, "data") is not None}
    changed = {}
    if moved:
        trained = {name: node for name, node in moved.items() if _other_stream(name, node) is None}
        data = _section(root, "data") or Node({}, task.where)
        changed = {"data": _with_streams(data, trained, task.where, problems)}
        changed["data"].value["val"].value.extend(_validation(entries, problems))
        kept = ("data", "batch_share")
        entries = {name: _without(node, *kept) if name in moved else node for name, node in entries.items()}
    return Node({**root.value, "task": _with(task, tasks=Node(entries, tasks.where)), **changed}, root.where)


def _check_streams(entries: dict[str, Node], there: Container[str], problems: list[Problem]) -> None:
    """Report tasks without training data, and those with data of their own that learn from that of another one.

    Args:
        entries: the tasks.
        there: names of the streams under ``data``.
        problems: gets the mistakes.
    """
    nodes = {name: node for name, node in entries.items() if isinstance(node.value, dict)}
    streams = {name: _other_stream(name, node) for name, node in nodes.items()}
    has_data = {
        name: name in there or (_plain(node, "data") is not None and (streams[name] is None or _trains(node)))
        for name, node in nodes.items()
    }
    for name, node in nodes.items():
        path, stream = f"task.tasks.{name}", streams[name]
        if stream is None:
            if not has_data[name] and "task" in node.value:
                message = (
                    "it has no training data: give it data, or name the task from whose images it learns in stream"
                )
                problems.append(Problem(node.where, path, message))
            continue
        place = node.value["stream"].where
        if has_data[name]:
            message = f"it has training data of its own, too: omit stream, or {path}.data.train"
            problems.append(Problem(place, f"{path}.stream", message, show(stream)))
        elif stream not in entries:
            message, known = "there is no task of this name", f"tasks: {listing(list(entries))}"
            suggestion = nearest(stream, entries)
            problems.append(Problem(place, f"{path}.stream", message, show(stream), suggestion, known))
        elif not has_data.get(stream):
            message = f"{stream} has no training data of its own"
            known = f"name the task that has it: {streams[stream]}" if streams.get(stream) else ""
            problems.append(Problem(place, f"{path}.stream", message, allowed=known))


def _other_stream(name: str, node: Node) -> str | None:
    """Return the other task on whose images a task learns; None if it has data of its own."""
    stream = _plain(node, "stream")
    return stream if isinstance(stream, str) and stream != name else None


def _trains(node: Node) -> bool:
    """Return whether the data of a task is more than validation sets."""
    data = _section(node, "data")
    return data is None or bool(data.value.keys() - {"val"})


def _with_streams(data: Node, entries: dict[str, Node], where: str, problems: list[Problem]) -> Node:
    """Return the section ``data`` with the training data of tasks as streams, and a list of validation sets."""
    train = _section(data, "train") or Node({}, where)
    source = train.value.get("source") or Node({}, where)
    if not isinstance(source.value, dict):
        source = Node({} if source.value is None else {"name": source}, source.where)
    if (name := _plain(source, "name")) not in (None, "mixture"):
        message = "the tasks have training data of their own; omit this"
        problems.append(Problem(source.where, "data.train.source", message, show(name)))
        source = Node({}, where)
    source = Node({"name": Node("mixture", where), **source.value}, source.where)
    streams = _section(source, "streams") or Node({}, where)
    added = {name: _stream(name, node, problems) for name, node in entries.items()}
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


def _stream(name: str, node: Node, problems: list[Problem]) -> Node:
    """Return the stream of a task's training data."""
    data = node.value["data"]
    if _section(data, "train") is None:
        train = data.value.get("train")
        message = f"missing; keys of data: {listing(list(data.value))}" if train is None else "expected a section"
        place, found = train.where if train else data.where, show(train.plain()) if train else ""
        problems.append(Problem(place, f"task.tasks.{name}.data.train", message, found))
        return Node(BROKEN, place)
    data = _written_at(data, f"task.tasks.{name}.data")
    own = {**data.value["train"].value, **_without(data, "train", "val").value}
    if "batch_share" in node.value:
        own["share"] = _written_at(node.value["batch_share"], f"task.tasks.{name}.batch_share")
    return Node(own, data.where)


def _written_at(node: Node, path: str) -> Node:
    """Return a value whose places have the keys under which it is written."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _written_at(child, f"{path}.{key}") for key, child in value.items()}
    elif isinstance(value, list):
        value = [_written_at(child, f"{path}.{number}") for number, child in enumerate(value)]
    return Node(value, node.where if path in node.where else f"{node.where} ({path})", node.via)


def _validation(entries: dict[str, Node], problems: list[Problem]) -> list[Node]:
    """Return the validation sets of all tasks; a task without its own has those of its ``stream``."""
    sets = []
    for name, node in entries.items():
        if not isinstance(node.value, dict):
            continue
        stream, own = _other_stream(name, node), _section(node, "data")
        owner = stream if stream in entries and (own is None or "val" not in own.value) else name
        data = _section(entries[owner], "data")
        if data is None or "val" not in data.value:
            continue
        path = f"task.tasks.{owner}.data.val"
        for val in _listed(_written_at(data.value["val"], path)):
            if isinstance(val.value, dict):
                keys = {"prefix": f"{name}/{_plain(val, 'prefix') or 'val'}", "task": name}
                sets.append(_with(val, **{key: Node(value, val.where) for key, value in keys.items()}))
            elif owner == name:
                problems.append(Problem(val.where, "", "expected a section with a source", show(val.plain())))
    return sets
