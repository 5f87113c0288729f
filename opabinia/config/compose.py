"""From a recipe, its bases and overrides to one tree: merged, references resolved, every value with its origin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opabinia.config.errors import Problem, listing, nearest, printable, show
from opabinia.config.references import dotted, nearest_path, resolve, targets
from opabinia.config.tree import BROKEN, MAX_DEPTH, Node, read_file, read_text, shown_path

PACKAGED = Path(__file__).resolve().parent.parent / "recipes"


@dataclass(frozen=True)
class Tree:
    """A composed config, before anything is known of parts.

    Attributes:
        name: the packaged recipe's name, the file's without suffix, or the run folder's.
        root: all values, without ``base`` and ``vars``, references resolved.
        problems: what is wrong so far; ``check`` tells them with its own.
        plugins: modules to import before parts are looked up.
        complete: whether every file could be read, so that a missing key is really missing.
    """

    name: str
    root: Node
    problems: tuple[Problem, ...] = ()
    plugins: tuple[str, ...] = ()
    complete: bool = True


def compose(recipe: str | Path, overrides: Sequence[str] = (), *, recipes: Path | None = None) -> Tree:
    """Put a config together: the recipe's bases, the recipe, the overrides, then references.

    Args:
        recipe: the name of a packaged recipe, a YAML file, or a run folder (its ``config.yaml``).
        overrides: ``a.b.0.c=VALUE`` with YAML values; broad ones first (``optimizer=sgd`` before ``optimizer.lr=1``).
        recipes: the folder of the packaged recipes.

    Never raises for a mistake in the config: the tree remembers its problems, and ``check`` raises them all.
    """
    recipes = recipes or PACKAGED
    problems: list[Problem] = []
    path, name = _find_recipe(str(recipe), recipes, problems)
    files = _Files(recipes, problems)
    root = files.load(path, ()) if path else None
    complete = root is not None and not files.missing
    root = root or Node({}, shown_path(path) if path else str(recipe))
    given = [override for text in overrides if (override := _parse_override(text, problems))]
    for keys, value in sorted(given, key=_breadth):
        root = _put(root, keys, value, (), problems)
    root = _finish(root, [*files.read, *(value for _, value in given)], problems)
    plugins = _plugins(root, problems)
    return Tree(name, root, tuple(problems), plugins, complete)


def packaged_names(recipes: Path = PACKAGED) -> list[str]:
    """The names of all packaged recipes: ``classification/digits`` ..."""
    return sorted(path.relative_to(recipes).with_suffix("").as_posix() for path in recipes.rglob("*.yaml"))


def variables(recipe: str | Path, recipes: Path = PACKAGED) -> list[str]:
    """The names that a recipe and its bases take from ``vars``, given or to be given; none of what cannot be read."""
    files = _Files(recipes, [])
    path, _ = _find_recipe(str(recipe), recipes, [])
    root = files.load(path, ()) if path else None
    given = root.value.get("vars") if root is not None and isinstance(root.value, dict) else None
    named = [str(name) for name, _ in given.children()] if given is not None else []
    asked = [one.removeprefix("vars.") for node in files.read for one in targets(node) if one.startswith("vars.")]
    return list(dict.fromkeys([*named, *asked]))


# --- files ----------------------------------------------------------------------------------------------------------


def _is(path: Path, kind: str) -> bool:
    """``path.is_file()`` or ``path.is_dir()``, where a name no file system takes is simply neither."""
    try:
        return bool(getattr(path, f"is_{kind}")())
    except (OSError, ValueError):
        return False


def _find_recipe(recipe: str, recipes: Path, problems: list[Problem]) -> tuple[Path | None, str]:
    path = Path(recipe)
    if _is(path / "config.yaml", "file"):
        return path / "config.yaml", path.absolute().name
    names = packaged_names(recipes)
    if recipe in names:
        return recipes / f"{recipe}.yaml", recipe
    if _is(path, "file"):
        return path, path.stem
    if path.suffix in (".yaml", ".yml"):
        message = "there is no such file"
    elif _is(path, "dir"):
        message = "is a folder without a config.yaml, so it is no run"
    else:
        message = "there is no such recipe, file or run folder"
    allowed = f"packaged recipes: {listing(names)}" if names else ""
    guess = next((name for name in names if name.endswith(f"/{recipe}")), "") or nearest(recipe, names)
    problems.append(Problem(_shortened(recipe), "", message, suggestion=guess, allowed=allowed))
    return None, recipe


@dataclass
class _Files:
    """Reads files with their bases."""

    recipes: Path
    problems: list[Problem]
    missing: bool = False
    read: list[Node] = field(default_factory=list)  # as written, before merging

    def load(self, path: Path, children: tuple[Path, ...]) -> Node | None:
        """The tree of a file, merged over its bases. ``children`` are the files that lead here."""
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
        own = Node({key: node for key, node in root.value.items() if key != "base"}, root.where)
        merged = Node({}, root.where)
        for base in self._bases(root.value.get("base"), path, (*children, path.absolute())):
            merged = merge(merged, base)
        return merge(merged, own)

    def _bases(self, node: Node | None, path: Path, children: tuple[Path, ...]) -> Iterable[Node]:
        if node is None or node.value is None:
            return
        for item in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(item.value, str):
                self._complain(item, "is a recipe's name or path, or a list of them", show(item.plain()))
            elif (found := self._find(item, path)) is None:
                pass
            elif found.absolute() in children:
                chain = " -> ".join(shown_path(one) for one in (*children, found))
                self._complain(item, f"leads back to itself: {chain}")
            elif (base := self.load(found, children)) is not None:
                yield base

    def _find(self, item: Node, path: Path) -> Path | None:
        beside = path.parent / item.value
        if _is(beside, "file"):
            return Path(*beside.resolve().parts)
        names = packaged_names(self.recipes)
        if item.value in names:
            return self.recipes / f"{item.value}.yaml"
        near = [one.name for one in path.parent.glob("*.yaml")] + names
        self._complain(item, "there is no such file beside this one, and no such recipe", show(item.value), near)
        return None

    def _complain(self, node: Node, message: str, found: str = "", choices: Iterable[str] = ()) -> None:
        suggestion = nearest(node.value, choices) if isinstance(node.value, str) else ""
        self.problems.append(Problem(node.where, "base", message, found, suggestion))
        self.missing = True


# --- merging --------------------------------------------------------------------------------------------------------


def merge(base: Node, over: Node) -> Node:
    """``over`` on top of ``base``: mappings merge, unless ``name`` changes; everything else replaces.

    A bare string counts as ``{name: string}`` where the other side is a mapping.
    """
    lower, upper = _as_section(base, over), _as_section(over, base)
    if not isinstance(lower, dict) or not isinstance(upper, dict) or _renames(lower, upper):
        return over
    merged = {key: merge(lower[key], node) if key in lower else node for key, node in upper.items()}
    return Node({**lower, **merged}, over.where)


def _as_section(node: Node, other: Node) -> Any:
    """A bare string as section, where the other side is one that could be a part."""
    if isinstance(node.value, str) and isinstance(other.value, dict):
        return {"name": node}
    return node.value


def _renames(lower: dict[str, Node], upper: dict[str, Node]) -> bool:
    if "name" not in upper:
        return False
    if "name" not in lower:  # a bare string over a mapping of plain values
        return set(upper) == {"name"}
    return bool(lower["name"].value != upper["name"].value)


# --- overrides ------------------------------------------------------------------------------------------------------

Override = tuple[list[str], Node]


def _parse_override(text: str, problems: list[Problem]) -> Override | None:
    where = f"command line: {_shortened(text)}"
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


def _shortened(text: str) -> str:
    """A word of the command line as it is repeated in messages."""
    text = printable(text)
    return text if len(text) <= 80 else text[:76] + " ..."


def _breadth(override: Override) -> int:
    """Broad overrides come first: the section and its name, then what stands in it."""
    keys, _ = override
    return len(keys) - (keys[-1] == "name")


def _put(node: Node | None, keys: list[str], value: Node, path: tuple[str, ...], problems: list[Problem]) -> Node:
    """``node``, which stands at ``path``, with ``value`` merged in at ``keys`` below it."""
    if not keys:
        return merge(node, value) if node else value
    key, rest = keys[0], keys[1:]
    if node and node.value is BROKEN:
        return node
    if node and isinstance(node.value, list):
        items = list(node.value)
        if not re.fullmatch(r"[0-9]{1,6}", key) or int(key) > len(items):
            last = f"0 to {len(items) - 1}, or {len(items)} to append" if items else "0 to append"
            message = f"{key!r} is no position of this list"
            problems.append(Problem(value.where, dotted((*path, key)), message, allowed=f"positions: {last}"))
            return node
        old = items[int(key)] if int(key) < len(items) else None
        items[int(key) : int(key) + 1] = [_put(old, rest, value, (*path, key), problems)]
        return Node(items, node.where)
    if key.isdigit() and not (node and isinstance(node.value, dict)):
        message = "there is no list here that is written out; give all of it"
        problems.append(Problem(value.where, dotted((*path, key)), message))
        return node or Node(BROKEN, value.where)
    old = node.value.get(key) if node and isinstance(node.value, dict) else None
    over = Node({key: _put(old, rest, value, (*path, key), problems)}, value.where)
    return merge(node, over) if node else over


# --- the rest -------------------------------------------------------------------------------------------------------


def _finish(root: Node, written: list[Node], problems: list[Problem]) -> Node:
    """References resolved, ``vars`` read and taken away."""
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


def _check_vars(variables: Node, written: list[Node], problems: list[Problem]) -> None:
    """Tell the ``vars`` that no reference in any of the files reads."""
    if not isinstance(variables.value, dict):
        if variables.value not in (None, BROKEN):
            found = show(variables.plain())
            problems.append(Problem(variables.where, "vars", "is a mapping of names to values", found))
        return
    read = {target for node in written for target in targets(node)}
    read |= {problem.suggestion for problem in problems}  # a misspelt reference is told once, where it stands
    for name, node in variables.value.items():
        own = f"vars.{name}"
        if not any(target == own or target.startswith(f"{own}.") or target == "vars" for target in read):
            near = nearest_path(own, read)
            problems.append(
                Problem(
                    node.where, own, "nothing reads it", show(node.plain()), allowed=near and f"(${{{near}}} is read)"
                )
            )


def _plugins(root: Node, problems: list[Problem]) -> tuple[str, ...]:
    node = root.value.get("plugins")
    if node is None or node.value in (None, BROKEN):
        return ()
    items = node.value if isinstance(node.value, list) else [node]
    names: list[str] = []
    for item in items:
        if isinstance(item.value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", item.value):
            names.append(item.value)
        elif item.value is not BROKEN:
            message = "is a list of module names that Python can import"
            problems.append(Problem(item.where, "plugins", message, show(item.plain())))
    return tuple(dict.fromkeys(names))
