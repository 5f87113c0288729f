"""Python files of configs, read without running them: literals, ``dict(...)`` and arithmetic; all else is told."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem
from opabinia.config.tree import Node, shown_path, text_of
from opabinia.migration.foreign_config import overlaid, planted

MAX_DEPTH = 40


class Name(str):
    """A name of something in code, such as ``NORM_TYPES``, in the place of what it stands for."""


class Config(NamedTuple):
    """What a file says.

    Attributes:
        tree: the values.
        base: the name of the class, from elsewhere, that has the rest; empty if there is none.
        code: what is no literal, as "file.py:12: the expression".
    """

    tree: Node
    base: str
    code: list[str]


def read(file: Path, made: str = "Cfg") -> Config:
    """The config that a class of a file has: the dictionaries that it and its parents pass on, one over the other.

    Args:
        file: Python's text.
        made: the class; the last one of the file, where there is none of that name.

    Raises:
        ConfigError: it cannot be read, is no Python, or has no class.
    """
    where = shown_path(file)
    module = _parsed(file, where)
    classes = {one.name: one for one in module.body if isinstance(one, ast.ClassDef)}
    if not classes:
        raise ConfigError(Problem(where, "", "has no class, so it is no config of basecls"))
    values = {
        target.id: one.value
        for one in module.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    reader = _Reader(where)
    tree, name, seen = Node({}, where), made if made in classes else list(classes)[-1], set[str]()
    while name in classes and name not in seen:
        seen.add(name)
        passed = _passed(classes[name])
        own = reader.node(values[passed], 1) if passed in values else Node({}, where)
        tree = overlaid(own, tree)
        name = next((base.id for base in classes[name].bases if isinstance(base, ast.Name)), "")
    return Config(tree, name if name not in classes else "", reader.code)


def _parsed(file: Path, where: str) -> ast.Module:
    problems: list[Problem] = []
    text = text_of(file, problems)
    if text is None:
        raise ConfigError(problems)
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(Problem(f"{where}:{error.lineno or 1}", "", f"is no Python: {error.msg}")) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(Problem(where, "", f"cannot be read as Python: {error}")) from error


def _passed(made: ast.ClassDef) -> str:
    """The name of the dictionary that a class hands to its parent: ``super().__init__(_cfg)``."""
    for node in ast.walk(made):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "__init__"
            and node.args
            and isinstance(node.args[0], ast.Name)
        ):
            return node.args[0].id
    return ""


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _Reader:
    """Turns expressions into nodes."""

    def __init__(self, where: str) -> None:
        self.code: list[str] = []
        self._where = where

    def node(self, expression: ast.expr, depth: int) -> Node:
        """A dictionary as a mapping; all else as a value."""
        where = f"{self._where}:{expression.lineno}"
        if depth > MAX_DEPTH:
            raise ConfigError(Problem(where, "", f"nested more than {MAX_DEPTH} levels deep"))
        items = self._items(expression)
        if items is not None:
            nodes = {key: self.node(value, depth + 1) for key, value in items.items()}
            return Node({key: node for key, node in nodes.items() if node.value is not Ellipsis}, where)
        try:
            return planted(self._value(expression, depth), where)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            self.code.append(f"{where}: {ast.unparse(expression)[:100]}")
            return Node(..., where)

    def _items(self, expression: ast.expr) -> dict[str, ast.expr] | None:
        """Keys and values of ``{...}`` and ``dict(...)``."""
        if isinstance(expression, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in expression.keys]
            if all(isinstance(key, str) for key in keys):
                return {str(key): value for key, value in zip(keys, expression.values, strict=True)}
        match expression:
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(one.arg for one in keywords):
                return {str(one.arg): one.value for one in keywords}
        return None

    def _value(self, expression: ast.expr, depth: int) -> Any:
        """A number, text, list or name.

        Raises:
            ValueError: it is none of these.
        """
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        match expression:
            case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
                return value
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return [self._value(item, depth + 1) for item in items]
            case ast.Name(id=name):
                return Name(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, depth)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._number(left, depth), self._number(right, depth))
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" as text)], keywords=[]):
                return float(text)
        raise ValueError("no literal")

    def _number(self, expression: ast.expr, depth: int) -> int | float:
        value = self._value(expression, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError("no number")
        return value
