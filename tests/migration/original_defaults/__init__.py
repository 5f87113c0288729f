"""Defaults of the original systems, as names and values, read from their own source files.

``basecls.json`` (basecls 2f206e9) has the keys that each config class sets, ``detectron2.json`` (detectron2 02b5c4e)
all keys, ``fastreid.json`` (FastReID c9bc3ce) and ``vissl.json`` (VISSL 09270ed) also names of parts. To write the
first two again from checkouts:

    python -m tests.migration.original_defaults --basecls CHECKOUT --detectron2 CHECKOUT
"""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def read(system: str) -> dict[str, Any]:
    """Return the committed table of a system."""
    table: dict[str, Any] = json.loads((FOLDER / f"{system}.json").read_text(encoding="utf-8"))
    return table


def basecls_defaults(checkout: Path) -> dict[str, dict[str, Any]]:
    """Return the values that each class of ``basecls/configs`` passes to its base class, and the base's name."""
    classes: dict[str, dict[str, Any]] = {}
    for file in sorted((checkout / "basecls/configs").glob("*_cfg.py")):
        module = ast.parse(file.read_text(encoding="utf-8"))
        dicts = {node.targets[0].id: node.value for node in module.body if isinstance(node, ast.Assign)}
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                name = re.search(r"super\(\).__init__\((\w+)\)", ast.unparse(node))[1]
                classes[node.name] = {"base": ast.unparse(node.bases[0]), "values": dict(_leaves(dicts[name]))}
    return classes


def detectron2_defaults(checkout: Path) -> dict[str, Any]:
    """Return the values of ``detectron2/config/defaults.py`` by dotted path."""
    values: dict[str, Any] = {}
    module = ast.parse((checkout / "detectron2/config/defaults.py").read_text(encoding="utf-8"))
    for node in module.body:
        target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if not target.startswith("_C."):
            continue
        path, value = target.removeprefix("_C."), node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "CN":
            values |= {f"{path}.{key}": item for call in value.args for key, item in _leaves(call)}
        else:
            values[path] = _literal(value)
    return values


def _leaves(node: ast.expr, path: str = "") -> list[tuple[str, Any]]:
    """Return the paths and values of a nested ``dict(...)`` or ``{...}``."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        items = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        items = [(ast.literal_eval(key), value) for key, value in zip(node.keys, node.values, strict=True)]
    else:
        return [(path, _literal(node))]
    return [leaf for key, value in items for leaf in _leaves(value, f"{path}.{key}".lstrip("."))]


def _literal(node: ast.expr) -> Any:
    """Evaluate the expressions that occur in these files; names become texts."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_literal(item) for item in items]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _literal(left) / _literal(right)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=text)]):
            return float(text)
        case ast.Call(func=ast.Name(id="tuple"), args=[ast.GeneratorExp(elt=item, generators=[loop])]):
            return [_literal(item)] * loop.iter.args[0].value
    return ast.literal_eval(node)


def equal(ours: Any, original: Any) -> bool:
    """Return whether two values are the same up to rounding; texts, numbers, null and lists of these."""
    if isinstance(ours, list) and isinstance(original, list):
        return len(ours) == len(original) and all(map(equal, ours, original))
    if isinstance(ours, bool) or isinstance(original, bool) or isinstance(ours, str) or ours is None:
        return (type(ours) is type(original) and ours == original) or str(ours) == original
    return isinstance(original, int | float) and math.isclose(ours, original, rel_tol=1e-12)
