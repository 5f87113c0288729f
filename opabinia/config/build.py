"""Build what a complete config describes: parts inside parts first.

A part whose parameters are all config is made at once. One that has runtime parameters becomes a :class:`Factory`,
called later with them. Making a part (a class, or a function that returns one) may fail because of the config:
ValueError, TypeError and a missing file then become a ConfigError that names the place. Functions of the families
in ``WORKING`` do their work when they are called, thousands of times, so an error there is an error of the program:
they are plain partials and keep their tracebacks. So are commands.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.check import DEFAULT
from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.references import dotted
from opabinia.config.registry import Entry
from opabinia.config.types import Spec, describe
from opabinia.config.validate import blame, place_parts

WORKING = ("loss", "metric_loss", "schedule", "transform", "mix", "command")


@dataclass(frozen=True, repr=False)
class Factory:
    """A part that waits for its runtime arguments.

    Attributes:
        target: the callable.
        keywords: what the config gives it.
        name: the part's name.
        path, where: its place in the config.
    """

    target: Callable[..., Any]
    keywords: Mapping[str, Any]
    name: str
    path: str = ""
    where: str = ""

    def __call__(self, *runtime: Any) -> Any:
        """Make the part.

        Raises:
            ConfigError: its constructor refuses the arguments.
        """
        with errors_at(self.path, self.where):
            return self.target(*runtime, **self.keywords)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.keywords.items())})"


def build(
    config: Mapping[str, Any], catalog: Catalog, command: str = "train", origins: Mapping[str, str] | None = None
) -> partial[Any]:
    """The command with all its parts built, to be called with its runtime arguments.

    Args:
        config: a complete config, as ``check`` gives it.
        catalog: a live one (see :func:`live_catalog`).
        command: the name of the command.
        origins: where values come from, for messages.

    Raises:
        ConfigError: values do not fit, or constructors refuse their arguments; all of them are told.
    """
    entry = catalog.get("command", command)
    if entry is None:
        raise ConfigError(Problem("", "", f"there is no command {command!r}"))
    values = {key: value for key, value in config.items() if key != "plugins" or key in entry.by_name}
    builder = _Builder(catalog, origins or {})
    made = builder.make(entry, values, ())
    if builder.problems:
        raise ConfigError(builder.problems)
    return made if isinstance(made, partial) else partial(made)


class Working(partial[Any]):
    """A working function with what the config gives it; shown without its place in memory, so that logs compare."""

    def __repr__(self) -> str:
        name = getattr(self.func, "__name__", repr(self.func))
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in self.keywords.items())})"


class _Builder:
    def __init__(self, catalog: Catalog, origins: Mapping[str, str]) -> None:
        self.catalog = catalog
        self.origins = origins
        self.problems: list[Problem] = []

    def make(self, entry: Entry, keys: Mapping[str, Any], path: tuple[Any, ...]) -> Any:
        """The part, its factory, or a partial of a working function; None where something inside has a problem."""
        if entry.target is None:
            raise TypeError("a cached catalog has no callables; build with live_catalog()")
        told = len(self.problems)
        arguments = self._arguments(entry, keys, path)
        if len(self.problems) > told:
            return None
        place = (dotted(path), self._where(path))
        if entry.family == "command" or (entry.runtime and entry.family in WORKING and not _is_class(entry.target)):
            return Working(entry.target, **arguments)
        if entry.runtime:
            return Factory(entry.target, arguments, entry.name, *place)
        try:
            with errors_at(*place):
                return entry.target(**arguments)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _arguments(self, entry: Entry, keys: Mapping[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments as the callable takes them, parts built."""
        from pydantic import ValidationError

        given = {
            name: place_parts(entry.by_name[name].spec, value, (*path, name), self._part)
            if name in entry.by_name
            else value
            for name, value in keys.items()
        }
        try:
            return entry.judged(given)
        except ValidationError as error:
            raise ConfigError(self._misfits(entry, error, keys, path)) from None

    def _part(self, spec: Spec, value: Any, path: tuple[Any, ...], key: str | None) -> Any:
        keys = {"name": value} if isinstance(value, str) else dict(value)
        name = spec.get("name") or keys.pop("name", key)
        entry = self.catalog.get(spec["family"], name)
        if entry is None:
            raise ConfigError(Problem(self._where(path), dotted(path), f"there is no {spec['family']} {name!r}"))
        return self.make(entry, keys, path)

    def _misfits(self, entry: Entry, error: Any, keys: Mapping[str, Any], path: tuple[Any, ...]) -> Iterator[Problem]:
        for finding in error.errors(include_url=False, include_context=False, include_input=False):
            name, *inside = finding["loc"]
            parameter = entry.by_name.get(name)
            message = "unknown key"
            if parameter is not None:
                message = f"expected {describe(blame(parameter.spec, inside)[1])}"
            found = show(keys[name]) if name in keys else ""
            yield Problem(self._where(path), dotted((*path, name)), message, found)

    def _where(self, path: tuple[Any, ...]) -> str:
        """The first place where something of the part at ``path`` is written."""
        name = dotted(path)
        places = (place for key, place in self.origins.items() if key == name or key.startswith(f"{name}."))
        written = [place for place in places if place != DEFAULT]
        # What was given last is the likelier mistake.
        return next((place for place in written if place.startswith("command line")), next(iter(written), ""))


@contextmanager
def errors_at(path: str, where: str = "") -> Iterator[None]:
    """Turn a constructor's ValueError or TypeError, and a missing file, into a ConfigError at ``path``."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, NotADirectoryError) as error:
        message = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        if isinstance(error, TypeError) or not message:  # not made for a person to read: say where it comes from
            frame = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        raise ConfigError(Problem(where, path, message)) from error


def _is_class(target: Callable[..., Any]) -> bool:
    return isinstance(target, type) or hasattr(target, "__adapts__")
