"""References in configs: ``${a.b}`` to a key, ``${env:NAME,default}`` to the environment; ``$${`` is a plain ``${``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from opabinia.config.errors import Problem, nearest, show
from opabinia.config.tree import BROKEN, MAX_DEPTH, MAX_NODES, BadScalar, Node, scalar

MAX_TEXT = 100_000
MAX_CHAIN = 10
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")

Path = tuple[Any, ...]


def dotted(path: Iterable[Any]) -> str:
    """Return ``("data", "train", 0)`` as ``data.train.0``; keys that hold dots are quoted."""
    return ".".join(str(key) if re.fullmatch(r'[^."\s]+', str(key)) else f'"{key}"' for key in path)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every scalar and every empty section or list of plain data, with its path."""
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(item, (*path, key))


def resolve(root: Node, problems: list[Problem]) -> Node:
    """Return the tree with all references replaced by their values; those that cannot be resolved become ``BROKEN``.

    Args:
        root: the whole tree.
        problems: new ones are appended.
    """
    return _Resolver(root, problems).resolve((), root)


def targets(node: Node) -> Iterator[str]:
    """Yield the targets of all references in a tree, as written."""
    if isinstance(node.value, str):
        yield from (match[1].strip() for match in _REFERENCE.finditer(node.value) if match[1])
    for _, child in node.children():
        yield from targets(child)


class _Resolver:
    def __init__(self, root: Node, problems: list[Problem]) -> None:
        self.root = root
        self.problems = problems
        self.resolved: dict[Path, Node] = {}
        self.active: list[Path] = []  # texts that are being resolved
        self.count = 0

    def resolve(self, path: Path, node: Node) -> Node:
        """Return ``node``, which is at ``path``, without references."""
        if isinstance(node.value, dict):
            return Node({key: self.resolve((*path, key), child) for key, child in node.value.items()}, node.where)
        if isinstance(node.value, list):
            return Node([self.resolve((*path, i), child) for i, child in enumerate(node.value)], node.where)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        if path not in self.resolved:
            self.active.append(path)
            self.resolved[path] = self._text(path, node)
            self.active.pop()
        return self.resolved[path]

    def _text(self, path: Path, node: Node) -> Node:
        text: str = node.value
        fragments: list[str] = []
        end = 0
        for match in _REFERENCE.finditer(text):
            fragments.append(text[end : match.start()])
            end = match.end()
            if match[0] == "$${":
                fragments.append("${")
                continue
            target = self._reference(path, node, match)
            if target.value is BROKEN or match[0] == text:
                return target
            if isinstance(target.value, dict | list):
                return self._broken(path, node, f"{match[0]} is a section and cannot be part of a text")
            fragments.append(target.value if isinstance(target.value, str) else show(target.value))
        whole = "".join([*fragments, text[end:]])
        if len(whole) > MAX_TEXT:
            return self._broken(path, node, f"the text grows to more than {MAX_TEXT} characters")
        return Node(whole, node.where, "" if whole == text else show(text))

    def _reference(self, path: Path, node: Node, match: re.Match[str]) -> Node:
        """The node that one reference stands for."""
        if match[1] is None:
            return self._broken(
                path, node, "a reference is not closed: '${' without '}'; a plain '${' is written '$${'"
            )
        target = match[1].strip()
        if target.startswith("env:"):
            return self._environment(path, node, target, whole=match[0] == node.value)
        return self._key(path, node, target)

    def _environment(self, path: Path, node: Node, target: str, whole: bool) -> Node:
        name, comma, default = target.removeprefix("env:").partition(",")
        text = os.environ.get(name.strip()) if name.strip() and "\0" not in name else None
        if text is None:
            if not comma:
                hint = f"; ${{env:{name},default}} gives it a default"
                return self._broken(path, node, f"the environment variable {name.strip()!r} is not set{hint}")
            text = default.strip()
        try:
            text.encode()
            return Node(scalar(text) if whole else text, node.where, f"${{env:{name.strip()}}}")
        except (BadScalar, UnicodeEncodeError):
            return self._broken(path, node, f"the value of the environment variable {name!r} cannot be used")

    def _key(self, path: Path, node: Node, target: str) -> Node:
        try:
            target_path, value, is_resolved = self._walk(target)
        except LookupError:
            guess = nearest_path(target, _paths(self.root))
            return self._broken(path, node, f"${{{target}}} refers to no key", guess)
        if not is_resolved:
            # A cycle: a text that is being resolved is at, or in, the target.
            if any(active[: len(target_path)] == target_path for active in self.active):
                chain = " -> ".join(map(dotted, [*self.active, target_path]))
                return self._broken(path, node, f"${{{target}}} leads back to itself: {chain}")
            if len(self.active) > MAX_CHAIN:
                return self._broken(path, node, f"${{{target}}} ends a chain of more than {MAX_CHAIN} references")
            value = self.resolve(target_path, value)
        size, depth = value.extent
        self.count += size
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            return self._broken(path, node, f"${{{target}}} makes the config too large")
        return Node(value.value, node.where, f"${{{target}}}: {value.where}")

    def _walk(self, target: str) -> tuple[Path, Node, bool]:
        """The path and the node of a target, and whether its references are already resolved."""
        path: Path = ()
        node, is_resolved = self.root, False
        for key in target.split("."):
            if not is_resolved and isinstance(node.value, str) and "${" in node.value:
                if path in self.active:
                    raise LookupError(target)
                node, is_resolved = self.resolve(path, node), True
            if node.value is BROKEN:
                break
            step, node = node.child(key)
            path = (*path, step)
        return path, node, is_resolved

    def _broken(self, path: Path, node: Node, message: str, suggestion: str = "") -> Node:
        self.problems.append(Problem(node.where, dotted(path), message, suggestion=suggestion))
        return Node(BROKEN, node.where)


def nearest_path(target: str, paths: Iterable[str]) -> str:
    """Return the dotted path most similar to ``target``, among those of the same section if it exists."""
    paths = list(paths)
    section, _, name = target.rpartition(".")
    siblings = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] == section}
    guess = nearest(name, siblings)
    return siblings[guess] if guess else "" if section and siblings else nearest(target, paths)


def _paths(root: Node, prefix: Path = ()) -> list[str]:
    """Dotted paths that a reference could name, at most 2000."""
    paths: list[str] = []
    for key, child in root.children():
        paths += [dotted((*prefix, key)), *_paths(child, (*prefix, key))]
    return paths[:2000]
