"""Reader of Python configs that parses literals, ``dict(...)`` and arithmetic without executing code.

Names are replaced by the literals that the file assigns to them. Other expressions become :class:`Code`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem
from opabinia.config.tree import Node, shown_path, text_of
from opabinia.migration.foreign_config import Code, as_node, merge_trees

MAX_DEPTH = 40


class Name(str):
    """An identifier in the code, such as ``NORM_TYPES``, as a placeholder for its value."""


class Config(NamedTuple):
    """A parsed config.

    Attributes:
        tree: the values.
        base: name of the base class that the file imports; empty if there is none.
    """

    tree: Node
    base: str


def read(file: Path, class_name: str = "Cfg") -> Config:
    """Read the config of a class: the merged dictionaries that it and its base classes pass to their base classes.

    Args:
        file: the Python file.
        class_name: the class; if it is missing, the last class of the file is read.

    Raises:
        ConfigError: the file cannot be read, is not valid Python, or has no class.
    """
    where = shown_path(file)
    module = parse(file, where)
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    if not classes:
        raise ConfigError(Problem(where, "", "has no class, so it is not a config of basecls"))
    reader = _Reader(where, _assignments(module))
    tree, name, seen = Node({}, where), class_name if class_name in classes else list(classes)[-1], set[str]()
    while name in classes and name not in seen:
        seen.add(name)
        argument = _init_argument(classes[name])
        own = Node({}, where) if argument is None else reader.node(argument, 1)
        if not isinstance(own.value, dict):
            raise ConfigError(
                Problem(own.where, "", f"the values of {name} are computed by code, which is not executed")
            )
        tree = merge_trees(own, tree)
        name = next((base.id for base in classes[name].bases if isinstance(base, ast.Name)), "")
    return Config(tree, name if name not in classes else "")


def parse(file: Path, where: str) -> ast.Module:
    """Parse a Python file, which is named ``where`` in messages.

    Raises:
        ConfigError: the file cannot be read or is not valid Python.
    """
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


def _assignments(module: ast.Module) -> dict[str, ast.expr | None]:
    """Return the expressions assigned to names at the top level of a file.

    None stands for values that depend on the flow of the program: names assigned more than once, in a loop or by
    ``+=``, and objects of which an item is assigned or a method is called.
    """
    values: dict[str, ast.expr | None] = {}
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    stores: Counter[str] = Counter()
    for child in ast.walk(module):
        match child:
            case ast.Name(id=name, ctx=ast.Store()):
                stores[name] += 1
            case (
                ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
            ):
                stores[name] += 2
    return values | {name: None for name, count in stores.items() if count > 1 or name not in values}


def _init_argument(class_node: ast.ClassDef) -> ast.expr | None:
    """Return the argument of ``super().__init__(_cfg)``; None if there is none, or if it is a parameter."""
    for node in ast.walk(class_node):
        match node:
            case ast.FunctionDef(args=ast.arguments(args=parameters)):
                own = {parameter.arg for parameter in parameters}
            case ast.Call(func=ast.Attribute(attr="__init__"), args=[argument, *_]):
                is_parameter = isinstance(argument, ast.Name) and argument.id in own
                return None if is_parameter else argument
    return None


OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _Reader:
    """Converts expressions to nodes."""

    def __init__(self, where: str, assigned: Mapping[str, ast.expr | None]) -> None:
        self._where = where
        self._assigned = assigned

    def node(self, expression: ast.expr, depth: int) -> Node:
        """Convert a dictionary to a mapping and other expressions to values."""
        where = f"{self._where}:{expression.lineno}"
        if depth > MAX_DEPTH:
            raise ConfigError(Problem(where, "", f"nested more than {MAX_DEPTH} levels deep"))
        if isinstance(expression, ast.Name) and (assigned := self._assigned.get(expression.id)) is not None:
            return self.node(assigned, depth + 1)
        items = self._items(expression)
        if items is not None:
            return Node({key: self.node(value, depth + 1) for key, value in items.items()}, where)
        try:
            return as_node(self._value(expression, depth), where)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            return Node(Code(ast.unparse(expression)[:100]), where)

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
            case ast.Name(id=name) if name not in self._assigned:
                return Name(name)
            case ast.Name(id=name) if (assigned := self._assigned[name]) is not None:
                return self._value(assigned, depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, depth)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self._number(left, depth), self._number(right, depth))
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" as text)], keywords=[]):
                return float(text)
        raise ValueError("not a literal")

    def _number(self, expression: ast.expr, depth: int) -> int | float:
        value = self._value(expression, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError("not a number")
        return value
