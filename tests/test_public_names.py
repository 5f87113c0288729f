"""`import opabinia` shows the public names."""

import ast
from pathlib import Path

import opabinia


def test_completion_lists_the_public_names() -> None:
    assert dir(opabinia) == sorted(opabinia.__all__)
    assert {"train", "evaluate", "load", "register", "Data", "Training", "Duration", "Predictor"} <= set(dir(opabinia))
    assert all(hasattr(opabinia, name) for name in opabinia.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(opabinia.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(opabinia.__all__)
