"""Defaults of OpenMMLab's classes, read from their source files.

``openmmlab.json`` has those of MMAction2 4d6c934, MMDetection 3.3.0 and MMPretrain ee7f2e8 with mmcv and mmengine, for
the types that occur in the configs of the tests. To write it again from folders that contain these packages:

    python -m tests.migration.original_defaults --openmmlab FOLDER FOLDER ...
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SYSTEMS = {"mmaction": "mmaction", "mmdetection": "mmdet", "mmpretrain": "mmpretrain"}
LIBRARIES = ("mmcv", "mmengine")


class _Class(NamedTuple):
    """Base classes as (package, name), parameters with their defaults, and arguments that the bases always get."""

    bases: list[tuple[str, str]]
    parameters: dict[str, ast.expr]
    fixed: set[str]


def class_defaults(folders: Iterable[Path], types: dict[str, set[str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the literal defaults of the parameters of classes, with those of their base classes.

    Args:
        folders: contain the packages of :data:`SYSTEMS` and :data:`LIBRARIES`.
        types: names of the classes by system; a system's own classes come before those of the libraries.
    """
    packages = {**{package: {} for package in (*SYSTEMS.values(), *LIBRARIES)}}
    for folder in folders:
        for package in packages:
            for file in sorted((folder / package).rglob("*.py")):
                packages[package] |= dict(_classes(file, package))
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for system, package in SYSTEMS.items():
        for name in sorted(types[system]):
            owner = next((owner for owner in (package, *LIBRARIES) if name in packages[owner]), None)
            if owner is not None:
                table.setdefault(system, {})[name] = dict(_literals(_inherited(packages, owner, name)))
    return table


def _classes(file: Path, package: str) -> Iterator[tuple[str, _Class]]:
    with warnings.catch_warnings(action="ignore"):  # about their escapes
        module = ast.parse(file.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: (package if node.level else str(node.module).partition(".")[0], alias.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        names = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        parameters: dict[str, ast.expr] = {}
        if init is not None:
            arguments = init.args.args
            defaults = init.args.defaults
            parameters |= {
                argument.arg: value
                for argument, value in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
            }
            pairs = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
            parameters |= {argument.arg: value for argument, value in pairs if value is not None}
        closed = init is not None and init.args.kwarg is None and init.args.vararg is None
        calls = [part for part in ast.walk(init or ast.Pass()) if isinstance(part, ast.Call)]
        fixed = {str(word.arg) for call in calls if "__init__" in ast.unparse(call.func) for word in call.keywords}
        bases = [] if closed else [imported.get(name, (package, name)) for name in names]
        yield node.name, _Class(bases, parameters, fixed)


def _inherited(packages: dict[str, dict[str, _Class]], package: str, name: str) -> dict[str, ast.expr]:
    if name not in packages.get(package, {}):
        return {}
    definition = packages[package][name]
    parameters: dict[str, ast.expr] = {}
    for base in reversed(definition.bases):
        if base != (package, name):
            parameters |= _inherited(packages, *base)
    return {key: value for key, value in parameters.items() if key not in definition.fixed} | definition.parameters


def _literals(parameters: dict[str, ast.expr]) -> Iterator[tuple[str, Any]]:
    for name, expression in parameters.items():
        with suppress(ValueError):  # those that are computed when the class is defined
            yield name, literal(expression)


def literal(node: ast.expr) -> Any:
    """Evaluate a literal, ``dict(...)`` or a quotient.

    Raises:
        ValueError: the expression is something else.
    """
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {str(keyword.arg): literal(keyword.value) for keyword in keywords}
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [literal(item) for item in items]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return literal(left) / literal(right)
    return ast.literal_eval(node)
