"""No function of the package is longer than a screen and a half."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "opabinia"
MAX_LINES = 75
"""Signature and docstring included; ruff limits the cyclomatic complexity (pyproject.toml)."""


def test_functions_are_short() -> None:
    long = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                long += [f"{path.relative_to(PACKAGE)}: {node.name}: {lines}"] if lines > MAX_LINES else []
    assert not long, "\n".join(long)
