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
    """``("data", "train", 0)`` as ``data.train.0``; keys that hold dots are quoted."""
    return ".".join(str(key) if re.fullmatch(r'[^."\s]+', str(key)) else f'"{key}"' for key in path)


def resolve(root: Node, problems: list[Problem]) -> Node:
    """The tree with all references replaced by what they refer to; those that cannot be are told and left broken."""
    return _Resolver(root, problems).settle((), root)


def targets(node: Node) -> Iterator[str]:
    """What the references in a tree refer to, as they are written."""
    if isinstance(node.value, str):
        yield from (match[1].strip() for match in _REFERENCE.finditer(node.value) if match[1])
    for _, child in node.children():
        yield from targets(child)


class _Resolver:
    def __init__(self, root: Node, problems: list[Problem]) -> None:
        self.root = root
        self.problems = problems
        self.settled: dict[Path, Node] = {}
        self.active: list[Path] = []  # texts being resolved just now
        self.count = 0

    def settle(self, path: Path, node: Node) -> Node:
        """``node``, which stands at ``path``, without references."""
        if isinstance(node.value, dict):
            return Node({key: self.settle((*path, key), child) for key, child in node.value.items()}, node.where)
        if isinstance(node.value, list):
            return Node([self.settle((*path, i), child) for i, child in enumerate(node.value)], node.where)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        if path not in self.settled:
            self.active.append(path)
            self.settled[path] = self._text(path, node)
            self.active.pop()
        return self.settled[path]

    def _text(self, path: Path, node: Node) -> Node:
        text: str = node.value
        pieces: list[str] = []
        end = 0
        for match in _REFERENCE.finditer(text):
            pieces.append(text[end : match.start()])
            end = match.end()
            if match[0] == "$${":
                pieces.append("${")
                continue
            found = self._found(path, node, match)
            if found.value is BROKEN or match[0] == text:
                return found
            if isinstance(found.value, dict | list):
                return self._broken(path, node, f"{match[0]} is a section and cannot stand inside a text")
            pieces.append(found.value if isinstance(found.value, str) else show(found.value))
        whole = "".join([*pieces, text[end:]])
        if len(whole) > MAX_TEXT:
            return self._broken(path, node, f"the text grows to more than {MAX_TEXT} characters")
        return Node(whole, node.where, "" if whole == text else show(text))

    def _found(self, path: Path, node: Node, match: re.Match[str]) -> Node:
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
                hint = f"; write ${{env:{name},default}} to go on without"
                return self._broken(path, node, f"the environment variable {name.strip()!r} is not set{hint}")
            text = default.strip()
        try:
            text.encode()
            return Node(scalar(text) if whole else text, node.where, f"${{env:{name.strip()}}}")
        except (BadScalar, UnicodeEncodeError):
            return self._broken(path, node, f"the value of the environment variable {name!r} cannot be used")

    def _key(self, path: Path, node: Node, target: str) -> Node:
        try:
            found_path, found, is_settled = self._walk(target)
        except LookupError:
            guess = nearest_path(target, _paths(self.root))
            return self._broken(path, node, f"${{{target}}} refers to no key", guess)
        if not is_settled:
            if self._would_loop(found_path):
                chain = " -> ".join(map(dotted, [*self.active, found_path]))
                return self._broken(path, node, f"${{{target}}} leads back to itself: {chain}")
            if len(self.active) > MAX_CHAIN:
                return self._broken(path, node, f"${{{target}}} ends a chain of more than {MAX_CHAIN} references")
            found = self.settle(found_path, found)
        size, depth = found.extent
        self.count += size
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            return self._broken(path, node, f"${{{target}}} makes the config too large")
        return Node(found.value, node.where, f"${{{target}}}")

    def _walk(self, target: str) -> tuple[Path, Node, bool]:
        """The node a target names, its path, and whether its references are already resolved."""
        path: Path = ()
        node, is_settled = self.root, False
        for key in target.split("."):
            if not is_settled and isinstance(node.value, str) and "${" in node.value:
                if path in self.active:
                    raise LookupError(target)
                node, is_settled = self.settle(path, node), True
            if node.value is BROKEN:
                break
            step, node = node.child(key)
            path = (*path, step)
        return path, node, is_settled

    def _would_loop(self, target: Path) -> bool:
        """Whether a text being resolved lies at, or in, the target."""
        return any(active[: len(target)] == target for active in self.active)

    def _broken(self, path: Path, node: Node, message: str, suggestion: str = "") -> Node:
        self.problems.append(Problem(node.where, dotted(path), message, suggestion=suggestion))
        return Node(BROKEN, node.where)


def nearest_path(target: str, paths: Iterable[str]) -> str:
    """The dotted path most like ``target``: among those of the same section, if it exists."""
    paths = list(paths)
    section, _, name = target.rpartition(".")
    siblings = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] == section}
    guess = nearest(name, siblings)
    return siblings[guess] if guess else "" if section and siblings else nearest(target, paths)


def _paths(root: Node, prefix: Path = ()) -> list[str]:
    """Dotted paths of all that a reference could name."""
    found: list[str] = []
    for key, child in root.children():
        found += [dotted((*prefix, key)), *_paths(child, (*prefix, key))]
    return found[:2000]
