"""What a command line may go on with. Shells wait for it, so it imports what a line needs, and no parser."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from opabinia.cli.command_line import with_resume_value
from opabinia.runtime.files import cache_folder, write_atomic

SHELLS = ("bash", "zsh", "fish")
RECIPES = Path(__file__).resolve().parent.parent / "recipes"

Command = Mapping[str, Any]
"""A command in plain values: its ``commands`` by name, or its ``params``, each with ``names``, ``metavar``, ``choices``
and ``flag``, which is true of options without a value."""


# --- the commands there are -------------------------------------------------------------------------------------------


def described(command: Any) -> Command:
    """A command of the parser in plain values."""
    if hasattr(command, "commands"):
        return {"commands": {name: described(one) for name, one in command.commands.items()}}
    return {"params": [_parameter(one) for one in command.params]}


def _parameter(one: Any) -> dict[str, Any]:
    metavar = str(one.metavar or one.name).split("=")[0].removesuffix("...").upper()
    choices = _choices(getattr(getattr(one, "type_descriptor", None), "annotation", None))
    choices = choices or [str(choice) for choice in getattr(getattr(one, "type", None), "choices", ())]
    return {"names": list(one.opts), "metavar": metavar, "choices": choices, "flag": getattr(one, "is_flag", False)}


def _choices(annotation: Any) -> list[str]:
    """The words that a type consists of. Parameters of newer Typers tell it, older ones have a ``type`` of Click."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(one.value) for one in annotation]
    if get_origin(annotation) is Literal:
        return [str(one) for one in get_args(annotation)]
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def keep(program: Command) -> None:
    """Keep the commands for :func:`from_kept`. Where nothing can be written, work goes on without."""
    with suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomic(cache_folder() / "commands.json", json.dumps({"of": _version(), "program": program}))


def from_kept(line: str) -> list[str] | None:
    """What :func:`candidates` gives; None where commands are not kept, or have changed since, or something is wrong."""
    try:
        kept = json.loads((cache_folder() / "commands.json").read_text(encoding="utf-8"))
        return candidates(kept["program"], line) if kept["of"] == _version() else None
    except Exception:  # the command itself tells what it is
        return None


def _version() -> list[list[Any]]:
    """Changes when a file of the commands does."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [[str(path), path.stat().st_mtime_ns, path.stat().st_size] for path in files]


# --- the words --------------------------------------------------------------------------------------------------------


def candidates(program: Command, line: str) -> list[str]:
    """The words that the last one of a command line may become; those that end in ``=``, ``.`` or ``/`` go on.

    Args:
        program: the command that all others belong to, see :func:`described`.
        line: as typed so far; a space at its end begins a new word.
    """
    *words, word = _divided(line)
    command, words = _found(program, with_resume_value(words[1:]))
    if "commands" in command:
        return _starting(word, command["commands"])
    options = {name: one for one in command["params"] for name in one["names"] if name.startswith("-")}
    if word.startswith("-") and "=" not in word:
        return _starting(word, (name for name in options if name.startswith("--")))
    if words and words[-1] in options and not options[words[-1]]["flag"]:
        return _starting(word, options[words[-1]]["choices"])
    return _positional(command, _arguments(words, options), word)


def _divided(line: str) -> list[str]:
    """The words of a line, an open quotation closed; the last one is what is being typed."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not words or (not closing and line[-1:].isspace()) else words
    return [*line.split(), ""]


def _found(command: Command, words: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that words lead to, and the words behind it."""
    while words and words[0] in command.get("commands", ()):
        command, words = command["commands"][words[0]], words[1:]
    return command, list(words)


def _arguments(words: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The words that are neither options nor their values."""
    before = ["", *words]
    return [
        word
        for last, word in zip(before, words, strict=False)
        if not word.startswith("-") and (last not in options or options[last]["flag"])
    ]


def _positional(command: Command, given: Sequence[str], word: str) -> list[str]:
    takes = [one for one in command["params"] if not one["names"][0].startswith("-")]
    if not takes:
        return []
    place = takes[min(len(given), len(takes) - 1)]
    complete = _BY_METAVAR.get(place["metavar"])
    return complete(given, word) if complete else _starting(word, place["choices"])


def _starting(word: str, names: Any) -> list[str]:
    return sorted(str(name) for name in names if str(name).startswith(word))


# --- what is typed where ----------------------------------------------------------------------------------------------


def _recipes(given: Sequence[str], word: str) -> list[str]:
    packaged = (path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))
    files = (path for path in _paths(word) if path.endswith(("/", ".yaml", ".yml")))
    return [*_starting(word, packaged), *files]


def _runs(given: Sequence[str], word: str) -> list[str]:
    """Run folders, and folders on the way to them."""
    return [
        path.removesuffix("/") if Path(path, "config.yaml").is_file() else path
        for path in _paths(word)
        if path.endswith("/")
    ]


def _paths(word: str) -> Iterator[str]:
    """What lies beside a path that is being typed; folders end in a slash, hidden ones wait for their dot."""
    folder, _, name = word.rpartition("/")
    base = Path(folder or ("/" if word.startswith("/") else "."))
    if not base.is_dir():
        return
    for path in sorted(base.iterdir()):
        if path.name.startswith(name) and (name.startswith(".") or not path.name.startswith(".")):
            yield word[: len(word) - len(name)] + path.name + ("/" if path.is_dir() else "")


def _overrides(given: Sequence[str], word: str) -> list[str]:
    """Keys of the recipe that stands before, and their values; of a catalog that is not cached yet ``vars`` only."""
    from opabinia.config import compose, warm_catalog
    from opabinia.config.compose import variables
    from opabinia.config.keys import completed

    recipe = given[0] if given else ""
    if word.startswith("v"):
        return _starting(word, (f"vars.{name}=" for name in variables(recipe)))
    tree = compose(recipe, [one for one in given[1:] if "=" in one])
    catalog, config = warm_catalog(tree.plugins), tree.root.plain()
    return completed(word, config, catalog) if catalog is not None and isinstance(config, dict) else []


def _families(given: Sequence[str], word: str) -> list[str]:
    from opabinia.config import warm_catalog

    catalog = warm_catalog()
    return _starting(word, catalog.entries) if catalog else []


def _parts(given: Sequence[str], word: str) -> list[str]:
    from opabinia.config import warm_catalog

    catalog = warm_catalog()
    return _starting(word, catalog.names(given[0])) if catalog and given else []


_BY_METAVAR: dict[str, Callable[[Sequence[str], str], list[str]]] = {
    "RECIPE": _recipes,
    "RUN": _runs,
    "KEY": _overrides,
    "FAMILY": _families,
    "NAME": _parts,
    "A": _recipes,
    "B": _recipes,
    "SHELL": lambda given, word: _starting(word, SHELLS),
}
