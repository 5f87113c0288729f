"""Helpers for the tests of converted configs."""

from functools import cache
from pathlib import Path
from typing import Any

from opabinia.config import Catalog, catalog, check, compose
from opabinia.migration.recipe import Recipe


@cache
def parts() -> Catalog:
    return catalog()


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder; return the path of the last one."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file


def resolve(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the complete config of the recipe's text, which must have no errors and no deprecated names."""
    file = folder / "recipe.yaml"
    file.write_text(recipe.text(), encoding="utf-8")
    resolved = check(compose(file), parts())
    assert not resolved.warnings
    return resolved.config


def unconverted(recipe: Recipe) -> dict[str, Any]:
    """Return the reasons of the keys that are not converted."""
    return {key.path: key.why for key in recipe.unconverted()}
