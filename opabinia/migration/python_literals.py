"""Reader of Python configs that parses literals, ``dict(...)`` and arithmetic without executing code.

Other expressions are reported.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem
from opabinia.config.tree import Node, shown_path, text_of
from opabinia.migration.foreign_config import as_node, merge_trees

MAX_DEPTH = 40


class Name(str):
    """An identifier in the code, such as ``NORM_TYPES``, as a placeholder for its value."""


class Config(NamedTuple):
    """A parsed config.

    Attributes:
        tree: the values.
        base: name of the base class that the file imports; empty if there is none.
        code: expressions that are not literals, as "file.py:12: the expression".
    """

    tree: Node
    base: str
    code: list[str]


def read(file: Path, class_name: str = "Cfg") -> Config:
    """Read the config of a class: the merged dictionaries that it and its base classes pass to their base classes.

    Args:
        file: the Python file.
        class_name: the class; if it is missing, the last class of the file is read.

    Raises:
        ConfigError: the file cannot be read, is not valid Python, or has no class.
    """
    where = shown_path(file)
    module = _parse(file, where)
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    if not classes:
        raise ConfigError(Problem(where, "", "has no class, so it is not a config of basecls"))
    values = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    reader = _Reader(where)
    tree, name, seen = Node({}, where), class_name if class_name in classes else list(classes)[-1], set[str]()
    while name in classes and name not in seen:
        seen.add(name)
        argument = _init_argument(classes[name])
        own = reader.node(values[argument], 1) if argument in values else Node({}, where)
        tree = merge_trees(own, tree)
        name = next((base.id for base in classes[name].bases if isinstance(base, ast.Name)), "")
    return Config(tree, name if name not in classes else "", reader.code)


def _parse(file: Path, where: str) -> ast.Module:
    problems: list[Problem] = []
    text = text_of(file, problems)
    if text is None:
        raise ConfigError(problems)
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(Problem(f"{where}:{error.lineno or 1}", "", f"is not valid Python: {error.msg}")) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(Problem(where, "", f"cannot be read as Python: {error}")) from error


def _init_argument(class_node: ast.ClassDef) -> str:
    """Return the name of the dictionary that a class passes to its base class: ``super().__init__(_cfg)``."""
    for node in ast.walk(class_node):
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
    """Converts expressions to nodes."""

    def __init__(self, where: str) -> None:
        self.code: list[str] = []
        self._where = where

    def node(self, expression: ast.expr, depth: int) -> Node:
        """Convert a dictionary to a mapping and other expressions to values."""
        where = f"{self._where}:{expression.lineno}"
        if depth > MAX_DEPTH:
            raise ConfigError(Problem(where, "", f"nested more than {MAX_DEPTH} levels deep"))
        items = self._items(expression)
        if items is not None:
            nodes = {key: self.node(value, depth + 1) for key, value in items.items()}
            return Node({key: node for key, node in nodes.items() if node.value is not Ellipsis}, where)
        try:
            return as_node(self._value(expression, depth), where)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            self.code.append(f"{where}: {ast.unparse(expression)[:100]}")
            return Node(..., where)

    def _items(self, expression: ast.expr) -> dict[str, ast.expr] | None:
        """Return the keys and values of ``{...}`` and ``dict(...)``; None for other expressions."""
        if isinstance(expression, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in expression.keys]
            if all(isinstance(key, str) for key in keys):
                return {str(key): value for key, value in zip(keys, expression.values, strict=True)}
        match expression:
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(
                keyword.arg for keyword in keywords
            ):
                return {str(keyword.arg): keyword.value for keyword in keywords}
        return None

    def _value(self, expression: ast.expr, depth: int) -> Any:
        """Evaluate a number, text, list or name.

        Raises:
            ValueError: the expression is none of these.
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
        raise ValueError("not a literal")

    def _number(self, expression: ast.expr, depth: int) -> int | float:
        value = self._value(expression, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError("not a number")
        return value
