"""What the tests of imported configs share."""

from functools import cache
from pathlib import Path
from typing import Any

from opabinia.config import Catalog, catalog, check, compose
from opabinia.migration.recipe import Recipe


@cache
def parts() -> Catalog:
    return catalog()


def written(folder: Path, files: dict[str, str]) -> Path:
    """Files below a folder; the last one's path."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file


def checked(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The complete config that the recipe's text is, which has no problems."""
    file = folder / "recipe.yaml"
    file.write_text(recipe.text(), encoding="utf-8")
    resolved = check(compose(file), parts())
    assert not resolved.warnings
    return resolved.config


def left(recipe: Recipe) -> dict[str, Any]:
    """What was not taken over, with the reason."""
    return {one.path: one.why for one in recipe.left()}
