"""The config of another system: its values, their positions in files, its defaults, and the keys not yet read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node

NO_EQUIVALENT = "no equivalent"
"""The reason why a key that no table mentions is not converted."""


class SourceValue(NamedTuple):
    """A value and its position in a file.

    Attributes:
        value: a scalar or a list.
        where: the position, such as "Base-RCNN-FPN.yaml:29".
    """

    value: Any
    where: str


class Code(str):
    """The text of an expression that is not executed, as a placeholder for its value."""


class UnconvertedKey(NamedTuple):
    """A key of the config that has no counterpart in the recipe.

    Attributes:
        path: the key.
        value: its value.
        where: its position.
        why: the reason.
    """

    path: str
    value: Any
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} = {show(self.value, 200)} ({self.where}): {self.why}"


class ForeignConfig:
    """Values by dotted path. Keys that are read are recorded, so that the others can be reported.

    Args:
        system: name of the system, for messages.
        file: name of the config file, for messages about missing keys.
        written: the values in the files.
        defaults: the system's defaults; values must have the types of their defaults.
        reasons: why keys or whole sections are not converted, by path.
    """

    def __init__(
        self,
        system: str,
        file: str,
        written: Mapping[str, SourceValue],
        defaults: Mapping[str, Any],
        reasons: Mapping[str, str],
    ) -> None:
        self.system = system
        self.file = file
        self._written = dict(written)
        self._defaults = defaults
        self._reasons = reasons
        self._read: set[str] = set()

    def __call__(self, path: str, default: Any = None) -> Any:
        """Return the value at a path; if the files do not set it, the system's default, or else ``default``.

        Raises:
            ConfigError: the value has another type than the system's default.
        """
        value = self.untyped(path, default)
        expected = _expected_type(value, self._defaults.get(path, default)) if path in self._written else ""
        if expected:
            raise self.problem(path, f"expected {expected}, got {show(value)}")
        return value

    def untyped(self, path: str, default: Any = None) -> Any:
        """Return the value at a path as :meth:`__call__` does; it may have another type than the system's default."""
        self._read.add(path)
        return self._written[path].value if path in self._written else self._defaults.get(path, default)

    def check_code(self, paths: Iterable[str]) -> None:
        """Check that none of the values at these paths is computed by code.

        Raises:
            ConfigError: with all that are.
        """
        computed = {path: self._written[path].value for path in paths if path in self._written}
        problems = [
            Problem(self.where(path), path, f"is code, which is not executed: {value}", allowed=f"add {path}=VALUE")
            for path, value in computed.items()
            if isinstance(value, Code)
        ]
        if problems:
            raise ConfigError(problems)

    def __contains__(self, path: str) -> bool:
        """Return whether the files contain this key (null included) or section."""
        return any(key == path or key.startswith(f"{path}.") for key in self._written)

    def number(self, path: str) -> Any:
        """Return the number at a path.

        Raises:
            ConfigError: the value is missing or is not a number.
        """
        value = self(path)
        if _expected_type(value, 0.0):
            raise self.problem(path, f"expected a number, got {show(value)}")
        return value

    def numbers(self, path: str) -> list[Any]:
        """Return the list of numbers at a path; empty if it is not set.

        Raises:
            ConfigError: the value is something else.
        """
        values = self(path) or []
        if not isinstance(values, list) or any(_expected_type(value, 0.0) for value in values):
            raise self.problem(path, f"expected a list of numbers, got {show(values)}")
        return values

    def keys(self, section: str) -> list[str]:
        """Return the full paths of all keys in the files below a section."""
        return [path for path in self._written if path.startswith(f"{section}.")]

    def where(self, path: str) -> str:
        """Return the position of a key, or "default of SYSTEM"."""
        return self._written[path].where if path in self._written else f"default of {self.system}"

    def problem(self, path: str, message: str, allowed: str = "") -> ConfigError:
        """Return the error to raise for an invalid value."""
        where = self._written[path].where if path in self._written else self.file
        return ConfigError(Problem(where, path, message, allowed=allowed))

    def unread(self) -> list[UnconvertedKey]:
        """Return the keys in the files that have not been read."""
        return [
            UnconvertedKey(path, value, where, self._reason(path))
            for path, (value, where) in self._written.items()
            if path not in self._read
        ]

    def _reason(self, path: str) -> str:
        """Return the reason given for the key or the innermost section around it."""
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            if reason := self._reasons.get(".".join(parts[:length])):
                return reason
        return "has no effect in this config" if path in self._defaults else NO_EQUIVALENT


def _expected_type(value: Any, default: Any) -> str:
    """Describe the type of ``default`` if ``value`` does not have it; else return an empty string."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    if isinstance(default, list):
        valid = isinstance(value, list) and not (default and any(_expected_type(item, default[0]) for item in value))
        return "" if valid else f"a list such as {show(default)}"
    if isinstance(default, dict):
        return "" if isinstance(value, dict) else "a mapping"
    return "" if isinstance(value, str) else "text"


def leaves(node: Node, path: str = "") -> Iterator[tuple[str, SourceValue]]:
    """Yield every value of a tree with its path. A list is one value; an empty section yields nothing."""
    if not isinstance(node.value, dict):
        yield path, SourceValue(node.plain(), node.where)
        return
    for key, child in node.value.items():
        yield from leaves(child, f"{path}.{key}".lstrip("."))


def merge_trees(base: Node, override: Node) -> Node:
    """Return ``base`` updated with ``override``: mappings are merged, other values replaced."""
    if not isinstance(base.value, dict) or not isinstance(override.value, dict):
        return override
    merged = {
        key: merge_trees(base.value[key], node) if key in base.value else node for key, node in override.value.items()
    }
    return Node({**base.value, **merged}, override.where)


def set_value(node: Node | None, keys: Sequence[str | int], value: Node) -> Node:
    """Return a tree with the value at the path ``keys``; numbers are indices of lists.

    Raises:
        IndexError: there is no such item.
    """
    if not keys:
        return value
    if isinstance(keys[0], int):
        items = list(node.value) if node is not None and isinstance(node.value, list) else []
        items[keys[0]] = set_value(items[keys[0]], keys[1:], value)
        return Node(items, value.where)
    children = node.value if node is not None and isinstance(node.value, dict) else {}
    return Node({**children, keys[0]: set_value(children.get(keys[0]), keys[1:], value)}, value.where)


def as_node(value: Any, where: str) -> Node:
    """Return a plain value as a tree whose nodes all have the position ``where``."""
    if isinstance(value, dict):
        return Node({key: as_node(child, where) for key, child in value.items()}, where)
    return Node([as_node(child, where) for child in value] if isinstance(value, list) else value, where)
