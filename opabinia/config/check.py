"""Check a composed config against the signatures of the parts it names, and fill in every default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.compose import Tree
from opabinia.config.datasets import SECTIONS, dataset_problems
from opabinia.config.errors import ConfigError, Problem, listing, nearest, show
from opabinia.config.foreign_keys import translate
from opabinia.config.references import dotted, leaves
from opabinia.config.registry import Entry
from opabinia.config.tree import BROKEN, BadScalar, Node, scalar
from opabinia.config.types import Parameter, Spec, describe, parts_in
from opabinia.config.validate import accepts, fit, plain

DEFAULT = "signature's default"
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Resolved:
    """A config without mistakes.

    Attributes:
        config: plain data with every default filled in, ready to be saved or built.
        origins: the place of each value, by dotted path.
        warnings: deprecated names in it.
    """

    config: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()


def check(tree: Tree, catalog: Catalog, command: str = "train") -> Resolved:
    """Return the complete config.

    Raises:
        ConfigError: with every mistake, those made while composing too.
    """
    return _Check(tree, catalog, catalog.command(command)).command()


class _Check:
    def __init__(self, tree: Tree, catalog: Catalog, entry: Entry) -> None:
        self.tree = tree
        self.catalog = catalog
        self.entry = entry
        self.problems = list(tree.problems)
        self.warnings: list[str] = []
        self.places = dict(_places(tree.root, ()))

    def command(self) -> Resolved:
        entry = self.entry
        keys = self.tree.root.plain()
        plugins = {} if "plugins" in entry.by_name else {"plugins": keys.pop("plugins", None)}
        for name, reason in self.catalog.failed.items():
            path = next((path for path, node in self.places.items() if node.value == name), ("plugins",))
            self._complain(path[:1], f"the plugin {name!r} cannot be imported: {reason}")
        config = self._arguments(entry, keys, ())
        if (reason := _fixed_size(config)) and config.get("shapes"):
            self._complain(("shapes",), reason)
        if not self.problems and {"task", "data"} <= config.keys():
            for place, *texts in dataset_problems({key: config[key] for key in SECTIONS if key in config}):
                self._complain(tuple(place.split(".")), *texts)
        if self.problems:
            raise ConfigError(sorted(self.problems, key=_reading_order))
        config |= {key: list(self.tree.plugins) for key, names in plugins.items() if names}
        origins = {dotted(path): self._origin(path) for path, _ in leaves(config)}
        return Resolved(config, origins, tuple(self.warnings))

    # --- the walk ---

    def _arguments(self, entry: Entry, keys: dict[str, Any], path: Path) -> dict[str, Any]:
        """The arguments of a part: the values in ``keys``, and defaults for the rest."""
        keys = self._rename(entry, keys, path)
        for key, value in keys.items():
            if key not in entry.by_name:
                self._unknown_key(entry, key, value, path)
        arguments: dict[str, Any] = {}
        for parameter in entry.parameters:
            name, default = parameter.name, parameter.default
            if name not in keys and parameter.required:
                if not self.catalog.fills_itself(parameter.spec):
                    self._missing(parameter, path)
                    continue
                default = {}
            value = _with_default_name(parameter, keys.get(name, default))
            arguments[name] = plain(fit(parameter.spec, value, (*path, name), self._mismatch, self._part))
        return arguments

    def _part(self, spec: Spec, value: Any, path: Path, key: str | None) -> dict[str, Any]:
        """The complete section of one part."""
        if spec.get("name"):
            entry = self.catalog.get("section", spec["name"])
            if entry is None:
                raise TypeError(f"{dotted(path)}: no section is registered as {spec['name']!r}")
            return self._arguments(entry, value, path)
        keys = {"name": value} if isinstance(value, str) else dict(value)
        name = keys.pop("name", key)
        if path in self.places and (isinstance(value, str) or "name" not in value):
            self.places[*path, "name"] = self.places[path]  # a bare string, or the key, is the name
        entry = self._find(spec["family"], name, path)
        return {"name": entry.name, **self._arguments(entry, keys, path)} if entry else {}

    def _find(self, family: str, name: Any, path: Path) -> Entry | None:
        names = self.catalog.names(family)
        known = _known(family, names)
        if not isinstance(name, str):
            if name is None:
                self._complain((*path, "name"), "missing", allowed=f"it says which {family} this is; {known}")
            elif name is not BROKEN:
                self._complain((*path, "name"), "expected text", name, allowed=known)
            return None
        if reason := self.catalog.unsupported.get(family, {}).get(name):
            self._complain((*path, "name"), f"is not supported: {reason}", name)
        entry = self.catalog.find(family, name)
        if entry is None and not reason and not self.catalog.failed:  # else it may be in the plugin that failed
            guess = nearest(name, names)
            known = _known(family, names, 8 if guess else 60)
            if "." in name:  # see `describe.py`
                known = f"a part built in Python belongs in a module in plugins, under @opabinia.register.{family}"
            self._complain((*path, "name"), f"there is no {family} of this name", name, guess, known)
        if entry is not None and entry.name != name:
            where = self._where((*path, "name"))
            self.warnings.append(f"{where}: {dotted((*path, 'name'))}: {name} is deprecated: use {entry.name}")
        return entry

    def _rename(self, entry: Entry, keys: dict[str, Any], path: Path) -> dict[str, Any]:
        """Replace old keys by the current ones."""
        renamed: dict[str, Any] = {}
        for key, value in keys.items():
            new = entry.renamed.get(key, key)
            if new in keys and new != key:
                self._complain((*path, key), f"is the old name of {new!r}, which is given too", value)
                continue
            if new != key:
                old_path, new_path = (*path, key), (*path, new)
                where, current = self._where(old_path), dotted(new_path)
                self.warnings.append(f"{where}: {dotted(old_path)} is deprecated: use {current}")
                below = {place: node for place, node in self.places.items() if place[: len(old_path)] == old_path}
                self.places |= {(*new_path, *place[len(old_path) :]): node for place, node in below.items()}
            renamed[new] = value
        return renamed

    # --- problems ---

    def _unknown_key(self, entry: Entry, key: str, value: Any, path: Path) -> None:
        place = (*path, key)
        if entry.family == "task" and (key, value) == ("backbone", "shared"):  # see config/multitask.py
            return self._complain(path, f"{entry.name} has no backbone to share with the tasks of a multi-task run")
        synonym = translate(key, value)
        if synonym and not synonym.startswith(f"{dotted(place)}="):
            in_file = not self._where(place).startswith("command line")
            written = synonym.replace("=", ": ", 1) if in_file else synonym
            return self._complain(place, "unknown key", value, allowed=f"write {written}")
        guess = nearest(key, entry.by_name)
        names = listing(list(entry.by_name))
        known = f"{entry.name} knows: {names}" if names else f"{entry.name} has no parameters"
        if not guess and (owners := self._owners(entry, key) or self._owners(self.entry, key)):
            known += f"; {key!r} belongs to {listing(owners, 5)}"
        self._complain(place, "unknown key", value, guess, known)

    def _owners(self, entry: Entry, key: str) -> list[str]:
        """The owners of a key that ``entry`` does not have: parts of the same family, or sections in this section."""
        if entry.family not in ("section", "command"):
            return [name for name, other in self.catalog.entries[entry.family].items() if key in other.by_name]
        return [
            parameter.name
            for parameter in entry.parameters
            if any(key in inner.by_name for part in parts_in(parameter.spec) for inner in self._entries(part))
        ]

    def _entries(self, part: Spec) -> list[Entry]:
        """All parts that a part's spec allows."""
        entries = self.catalog.entries.get(part["family"], {})
        return [entry for name, entry in entries.items() if part.get("name", name) == name]

    def _missing(self, parameter: Parameter, path: Path) -> None:
        if not self.tree.complete:
            return
        allowed = f"{describe(parameter.spec)} is required"
        spec = parameter.spec
        if spec["kind"] == "part" and not spec.get("name"):
            allowed += f"; {_known(spec['family'], self.catalog.names(spec['family']))}"
        name = self.places.get((*path, "name"))
        if name and f"{dotted((*path, 'name'))}=" in name.where:
            allowed += f"; another name drops the keys of the one before: give {dotted(path)} as a whole"
        self._complain((*path, parameter.name), "missing", allowed=allowed)

    def _mismatch(self, path: Path, spec: Spec, value: Any) -> None:
        if _holds_broken(value):
            return
        arms = spec["of"] if spec["kind"] == "union" else [spec]
        choices = [str(choice) for arm in arms for choice in arm.get("values", ())]
        guess = nearest(value, choices) if isinstance(value, str) else ""
        remark = "without quotes it would fit" if _fits_unquoted(spec, value) else ""
        if spec["kind"] == "part":
            name = spec.get("name")
            remark = "a section with keys" if name else _known(spec["family"], self.catalog.names(spec["family"]))
        self._complain(path, f"expected {describe(spec)}", value, guess, remark)

    def _complain(self, path: Path, message: str, found: Any = ..., guess: str = "", allowed: str = "") -> None:
        text = "" if found is ... else show(found)
        self.problems.append(Problem(self._where(path), dotted(path), message, text, guess, allowed))

    # --- places ---

    def _where(self, path: Path) -> str:
        """The place of the value at ``path``, or of the innermost section around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path].where

    def _origin(self, path: Path) -> str:
        node = self.places.get(path)
        return DEFAULT if node is None else f"{node.where} ({node.via})" if node.via else node.where


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    """Sort key: file and line; the command line comes last."""
    if problem.where.startswith("command line"):
        return True, "", 0
    line = re.fullmatch(r"(.*):([0-9]{1,9})( \(.*\))?", problem.where)
    return (False, line[1], int(line[2])) if line else (False, problem.where, 0)


def _places(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    yield path, node
    for key, child in node.children():
        yield from _places(child, (*path, key))


def _with_default_name(parameter: Parameter, value: Any) -> Any:
    """Add the name from the signature's default to a section without one."""
    default = parameter.default
    if isinstance(value, dict) and "name" not in value and isinstance(default, dict) and "name" in default:
        return {**default, **value}
    return value


_FIXED_SIZES = {
    "views": "each view has a size of its own; write it into the transforms of the views",
    "random_patch_mask": "masks have a patch for each of the image as it was when they were drawn",
    "block_patch_mask": "masks have a patch for each of the image as it was when they were drawn",
    "detection": "boxes do not follow; take resize_shortest_edge with several sizes among the transforms",
}
"""Why ``shapes``, which resizes whole batches, is not for tasks and transforms of these names."""


def _fixed_size(config: dict[str, Any]) -> str:
    """Return why batches of this config cannot be resized; an empty text if they can."""
    train = (config.get("data") or {}).get("train")
    transforms = train.get("transforms") if isinstance(train, dict) else None
    transforms = transforms if isinstance(transforms, list) else []  # a config with mistakes may hold anything
    names = [part["name"] for part in (config.get("task"), *transforms) if isinstance(part, dict) and "name" in part]
    return next((_FIXED_SIZES[name] for name in names if name in _FIXED_SIZES), "")


def _known(family: str, names: list[str], limit: int = 12) -> str:
    return f"every {family}: {listing(names, limit)}" if names else f"there is no {family} yet"


def _holds_broken(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is BROKEN or any(map(_holds_broken, inside))


def _fits_unquoted(spec: Spec, value: Any) -> bool:
    try:
        return isinstance(value, str) and not isinstance(scalar(value), str) and accepts(spec, scalar(value))
    except BadScalar:
        return False
