"""Complete configs of the recipes: a changed default shows as a changed line of a golden file."""

import difflib

import pytest

from opabinia.config.compose import packaged_names
from scripts.update_golden import COMMAND, GOLDEN, flat_config, golden_file


@pytest.mark.parametrize("recipe", packaged_names())
def test_the_complete_config_is_the_golden_one(recipe: str) -> None:
    path = golden_file("configs", recipe)
    assert path.is_file(), f"no golden config of {recipe}; run: {COMMAND} {recipe}"
    golden, current = path.read_text(encoding="utf-8").splitlines(), flat_config(recipe).splitlines()
    difference = "\n".join(difflib.unified_diff(golden, current, "golden", "current", lineterm="", n=0))
    assert golden == current, f"{difference}\nif this is intended, run: {COMMAND} {recipe}"


@pytest.mark.parametrize("kind", ["configs", "losses"])
def test_no_golden_file_is_obsolete(kind: str) -> None:
    known = {golden_file(kind, recipe) for recipe in packaged_names()}
    assert set((GOLDEN / kind).rglob("*.txt")) <= known, f"recipes no longer exist; run: {COMMAND}"
