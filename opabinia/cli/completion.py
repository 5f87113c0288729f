"""``opabinia completion``: shell completion. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from opabinia.cli.completions import candidates, describe_command, save_commands
from opabinia.cli.errors import option_error, report_errors

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
        str | None, typer.Option(metavar="TEXT", help="Print the completions of this command line instead.")
    ] = None,
) -> None:
    """Print the completion script of a shell: for commands, recipes, run folders, config keys and parts.

    eval "$(opabinia completion bash)"

    opabinia completion fish > ~/.config/fish/completions/opabinia.fish
    """
    with report_errors():
        if line is not None:
            program = describe_command(context.find_root().command)
            save_commands(program)
            print("\n".join(candidates(program, line)))
        elif shell is not None:
            print(_SCRIPTS[shell], end="")
        else:
            raise option_error("SHELL", "missing; one of bash, zsh, fish")
