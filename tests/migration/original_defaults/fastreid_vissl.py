"""Names and values of FastReID and VISSL, read from their own source files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def fastreid_facts(checkout: Path) -> dict[str, Any]:
    """Return FastReID's defaults by dotted path, with those of its projects; its registered names; the depths that each
    builder of a backbone knows."""
    files = [checkout / "fastreid/config/defaults.py", *sorted(checkout.glob("projects/*/*/config.py"))]
    values: dict[str, Any] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if target.startswith("_C.") and (value := _value(node.value, values)) is not None:
                path = target.removeprefix("_C.")
                values |= (
                    {f"{path}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {path: value}
                )
    names: dict[str, list[str]] = {}
    depths: dict[str, list[str]] = {}
    for folder in ("fastreid", "projects"):
        for file in sorted((checkout / folder).rglob("*.py")):
            for node, registry in _registered(file):
                names.setdefault(registry, []).append(node.name)
                tables = [part for part in ast.walk(node) if isinstance(part, ast.Dict) and part.keys]
                if registry == "BACKBONE_REGISTRY" and tables:
                    depths[node.name] = [ast.literal_eval(key) for key in tables[0].keys]
    return {"defaults": values, "names": {key: sorted(value) for key, value in sorted(names.items())}, "depths": depths}


def vissl_facts(checkout: Path) -> dict[str, Any]:
    """Return VISSL's defaults by dotted path, its trunks, losses and transforms."""
    tree = yaml.safe_load((checkout / "vissl/config/defaults.yaml").read_text(encoding="utf-8"))
    facts: dict[str, Any] = {"defaults": {"engine_name": tree["engine_name"], **dict(_leaves(tree["config"]))}}
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted((checkout / "vissl").rglob("*.py")))
    for kind, function in (("trunks", "model_trunk"), ("losses", "loss"), ("transforms", "transform")):
        facts[kind] = sorted(set(re.findall(rf'^@register_{function}\(\s*"(\w+)"', text, re.MULTILINE)))
    return facts


def _registered(file: Path) -> Iterator[tuple[Any, str]]:
    """Yield the registered classes and functions of a file, with the name of the registry."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for decorator in getattr(node, "decorator_list", ()):
            if match := re.fullmatch(r"(\w+_REGISTRY)\.register\(\)", ast.unparse(decorator)):
                yield node, match[1]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """Evaluate the expressions that occur in FastReID's defaults; None of an empty section."""
    match node:
        case ast.Call(args=[section]):
            return _value(section, values)
        case ast.Call(args=[]):
            return None
        case ast.Dict(keys=keys, values=items):
            return {_value(key, values): _value(item, values) for key, item in zip(keys, items, strict=True) if key}
        case ast.Attribute():
            return values[ast.unparse(node).removeprefix("_C.")]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item, values) for item in items]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, values) * _value(right, values)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left, values) / _value(right, values)
    return ast.literal_eval(node)
