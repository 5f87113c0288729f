"""``opabinia completion``: what a shell offers when the tabulator key is pressed. Imports no torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.train import with_resume_value

Shell = Literal["bash", "zsh", "fish"]

_BASH = """\
_opabinia() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
    COMPREPLY=($("$1" completion --line "$line" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace 2>/dev/null
    # Where "=" divides words, readline replaces only what follows it.
    local word="${line##*[[:space:]]}" before=""
    [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && before="${word%"${word##*=}"}"
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
}
complete -o default -F _opabinia opabinia
"""

_ZSH = """\
#compdef opabinia
_opabinia() {
    local -a found open
    found=("${(@f)$("${words[1]}" completion --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    (( ${#found} )) || { _files; return }
    open=(${(M)found:#*[=./]})
    found=(${found:#*[=./]})
    (( ${#open} )) && compadd -Q -S '' -a open
    (( ${#found} )) && compadd -Q -a found
}
compdef _opabinia opabinia
"""

_FISH = """\
function __opabinia_complete
    set -l words (commandline -cp)
    command opabinia completion --line "$words" 2>/dev/null
end
complete -c opabinia -a '(__opabinia_complete)'
"""

_SCRIPTS: dict[Shell, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(
    context: typer.Context,
    shell: Annotated[Shell | None, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")] = None,
    line: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print what this command line may go on with, instead.")
    ] = None,
) -> None:
    """Print the script that lets a shell complete commands, recipes, run folders, keys of configs and names of parts.

    eval "$(opabinia completion bash)"

    opabinia completion fish > ~/.config/fish/completions/opabinia.fish
    """
    with report_errors():
        if line is not None:
            print("\n".join(candidates(context.find_root().command, line)))
        elif shell is not None:
            print(_SCRIPTS[shell], end="")
        else:
            from opabinia.config import ConfigError, Problem

            raise ConfigError(Problem("command line", "SHELL", "missing", allowed="one of bash, zsh, fish"))


def candidates(program: Any, line: str) -> list[str]:
    """The words that the last one of a command line may become; those that end in ``=``, ``.`` or ``/`` go on.

    Args:
        program: the command that all others belong to.
        line: as typed so far; a space at its end begins a new word.
    """
    *words, word = _divided(line)
    command, words = _found(program, with_resume_value(words[1:]))
    if hasattr(command, "commands"):
        return _starting(word, command.commands)
    if word.startswith("-") and "=" not in word:
        return _starting(word, (name for one in command.params for name in one.opts if name.startswith("--")))
    options = {name: one for one in command.params for name in one.opts if name.startswith("-")}
    if words and words[-1] in options and not options[words[-1]].is_flag:
        return _starting(word, getattr(options[words[-1]].type, "choices", ()))
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


def _found(command: Any, words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that words lead to, and the words behind it."""
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, list(words)


def _arguments(words: Sequence[str], options: dict[str, Any]) -> list[str]:
    """The words that are neither options nor their values."""
    before = ["", *words]
    return [
        word
        for last, word in zip(before, words, strict=False)
        if not word.startswith("-") and (last not in options or options[last].is_flag)
    ]


def _positional(command: Any, given: Sequence[str], word: str) -> list[str]:
    takes = [one for one in command.params if not one.opts[0].startswith("-")]
    if not takes:
        return []
    place = takes[min(len(given), len(takes) - 1)]
    name = str(place.metavar or place.name).split("=")[0].removesuffix("...").upper()
    complete = _BY_METAVAR.get(name)
    return complete(given, word) if complete else _starting(word, getattr(place.type, "choices", ()))


def _starting(word: str, names: Any) -> list[str]:
    return sorted(str(name) for name in names if str(name).startswith(word))


# --- what is typed where ----------------------------------------------------------------------------------------------


def _recipes(given: Sequence[str], word: str) -> list[str]:
    from opabinia.config.compose import packaged_names

    files = (path for path in _paths(word) if path.endswith(("/", ".yaml", ".yml")))
    return [*_starting(word, packaged_names()), *files]


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
    "SHELL": lambda given, word: _starting(word, _SCRIPTS),
}
