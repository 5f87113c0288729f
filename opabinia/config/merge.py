"""Merge config trees. A part or key under an old name counts as the same one under its current name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from opabinia.config.catalog import Catalog
from opabinia.config.errors import Problem
from opabinia.config.references import dotted
from opabinia.config.registry import Entry
from opabinia.config.tree import BROKEN, Node
from opabinia.config.types import Spec

Path = tuple[Any, ...]
Section = dict[str, Node]


DELETE = "_delete_"
"""The key of a mapping that replaces that of the base instead of merging, as in MMEngine: ``_delete_: true``."""


class Position(NamedTuple):
    """A place in a config.

    Attributes:
        spec: the type spec of the value there.
        default: the default of the signature, which may name the part.
        key: the key in a dictionary of parts, which names the part if nothing else does.
    """

    spec: Spec
    default: Any = None
    key: str = ""


def deprecated(where: str, old: str, new: str) -> str:
    """Return the warning about an old name."""
    return f"{where}: {old} is deprecated: use {new}"


class Merger:
    """Merges nodes.

    Args:
        catalog: knows old and current names; None: every name is taken as written.
        command: the command whose parameters are the top level.

    Attributes:
        top: the position of the whole config; None without a catalog.
        warnings: about old names, in the order in which they were met, each once.
    """

    def __init__(self, catalog: Catalog | None = None, command: str = "train") -> None:
        self._catalog = catalog or Catalog({})
        self.top = Position({"kind": "part", "family": "command", "name": command}) if catalog else None
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    def merge(self, base: Node, over: Node, position: Position | None, path: Path = ()) -> Node:
        """Return ``over`` on top of ``base``: mappings merge, unless ``name`` changes or they say ``_delete_: true``;
        everything else replaces.

        A bare string counts as ``{name: string}`` if the other side is a mapping.
        """
        lower, upper = _as_section(base, over), _as_section(over, base)
        if not isinstance(lower, dict) or not isinstance(upper, dict) or self._replaces(lower, upper, position, path):
            return over
        entry = self._entry(position, upper.get("name") or lower.get("name"))
        lower, upper = self._rename_keys(lower, entry, path), self._rename_keys(upper, entry, path)
        merged = dict(lower)
        for written, node in upper.items():
            key = self._same_key(written, lower, position, (*path, written), node.where)
            inner = self._inner(position, entry, key)
            merged[key] = self.merge(lower[key], node, inner, (*path, key)) if key in lower else node
        return Node(merged, over.where)

    def put(
        self,
        node: Node | None,
        keys: Sequence[str],
        value: Node,
        position: Position | None,
        path: Path,
        problems: list[Problem],
    ) -> Node:
        """Return ``node``, which is at ``path``, with ``value`` merged in at ``keys`` below it."""
        if not keys:
            return self.merge(node, value, position, path) if node else value
        key, *rest = keys
        if node and node.value is BROKEN:
            return node
        if node and isinstance(node.value, list):
            return self._put_item(node, key, rest, value, position, path, problems)
        if key.isdigit() and not (node and isinstance(node.value, dict)):
            message = "this list is not written in the config; give all of it"
            problems.append(Problem(value.where, dotted((*path, key)), message))
            return node or Node(BROKEN, value.where)
        section = _as_section(node, Node({}, "")) if node else {}
        section = section if isinstance(section, dict) else {}
        entry = self._entry(position, section.get("name"))
        if entry and key in entry.renamed:
            key = self._renamed(entry, key, path, value.where)
            section = self._rename_keys(section, entry, path)
        key = self._same_key(key, section, position, (*path, key), value.where)
        below = self.put(section.get(key), rest, value, self._inner(position, entry, key), (*path, key), problems)
        over = Node({key: below}, value.where)
        return self.merge(node, over, position, path) if node else over

    def _put_item(
        self,
        node: Node,
        key: str,
        rest: Sequence[str],
        value: Node,
        position: Position | None,
        path: Path,
        problems: list[Problem],
    ) -> Node:
        items = list(node.value)
        if not re.fullmatch(r"[0-9]{1,6}", key) or int(key) > len(items):
            last = f"0 to {len(items) - 1}, or {len(items)} to append" if items else "0 to append"
            message = f"{key!r} is not a position of this list"
            problems.append(Problem(value.where, dotted((*path, key)), message, allowed=f"positions: {last}"))
            return node
        index = int(key)
        old = items[index] if index < len(items) else None
        inner = self._inner(position, None, key)
        items[index : index + 1] = [self.put(old, rest, value, inner, (*path, key), problems)]
        return Node(items, node.where)

    def modernize(self, node: Node, position: Position | None, path: Path = ()) -> Node:
        """Return the tree with current keys. Names of parts stay as written."""
        if position is None or not isinstance(node.value, dict | list):
            return node
        if isinstance(node.value, list):
            items = [
                self.modernize(item, self._inner(position, None, str(i)), (*path, i))
                for i, item in enumerate(node.value)
            ]
            return Node(items, node.where, node.via)
        entry = self._entry(position, node.value.get("name"))
        section = {
            key: self.modernize(child, self._inner(position, entry, key), (*path, key))
            for key, child in self._rename_keys(node.value, entry, path).items()
        }
        return Node(section, node.where, node.via)

    def current_path(self, root: Node, target: str, where: str) -> str:
        """Return the dotted path of a reference with current keys."""
        position, node, path = self.top, root, []
        for key in target.split("."):
            name = node.value.get("name") if isinstance(node.value, dict) else None
            entry = self._entry(position, name)
            section = node.value if isinstance(node.value, dict) else {}
            current = entry.renamed.get(key, key) if entry else self._same_key(key, section, position)
            position = self._inner(position, entry, current)
            path.append(current)
            try:
                _, node = node.child(current)
            except LookupError:
                node = Node(None, "")
        if (current_target := ".".join(path)) != target:
            self._warn(where, f"${{{target}}}", f"${{{current_target}}}")
        return current_target

    # --- names ---

    def _entry(self, position: Position | None, name: Node | None) -> Entry | None:
        """The part at a position: the one that ``name``, the signature's default or the key names."""
        part = _arm(position, "part")
        if part is None or position is None:
            return None
        default = position.default.get("name") if isinstance(position.default, dict) else None
        written = part.get("name") or (name.value if name else default or position.key)
        return self._catalog.find(part["family"], written) if isinstance(written, str) else None

    def _inner(self, position: Position | None, entry: Entry | None, key: str) -> Position | None:
        if entry is not None:
            parameter = entry.by_name.get(key)
            return Position(parameter.spec, parameter.default) if parameter else None
        if values := _arm(position, "dict"):
            return Position(values["of"], key=key)
        if (items := _arm(position, "list")) and key.isdigit():
            return Position(items["of"])
        return None

    def _rename_keys(self, section: Section, entry: Entry | None, path: Path) -> Section:
        """Replace old keys, unless the current one is in the same section: then ``check`` reports both."""
        if entry is None or not entry.renamed.keys() & section.keys():
            return section
        return {
            self._renamed(entry, key, path, node.where)
            if key in entry.renamed and entry.renamed[key] not in section
            else key: node
            for key, node in section.items()
        }

    def _renamed(self, entry: Entry, key: str, path: Path, where: str) -> str:
        new = entry.renamed[key]
        self._warn(where, dotted((*path, key)), dotted((*path, new)))
        return new

    def _same_key(self, key: str, section: Section, position: Position | None, path: Path = (), where: str = "") -> str:
        """The key of ``section``, a dictionary of parts, that stands for the same part as ``key``; else ``key``."""
        values = _arm(position, "dict")
        if key in section or values is None or (part := _arm(Position(values["of"]), "part")) is None:
            return key
        entry = self._catalog.find(part["family"], key)
        if entry is None:
            return key
        names = (entry.name, *entry.aliases)
        match = next((written for written in section if written in names), key)
        if match != key and key in entry.aliases and where:
            self._warn(where, dotted(path), dotted((*path[:-1], entry.name)))
        return match

    def _replaces(self, lower: Section, upper: Section, position: Position | None, path: Path) -> bool:
        """Whether ``upper`` is another part than ``lower``."""
        if DELETE in upper and upper[DELETE].value is True:
            return True
        if "name" not in upper:
            return False
        if "name" not in lower:  # a bare string over a mapping of plain values
            return set(upper) == {"name"}
        old, new = lower["name"], upper["name"]
        if old.value == new.value:
            return False
        entry = self._entry(position, new)
        if entry is None or entry is not self._entry(position, old):
            return True
        if old.value in entry.aliases:  # an old name in ``upper`` is reported by ``check``
            self._warn(old.where, f"{dotted((*path, 'name'))}: {old.value}", entry.name)
        return False

    def _warn(self, where: str, old: str, new: str) -> None:
        self._warnings[deprecated(where, old, new)] = None


def without_delete(node: Node) -> Node:
    """Return a merged tree without the keys ``_delete_``."""
    if isinstance(node.value, list):
        return Node([without_delete(item) for item in node.value], node.where, node.via)
    if isinstance(node.value, dict):
        section = {key: without_delete(child) for key, child in node.value.items() if key != DELETE}
        return Node(section, node.where, node.via)
    return node


def _arm(position: Position | None, kind: str) -> Spec | None:
    """The spec of a position, or its arm, that is of one kind."""
    if position is None:
        return None
    spec = position.spec
    return next((arm for arm in (spec["of"] if spec["kind"] == "union" else [spec]) if arm["kind"] == kind), None)


def _as_section(node: Node, other: Node) -> Any:
    """The value of a node; a bare string becomes a section if ``other`` is a mapping."""
    if isinstance(node.value, str) and isinstance(other.value, dict):
        return {"name": node}
    return node.value
