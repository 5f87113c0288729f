"""Check a composed config against the signatures of the parts it names, and fill in every default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opabinia.config.catalog import Catalog
from opabinia.config.compose import Tree
from opabinia.config.errors import ConfigError, Problem, listing, nearest, show
from opabinia.config.families import Entry, Parameter
from opabinia.config.judge import accepts, blame, place_parts
from opabinia.config.references import dotted
from opabinia.config.text import leaves
from opabinia.config.tree import BROKEN, BadScalar, Node, scalar
from opabinia.config.types import Spec, describe, plain

if TYPE_CHECKING:
    from pydantic import ValidationError

DEFAULT = "signature's default"
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Resolved:
    """A config without mistakes.

    Attributes:
        config: plain data with every default filled in, ready to be saved or built.
        origins: where each value comes from, by dotted path.
        warnings: old names that still work.
    """

    config: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()


def check(tree: Tree, catalog: Catalog, command: str = "train") -> Resolved:
    """The complete config.

    Raises:
        ConfigError: with every mistake, those made while composing too.
    """
    entry = catalog.get("command", command)
    if entry is None:
        known = listing(catalog.names("command"))
        raise ConfigError(Problem("", "", f"there is no command {command!r}", allowed=f"commands: {known}"))
    return _Check(tree, catalog).command(entry)


class _Check:
    def __init__(self, tree: Tree, catalog: Catalog) -> None:
        self.tree = tree
        self.catalog = catalog
        self.problems = list(tree.problems)
        self.warnings: list[str] = []
        self.places = dict(_places(tree.root, ()))

    def command(self, entry: Entry) -> Resolved:
        keys = self.tree.root.plain()
        plugins = {} if "plugins" in entry.by_name else {"plugins": keys.pop("plugins", None)}
        self._check_plugins()
        config = self._arguments(entry, keys, ())
        if self.problems:
            raise ConfigError(self.problems)
        config |= {key: list(self.tree.plugins) for key, names in plugins.items() if names}
        origins = {dotted(path): self._origin(path) for path, _ in leaves(config)}
        return Resolved(config, origins, tuple(self.warnings))

    # --- places ---

    def _where(self, path: Path) -> str:
        """The place of the value at ``path``, or of the nearest section around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path].where

    def _origin(self, path: Path) -> str:
        if path[-1:] == ("name",) and path not in self.places and path[:-1] in self.places:
            node = self.places[path[:-1]]
            if not isinstance(node.value, str) and self.implied.get(path[:-1]):
                return DEFAULT
        else:
            node = self.places.get(path)
        return DEFAULT if node is None else f"{node.where} ({node.via})" if node.via else node.where
