"""Describe a run built in Python as a config: each part by its registered name and the arguments it was built with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opabinia.config.arguments import built_with
from opabinia.config.build import Factory
from opabinia.config.catalog import live_catalog
from opabinia.config.compose import BUILT
from opabinia.config.errors import ConfigError, Problem
from opabinia.config.references import dotted
from opabinia.config.registry import Entry, register
from opabinia.config.types import Spec, parts_in
from opabinia.config.validate import accepts, plain
from opabinia.runtime.durations import Duration


@dataclass(frozen=True)
class Description:
    """A run built in Python as a config.

    Attributes:
        config: plain data, with the modules that register its parts as ``plugins``.
        warnings: the parts that other processes cannot build, and the remedy, if there are such parts.
    """

    config: dict[str, Any]
    warnings: tuple[str, ...] = ()


def config_of(run: Any) -> Description:
    """Return the config of a run built in Python.

    Parts are registered classes and functions, ``functools.partial`` of them, and objects that they have built. Any
    other part is registered here under its Python name: this process can build the run, other processes cannot.

    Args:
        run: a :class:`opabinia.training.session.TrainingRun`.

    Raises:
        ConfigError: a value outside of parts cannot be written as YAML.
    """
    live_catalog()  # a script imports only some of the modules that register parts
    commands = register.entries["command"].values()
    entry = next(entry for entry in commands if isinstance(entry.target, type) and isinstance(run, entry.target))
    describer = _Describer()
    try:
        config = describer.arguments(entry, {name: getattr(run, name) for name in entry.by_name}, ())
    except _Unwritable as error:
        raise ConfigError(error.problem) from None
    if describer.plugins:
        config["plugins"] = list(describer.plugins)
    if not describer.only_here:
        return Description(config)
    places = ", ".join(f"{place} ({name})" for place, (_, name) in describer.only_here.items())
    families = dict.fromkeys(family for family, _ in describer.only_here.values())
    decorators = " and ".join(f"@opabinia.register.{family}" for family in families)
    warning = (
        f"{places}: not registered in a module, so `opabinia predict`, `eval` and other processes cannot build this "
        f"run; define it in a module of your own under {decorators}"
    )
    return Description(config, (warning,))


class _Unwritable(Exception):
    """A value that cannot be written as YAML."""

    def __init__(self, path: Sequence[Any], value: Any) -> None:
        self.problem = Problem(BUILT, dotted(path), f"{value!r} cannot be written in a config")
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class _Given:
    """The target of a part that is registered in this process only: returns the object itself."""

    part: Any

    def __call__(self) -> Any:
        return self.part


class _Describer:
    """Walks through a run.

    Attributes:
        plugins: modules that register its parts.
        only_here: parts that other processes cannot build: family and name by place.
    """

    def __init__(self) -> None:
        self.plugins: dict[str, None] = {}
        self.only_here: dict[str, tuple[str, str]] = {}

    def arguments(self, entry: Entry, given: Mapping[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        """Return the keys of a part, given its arguments."""
        if unknown := [name for name in given if name not in entry.by_name]:
            raise _Unwritable((*path, unknown[0]), given[unknown[0]])
        return {
            name: self.value(parts_in(entry.by_name[name].spec), value, (*path, name)) for name, value in given.items()
        }

    def value(self, parts: list[Spec], value: Any, path: tuple[Any, ...]) -> Any:
        """Return a value, in which there may be parts, as plain data."""
        if isinstance(value, Mapping):
            return {key: self.value(parts, item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(parts, item, (*path, position)) for position, item in enumerate(value)]
        if isinstance(value, Enum | Path | Duration):
            return plain(value)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if not parts:
            raise _Unwritable(path, value)
        return self._part(parts, value, path)

    def _part(self, parts: list[Spec], part: Any, path: tuple[Any, ...]) -> dict[str, Any]:
        before = dict(self.only_here)
        family = parts[0]["family"]
        try:
            entry, given = _call_of(parts, part, path)
            keys = self.arguments(entry, given, path)
        except _Unwritable:
            if family == "section":
                raise
            name = _register_object(family, part)
            self.only_here = {**before, dotted(path): (family, name)}
            return {"name": name}
        if not _is_importable(entry.module):
            self.only_here[dotted(path)] = (entry.family, entry.name)
        elif entry.module.partition(".")[0] != "opabinia":
            self.plugins[entry.module] = None
        return keys if entry.family == "section" else {"name": entry.name, **keys}


def _call_of(parts: list[Spec], part: Any, path: Sequence[Any]) -> tuple[Entry, Mapping[str, Any]]:
    """The registered callable that builds a part, and the arguments from the config."""
    entries = [
        entry
        for spec in parts
        for entry in register.entries[spec["family"]].values()
        if spec.get("name", entry.name) == entry.name
    ]
    if (call := built_with(part)) is not None:
        entry = next((entry for entry in entries if (entry.family, entry.name) == call[:2]), None)
        if entry is not None and entry.target is not None:
            return entry, inspect.signature(entry.target).bind(*call.args, **call.kwargs).arguments
    target, keywords = part, {}
    if isinstance(part, Factory):
        target, keywords = part.target, dict(part.keywords)
    elif isinstance(part, partial) and not part.args:
        target, keywords = part.func, part.keywords
    for entry in entries:
        if entry.target is target or _adapts(entry) is target:
            return entry, keywords
    for entry in entries:
        if _is_adapted(entry, type(part)):
            return entry, _read_back(entry, part, path)
    raise _Unwritable(path, part)


def _adapts(entry: Entry) -> type | None:
    return getattr(entry.target, "__adapts__", None)


def _is_adapted(entry: Entry, cls: type) -> bool:
    """Whether a part is a third-party class, or the subclass of the same name that replaces it."""
    adapted = _adapts(entry)
    return adapted is not None and (adapted is cls or (adapted.__name__ == cls.__name__ and issubclass(adapted, cls)))


def _read_back(entry: Entry, part: Any, path: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a third-party object, from its attributes, if they build an equal object."""
    given = {name: getattr(part, name) for name in entry.by_name if hasattr(part, name)}
    for name, value in given.items():  # torchvision keeps some numbers as a list
        spec = entry.by_name[name].spec
        if isinstance(value, list) and len(value) == 1 and not parts_in(spec) and not accepts(spec, value):
            given[name] = value[0]
    try:
        same = repr(vars(type(part)(**given))) == repr(vars(part))
    except (TypeError, ValueError):
        same = False
    if not same:
        raise _Unwritable(path, part)
    return given


def _register_object(family: str, part: Any) -> str:
    """Register an object in this process under its Python name, which is returned."""
    target = part.func if isinstance(part, partial) else part
    origin: Callable[..., Any] = target if hasattr(target, "__qualname__") else type(target)
    base = name = f"{origin.__module__}.{origin.__qualname__}"
    entries, number = register.entries[family], 1
    while (taken := entries.get(name)) and not (isinstance(taken.target, _Given) and taken.target.part is part):
        number += 1
        name = f"{base}-{number}"
    entries[name] = Entry(family, name, _Given(part), ())
    return name


def _is_importable(module: str) -> bool:
    try:
        return module not in ("", "__main__") and find_spec(module) is not None
    except (ImportError, ValueError):
        return False
