"""An option that a config of OpenMMLab does not set has the default of its class there.

A config in which a default is written out must give the same recipe as one without it. The defaults are those of the
original source files, see :mod:`tests.migration.original_defaults.openmmlab`.
"""

import os
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.config import ConfigError
from opabinia.config.tree import Node
from opabinia.migration import System, convert, openmmlab
from opabinia.migration.foreign_config import as_node
from opabinia.migration.tables import mmaction
from opabinia.migration.tables.openmmlab import OPTIMIZERS, SECTIONS
from tests.migration import original_defaults as originals
from tests.migration.original_defaults import openmmlab as facts
from tests.migration.recipes import config_of, example, table

SYSTEMS_AND_CASES: list[tuple[System, str]] = [
    ("mmaction", "an i3d"),
    ("mmaction", "sampling and crops of segments"),
    ("mmaction", "a video swin transformer"),
    ("mmpretrain", "a swin transformer"),
]
DETECTOR = "".join(table("mmdetection")["files"].values())
RETINANET = example("mmdetection", "a retinanet and gpus").partition("\n")[2].replace("_delete_=True, ", "")
CONFIGS: list[tuple[System, str]] = [
    *((system, example(system, name)) for system, name in SYSTEMS_AND_CASES),
    *(
        ("mmpretrain", config_of("mmpretrain", case))
        for case in table("mmpretrain")["cases"]
        if case["id"] == "methods" and "errors" not in case
    ),
    ("mmdetection", DETECTOR),
    ("mmdetection", DETECTOR + RETINANET),
]
NO_DEFAULT = {"ann_file"}
"""Options that recipes have as variables."""


def read_text(folder: Path, text: str) -> dict[str, Any]:
    (folder / "own.py").write_text(text, encoding="utf-8")
    tree: dict[str, Any] = openmmlab.read(folder / "own.py").plain()
    return {key: value for key, value in tree.items() if key in SECTIONS}


def typed(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the dictionaries with a type, and their paths."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from typed(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: dict[str, Any]) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.fixture
def recipe_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[System, dict[str, Any]], Any]:
    """Return the recipe of a config, or None if it is rejected."""

    def recipe(system: System, config: dict[str, Any]) -> Any:
        def read(_file: Path, _overrides: Any) -> Node:
            return as_node(config, "own.py:1")

        monkeypatch.setattr(openmmlab, "read", read)
        try:
            return convert(system, Path("own.py")).config
        except ConfigError:
            return None

    return recipe


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_defaults_come_out(number: int, tmp_path: Path, recipe_of: Callable[[System, dict[str, Any]], Any]) -> None:
    system, text = CONFIGS[number]
    config, table = read_text(tmp_path, text), originals.read("openmmlab")[system]
    base = recipe_of(system, config)
    assert base is not None
    for path, options in typed(config):
        defaults = {key: value for key, value in table.get(options["type"], {}).items() if key not in NO_DEFAULT}
        absent = {key: value for key, value in defaults.items() if key not in options and value is not None}
        explicit = recipe_of(system, replaced(config, path, {**absent, **options}))
        if explicit is None:  # some options may not be written at all: one by one
            for key in list(absent):
                if recipe_of(system, replaced(config, path, {key: absent[key], **options})) is None:
                    del absent[key]
            explicit = recipe_of(system, replaced(config, path, {**absent, **options}))
        assert explicit == base, f"{path}: one of {absent}"
        for key in (key for key in defaults.keys() & options.keys() if defaults[key] is not None):
            rest = {other: value for other, value in options.items() if other != key}
            explicit = recipe_of(system, replaced(config, path, {**rest, key: defaults[key]}))
            omitted = recipe_of(system, replaced(config, path, rest))
            assert None in (explicit, omitted) or omitted == explicit, f"{path}: {options['type']}.{key}"


def test_the_table_of_mmaction() -> None:
    table = originals.read("openmmlab")["mmaction"]
    for name, defaults in mmaction.CLASSES.items():
        own = {key: value for key, value in defaults.items() if key in table[name]}
        assert own == {key: table[name][key] for key in own} and own.keys() == defaults.keys(), name


def test_the_defaults_of_optimizers_are_those_of_torch() -> None:
    for name, (_, options) in OPTIMIZERS.items():
        if hasattr(torch.optim, name):
            parameters = signature(getattr(torch.optim, name)).parameters
            for key, (_, default) in options.items():
                expected = parameters[key].default
                assert default == (list(expected) if isinstance(expected, tuple) else expected), f"{name}.{key}"


def test_the_table_is_that_of_the_packages() -> None:
    folders = os.environ.get("OPABINIA_OPENMMLAB")
    if not folders:
        pytest.skip("OPABINIA_OPENMMLAB names no folders, divided by :, that contain the packages")
    table = originals.read("openmmlab")
    types = {system: set(classes) for system, classes in table.items()}
    assert facts.class_defaults([Path(folder) for folder in folders.split(":")], types) == table
