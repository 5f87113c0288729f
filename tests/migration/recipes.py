"""Helpers for the tests of converted configs."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from opabinia.config import Catalog, catalog, check, compose
from opabinia.migration.recipe import Recipe


@cache
def parts() -> Catalog:
    return catalog()


@cache
def table(system: str) -> dict[str, Any]:
    """Return the configs of a system and what is expected of their recipes, see ``test_converted.py``."""
    path = Path(__file__).parent / "cases" / f"{system}.yaml"
    content: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return content


def config_of(system: str, case: dict[str, Any]) -> str:
    """Return the text of a case's config."""
    text: str = case["config"] if "config" in case else table(system)["bases"][case["base"]]
    for old, new in case.get("change", ()):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text + case.get("add", "")


def example(system: str, name: str) -> str:
    """Return the text of the first case of this name."""
    return config_of(system, next(case for case in table(system)["cases"] if case["id"] == name))


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
