"""Reader of yacs configs (detectron2, FastReID): ``_BASE_``, quoted tuples, overrides. Code in them is not executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import BROKEN, Node, read_text, shown_path, text_of
from opabinia.migration.foreign_config import as_node, merge_trees, set_value

MAX_FILES = 30
MAX_TEXT = 10_000

_OCTAVES = re.compile(
    r"!!python/object/apply:eval\s*\[\s*(?P<quote>[\"'])\[\s*\[\s*x\s*,\s*x\s*\*\s*2\s*\*\*\s*\(\s*1\.0\s*/\s*3\s*\)\s*,"
    r"\s*x\s*\*\s*2\s*\*\*\s*\(\s*2\.0\s*/\s*3\s*\)\s*\]\s*for\s+x\s+in\s*\[(?P<sizes>[\d\s,.]{1,200})\]\s*\]"
    r"(?P=quote)\s*,?\s*\]"
)
"""The only supported Python expression, of detectron2's configs: RetinaNet's three anchor sizes per octave."""


def read(file: Path, overrides: Sequence[str] = (), repeated: list[str] | None = None) -> Node:
    """Read a file with its bases and overrides.

    Args:
        file: the YAML file; ``_BASE_`` in it names one or several other files, relative to it.
        overrides: changes such as ``SOLVER.BASE_LR=0.01``.
        repeated: see :func:`opabinia.config.tree.read_text`.

    Raises:
        ConfigError: a file cannot be read, includes itself, or contains tags that would execute code.
    """
    problems: list[Problem] = []
    files = _Files(problems, repeated)
    tree = files.load(file, ())
    for text in overrides:
        tree = _apply_override(tree, text, problems)
    if problems:
        raise ConfigError(problems)
    return _parse_literals(tree)


class _Files:
    """Reads files and their bases."""

    def __init__(self, problems: list[Problem], repeated: list[str] | None) -> None:
        self._problems, self._repeated = problems, repeated
        self._count = 0

    def load(self, file: Path, children: tuple[Path, ...]) -> Node:
        """Read a file; ``children`` are the files that include it."""
        where = shown_path(file)
        self._count += 1
        if self._count > MAX_FILES:
            raise ConfigError(Problem(where, "_BASE_", f"more than {MAX_FILES} files"))
        if (text := text_of(file, self._problems)) is None:
            return Node({}, where)
        tree = read_text(_expand_octaves(text), self._problems, lambda line: f"{where}:{line}", self._repeated)
        if tree is None or tree.value is None or tree.value is BROKEN:
            return Node({}, where)
        if not isinstance(tree.value, dict):
            self._problems.append(Problem(where, "", "is not a mapping of keys to values", show(tree.plain())))
            return Node({}, where)
        own = Node({key: node for key, node in tree.value.items() if key != "_BASE_"}, where)
        merged = Node({}, where)
        for base in self._bases(tree.value.get("_BASE_"), file, (*children, file.resolve())):
            merged = merge_trees(merged, base)
        return merge_trees(merged, own)

    def _bases(self, node: Node | None, file: Path, children: tuple[Path, ...]) -> list[Node]:
        trees = []
        for item in [] if node is None else node.value if isinstance(node.value, list) else [node]:
            if not isinstance(item.value, str):
                self._add_problem(item, f"expected the name of a file, got {show(item.plain())}")
                continue
            if "://" in item.value:
                self._add_problem(item, f"{show(item.value)} is a URL: download the file and give its path")
                continue
            try:
                base = (file.parent / Path(item.value).expanduser()).resolve()
            except (OSError, RuntimeError, ValueError) as error:
                self._add_problem(item, f"{show(item.value)} is not a file name: {error}")
                continue
            if base in children:
                chain = " -> ".join(shown_path(child) for child in (*children, base))
                self._add_problem(item, f"includes itself: {chain}")
                continue
            trees.append(self.load(base, children))
        return trees

    def _add_problem(self, node: Node, message: str) -> None:
        self._problems.append(Problem(node.where, "_BASE_", message))


def _expand_octaves(text: str) -> str:
    """Replace RetinaNet's expression by the anchor sizes; the number of lines stays the same."""

    def expand(match: re.Match[str]) -> str:
        sizes = [float(size) for size in match["sizes"].replace(",", " ").split()]
        octaves = [[round(size * 2 ** (step / 3), 4) for step in range(3)] for size in sizes]
        return f"{octaves}" + "\n" * match[0].count("\n")

    try:
        return _OCTAVES.sub(expand, text)
    except ValueError:  # not numbers: the tag stays and is rejected
        return text


def _apply_override(tree: Node, text: str, problems: list[Problem]) -> Node:
    """Return the tree changed by an override."""
    where = f"command line: {text[:80]}"
    keys, equals, value = text.partition("=")
    if not equals or not all(keys.split(".")):
        problems.append(Problem(where, "", "a change is written as KEY=VALUE, such as SOLVER.BASE_LR=0.01"))
        return tree
    node = read_text(value, problems, lambda _line: where)
    return tree if node is None else set_value(tree, keys.split("."), node)


def _parse_literals(node: Node) -> Node:
    """Replace texts that are Python literals by their values, as yacs does."""
    if isinstance(node.value, dict):
        return Node({key: _parse_literals(child) for key, child in node.value.items()}, node.where)
    if isinstance(node.value, list):
        return Node([_parse_literals(child) for child in node.value], node.where)
    return as_node(literal(node.value), node.where) if isinstance(node.value, str) else node


def literal(text: str) -> Any:
    """Return the value of a Python literal; other texts are returned unchanged."""
    if len(text) > MAX_TEXT:
        return text
    try:
        return _tuples_to_lists(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _tuples_to_lists(value: Any) -> Any:
    """Replace tuples by lists.

    Raises:
        ValueError: a value has a type that recipes do not support.
    """
    if isinstance(value, list | tuple):
        return [_tuples_to_lists(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is not a number, a text or a list of these")
