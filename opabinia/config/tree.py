"""Read YAML files as trees of nodes that know their line. Mistakes in a file become problems, not exceptions.

Scalars follow YAML 1.2's core schema: ``1e-3`` is a number, ``on`` and ``yes`` are text, there are no dates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from opabinia.config.errors import Problem, nearest, show

MAX_DEPTH = 40
MAX_NODES = 50_000
MAX_BYTES = 4_000_000
MAX_DIGITS = 100

_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _Broken:
    """Stands for a value that could not be read. Its problem is already reported, so later checks ignore it."""

    def __repr__(self) -> str:
        return "?"


BROKEN = _Broken()


@dataclass(frozen=True)
class Node:
    """A value and its place.

    Attributes:
        value: a scalar, a dictionary of nodes, a list of nodes, or ``BROKEN``.
        where: "file.yaml:12", or the override.
        via: the reference that it was resolved from, such as ``${env:HOME}``.
    """

    value: Any
    where: str
    via: str = ""

    def children(self) -> Iterator[tuple[Any, Node]]:
        """Yield keys or positions with their nodes."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)

    def plain(self) -> Any:
        """Return the value as plain data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def child(self, key: str) -> tuple[Any, Node]:
        """Return the key or position that ``key`` names, with its node.

        Raises:
            LookupError: there is none.
        """
        if isinstance(self.value, list) and re.fullmatch(r"[0-9]{1,6}", key):
            return int(key), self.value[int(key)]
        if isinstance(self.value, dict):
            return key, self.value[key]
        raise LookupError(key)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The number of nodes and the nesting depth."""
        inside = [node.extent for _, node in self.children()]
        return 1 + sum(size for size, _ in inside), 1 + max((depth for _, depth in inside), default=0)


class BadScalar(ValueError):
    """A scalar that looks like a number but is not accepted."""


def scalar(text: str) -> Any:
    """Return the value of a plain (unquoted) scalar.

    Raises:
        BadScalar: a number with too many digits.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise BadScalar(f"a number of more than {MAX_DIGITS} digits")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def shown_path(path: Path) -> str:
    """Return a path for messages: relative to the working directory if inside it; of a packaged recipe
    ``opabinia/recipes/video/folder.yaml``, wherever the package is installed."""
    try:
        package = Path(__file__).resolve().parents[1]
        return str(path.absolute().relative_to(package.parent if path.is_relative_to(package) else Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read_file(path: Path, problems: list[Problem]) -> Node | None:
    """Return the tree of a YAML file; None, with a problem, if it cannot be read."""
    where, text = shown_path(path), text_of(path, problems)
    return None if text is None else read_text(text, problems, lambda line: f"{where}:{line}")


def text_of(path: Path, problems: list[Problem]) -> str | None:
    """Return the text of a file; None, with a problem, if it is not a text file of reasonable size."""
    where = shown_path(path)
    try:
        if path.is_dir():
            raise OSError(0, "is a folder, not a file")
        if path.exists() and path.stat().st_size > MAX_BYTES:
            raise OSError(0, f"is larger than {MAX_BYTES // 1_000_000} MB, too large for a recipe")
        data = path.read_bytes()
    except FileNotFoundError:
        problems.append(Problem(where, "", "there is no such file"))
        return None
    except (OSError, ValueError) as error:
        problems.append(Problem(where, "", str(getattr(error, "strerror", None) or error)))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(f"{where}:{line}", "", f"byte {data[error.start]:#04x} is not UTF-8"))
        return None


def read_text(
    text: str, problems: list[Problem], where: Callable[[int], str], repeated: list[str] | None = None
) -> Node | None:
    """Return the tree of a YAML text; None, with a problem, if it cannot be read.

    Args:
        text: one YAML document.
        problems: new ones are appended.
        where: returns the place of a line, given its number (from 1).
        repeated: for files of systems in which a repeated key replaces the earlier one: it is used, and a description
            is appended. None: a repeated key is a problem.
    """
    try:
        return _Reader(text, problems, where, repeated).document()
    except _Stop as stop:
        problems.append(Problem(where(stop.line), "", str(stop)))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        problems.append(Problem(where(line), "", f"the character U+{code:04X} is not allowed"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problems.append(Problem(where(line), "", _syntax(error, "".join(text.splitlines()[line - 1 : line]))))
    except (ValueError, OverflowError) as error:  # an escape or a version that PyYAML cannot handle
        problems.append(Problem(where(1), "", f"not valid YAML: {error}"))
    return None


def _syntax(error: yaml.MarkedYAMLError, line: str) -> str:
    if "'\\t'" in (error.problem or ""):
        return "a tab; YAML is indented with spaces"
    if "${" in line:
        return "not valid YAML; inside [] and {} a reference needs quotes: '${...}'"
    return f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}"


class _Stop(Exception):
    """Reading must stop."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Reader:
    """Turns PyYAML's events into nodes. Events are read one by one, so that limits apply before a YAML bomb expands."""

    def __init__(
        self, text: str, problems: list[Problem], where: Callable[[int], str], repeated: list[str] | None
    ) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.problems = problems
        self.where = where
        self.repeated = repeated
        self.anchors: dict[str, Node | None] = {}  # None: being read
        self.count = 0

    def document(self) -> Node:
        event = next(self.events)
        while not isinstance(event, yaml.DocumentStartEvent | yaml.StreamEndEvent):
            event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Node(None, self.where(1))
        node = self._node(next(self.events), 1)
        next(self.events)  # the end of the document
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Stop("a second document; a recipe has one", after.start_mark.line + 1)
        return node

    def _node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        self._count(1, line)
        if depth > MAX_DEPTH:
            raise _Stop(f"nested more than {MAX_DEPTH} levels deep", line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, line)
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(item, depth + 1))
            node = Node(items, self.where(line))
        else:
            node = Node(self._mapping(depth), self.where(line))
        if event.tag is not None:
            self._complain(line, f"the tag {show(event.tag)} is not allowed in a recipe")
            node = Node(BROKEN, node.where)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _count(self, nodes: int, line: int) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise _Stop(f"more than {MAX_NODES} values, too many for a recipe", line)

    def _alias(self, event: Any, line: int) -> Node:
        if event.anchor not in self.anchors:
            self._complain(line, f"*{event.anchor} refers to no anchor", nearest(event.anchor, self.anchors))
            return Node(BROKEN, self.where(line))
        node = self.anchors[event.anchor]
        if node is None:
            self._complain(line, f"*{event.anchor} contains itself")
            return Node(BROKEN, self.where(line))
        self._count(node.extent[0], line)
        return node

    def _scalar(self, event: Any, line: int) -> Node:
        text: str = event.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._complain(line, f"{show(text)} is not printable text")
            return Node(BROKEN, self.where(line))
        try:
            return Node(scalar(text) if event.implicit[0] else text, self.where(line))
        except BadScalar as error:
            self._complain(line, str(error))
            return Node(BROKEN, self.where(line))

    def _mapping(self, depth: int) -> dict[str, Node]:
        items: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._node(event, depth + 1).value
            value = self._node(next(self.events), depth + 1)
            if not isinstance(key, str):
                if key is not BROKEN:
                    written = show(Node(key, "").plain())
                    quoted = f"; put it in quotes: '{show(key)}'" if not isinstance(key, dict | list) else ""
                    self._complain(line, f"the key {written} is not text{quoted}")
            elif key in items and self.repeated is None:
                self._complain(line, f"the key {show(key)} is already given in line {lines[key]}")
            else:
                if key in items and self.repeated is not None:
                    self.repeated.append(f"{self.where(line)}: {show(key)} replaces the one in line {lines[key]}")
                # a problem with a section points at its key
                items[key], lines[key] = Node(value.value, self.where(line)), line
        return items

    def _complain(self, line: int, message: str, suggestion: str = "") -> None:
        self.problems.append(Problem(self.where(line), "", message, suggestion=suggestion))
