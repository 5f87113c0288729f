"""Completions of a command line. Shells wait for them, so only what a line needs is imported, and no parser."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from opabinia.cli.command_line import RESUME_VALUES, with_resume_value
from opabinia.runtime.files import cache_folder, write_atomic

SHELLS = ("bash", "zsh", "fish")
RECIPES = Path(__file__).resolve().parent.parent / "recipes"

Command = Mapping[str, Any]
"""A command as plain values: its ``commands`` by name, or its ``params``, each with ``names``, ``metavar``, ``choices``
and ``flag`` (an option without value)."""


# --- commands -------------------------------------------------------------------------------------------------------


def describe_command(command: Any) -> Command:
    """Return a command of the parser as plain values."""
    if hasattr(command, "commands"):
        return {"commands": {name: describe_command(sub) for name, sub in command.commands.items()}}
    return {"params": [_describe_parameter(param) for param in command.params]}


def _describe_parameter(param: Any) -> dict[str, Any]:
    metavar = str(param.metavar or param.name).split("=")[0].removesuffix("...").upper()
    choices = _choices(getattr(getattr(param, "type_descriptor", None), "annotation", None))
    choices = choices or [str(choice) for choice in getattr(getattr(param, "type", None), "choices", ())]
    return {"names": list(param.opts), "metavar": metavar, "choices": choices, "flag": getattr(param, "is_flag", False)}


def _choices(annotation: Any) -> list[str]:
    """Return the words of a literal or enum. New versions of Typer have it as annotation, old ones as Click type."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def save_commands(program: Command) -> None:
    """Cache the commands for :func:`from_cache`. A cache that cannot be written is no error."""
    with suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomic(cache_folder() / "commands.json", json.dumps({"of": _version(), "program": program}))


def from_cache(line: str) -> list[str] | None:
    """Return :func:`candidates` from the cached commands; None if they are missing, outdated or damaged."""
    try:
        cached = json.loads((cache_folder() / "commands.json").read_text(encoding="utf-8"))
        return candidates(cached["program"], line) if cached["of"] == _version() else None
    except Exception:  # the command itself reports it
        return None


def _version() -> list[list[Any]]:
    """Return a value that changes with the files of the commands."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [[str(path), path.stat().st_mtime_ns, path.stat().st_size] for path in files]


# --- words -----------------------------------------------------------------------------------------------------------


def candidates(program: Command, line: str) -> list[str]:
    """Return the completions of the last word of a command line; those that end in ``=``, ``.`` or ``/`` continue.

    Args:
        program: the root command, see :func:`describe_command`.
        line: as typed so far; a space at its end begins a new word.
    """
    *words, word = _split(line)
    checkpoints = _matching(word, RESUME_VALUES) if words[-1:] == ["--resume"] else []
    command, words = program, with_resume_value(words[1:])
    while words and words[0] in command.get("commands", ()):
        command, words = command["commands"][words[0]], words[1:]
    if "commands" in command:
        return _matching(word, command["commands"])
    options = {name: param for param in command["params"] for name in param["names"] if name.startswith("-")}
    if word.startswith("-") and "=" not in word:
        return _matching(word, (name for name in options if name.startswith("--")))
    if words and words[-1] in options and not options[words[-1]]["flag"]:
        return _matching(word, options[words[-1]]["choices"])
    params = [param for param in command["params"] if not param["names"][0].startswith("-")]
    if not params:
        return []
    given = _arguments(words, options)
    param = params[min(len(given), len(params) - 1)]
    complete = _BY_METAVAR.get(param["metavar"])
    return checkpoints + (complete(given, word) if complete else _matching(word, param["choices"]))


def _split(line: str) -> list[str]:
    """Return the words of a line, with an open quote closed; the last one is being typed."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not words or (not closing and line[-1:].isspace()) else words
    return [*line.split(), ""]


def _arguments(words: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the words that are neither options nor their values."""
    return [
        word
        for last, word in zip(["", *words], words, strict=False)
        if not word.startswith("-") and (last not in options or options[last]["flag"])
    ]


def _matching(word: str, names: Any) -> list[str]:
    return sorted(str(name) for name in names if str(name).startswith(word))


# --- positional arguments ---------------------------------------------------------------------------------------------


def _recipes(given: Sequence[str], word: str) -> list[str]:
    packaged = (path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))
    files = (path for path in _paths(word) if path.endswith(("/", ".yaml", ".yml")))
    return [*_matching(word, packaged), *files]


def _runs(given: Sequence[str], word: str) -> list[str]:
    """Return run folders, and folders that may contain them."""
    return [
        path.removesuffix("/") if Path(path, "config.yaml").is_file() else path
        for path in _paths(word)
        if path.endswith("/")
    ]


def _paths(word: str) -> Iterator[str]:
    """Yield completions of a path; folders end in a slash, hidden files need their dot."""
    folder, _, name = word.rpartition("/")
    base = Path(folder or ("/" if word.startswith("/") else "."))
    if not base.is_dir():
        return
    for path in sorted(base.iterdir()):
        if path.name.startswith(name) and (name.startswith(".") or not path.name.startswith(".")):
            yield word[: len(word) - len(name)] + path.name + ("/" if path.is_dir() else "")


def _overrides(given: Sequence[str], word: str) -> list[str]:
    """Return config keys of the recipe before, and their values; without a cached catalog ``vars`` only."""
    from opabinia.config import compose, warm_catalog
    from opabinia.config.compose import variables
    from opabinia.config.keys import completed

    recipe = given[0] if given else ""
    if word.startswith("v"):
        return _matching(word, (f"vars.{name}=" for name in variables(recipe)))
    tree = compose(recipe, [override for override in given[1:] if "=" in override])
    catalog, config = warm_catalog(tree.plugins), tree.root.plain()
    return completed(word, config, catalog) if catalog is not None and isinstance(config, dict) else []


def _parts(given: Sequence[str], word: str) -> list[str]:
    """Return families, or the parts of the family before."""
    from opabinia.config import warm_catalog

    catalog = warm_catalog()
    if catalog is None:
        return []
    return _matching(word, catalog.names(given[0]) if given else [*catalog.entries, "weights"])


_BY_METAVAR: dict[str, Callable[[Sequence[str], str], list[str]]] = {
    "RECIPE": _recipes,
    "RUN": _runs,
    "RUN|RECIPE": lambda given, word: _runs(given, word) or _recipes(given, word),
    "KEY": _overrides,
    "FAMILY": _parts,
    "NAME": _parts,
    "A": _recipes,
    "B": _recipes,
    "SHELL": lambda given, word: _matching(word, SHELLS),
}
