"""All parts there are: from the register, after importing what registers them, or from a cache of their signatures."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opabinia.config.registry import Entry, Register, register
from opabinia.config.types import Spec
from opabinia.runtime.files import cache_folder, write_atomic

ROOT = "opabinia.training.builtin_parts"  # importing it registers every built-in part
GROUP = "opabinia.parts"
PACKAGE = Path(__file__).resolve().parent.parent
LIBRARIES = ("opabinia", "torch", "torchvision", "timm", "pydantic")
KEPT = 8  # caches of other versions and plugins


@dataclass(frozen=True)
class Catalog:
    """Registered parts by family and name.

    Attributes:
        entries: family -> name -> entry. Read from a cache, the entries have no callables: they can be checked
            against, not built.
        failed: plugins that could not be imported, and why.
        left_out: family -> name -> why there is no such part.
    """

    entries: Mapping[str, Mapping[str, Entry]]
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, register: Register, failed: Mapping[str, str] | None = None) -> Catalog:
        """What is registered now."""
        entries = {family: dict(entries) for family, entries in register.entries.items()}
        return cls(entries, failed or {}, {family: dict(names) for family, names in register.left_out.items()})

    def names(self, family: str) -> list[str]:
        """The names in a family, sorted."""
        return sorted(self.entries.get(family, ()))

    def get(self, family: str, name: str) -> Entry | None:
        """A part, if there is one of that name."""
        return self.entries.get(family, {}).get(name)

    def renamed(self, family: str, name: str) -> Entry | None:
        """The part that was once called ``name``."""
        return next((entry for entry in self.entries.get(family, {}).values() if name in entry.aliases), None)

    def fills_itself(self, spec: Spec, outer: tuple[str, ...] = ()) -> bool:
        """Whether a section need not be written because all of its own parameters have defaults.

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
    """The catalog with its callables, after importing Opabinia's parts, the entry points and ``plugins``."""
    importlib.import_module(ROOT)
    failed: dict[str, str] = {}
    for name in [*_entry_points(), *plugins]:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a plugin may fail in any way; none is to end in a traceback
            failed[name] = _why(error)
    return Catalog.of(register, failed)


def catalog(plugins: Sequence[str] = ()) -> Catalog:
    """The catalog, from the cache if nothing has changed; then neither torch nor any part is imported. Where the parts
    are imported already there is nothing to save.

    Args:
        plugins: modules that register parts of their own.
    """
    if ROOT in sys.modules:
        return live_catalog(plugins)
    path = cache_folder() / f"catalog-{_fingerprint(plugins)}.json"
    cached = _read(path)
    if cached is None:
        alone = not any(register.entries.values())  # else it may hold parts that belong to other configs
        cached = live_catalog(plugins)
        if alone and not cached.failed:
            _write(path, cached)
    return cached


def warm_catalog(plugins: Sequence[str] = ()) -> Catalog | None:
    """The catalog if it is cached; None where :func:`catalog` would have to import the parts."""
    return _read(cache_folder() / f"catalog-{_fingerprint(plugins)}.json")


def _entry_points() -> list[str]:
    return sorted({point.module for point in importlib.metadata.entry_points(group=GROUP)})


def _why(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if Path(frame.filename).parent != Path(__file__).parent]
    return f"{text} ({Path(outside[-1].filename).name}:{outside[-1].lineno})" if outside else text


# --- the cache ------------------------------------------------------------------------------------------------------


def _fingerprint(plugins: Sequence[str]) -> str:
    """Changes when a version, a file of the package or a plugin's file does."""
    digest = hashlib.sha256()
    points = _entry_points()
    versions = [f"{library} {_version(library)}" for library in LIBRARIES]
    about = [platform.python_version(), sys.prefix, *versions, *points, "+", *plugins]
    digest.update("\0".join(about).encode("utf-8", "backslashreplace"))
    for path in [*_files(PACKAGE), *(file for name in [*points, *plugins] for file in _plugin_files(name))]:
        digest.update(str(path).encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


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


def _read(path: Path) -> Catalog | None:
    """A cached catalog; None where there is none that can be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Catalog(
            {
                family: {name: Entry.from_json(entry) for name, entry in entries.items()}
                for family, entries in data["entries"].items()
            },
            left_out=data["left_out"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write(path: Path, catalog: Catalog) -> None:
    """Keep a catalog. Where nothing can be written, work goes on without."""
    entries = {
        family: {name: entry.to_json() for name, entry in entries.items()}
        for family, entries in catalog.entries.items()
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"entries": entries, "left_out": catalog.left_out}))
        _forget_old(path.parent)


def _forget_old(folder: Path) -> None:
    caches = sorted(folder.glob("catalog-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in caches[KEPT:]:
        path.unlink(missing_ok=True)
