"""Configs of Hydra (VISSL) as trees: ``defaults`` lists, ``${...}``, groups and values added on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import BROKEN, Node, read_file, read_text, shown_path
from opabinia.migration.foreign_config import overlaid, put

MAX_FILES = 30

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def read(file: Path, overrides: Sequence[str] = ()) -> Node:
    """The tree of a file with what its ``defaults`` name and what is added to it.

    Args:
        file: its YAML.
        overrides: as behind Hydra's command: ``config.OPTIMIZER.num_epochs=100`` sets a value (``+`` before it, too),
            ``+config/pretrain/simclr/models=resnext101`` lays the file of that name over all before it.

    Raises:
        ConfigError: a file cannot be read, is not there or leads back to itself.
    """
    problems: list[Problem] = []
    files = _Files(problems)
    tree = files.load(file, ())
    for text in overrides:
        tree = _with(tree, text, file, files, problems)
    if problems:
        raise ConfigError(problems)
    return _resolved(tree, tree)


class _Files:
    """Reads files with those that their ``defaults`` name."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self._count = 0

    def load(self, file: Path, children: tuple[Path, ...]) -> Node:
        """``children`` are the files that lead here."""
        where = shown_path(file)
        self._count += 1
        if self._count > MAX_FILES:
            raise ConfigError(Problem(where, "defaults", f"more than {MAX_FILES} files"))
        tree = read_file(file, self.problems)
        if tree is None or tree.value is None or tree.value is BROKEN:
            return Node({}, where)
        if not isinstance(tree.value, dict):
            self.problems.append(Problem(where, "", "is no mapping of keys to values", show(tree.plain())))
            return Node({}, where)
        own = Node({key: node for key, node in tree.value.items() if key not in ("defaults", "hydra")}, where)
        listed = tree.value.get("defaults")
        if listed is None:
            return own
        merged, took_own = Node({}, where), False
        for entry in listed.value if isinstance(listed.value, list) else [listed]:
            if entry.value == "_self_":
                merged, took_own = overlaid(merged, own), True
            else:
                merged = overlaid(merged, self._named(entry, file, (*children, file.resolve())))
        return merged if took_own else overlaid(merged, own)

    def _named(self, entry: Node, file: Path, children: tuple[Path, ...]) -> Node:
        name, optional = _name(entry)
        if not name:
            self._complain(entry, f"{show(entry.plain())} names no file")
            return Node({}, entry.where)
        found = next(candidates(file, name), None)
        if found is None:
            if not optional:
                self._complain(entry, f"there is no file {name}.yaml beside this one, nor in a folder above it")
            return Node({}, entry.where)
        if found in children:
            chain = " -> ".join(shown_path(one) for one in (*children, found))
            self._complain(entry, f"leads back to itself: {chain}")
            return Node({}, entry.where)
        return self.load(found, children)

    def _complain(self, node: Node, message: str) -> None:
        self.problems.append(Problem(node.where, "defaults", message))


def _name(entry: Node) -> tuple[str, bool]:
    """What an entry of ``defaults`` names, as a path without suffix, and whether it may be missing."""
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
    """Files of a name, beside a file and in the folders above it, the nearest first."""
    folders = list(file.absolute().parents)
    for folder in folders:
        try:
            found = (folder / f"{name.lstrip('/')}.yaml").resolve()
            if found.is_file():
                yield found
        except (OSError, RuntimeError, ValueError):
            continue


def _with(tree: Node, text: str, file: Path, files: _Files, problems: list[Problem]) -> Node:
    """With what a word of the command line says."""
    where = f"command line: {text[:80]}"
    left, equals, value = text.partition("=")
    key = left.lstrip("+")
    if not equals or not key or left.startswith("~"):
        problems.append(Problem(where, "", "a change is written config.KEY=VALUE or +config/FOLDER=FILE"))
        return tree
    if "/" in key:
        found = next(candidates(file, f"{key}/{value.removesuffix('.yaml')}"), None)
        if found is None:
            problems.append(
                Problem(where, "", f"there is no file {key}/{value}.yaml in a folder above {shown_path(file)}")
            )
            return tree
        return overlaid(tree, files.load(found, ()))
    node = read_text(value, problems, lambda _line: where)
    return tree if node is None else put(tree, key.split("."), node)


def _resolved(node: Node, root: Node, depth: int = 0) -> Node:
    """With texts that are a reference to another value as that value; others stay what they are."""
    if isinstance(node.value, dict):
        return Node({key: _resolved(inner, root, depth) for key, inner in node.value.items()}, node.where)
    if isinstance(node.value, list):
        return Node([_resolved(inner, root, depth) for inner in node.value], node.where)
    found = _REFERENCE.fullmatch(node.value) if isinstance(node.value, str) else None
    if not found:
        return node
    target = root
    for key in found[1].split("."):
        if not isinstance(target.value, dict) or key not in target.value:
            return node
        target = target.value[key]
    if depth > 10 or isinstance(target.value, dict | list):
        raise ConfigError(Problem(node.where, "", f"{show(node.value)} leads to no single value"))
    return Node(_resolved(target, root, depth + 1).value, node.where)
