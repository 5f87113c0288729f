"""Configs of yacs (detectron2, FastReID) as trees: ``_BASE_``, tuples in quotes, overrides. Nothing in them is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import BROKEN, Node, read_text, shown_path, text_of
from opabinia.migration.foreign_config import overlaid, planted, put

MAX_FILES = 30
MAX_TEXT = 10_000

_OCTAVES = re.compile(
    r"!!python/object/apply:eval\s*\[\s*(?P<quote>[\"'])\[\s*\[\s*x\s*,\s*x\s*\*\s*2\s*\*\*\s*\(\s*1\.0\s*/\s*3\s*\)\s*,"
    r"\s*x\s*\*\s*2\s*\*\*\s*\(\s*2\.0\s*/\s*3\s*\)\s*\]\s*for\s+x\s+in\s*\[(?P<sizes>[\d\s,.]{1,200})\]\s*\]"
    r"(?P=quote)\s*,?\s*\]"
)
"""The one expression of detectron2's own configs: RetinaNet's three anchor sizes an octave. It is read, not run."""


def read(file: Path, overrides: Sequence[str] = ()) -> Node:
    """The tree of a file over its bases, with overrides.

    Args:
        file: its YAML; ``_BASE_`` in it names another one, or several, beside it.
        overrides: ``SOLVER.BASE_LR=0.01``.

    Raises:
        ConfigError: a file cannot be read, leads back to itself, or has tags in it that would run code.
    """
    problems: list[Problem] = []
    files = _Files(problems)
    tree = files.load(file, ())
    for text in overrides:
        tree = _with(tree, text, problems)
    if problems:
        raise ConfigError(problems)
    return _evaluated(tree)


class _Files:
    """Reads files with their bases."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._count = 0

    def load(self, file: Path, children: tuple[Path, ...]) -> Node:
        """``children`` are the files that lead here."""
        where = shown_path(file)
        self._count += 1
        if self._count > MAX_FILES:
            raise ConfigError(Problem(where, "_BASE_", f"more than {MAX_FILES} files"))
        if (text := text_of(file, self._problems)) is None:
            return Node({}, where)
        tree = read_text(_plain_octaves(text), self._problems, lambda line: f"{where}:{line}")
        if tree is None or tree.value is None or tree.value is BROKEN:
            return Node({}, where)
        if not isinstance(tree.value, dict):
            self._problems.append(Problem(where, "", "is no mapping of keys to values", show(tree.plain())))
            return Node({}, where)
        own = Node({key: node for key, node in tree.value.items() if key != "_BASE_"}, where)
        merged = Node({}, where)
        for base in self._bases(tree.value.get("_BASE_"), file, (*children, file.resolve())):
            merged = overlaid(merged, base)
        return overlaid(merged, own)

    def _bases(self, node: Node | None, file: Path, children: tuple[Path, ...]) -> list[Node]:
        found = []
        for item in [] if node is None else node.value if isinstance(node.value, list) else [node]:
            if not isinstance(item.value, str):
                self._complain(item, f"is the name of a file, and not {show(item.plain())}")
                continue
            if "://" in item.value:
                self._complain(item, f"{show(item.value)} is an address: fetch the file, and name it here")
                continue
            try:
                base = (file.parent / Path(item.value).expanduser()).resolve()
            except (OSError, RuntimeError, ValueError) as error:
                self._complain(item, f"{show(item.value)} is the name of no file: {error}")
                continue
            if base in children:
                chain = " -> ".join(shown_path(one) for one in (*children, base))
                self._complain(item, f"leads back to itself: {chain}")
                continue
            found.append(self.load(base, children))
        return found

    def _complain(self, node: Node, message: str) -> None:
        self._problems.append(Problem(node.where, "_BASE_", message))


def _plain_octaves(text: str) -> str:
    """With anchor sizes written out, on as many lines."""

    def written_out(found: re.Match[str]) -> str:
        sizes = [float(size) for size in found["sizes"].replace(",", " ").split()]
        octaves = [[round(size * 2 ** (step / 3), 4) for step in range(3)] for size in sizes]
        return f"{octaves}" + "\n" * found[0].count("\n")

    try:
        return _OCTAVES.sub(written_out, text)
    except ValueError:  # no numbers: the tag stays, and is refused
        return text


def _with(tree: Node, text: str, problems: list[Problem]) -> Node:
    """With an override."""
    where = f"command line: {text[:80]}"
    keys, equals, value = text.partition("=")
    if not equals or not all(keys.split(".")):
        problems.append(Problem(where, "", "a change is written KEY=VALUE, such as SOLVER.BASE_LR=0.01"))
        return tree
    node = read_text(value, problems, lambda _line: where)
    return tree if node is None else put(tree, keys.split("."), node)


def _evaluated(node: Node) -> Node:
    """With texts that are literals of Python as what they stand for, as yacs takes them."""
    if isinstance(node.value, dict):
        return Node({key: _evaluated(inner) for key, inner in node.value.items()}, node.where)
    if isinstance(node.value, list):
        return Node([_evaluated(inner) for inner in node.value], node.where)
    return planted(literal(node.value), node.where) if isinstance(node.value, str) else node


def literal(text: str) -> Any:
    """The number, list or such that a text stands for; the text, where it stands for none."""
    if len(text) > MAX_TEXT:
        return text
    try:
        return _listed(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _listed(value: Any) -> Any:
    """With tuples as lists.

    Raises:
        ValueError: there is something in it that no config of ours could have.
    """
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is neither a number nor a text nor a list of them")
