"""Every command of README and docs/ is run as it stands there, in a folder with all that it names.

Three things are added. Trainings are made short (``small`` in things.py), RUN and RECIPE become a run and a recipe that
fit, and a server takes a free port. What cannot be run here stands in ``NOT_RUN``, with the reason.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from opabinia.cli import app
from tests.cli.conftest import Ended
from tests.docs.examples_data import small
from tests.docs.pages import PAGES, ROOT, blocks
from tests.inference.test_serve import started

NOT_RUN = {
    r"make (demo|test)": "minutes of the whole machine, or these tests themselves",
    r"pip install": "the network",
    r"srun ": "SLURM; tests/runtime/test_slurm.py has what it tells of itself",
    r"opabinia .*--nnodes": "several machines; tests/faults/test_hosts.py plays them on one",
}
"""Commands that no test runs as they stand; they are parsed all the same."""

SLOW = (
    r"opabinia (train (?!classification/digits)|train .*plugins|sweep|bench|export|eval RUN --measure|"
    r".*--(nproc|seeds|explain))|python"
)
"""What takes longer than some seconds."""

ELSEWHERE = r"--nproc|plugins=|my\.yaml"
"""Commands that get a process of their own: they start others, or bring parts that the other tests must not see."""

SERVED = r"(opabinia serve|curl) "
"""Commands that belong together: a server, and those that ask it."""

RUN = {
    r"gallery": "runs/reid/digits/default",
    r"predict.*--split": "runs/detection/digits/default",
    r"replay": "runs/classification/digits/default",
    r"": "runs/selfsup/digits_vicreg/default",
}
"""Which run RUN stands for, by the rest of the line; the first pattern that is found counts."""

MULTIGRID = '"shapes={name: multigrid, size: 32, milestones: [9, 15, 20]}" train.length=24ep data.batch_size=16'


def commands() -> list[tuple[str, str]]:
    """Page and line, each once; continued lines are one, and what is said behind a line is left out."""
    found: dict[str, str] = {}
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+#.*", "", line).replace(".venv/bin/", "").strip()
            if line and not line.startswith("#"):
                found.setdefault(line, block.page)
    return [(page, line) for line, page in found.items()]


def reason(line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


RUNNABLE = [
    pytest.param(line, marks=pytest.mark.slow if re.match(SLOW, line) else (), id=f"{page}: {line}")
    for page, line in commands()
    if reason(line) is None and not re.match(SERVED, line)
]


@pytest.mark.parametrize("line", RUNNABLE)
def test_it_runs(line: str, place: Callable[..., Path], opabinia: Callable[..., Ended]) -> None:
    line, run = with_names(line)
    place(*re.findall(r"runs/\w+/\w+/(?:default|slow|fast)", line), *run)
    program, *words = shlex.split(line.partition(">")[0])
    if program != "opabinia":
        shell = "zsh" if "zsh" in line else "bash"
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell}")
        before = "autoload -U compinit; compinit -u; " if shell == "zsh" else ""
        done = subprocess.run([shell, "-ec", before + line], capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stdout + done.stderr
        return
    words = [*words, *shorter(words)]
    ended = in_a_process(words) if re.search(ELSEWHERE, line) else opabinia(*words)
    if absent := re.search(r"needs .*: pip install .*", ended.err):
        pytest.skip(absent[0])
    assert ended.status == 0, ended.out + ended.err


def in_a_process(words: list[str]) -> Ended:
    done = subprocess.run([sys.executable, "-m", "opabinia", *words], capture_output=True, text=True)
    return Ended(done.returncode, done.stdout, done.stderr)


def with_names(line: str) -> tuple[str, list[str]]:
    """The line with a run and a recipe in place of RUN and RECIPE, and the run that it did not name by its folder."""
    recipe = f"classification/digits {MULTIGRID}" if "--schedule" in line else "classification/digits"
    line = re.sub(r"\bRECIPE\b", recipe, line)
    run = next(one for pattern, one in RUN.items() if re.search(pattern, line))
    hidden = ["runs/classification/digits/slow"] if "--name slow --resume" in line else []
    return re.sub(r"\bRUN\b", run, line), hidden


def shorter(words: list[str]) -> list[str]:
    """What is added to a command that trains, or builds a model whose weights would come from the network."""
    if words[:2] == ["config", "check"]:
        return ["task.backbone.pretrained=false"]
    if words[0] not in ("train", "sweep", "bench"):
        return []
    axes = {word.partition("=")[0] for word in words} if words[0] == "sweep" else set()
    return [one for one in small(words[1]) if one.partition("=")[0] not in axes]


def environment() -> dict[str, str]:
    """In which the programs of this installation are found, and no settings of whoever runs the tests."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "HOME": str(Path.cwd()), "PYTHONPATH": str(ROOT), "PATH": programs}


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for _, line in commands() if line.startswith("opabinia serve ")])
def test_the_server_answers(line: str, place: Callable[..., Path]) -> None:
    for library in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(library, reason=f"{library} is absent: pip install 'opabinia[serve]'")
    run, *options = shlex.split(with_names(line)[0])[2:]
    place(run)
    with started(Path(run), *options) as server:
        for question in (line for _, line in commands() if line.startswith("curl ")):
            asked = question.replace("http://127.0.0.1:8000", server.address)
            said = json.loads(subprocess.run(shlex.split(asked), capture_output=True, check=True).stdout)
            (shown,) = (json.loads(block.text) for block in blocks("json"))
            assert said.keys() == shown.keys()
            if "classification" in run:
                assert said["predictions"][0].keys() == shown["predictions"][0].keys()


# --- what is not run --------------------------------------------------------------------------------------------------


def parsed(words: list[str]) -> dict[str, Any]:
    """What is given to the command that words name; nothing is run."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"there is no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    given: dict[str, Any] = command.make_context(command.name, list(words)).params
    return given


@pytest.mark.parametrize("line", [line for _, line in commands() if reason(line) and line.startswith("opabinia ")])
def test_what_is_not_run_is_a_command_all_the_same(line: str) -> None:
    parsed(shlex.split(line)[1:])


def test_sentences_name_commands_and_options_that_there_are() -> None:
    whole: Any = typer.main.get_command(app)
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for line in re.findall(r"`opabinia ([^`]+)`", prose):
            verbs = itertools.takewhile(str.islower, line.split())
            command = whole
            for verb in verbs:
                if not hasattr(command, "commands"):
                    break
                assert verb in command.commands, f"{page.name}: {line}"
                command = command.commands[verb]
            there = {option for one in command.params for option in one.opts}
            assert set(re.findall(r"--[a-z-]+", line)) <= there, f"{page.name}: {line}"


def test_every_block_says_what_it_is() -> None:
    """Else a command could hide in a block that nobody runs."""
    assert {block.language for block in blocks()} <= {"sh", "yaml", "python", "json", "text"}
    assert not [
        block.name for block in blocks("text") if re.search(r"^(\$ )?(\.venv/bin/)?opabinia ", block.text, re.M)
    ]
    assert len(RUNNABLE) > 80
