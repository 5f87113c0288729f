"""Compose a recipe, its bases and overrides into one tree: merged, references resolved, every value with its origin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opabinia.config.errors import Problem, listing, nearest, show
from opabinia.config.merge import merge, put, without_delete
from opabinia.config.multitask import share_backbone
from opabinia.config.references import nearest_path, resolve, targets
from opabinia.config.text import dump
from opabinia.config.tree import BROKEN, MAX_DEPTH, Node, read_file, read_text, shown_path

BUILT = "built in Python"
"""The place of values that come from no file."""

MAX_FILES = 200
"""Files of which a config may be composed, counting repeated ones."""

PACKAGED = Path(__file__).resolve().parent.parent / "recipes"
SUFFIXES = (".yaml", ".yml")
Override = tuple[list[str], Node]


@dataclass(frozen=True)
class Tree:
    """A composed config, not yet checked against the signatures of parts.

    Attributes:
        name: the packaged recipe's name, the file's without suffix, or the run folder's.
        root: all values, without ``base`` and ``vars``, references resolved.
        problems: mistakes so far; ``check`` reports them with its own.
        plugins: modules to import before parts are looked up.
        complete: whether every file could be read, so that a missing key is really missing.
    """

    name: str
    root: Node
    problems: tuple[Problem, ...] = ()
    plugins: tuple[str, ...] = ()
    complete: bool = True


def compose(
    recipe: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, recipes: Path | None = None
) -> Tree:
    """Compose a config from the recipe's bases, the recipe and the overrides, and resolve references.

    A mistake in the config does not raise: the tree keeps the problems, and ``check`` raises them all.

    Args:
        recipe: the name of a packaged recipe, a YAML file, a run folder (its ``config.yaml``), or a config as
            plain data.
        overrides: ``a.b.0.c=VALUE`` with YAML values; broad ones come first (``optimizer=sgd`` before
            ``optimizer.lr=1``).
        recipes: the folder of the packaged recipes.
    """
    recipes = recipes or PACKAGED
    problems: list[Problem] = []
    files = _Files(recipes, problems)
    path, name, file = None, "", None
    if isinstance(recipe, Mapping):
        file = _File(read_text(dump(recipe), problems, lambda _line: BUILT) or Node({}, BUILT), ())
    else:
        path, name = _find_recipe(str(recipe), recipes, problems)
        file = files.load(path, ()) if path else None
    given = [override for text in overrides if (override := _parse_override(text, problems))]
    root = file.merged() if file else Node({}, shown_path(path) if path else name or BUILT)
    # Broad ones first: a section and its name, then what is in it.
    for keys, value in sorted(given, key=lambda override: len(override[0]) - (override[0][-1] == "name")):
        root = put(root, keys, value, (), problems)
    written = [*files.read, *(value for _, value in given)]
    root = _resolve_references(without_delete(root), written, problems)
    if (task := root.value.get("task")) and isinstance(task.value, dict) and "tasks" in task.value:
        root = share_backbone(root, problems)
    plugins = _plugins(root, problems)
    return Tree(name, root, tuple(problems), plugins, complete=file is not None and not files.missing)


def packaged_names(recipes: Path = PACKAGED) -> list[str]:
    """Return the names of all packaged recipes: ``classification/digits`` ..."""
    return sorted(path.relative_to(recipes).with_suffix("").as_posix() for path in recipes.rglob("*.yaml"))


def variables(recipe: str | Path) -> list[str]:
    """Return the names of the ``vars`` that a recipe and its bases define or refer to; unreadable files are skipped."""
    files = _Files(PACKAGED, [])
    path, _ = _find_recipe(str(recipe), PACKAGED, [])
    file = files.load(path, ()) if path else None
    root = file.merged() if file else None
    defined = root.value.get("vars") if root else None
    names = [str(name) for name, _ in defined.children()] if defined is not None else []
    references = [target for node in files.read for target in targets(node)]
    names += [target.removeprefix("vars.") for target in references if target.startswith("vars.")]
    return list(dict.fromkeys(names))


# --- files ----------------------------------------------------------------------------------------------------------


def _find_recipe(recipe: str, recipes: Path, problems: list[Problem]) -> tuple[Path | None, str]:
    # os.path.isfile is False for names that no file system takes, where Path.is_file raises.
    path = Path(recipe)
    if os.path.isfile(path / "config.yaml"):
        return path / "config.yaml", path.absolute().name
    names = packaged_names(recipes)
    if recipe in names:
        return recipes / f"{recipe}.yaml", recipe
    if os.path.isfile(path):
        return path, path.stem
    if path.suffix in SUFFIXES:
        message = "there is no such file"
    elif os.path.isdir(path):
        message = "is a folder without a config.yaml, so it is not a run folder"
    else:
        message = "there is no such recipe, file or run folder"
    files = sorted(path.parent.glob("*")) if os.path.isdir(path.parent) else []
    neighbors = {file.stem: str(file) for file in files if file.suffix in SUFFIXES}
    guess = next((name for name in names if name.endswith(f"/{recipe}")), "") or neighbors.get(
        nearest(path.stem, neighbors), nearest(recipe, names)
    )
    allowed = f"packaged recipes: {listing(names)}" if names and not guess else ""
    if path.suffix in SUFFIXES and not guess:
        allowed = f"files beside it: {listing(list(neighbors.values()))}" if neighbors else ""
    problems.append(Problem(_shorten(recipe), "", message, suggestion=guess, allowed=allowed))
    return None, recipe


@dataclass(frozen=True)
class _File:
    """The tree of a file, without its key ``base``, and the files that it builds on."""

    root: Node
    bases: tuple[_File, ...]

    def merged(self) -> Node:
        root = Node({}, self.root.where)
        for base in self.bases:
            root = merge(root, base.merged())
        return merge(root, self.root)


@dataclass
class _Files:
    """Reads files with their bases."""

    recipes: Path
    problems: list[Problem]
    missing: bool = False
    read: list[Node] = field(default_factory=list)  # as written

    def load(self, path: Path, children: tuple[Path, ...]) -> _File | None:
        """Read a file and its bases. ``children`` are the files that lead here."""
        root = read_file(path, self.problems)
        if root is None:
            self.missing = True
            return None
        if root.value is None:
            root = Node({}, root.where)
        if not isinstance(root.value, dict):
            if root.value is not BROKEN:
                found = show(root.plain())
                self.problems.append(Problem(root.where, "", "a recipe is a mapping of keys to values", found))
            self.missing = True
            return None
        self.read.append(root)
        without_base = Node({key: node for key, node in root.value.items() if key != "base"}, root.where)
        return _File(without_base, tuple(self._bases(root.value.get("base"), path, (*children, path.absolute()))))

    def _bases(self, node: Node | None, path: Path, children: tuple[Path, ...]) -> Iterable[_File]:
        if node is None or node.value is None:
            return
        for item in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(item.value, str):
                self._complain(item, "is a recipe's name or path, or a list of them", show(item.plain()))
            elif (base := self._find(item, path)) is None:
                pass
            elif len(children) > MAX_DEPTH or len(self.read) > MAX_FILES:
                self._complain(item, f"the recipe has more than {MAX_DEPTH} levels of bases, or {MAX_FILES} in all")
                return
            elif base.absolute() in children:
                chain = " -> ".join(map(shown_path, (*children, base)))
                self._complain(item, f"leads back to itself: {chain}")
            elif (file := self.load(base, children)) is not None:
                yield file

    def _find(self, item: Node, path: Path) -> Path | None:
        sibling = path.parent / item.value
        if os.path.isfile(sibling):
            return Path(*sibling.resolve().parts)
        names = packaged_names(self.recipes)
        if item.value in names:
            return self.recipes / f"{item.value}.yaml"
        choices = [file.name for file in path.parent.glob("*.yaml")] + names
        self._complain(item, "there is no such file beside this one, and no such recipe", show(item.value), choices)
        return None

    def _complain(self, node: Node, message: str, found: str = "", choices: Iterable[str] = ()) -> None:
        suggestion = nearest(node.value, choices) if isinstance(node.value, str) else ""
        self.problems.append(Problem(node.where, "base", message, found, suggestion))
        self.missing = True


# --- overrides ------------------------------------------------------------------------------------------------------


def _parse_override(text: str, problems: list[Problem]) -> Override | None:
    where = f"command line: {_shorten(text)}"
    left, equals, right = text.partition("=")
    left = left.removeprefix("--").strip(" ")
    keys = left.split(".")
    message = ""
    if not equals:
        message = "an override is written key=value, such as optimizer.lr=0.1"
    elif not all(keys) or not left.isprintable():
        message = "the part before '=' is a dotted path of keys, such as data.train.transforms.0.size"
    elif len(keys) > MAX_DEPTH:
        message = f"the path has more than {MAX_DEPTH} keys"
    elif keys[0] == "base":
        message = "a base cannot be changed from the command line; write a recipe with another base"
    if message:
        problems.append(Problem(where, "", message))
        return None
    value = read_text(right, problems, lambda _line: where)
    return None if value is None else (keys, value)


def _shorten(text: str) -> str:
    """Shorten a word of the command line for messages."""
    return text if len(text) <= 80 else text[:76] + " ..."


# --- vars and plugins -----------------------------------------------------------------------------------------------


def _resolve_references(root: Node, written: Sequence[Node], problems: list[Problem]) -> Node:
    """Resolve references and remove ``vars``. ``written`` are the trees of all files and overrides before merging."""
    try:
        resolved = resolve(root, problems)
        if resolved.extent[1] > MAX_DEPTH:
            raise RecursionError
    except RecursionError:
        problems.append(Problem(root.where, "", f"nested more than {MAX_DEPTH} levels deep"))
        resolved = Node({}, root.where)
    if variables := root.value.get("vars"):
        _check_vars(variables, written, problems)
    return Node({key: node for key, node in resolved.value.items() if key != "vars"}, resolved.where)


def _check_vars(variables: Node, written: Iterable[Node], problems: list[Problem]) -> None:
    """Report the ``vars`` that no reference in any of the files reads."""
    if not isinstance(variables.value, dict):
        if variables.value not in (None, BROKEN):
            found = show(variables.plain())
            problems.append(Problem(variables.where, "vars", "is a mapping of names to values", found))
        return
    read = {target for node in written for target in targets(node)}
    read |= {problem.suggestion for problem in problems}  # a misspelled reference is reported once, at its place
    for name, node in variables.value.items():
        path = f"vars.{name}"
        if not any(target == path or target.startswith(f"{path}.") or target == "vars" for target in read):
            near = nearest_path(path, read)
            hint = near and f"(${{{near}}} is read)"
            problems.append(Problem(node.where, path, "nothing reads it", show(node.plain()), allowed=hint))


def _plugins(root: Node, problems: list[Problem]) -> tuple[str, ...]:
    node = root.value.get("plugins")
    if node is None or node.value in (None, BROKEN):
        return ()
    names: list[str] = []
    for item in node.value if isinstance(node.value, list) else [node]:
        if isinstance(item.value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", item.value):
            names.append(item.value)
        elif item.value is not BROKEN:
            message = "is a list of module names that Python can import"
            problems.append(Problem(item.where, "plugins", message, show(item.plain())))
    return tuple(dict.fromkeys(names))
