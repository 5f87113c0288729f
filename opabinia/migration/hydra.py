"""Readers of Hydra configs (VISSL): ``defaults`` lists, ``${...}``, and groups and values from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import BROKEN, Node, read_file, read_text, shown_path
from opabinia.migration.foreign_config import merge_trees, set_value

MAX_FILES = 30

_INTEGER = re.compile(r"[-+]?\d+(_\d+)+")
"""Integers with underscores, which YAML 1.1 has."""

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def read(file: Path, overrides: Sequence[str] = ()) -> Node:
    """Read a file with its ``defaults`` and overrides.

    Args:
        file: the YAML file.
        overrides: changes as in Hydra: ``config.OPTIMIZER.num_epochs=100`` sets a value (a leading ``+`` is allowed),
            ``+config/pretrain/simclr/models=resnext101`` merges a file over everything before it.

    Raises:
        ConfigError: a file cannot be read, is missing or includes itself.
    """
    problems: list[Problem] = []
    files = _Files(problems)
    tree = files.load(file, ())
    for text in overrides:
        tree = _apply_override(tree, text, file, files, problems)
    if problems:
        raise ConfigError(problems)
    return _resolve_references(tree, tree)


class _Files:
    """Reads files and their ``defaults``."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self._count = 0

    def load(self, file: Path, children: tuple[Path, ...]) -> Node:
        """Read a file; ``children`` are the files that include it."""
        where = shown_path(file)
        self._count += 1
        if self._count > MAX_FILES:
            raise ConfigError(Problem(where, "defaults", f"more than {MAX_FILES} files"))
        tree = read_file(file, self.problems)
        if tree is None or tree.value is None or tree.value is BROKEN:
            return Node({}, where)
        if not isinstance(tree.value, dict):
            self.problems.append(Problem(where, "", "is not a mapping of keys to values", show(tree.plain())))
            return Node({}, where)
        own = Node({key: node for key, node in tree.value.items() if key not in ("defaults", "hydra")}, where)
        listed = tree.value.get("defaults")
        if listed is None:
            return own
        merged, has_self = Node({}, where), False
        for entry in listed.value if isinstance(listed.value, list) else [listed]:
            if entry.value == "_self_":
                merged, has_self = merge_trees(merged, own), True
            else:
                merged = merge_trees(merged, self._load_default(entry, file, (*children, file.resolve())))
        return merged if has_self else merge_trees(merged, own)

    def _load_default(self, entry: Node, file: Path, children: tuple[Path, ...]) -> Node:
        name, optional = _name(entry)
        if not name:
            self._add_problem(entry, f"{show(entry.plain())} does not name a file")
            return Node({}, entry.where)
        path = next(candidates(file, name), None)
        if path is None:
            if not optional:
                self._add_problem(entry, f"no file {name}.yaml in this file's folder or a folder above it")
            return Node({}, entry.where)
        if path in children:
            chain = " -> ".join(shown_path(child) for child in (*children, path))
            self._add_problem(entry, f"includes itself: {chain}")
            return Node({}, entry.where)
        return self.load(path, children)

    def _add_problem(self, node: Node, message: str) -> None:
        self.problems.append(Problem(node.where, "defaults", message))


def _name(entry: Node) -> tuple[str, bool]:
    """Return the path without suffix that an entry of ``defaults`` names, and whether the file may be missing."""
    optional = False
    if isinstance(entry.value, dict) and len(entry.value) == 1:
        [(group, option)] = entry.value.items()
        words = str(group).split("@")[0].split()
        optional, group = "optional" in words, words[-1] if words else ""
        if option.value is None:
            return "", optional
        text = f"{group}/{option.value}"
    else:
        text = entry.value if isinstance(entry.value, str) else ""
    text = text.split("@")[0].removesuffix(".yaml")
    return ("" if "???" in text else text), optional


def candidates(file: Path, name: str) -> Iterator[Path]:
    """Yield files of a name in the folder of ``file`` and the folders above it, the nearest first."""
    folders = list(file.absolute().parents)
    for folder in folders:
        try:
            path = (folder / f"{name.lstrip('/')}.yaml").resolve()
            if path.is_file():
                yield path
        except (OSError, RuntimeError, ValueError):
            continue


def _apply_override(tree: Node, text: str, file: Path, files: _Files, problems: list[Problem]) -> Node:
    """Return the tree changed by an override."""
    where = f"command line: {text[:80]}"
    target, equals, value = text.partition("=")
    key = target.lstrip("+")
    if not equals or not key or target.startswith("~"):
        problems.append(Problem(where, "", "a change is written as config.KEY=VALUE or +config/FOLDER=FILE"))
        return tree
    if "/" in key:
        path = next(candidates(file, f"{key}/{value.removesuffix('.yaml')}"), None)
        if path is None:
            problems.append(Problem(where, "", f"no file {key}/{value}.yaml in a folder above {shown_path(file)}"))
            return tree
        return merge_trees(tree, files.load(path, ()))
    node = read_text(value, problems, lambda _line: where)
    return tree if node is None else set_value(tree, key.split("."), node)


def _resolve_references(node: Node, root: Node, depth: int = 0) -> Node:
    """Replace texts that consist of one reference by the referenced values; keep other texts."""
    if isinstance(node.value, dict):
        return Node({key: _resolve_references(child, root, depth) for key, child in node.value.items()}, node.where)
    if isinstance(node.value, list):
        return Node([_resolve_references(child, root, depth) for child in node.value], node.where)
    if isinstance(node.value, str) and _INTEGER.fullmatch(node.value):
        return Node(int(node.value), node.where)
    match = _REFERENCE.fullmatch(node.value) if isinstance(node.value, str) else None
    if not match:
        return node
    target = root
    for key in match[1].split("."):
        if not isinstance(target.value, dict) or key not in target.value:
            return node
        target = target.value[key]
    if depth > 10 or isinstance(target.value, dict | list):
        raise ConfigError(Problem(node.where, "", f"{show(node.value)} does not refer to a single value"))
    return Node(_resolve_references(target, root, depth + 1).value, node.where)
