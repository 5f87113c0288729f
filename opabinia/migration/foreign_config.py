"""A foreign config: what was written, where, what holds where nothing was written, and what nobody has asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node


class Written(NamedTuple):
    """A value, and where it is written.

    Attributes:
        value: a scalar or a list.
        where: "Base-RCNN-FPN.yaml:29".
    """

    value: Any
    where: str


class Left(NamedTuple):
    """A key that was written and is not taken over.

    Attributes:
        path: the key.
        value: what was written.
        where: the place.
        why: the reason.
    """

    path: str
    value: Any
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} = {show(self.value, 200)} ({self.where}): {self.why}"


class Foreign:
    """Values by dotted path. What is asked for is remembered, so that the rest can be told.

    Args:
        system: its name, for people.
        file: the config's name, for messages about keys that are not there.
        written: what its files say.
        defaults: what the system takes where nothing is written; their types are what values are checked against.
        reasons: why keys, or whole sections, have no home here, by path.
    """

    def __init__(
        self,
        system: str,
        file: str,
        written: Mapping[str, Written],
        defaults: Mapping[str, Any],
        reasons: Mapping[str, str],
    ) -> None:
        self.system = system
        self.file = file
        self._written = dict(written)
        self._defaults = defaults
        self._reasons = reasons
        self._asked: set[str] = set()

    def __call__(self, path: str, default: Any = None) -> Any:
        """The value at a path; the system's default, or the one given, where nothing is written.

        Raises:
            ConfigError: it is of another type than the system's default.
        """
        self._asked.add(path)
        default = self._defaults.get(path, default)
        if path not in self._written:
            return default
        value, where = self._written[path]
        if needed := _mismatch(value, default):
            raise ConfigError(Problem(where, path, f"{needed} is needed, and there is {show(value)}"))
        return value

    def __contains__(self, path: str) -> bool:
        """Whether such a key is written, be it null, or such a section."""
        return any(one == path or one.startswith(f"{path}.") for one in self._written)

    def number(self, path: str) -> Any:
        """The number at a path.

        Raises:
            ConfigError: there is none.
        """
        value = self(path)
        if _mismatch(value, 0.0):
            raise self.problem(path, f"a number is needed, and there is {show(value)}")
        return value

    def keys(self, section: str) -> list[str]:
        """What is written below a section, as full paths."""
        return [path for path in self._written if path.startswith(f"{section}.")]

    def where(self, path: str) -> str:
        """The place of a key, or whose default it is."""
        return self._written[path].where if path in self._written else f"default of {self.system}"

    def problem(self, path: str, message: str, allowed: str = "") -> ConfigError:
        """What is wrong with a value, to be raised."""
        where = self._written[path].where if path in self._written else self.file
        return ConfigError(Problem(where, path, message, allowed=allowed))

    def left(self) -> list[Left]:
        """Keys that are written and that nobody has asked for."""
        return [
            Left(path, value, where, self._why(path))
            for path, (value, where) in self._written.items()
            if path not in self._asked
        ]

    def _why(self, path: str) -> str:
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            if reason := self._reasons.get(".".join(parts[:length])):
                return reason
        return "does nothing in this config" if path in self._defaults else "nothing here answers to it"


def _mismatch(value: Any, default: Any) -> str:
    """What is needed in place of a value that is of another type than the default; nothing if it is not."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    if isinstance(default, list):
        wrong = not isinstance(value, list) or (default and any(_mismatch(item, default[0]) for item in value))
        return f"a list such as {show(default)}" if wrong else ""
    if isinstance(default, dict):
        return "" if isinstance(value, dict) else "a mapping"
    return "" if isinstance(value, str) else "text"


def leaves(node: Node, path: str = "") -> Iterator[tuple[str, Written]]:
    """Every value of a tree with its path; lists are values, and an empty section has none."""
    if not isinstance(node.value, dict):
        yield path, Written(node.plain(), node.where)
        return
    for key, inner in node.value.items():
        yield from leaves(inner, f"{path}.{key}".lstrip("."))


def overlaid(base: Node, over: Node) -> Node:
    """``over`` on top of ``base``: mappings merge, everything else replaces."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = {key: overlaid(base.value[key], node) if key in base.value else node for key, node in over.value.items()}
    return Node({**base.value, **merged}, over.where)


def put(node: Node | None, keys: list[str], value: Node) -> Node:
    """A tree with a value in it, at the end of the keys."""
    if not keys:
        return value
    inside = node.value if node is not None and isinstance(node.value, dict) else {}
    return Node({**inside, keys[0]: put(inside.get(keys[0]), keys[1:], value)}, value.where)


def planted(value: Any, where: str) -> Node:
    """A plain value as a tree, all of it from one place."""
    if isinstance(value, dict):
        return Node({key: planted(inner, where) for key, inner in value.items()}, where)
    return Node([planted(inner, where) for inner in value] if isinstance(value, list) else value, where)
