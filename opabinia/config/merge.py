"""Merge config trees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from opabinia.config.errors import Problem
from opabinia.config.references import dotted
from opabinia.config.tree import BROKEN, Node

Path = tuple[Any, ...]
Section = dict[str, Node]


DELETE = "_delete_"
"""The key of a mapping that replaces that of the base instead of merging, as in MMEngine: ``_delete_: true``."""


def merge(base: Node, over: Node) -> Node:
    """Return ``over`` on top of ``base``: mappings merge, unless ``name`` changes or they say ``_delete_: true``;
    everything else replaces.

    A bare string counts as ``{name: string}`` if the other side is a mapping.
    """
    lower, upper = _as_section(base, over), _as_section(over, base)
    if not isinstance(lower, dict) or not isinstance(upper, dict) or _replaces(lower, upper):
        return over
    merged = dict(lower)
    for key, node in upper.items():
        merged[key] = merge(lower[key], node) if key in lower else node
    return Node(merged, over.where)


def put(node: Node | None, keys: Sequence[str], value: Node, path: Path, problems: list[Problem]) -> Node:
    """Return ``node``, which is at ``path``, with ``value`` merged in at ``keys`` below it."""
    if not keys:
        return merge(node, value) if node else value
    key, *rest = keys
    if node and node.value is BROKEN:
        return node
    if node and isinstance(node.value, list):
        return _put_item(node, key, rest, value, path, problems)
    if key.isdigit() and not (node and isinstance(node.value, dict)):
        message = "this list is not written in the config; give all of it"
        problems.append(Problem(value.where, dotted((*path, key)), message))
        return node or Node(BROKEN, value.where)
    section = _as_section(node, Node({}, "")) if node else {}
    section = section if isinstance(section, dict) else {}
    over = Node({key: put(section.get(key), rest, value, (*path, key), problems)}, value.where)
    return merge(node, over) if node else over


def without_delete(node: Node) -> Node:
    """Return a merged tree without the keys ``_delete_``."""
    if isinstance(node.value, list):
        return Node([without_delete(item) for item in node.value], node.where, node.via)
    if isinstance(node.value, dict):
        section = {key: without_delete(child) for key, child in node.value.items() if key != DELETE}
        return Node(section, node.where, node.via)
    return node


def _put_item(node: Node, key: str, rest: Sequence[str], value: Node, path: Path, problems: list[Problem]) -> Node:
    items = list(node.value)
    if not re.fullmatch(r"[0-9]{1,6}", key) or int(key) > len(items):
        last = f"0 to {len(items) - 1}, or {len(items)} to append" if items else "0 to append"
        message = f"{key!r} is not a position of this list"
        problems.append(Problem(value.where, dotted((*path, key)), message, allowed=f"positions: {last}"))
        return node
    index = int(key)
    old = items[index] if index < len(items) else None
    items[index : index + 1] = [put(old, rest, value, (*path, key), problems)]
    return Node(items, node.where)


def _replaces(lower: Section, upper: Section) -> bool:
    """Whether ``upper`` is another part than ``lower``."""
    if DELETE in upper and upper[DELETE].value is True:
        return True
    if "name" not in upper:
        return False
    if "name" not in lower:  # a bare string over a mapping of plain values
        return set(upper) == {"name"}
    return bool(lower["name"].value != upper["name"].value)


def _as_section(node: Node, other: Node) -> Any:
    """The value of a node; a bare string becomes a section if ``other`` is a mapping."""
    if isinstance(node.value, str) and isinstance(other.value, dict):
        return {"name": node}
    return node.value
