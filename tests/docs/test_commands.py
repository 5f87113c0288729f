"""Every command that README and docs show is one that there is: its options, its recipe, and what is overridden.

Those that take no time are run where they are described (tests of the pages beside this one, and tests/cli).
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from opabinia.cli import _without_dashes, app
from opabinia.cli.train import with_resume_value
from opabinia.config.compose import packaged_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KEPT = {"docs/log.md"}
"""What tells what was done then."""
SHELLS = ("", "console", "bash", "sh")


def blocks(page: Path) -> str:
    """What stands in fenced blocks for a shell, with continued lines made one."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return "\n".join(text for language, text in fenced if language in SHELLS).replace("\\\n", " ")


def commands() -> list[tuple[str, str]]:
    """Page and command, each once."""
    found = {}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if name not in KEPT and name != "docs/design.md":
            for line in re.findall(r"^(?:\$ )?(?:\.venv/bin/)?opabinia (.+)$", blocks(page), re.M):
                found.setdefault(line, name)
    return [(name, line) for line, name in found.items()]


def words_of(line: str) -> list[str]:
    return [word for word in shlex.split(re.split(r"\s+(?:#|>|\|)", line)[0], comments=False) if word != "..."]


def parsed(words: list[str]) -> dict[str, Any]:
    """What is given to the command that words name; nothing is run."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"there is no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    given: dict[str, Any] = command.make_context(command.name, list(words)).params
    return given


@pytest.mark.parametrize(("page", "line"), commands())
def test_there_is_such_a_command(page: str, line: str) -> None:
    words = with_resume_value([_without_dashes(word) for word in words_of(line)])
    given = parsed(words)
    recipe, overrides = given.get("recipe"), given.get("overrides") or []
    if recipe not in packaged_names():
        return
    single = [re.sub(r"(?<![\[({]),.*", "", one) if "sweep" in words else one for one in overrides]
    if "--cards" in words or any("my_parts" in one or one.startswith("plugins") for one in single):
        return
    done = CliRunner().invoke(app, ["config", "check", recipe, *single])
    assert done.exit_code == 0, done.output


def test_commands_were_found() -> None:
    assert len(commands()) > 60
