"""``--help`` is fast: it imports no heavy module."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from opabinia.cli.commands import app

HEAVY = {"torch", "torchvision", "timm", "sklearn", "numpy"}
PROGRAM = Path(sys.executable).with_name("opabinia")


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def imported(stderr: str) -> set[str]:
    """Return the top-level modules in the output of ``python -X importtime``."""
    return set(re.findall(r"^import time:.*\| +(\w+)", stderr, re.MULTILINE))


COMMANDS = list(commands(typer.main.get_command(app)))


def test_the_commands_exist() -> None:
    known = {" ".join(path) for path, _ in COMMANDS}
    assert known >= {"", "train", "sweep", "eval", "demo", "data check"}
    assert known >= {"config", "config show", "config check", "config list"}


ALL_HELP = """
import io, json, sys
from contextlib import redirect_stdout, suppress
from opabinia.cli import main
texts, sys.argv[0] = [], "opabinia"
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as reported, suppress(SystemExit):
        main([*words, "--help"])
    texts.append(reported.getvalue())
print(json.dumps({"texts": texts, "imported": list(sys.modules)}))
"""


@pytest.fixture(scope="module")
def help_output() -> dict[str, Any]:
    """The help of each command, and the modules imported to print all of it."""
    words = json.dumps([path for path, _ in COMMANDS])
    result = subprocess.run([sys.executable, "-c", ALL_HELP, words], capture_output=True, text=True, check=True)
    output: dict[str, Any] = json.loads(result.stdout)
    return output


def test_help_imports_no_heavy_module(help_output: dict[str, Any]) -> None:
    assert "typer" in help_output["imported"] and not HEAVY & set(help_output["imported"])


def test_paragraphs_are_wrapped_at_the_width_of_the_terminal(help_output: dict[str, Any]) -> None:
    text = help_output["texts"][[path for path, _ in COMMANDS].index(("predict",))]
    lines = [line.strip() for line in text.partition("With --gallery")[2].split("\n \n")[0].strip().splitlines()]
    paragraph = lines[: lines.index("")]
    assert len(paragraph) > 1 and all(len(line) > 60 for line in paragraph[1:-1]), paragraph


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[" ".join(path) or "opabinia" for path, _ in COMMANDS])
def test_help(help_output: dict[str, Any], number: int) -> None:
    (path, command), text = COMMANDS[number], help_output["texts"][number]
    assert " ".join(["Usage: opabinia", *path]) in text
    for name, subcommand in getattr(command, "commands", {}).items():
        assert (f" {name} " in text) is not subcommand.hidden
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in text
            assert parameter.help
        else:
            assert (parameter.metavar or "").strip("[].") in text


def test_the_script_and_the_module_are_the_same_program() -> None:
    runs = [[PROGRAM], [sys.executable, "-m", "opabinia"]]
    texts = [
        subprocess.run([*run, "train", "--help"], capture_output=True, text=True, check=True).stdout for run in runs
    ]
    assert texts[0].replace("Usage: opabinia", "Usage: python -m opabinia").split() == texts[1].split()


def test_a_warm_check_of_a_config_imports_no_torch(tmp_path: Path) -> None:
    """The first check may import torch: it fills the cache."""
    program = [sys.executable, "-X", "importtime", "-m", "opabinia", "config", "check", "classification/digits"]
    cold, warm = (subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=True) for _ in range(2))
    assert cold.stdout == warm.stdout and cold.stdout.startswith("classification/digits: no problems in the config;")
    assert "pydantic" in imported(warm.stderr)
    assert not imported(warm.stderr) & HEAVY
