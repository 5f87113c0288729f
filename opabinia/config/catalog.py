"""The catalog of all parts: from the register, or from a cache of their signatures that needs no import of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opabinia.config.errors import ConfigError, Problem, listing
from opabinia.config.registry import Entry, Register, find_entry, register
from opabinia.config.types import Spec
from opabinia.runtime.files import cache_folder, write_atomic

ROOT = "opabinia.training.builtin_parts"  # importing it registers every built-in part
GROUP = "opabinia.parts"
PACKAGE = Path(__file__).resolve().parent.parent
LIBRARIES = ("opabinia", "torch", "torchvision", "timm")
SLOW_IMPORT = 10.0
"""Seconds after which the import of a plug-in is reported: it may be blocked."""

MAX_CACHES = 8  # of other versions and plugins

Entries = Mapping[str, Mapping[str, Entry]]


@dataclass(frozen=True)
class Catalog:
    """Registered parts by family and name.

    Attributes:
        entries: family -> name -> entry.
        failed: plugins that could not be imported, and why.
        unsupported: family -> name -> the reason why there is no such part.
        plugins: the plugins that it was made with.
    """

    entries: Entries
    failed: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    @classmethod
    def of(cls, register: Register, failed: Mapping[str, str] | None = None, plugins: Sequence[str] = ()) -> Catalog:
        """Return the catalog of everything that is registered now."""
        entries = {family: dict(entries) for family, entries in register.entries.items()}
        unsupported = {family: dict(names) for family, names in register.unsupported.items()}
        return cls(entries, failed or {}, unsupported, tuple(plugins))

    def names(self, family: str) -> list[str]:
        """Return the names in a family, sorted."""
        return sorted(self.entries.get(family, ()))

    def get(self, family: str, name: str) -> Entry | None:
        """Return the part of this name, if there is one."""
        return self.entries.get(family, {}).get(name)

    def find(self, family: str, name: str) -> Entry | None:
        """Return the part of this name or alias, if there is one."""
        return find_entry(self.entries.get(family, {}), name)

    def command(self, name: str) -> Entry:
        """Return a command.

        Raises:
            ConfigError: there is none of this name.
        """
        entry = self.get("command", name)
        if entry is None:
            known = listing(self.names("command"))
            raise ConfigError(Problem("", "", f"there is no command {name!r}", allowed=f"commands: {known}"))
        return entry

    def load(self, entry: Entry) -> Callable[..., Any]:
        """Return the callable of an entry, importing the module that registers it.

        Raises:
            TypeError: nothing registers it.
        """
        target = entry.load()
        if target is None:
            live = live_catalog(self.plugins).get(entry.family, entry.name)
            target = live.target if live else None
        if target is None:
            raise TypeError(f"{entry.family} {entry.name!r}: importing {entry.module} does not register it")
        return target

    def fills_itself(self, spec: Spec, outer: tuple[str, ...] = ()) -> bool:
        """Return whether a section may be omitted because all of its own parameters have defaults.

        Args:
            spec: of a parameter.
            outer: the sections around it; one that contains itself cannot be filled in.
        """
        name = spec.get("name", "") if spec["kind"] == "part" else ""
        entry = self.get("section", name) if name not in outer else None
        return entry is not None and all(
            not parameter.required or self.fills_itself(parameter.spec, (*outer, name))
            for parameter in entry.parameters
        )


def live_catalog(plugins: Sequence[str] = ()) -> Catalog:
    """Return the catalog after importing all parts: Opabinia's, those of entry points and of ``plugins``."""
    importlib.import_module(ROOT)
    failed: dict[str, str] = {}
    for name in [*_entry_points(), *plugins]:
        notice = threading.Timer(SLOW_IMPORT, print, [f"still importing the plug-in {name}"], {"file": sys.stderr})
        notice.daemon = True
        notice.start()
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a plugin may fail in any way; none may end in a traceback
            failed[name] = _reason(error)
        finally:
            notice.cancel()
    return Catalog.of(register, failed, plugins)


def catalog(plugins: Sequence[str] = ()) -> Catalog:
    """Return the catalog of all parts, from the cache if it is valid; building then imports only the parts it needs.

    Without a valid cache, all parts are imported and the cache is written. Parts that this process has registered
    itself are always in the catalog.

    Args:
        plugins: modules that register additional parts.
    """
    if ROOT in sys.modules:
        return live_catalog(plugins)
    path = _cache_path(plugins)
    cached = _read(path, plugins)
    if cached is not None:
        return _overlay(cached, Catalog.of(register))
    tops = {name.partition(".")[0] for name in (ROOT, *_entry_points(), *plugins)}
    # Parts that a script has registered, or another config's plugin, do not belong in the cache.
    is_clean = all(
        entry.module.partition(".")[0] in tops for entries in register.entries.values() for entry in entries.values()
    )
    live = live_catalog(plugins)
    if is_clean and not live.failed:
        _write(path, live)
    return live


def warm_catalog(plugins: Sequence[str] = ()) -> Catalog | None:
    """Return the cached catalog; None if :func:`catalog` would have to import the parts."""
    return _read(_cache_path(plugins), plugins)


def _overlay(cached: Catalog, live: Catalog) -> Catalog:
    entries = {family: {**entries, **live.entries.get(family, {})} for family, entries in cached.entries.items()}
    unsupported = {
        family: {**cached.unsupported.get(family, {}), **names} for family, names in live.unsupported.items()
    }
    return Catalog(entries, {}, unsupported, cached.plugins)


@functools.cache  # reads a file of every installed package
def _entry_points() -> tuple[str, ...]:
    return tuple(sorted({point.module for point in importlib.metadata.entry_points(group=GROUP)}))


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    return f"{text} ({Path(outside[-1].filename).name}:{outside[-1].lineno})" if outside else text


# --- the cache ------------------------------------------------------------------------------------------------------


def _cache_path(plugins: Sequence[str]) -> Path:
    """The cache file. Its name changes with a version, a file of the package or a file of a plugin."""
    digest = hashlib.sha256()
    points = _entry_points()
    versions = [f"{library} {_version(library)}" for library in LIBRARIES]
    about = [platform.python_version(), sys.prefix, *versions, *points, "+", *plugins]
    digest.update("\0".join(about).encode("utf-8", "backslashreplace"))
    files = [*_files(PACKAGE), *(file for name in [*points, *plugins] for file in _plugin_files(name))]
    for path in files:
        digest.update(str(path).encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return cache_folder() / f"catalog-{digest.hexdigest()[:32]}.json"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.rglob("*.py")))


def _plugin_files(name: str) -> Iterator[Path]:
    """The files of a plugin's top-level module or package, which is not imported to find them."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            yield from _files(Path(folder))
    elif spec.origin:
        yield Path(spec.origin)


def _read(path: Path, plugins: Sequence[str]) -> Catalog | None:
    """Read a cached catalog; None if there is no valid one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        entries = {
            family: {name: Entry.from_json(entry) for name, entry in entries.items()}
            for family, entries in data["entries"].items()
        }
        return Catalog(entries, {}, data["unsupported"], tuple(plugins))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write(path: Path, catalog: Catalog) -> None:
    """Cache a catalog. A folder that cannot be written is not an error."""
    entries = {
        family: {name: entry.to_json() for name, entry in entries.items()}
        for family, entries in catalog.entries.items()
    }
    with contextlib.suppress(OSError):
        write_atomic(path, json.dumps({"entries": entries, "unsupported": catalog.unsupported}))
        caches = sorted(path.parent.glob("catalog-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in caches[MAX_CACHES:]:
            old.unlink(missing_ok=True)
