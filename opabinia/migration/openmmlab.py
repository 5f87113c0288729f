"""Reader of OpenMMLab's configs (MMDetection, MMPretrain, MMAction2): Python files that inherit from each other.

They are parsed, not executed: assignments of literals, ``dict(...)``, earlier names, values of the base files
(``_base_.name``, ``{{_base_.name}}``) and arithmetic. Every other statement or expression is an error with its line.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.tree import Node, shown_path
from opabinia.migration import yacs
from opabinia.migration.foreign_config import as_node, set_value
from opabinia.migration.python_literals import MAX_DEPTH, OPERATORS, parse

MAX_FILES = 30
MAX_NODES = 200_000
"""Values in all names of a file and in its bases, each counted as often as it is used."""

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"round": round, "int": int, "float": float, "list": list, "tuple": list}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    **OPERATORS,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def read(file: Path, overrides: Sequence[str] = ()) -> Node:
    """Read a config with its base files: the final value of every name, as mmengine's ``Config.fromfile``.

    Dictionaries are merged with those of the base files, unless they contain ``_delete_=True``; other values replace
    those of the base files.

    Args:
        file: the Python file; ``_base_`` in it names one or several other files, relative to it.
        overrides: changes such as ``optim_wrapper.optimizer.lr=0.01``.

    Raises:
        ConfigError: a file cannot be read, includes itself, or contains code.
    """
    tree = _read_file(file, (), [0])
    for text in overrides:
        key, equals, value = text.partition("=")
        where = f"command line: {text[:80]}"
        if not equals or not all(key.split(".")):
            raise ConfigError(Problem(where, "", "a change is written as optim_wrapper.optimizer.lr=0.01"))
        tree = set_value(tree, key.split("."), as_node(yacs.literal(value), where))
    return tree


def merge(base: Node, own: Node) -> Node:
    """Return ``base`` updated with ``own``; a dictionary with ``_delete_=True`` replaces that of ``base``."""
    if not isinstance(own.value, dict):
        return own
    children = {key: node for key, node in own.value.items() if key != "_delete_"}
    deletes = "_delete_" in own.value and own.value["_delete_"].value
    inherited = base.value if isinstance(base.value, dict) and not deletes else {}
    empty = Node(None, own.where)
    return Node({**inherited, **{k: merge(inherited.get(k, empty), node) for k, node in children.items()}}, own.where)


def _read_file(file: Path, children: tuple[Path, ...], count: list[int]) -> Node:
    """Read a file and its bases; ``children`` are the files that include it, ``count`` has the number of files."""
    where = shown_path(file)
    count[0] += 1
    if count[0] > MAX_FILES:
        raise ConfigError(Problem(where, "_base_", f"more than {MAX_FILES} files"))
    module = parse(file, where)
    base = Node({}, where)
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="_base_")], value=value):
                names = _Values(where, Node({}, where)).evaluate(value, 1)
                for name in names.value if isinstance(names.value, list) else [names]:
                    base = merge(base, _read_base(name, file, children, count))
    values = _Values(where, base)
    for statement in module.body:
        values.run(statement)
    own = {key: node for key, node in values.names.items() if key != "_base_"}
    return merge(values.base, Node(own, where))


def _read_base(node: Node, file: Path, children: tuple[Path, ...], count: list[int]) -> Node:
    name = node.value
    if not isinstance(name, str) or "::" in name or "://" in name:
        message = f"{show(node.plain())}: expected the path of a file; copy the files of other packages"
        raise ConfigError(Problem(node.where, "_base_", message))
    try:
        base = (file.parent / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(Problem(node.where, "_base_", f"{show(name)} is not a file name: {error}")) from error
    own = file.resolve()
    if base in (*children, own):
        raise ConfigError(Problem(node.where, "_base_", f"includes itself: {shown_path(base)}"))
    return _read_file(base, (*children, own), count)


class _NotLiteralError(ValueError):
    """An expression that is not a literal."""


class _Values:
    """Values of the names of a file, in the order of its assignments.

    Args:
        where: the file, for messages.
        base: the merged base files; assignments to ``_base_.key`` change them.
    """

    def __init__(self, where: str, base: Node) -> None:
        self._where, self.base = where, base
        self._nodes = 0
        self.names: dict[str, Node] = {}

    def run(self, statement: ast.stmt) -> None:
        """Assign a value to a name or to a key of the base files, or delete a name.

        Raises:
            ConfigError: the statement does something else.
        """
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.names[name] = self.evaluate(value, 1)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.names[name] = self.evaluate(value, 1)
            case ast.Assign(targets=[ast.Attribute() as target], value=value) if keys := self._keys(target):
                node = self.evaluate(value, 1)
                try:
                    self.base = set_value(self.base, keys, node)
                except IndexError as error:
                    raise self._error(statement) from error
            case ast.Delete(targets=[ast.Name(id=name)]):
                self.names.pop(name, None)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                raise self._error(statement)

    def evaluate(self, expression: ast.expr, depth: int) -> Node:
        """Evaluate an expression.

        Raises:
            ConfigError: it is code.
        """
        if depth > MAX_DEPTH:
            where = f"{self._where}:{expression.lineno}"
            raise ConfigError(Problem(where, "", f"nested more than {MAX_DEPTH} levels deep"))
        try:
            node = self._container(expression, depth) or self._scalar(expression, depth)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise self._error(expression) from error
        return node

    def _error(self, code: ast.stmt | ast.expr) -> ConfigError:
        text = ast.unparse(code).partition("\n")[0][:100]
        return ConfigError(
            Problem(f"{self._where}:{code.lineno}", "", f"is code, which is not executed: {text}", allowed="a literal")
        )

    def _container(self, expression: ast.expr, depth: int) -> Node | None:
        """Evaluate a dictionary, a list or a name; return None for other expressions."""
        where = f"{self._where}:{expression.lineno}"
        match expression:
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                pairs = zip(keys, values, strict=True)
                children = {str(key.value): self.evaluate(v, depth + 1) for key, v in pairs}  # type: ignore[union-attr]
                return Node(children, where)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                children = {}
                for keyword in keywords:
                    value = self.evaluate(keyword.value, depth + 1)
                    children |= value.value if keyword.arg is None else {keyword.arg: value}
                return Node(children, where)
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return Node([self.evaluate(item, depth + 1) for item in items], where)
            case ast.Set(elts=[ast.Set(elts=[value])]):
                return self.evaluate(value, depth + 1)
            case ast.Name(id=name) if name in self.names:
                return self._spend(self.names[name])
            case ast.Attribute() if path := self._keys(expression):
                return self._spend(reduce(lambda node, key: node.value[key], path, self.base))
            case ast.ListComp(elt=item, generators=[ast.comprehension(target=ast.Name(id=name), iter=values, ifs=[])]):
                return Node([self._with(name, value, item, depth) for value in self._items(values, depth)], where)
        return None

    def _keys(self, expression: ast.expr) -> list[str | int]:
        """Return the keys of ``_base_.key[0].key``; none of other attributes."""
        match expression:
            case ast.Attribute(value=ast.Name(id="_base_"), attr=key):
                return [key]
            case ast.Attribute(value=value, attr=key) if keys := self._keys(value):
                return [*keys, key]
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if keys := self._keys(value):
                return [*keys, index]
        return []

    def _items(self, expression: ast.expr, depth: int) -> list[Node]:
        values = self.evaluate(expression, depth + 1).value
        if not isinstance(values, list):
            raise _NotLiteralError
        return values

    def _with(self, name: str, value: Node, expression: ast.expr, depth: int) -> Node:
        """Evaluate an expression in which a name has another value."""
        outer = self.names
        self.names = {**outer, name: value}
        try:
            return self.evaluate(expression, depth + 1)
        finally:
            self.names = outer

    def _spend(self, node: Node) -> Node:
        """Count the values of a name that is used."""
        stack = [node]
        while stack:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise ConfigError(Problem(self._where, "", f"more than {MAX_NODES} values"))
            stack += [child for _, child in stack.pop().children()]
        return node

    def _scalar(self, expression: ast.expr, depth: int) -> Node:
        """Evaluate constants, arithmetic, indices and the calls of :data:`_FUNCTIONS`."""
        where = f"{self._where}:{expression.lineno}"
        match expression:
            case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
                return Node(value, where)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Node(-_number(self.evaluate(operand, depth + 1).plain()), where)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(self.evaluate(left, depth + 1), op, self.evaluate(right, depth + 1), where)
            case ast.Subscript(value=value, slice=ast.Slice() as bounds):
                parts: list[Any] = [part and self.evaluate(part, depth + 1).value for part in _bounds(bounds)]
                return Node(self._items(value, depth)[slice(*parts)], where)
            case ast.Subscript(value=value, slice=key):
                return self.evaluate(value, depth + 1).value[self.evaluate(key, depth + 1).value]  # type: ignore[no-any-return]
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                return as_node(_FUNCTIONS[name](self.evaluate(argument, depth + 1).plain()), where)
            case ast.JoinedStr(values=parts):
                return Node("".join(str(self._part(part, depth)) for part in parts), where)
        raise _NotLiteralError

    def _part(self, part: ast.expr, depth: int) -> Any:
        match part:
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.evaluate(value, depth + 1).plain()
        return self.evaluate(part, depth + 1).plain()

    def _binary(self, left: Node, op: ast.operator, right: Node, where: str) -> Node:
        if type(op) not in _BINARY:
            raise _NotLiteralError
        if isinstance(op, ast.Add) and isinstance(left.value, str | list):
            return self._spend(Node(left.value + right.value, where))
        if isinstance(op, ast.Mult) and isinstance(left.value, list) and _number(right.value) <= MAX_NODES:
            return self._spend(Node(left.value * right.value, where))
        return Node(_number(_BINARY[type(op)](_number(left.value), _number(right.value))), where)


def _bounds(bounds: ast.Slice) -> tuple[ast.expr | None, ...]:
    return (bounds.lower, bounds.upper, bounds.step)


def _number(value: Any) -> Any:
    """Return a number.

    Raises:
        ValueError: the value is something else, or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or abs(value) > 1e30:
        raise _NotLiteralError
    return value


def only(tree: Node, names: Mapping[str, Any]) -> Node:
    """Return the sections of a config that are in ``names``, without the variables that it is written with."""
    return Node({key: node for key, node in tree.value.items() if key in names}, tree.where)
