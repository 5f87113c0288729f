"""Build the parts that a complete config describes, inner parts first.

A part whose parameters are all in the config is built at once. One with runtime parameters becomes a :class:`Factory`,
which is called later with them. If building a part (a class, or a function that returns one) raises a ValueError, a
TypeError or a missing file, that becomes a ConfigError with the place in the config. Sources read files that others
have written, so any error of a source does, with the line of the code; the original error is its cause. Functions of
the families in ``FUNCTION_FAMILIES`` compute when they are called, thousands of times, so an error there is an error of
the program: they become plain partials and keep their tracebacks. So do commands.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.catalog import catalog as all_parts
from opabinia.config.check import DEFAULT
from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.references import dotted
from opabinia.config.registry import Entry
from opabinia.config.types import Spec, describe, must_exist
from opabinia.config.validate import Place, fit
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import StorageError, is_url

FUNCTION_FAMILIES = ("loss", "segmentation_loss", "metric_loss", "schedule", "transform", "mix", "tracker", "command")


@dataclass(frozen=True, repr=False)
class Factory:
    """A part that waits for its runtime arguments.

    Attributes:
        target: the callable.
        keywords: its arguments from the config.
        name: the part's name.
        path, where: its place in the config.
        origins: the places of its arguments by name, and of values in them by dotted name.
    """

    target: Callable[..., Any]
    keywords: Mapping[str, Any]
    name: str
    path: str = ""
    where: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *runtime: Any, **replaced: Any) -> Any:
        """Build the part.

        Args:
            runtime: its runtime arguments.
            replaced: arguments in place of those from the config, as of a ``partial``.

        Raises:
            ConfigError: its constructor rejects the arguments.
        """
        with errors_at(self.path, self.where, self.origins, self.keywords):
            return self.target(*runtime, **{**self.keywords, **replaced})

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.keywords.items())})"


class PartFunction(partial[Any]):
    """A function with its arguments from the config. Its repr has no memory address, so that logs can be compared."""

    def __repr__(self) -> str:
        name = getattr(self.func, "__name__", repr(self.func))
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in self.keywords.items())})"


def build(
    config: Mapping[str, Any],
    catalog: Catalog | None = None,
    command: str = "train",
    origins: Mapping[str, str] | None = None,
) -> partial[Any]:
    """Return the command with all its parts built, to be called with its runtime arguments.

    Only the modules of parts in the config are imported.

    Args:
        config: a complete config, as ``check`` returns it.
        catalog: of all parts; None: Opabinia's and those of the config's plugins.
        command: the name of the command.
        origins: the place of each value, for messages.

    Raises:
        ConfigError: values do not fit, or constructors reject their arguments; all such mistakes are reported.
    """
    if catalog is None:
        catalog = all_parts(config.get("plugins") or ())
    entry = catalog.command(command)
    values = {key: value for key, value in config.items() if key != "plugins" or key in entry.by_name}
    builder = _Builder(catalog, origins or {})
    built = builder.build(entry, values, ())
    if builder.problems:
        raise ConfigError(builder.problems) from builder.cause
    return built if isinstance(built, partial) else partial(built)


class _Builder:
    def __init__(self, catalog: Catalog, origins: Mapping[str, str]) -> None:
        self.catalog = catalog
        self.origins = origins
        self.problems: list[Problem] = []
        self.cause: ConfigError | None = None

    def build(self, entry: Entry, keys: Mapping[str, Any], path: tuple[Any, ...]) -> Any:
        """Return the part, its factory, or a partial of a function; None if something inside has a problem."""
        target = self.catalog.load(entry)
        num_problems = len(self.problems)
        arguments = self._arguments(entry, keys, path)
        if len(self.problems) > num_problems:
            return None
        place = (dotted(path), self._where(path), self._below(path, keys))
        is_class = isinstance(target, type) or hasattr(target, "__adapts__")
        if entry.family == "command" or (entry.runtime and entry.family in FUNCTION_FAMILIES and not is_class):
            return PartFunction(target, **arguments)
        if entry.runtime:
            return Factory(target, arguments, entry.name, *place)
        try:
            with errors_at(*place, arguments, source=entry.name if entry.family == "source" else ""):
                return target(**arguments)
        except ConfigError as error:
            self.problems += error.problems
            self.cause = self.cause or error
            return None

    def _arguments(self, entry: Entry, keys: Mapping[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments as the callable takes them, parts built."""
        problems: list[Problem] = []

        def complain(place: Place, message: str, found: str = "") -> None:
            problems.append(Problem(self._where(path), dotted(place), message, found))

        def report(place: Place, spec: Spec, value: Any) -> None:
            complain(place, f"expected {describe(spec)}", show(value))

        arguments: dict[str, Any] = {}
        for name, value in keys.items():
            if (parameter := entry.by_name.get(name)) is None:
                complain((*path, name), "unknown key", show(value))
                continue
            if entry.family == "source" or must_exist(parameter.spec):
                with errors_at(dotted(path), self._where(path), self._below(path, keys)):
                    value = _local(name, value)
            arguments[name] = fit(parameter.spec, value, (*path, name), report, self._part)
        for parameter in entry.parameters:
            if parameter.required and parameter.name not in keys:
                complain((*path, parameter.name), f"expected {describe(parameter.spec)}")
        if problems:
            raise ConfigError(problems)
        return arguments

    def _part(self, spec: Spec, value: Any, path: tuple[Any, ...], key: str | None) -> Any:
        keys = {"name": value} if isinstance(value, str) else dict(value)
        name = spec.get("name") or keys.pop("name", key)
        entry = self.catalog.get(spec["family"], name)
        if entry is None:
            raise ConfigError(Problem(self._where(path), dotted(path), f"there is no {spec['family']} {name!r}"))
        return self.build(entry, keys, path)

    def _below(self, path: tuple[Any, ...], keys: Mapping[str, Any]) -> dict[str, str]:
        """The places of the arguments of the part at ``path``, and of the values in them."""
        prefix = f"{dotted(path)}." if path else ""
        inside = {key: at for key, at in self.origins.items() if key.startswith(prefix) and at != DEFAULT}
        places = {key.removeprefix(prefix): at for key, at in inside.items()}
        return places | {name: self._where((*path, name)) for name in keys}

    def _where(self, path: tuple[Any, ...]) -> str:
        """The place of the value or the part's name at ``path``; for a section, of the first value written in it."""
        name = dotted(path)
        for key in (name, f"{name}.name"):
            if (place := self.origins.get(key, DEFAULT)) != DEFAULT:
                return place
        written = [at for key, at in self.origins.items() if key.startswith(f"{name}.") and at != DEFAULT]
        return min(written, key=lambda at: at.startswith("command line"), default="")


def _local(name: str, value: Any) -> Any:
    """Replace the URL of remote storage, or each one in a list, by the local copy."""
    if isinstance(value, list):
        return [_local(name, item) for item in value]
    if not is_url(value):
        return value
    try:
        return local_copy(value)
    except StorageError as error:
        raise ValueError(f"{name}: {error}") from error


@contextmanager
def errors_at(
    path: str,
    where: str = "",
    origins: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    source: str = "",
) -> Iterator[None]:
    """Turn a constructor's ValueError or TypeError, a missing file, and an error of remote storage into a ConfigError.

    Args:
        path: the place of the part in the config.
        where: the file and line, or the override, of the part.
        origins: those of its arguments and of values in them: the error of one begins with its name, dotted for a
            value inside, and a colon.
        arguments: of the part. An error that begins with the name of one, or quotes its text or path, has its origin.
        source: the name of a source, all of whose errors become a ConfigError, except those with an exit status.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        expected = isinstance(error, ValueError | TypeError | FileNotFoundError | NotADirectoryError | StorageError)
        if not expected and (not source or hasattr(error, "exit_status")):
            raise
        message = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
        is_written_for_users = isinstance(error, ValueError | OSError | StorageError) and bool(message)
        if not is_written_for_users:  # add the source line
            frame = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            message = f"source {source}: {message}; PYTHONDEVMODE=1 prints the traceback" if source else message
        argument, colon, rest = message.partition(": ")
        if colon and origins and argument.partition(".")[0] in origins:
            inside = (at for key, at in origins.items() if f"{key}.".startswith(f"{argument}."))
            path, where, message = f"{path}.{argument}", next(filter(None, inside), where), rest
        else:
            named = (name for name, value in (arguments or {}).items() if _names(message, name, value))
            where = next(filter(None, map((origins or {}).get, named)), where)
        raise ConfigError(Problem(where, path, message)) from error


def _names(message: str, name: str, value: Any) -> bool:
    """Whether an error begins with the name of an argument, or quotes its text or path."""
    quoted = re.escape(repr(value) if isinstance(value, str) else str(value))
    return bool(
        re.match(rf"{name}\b", message)
        or (isinstance(value, str | Path) and re.search(rf"(?<![\w/]){quoted}(?![\w])", message))
    )
