"""Every command of README and docs/ runs as written, in a folder with all files it names.

Three substitutions: trainings are shortened (``small`` in examples_data.py), RUN and RECIPE become a matching run and
recipe, and a server takes a free port. Commands that cannot run here are in ``NOT_RUN`` with the reason.
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

from opabinia.cli.command_line import with_resume_value
from opabinia.cli.commands import app
from tests.cli.conftest import CommandResult
from tests.docs.examples_data import small
from tests.docs.pages import PAGES, ROOT, blocks
from tests.faults.programs import Server
from tests.inference.test_serve import started

NOT_RUN = {
    r"make (demo|test|setup|docs)": "minutes of the whole machine, or these tests themselves",
    r"opabinia plan clothes": "its file exists here; tests/cli/test_plan.py plans",
    r"opabinia (plan|train) path/to/data": "data of several tasks here; tests/cli/test_plan.py plans and trains",
    r"opabinia plan mine.yaml": "no planned recipe; tests/cli/test_plan.py explains one",
    r"opabinia demo": "minutes; tests/cli/test_demo.py",
    r"(uv )?pip (un)?install": "the network",
    r"python scripts/parity.py": "it is the tests of tests/parity",
    r"pip wheel|python -m venv": "tests/test_wheel.py builds the wheel and installs it",
    r"docker ": "a Docker engine",
    r"srun ": "SLURM; tests/runtime/test_slurm.py covers its environment variables",
    r"opabinia .*--weights (?!raw|ema|both)": "a file of weights; tests/cli/test_weights_option.py has one",
    r"opabinia train \S+_semi vars.root": "photographs; tests/golden trains the recipe on small ones",
    r"opabinia train selfsup/distillation": "the weights of a large teacher; tests/tasks has small ones",
    r"opabinia .*--push": "an account of the Hugging Face Hub; tests/cli/test_hub_upload.py has a server",
    r"opabinia (predict RUN|track \S+) (rtsp|webcam):": "a camera; tests/inference/test_frames.py has a server",
    r"opabinia .*score_calibration": "a detector with its maps; tests/evaluation/test_score_calibration.py",
    r"opabinia (eval|sweep|report) runs/\w+/(mot|digit_tracks)": "tracks; tests/cli/test_tracking.py has some",
    r"opabinia .*s3://": "a bucket; tests/training/test_remote_runs.py and tests/cli have a server",
    r"opabinia config import (mm|pyslowfast|paddlevideo)": "configs of other systems; tests/migration has some",
    r"opabinia train slowfast.yaml": "the config that the command before it imports",
    r"(python|opabinia train) docs/examples/comparison": "tests/docs/test_comparison.py runs them",
    r"opabinia .*model.safetensors": "a file of weights; tests/models/weights has some",
    r"opabinia train detection/digits_(rt_detr_)?oriented": "oriented boxes; tests/tasks has some",
    r"python predict.py": "the folder of an export; tests/inference/test_export.py runs it",
    r"python tracker/track.py|opabinia export runs/detection/mot": "an export; tests/inference/tracking has one",
    r"opabinia serve .*(model.onnx|imagenet|token)": "files; tests/inference/test_serve.py has them",
    r"opabinia serve .*--tracker": "streams; tests/inference/tracking/test_serve_streams.py has some",
    r"opabinia ensemble|opabinia .*(-folds|-fold1|runs/seeds)\b": "tests/inference/test_ensembles.py has several runs",
    r"opabinia train (scans.yaml|clothes) .*--folds": "data; tests/cli/test_plan.py has some",
    r"cp runs/\S+-folds|opabinia (data labels \S+-folds|train .*labels\.csv)": "folds; tests/cli/test_label_errors.py",
    r"opabinia export runs/classification/digits/int8": "a run of the command before it; tests/engine has the hook",
    r"opabinia benchmark \S+\.onnx": "an exported file; tests/inference/test_export_evaluate.py has one",
    r"opabinia .*class_thresholds": "several labels, or boxes; tests/evaluation/test_class_thresholds.py",
    r"(python scripts/write_channel|opabinia .*(scenes5|--bands))": "tests/cli/test_many_channels.py has such images",
    r"opabinia eval RUN --evaluator class_thresholds": "two classes or boxes; tests/cli/test_thresholds.py has some",
    r"opabinia .*--nnodes": "several machines; tests/faults/test_hosts.py simulates them on one",
}
"""Commands that no test runs as written; their arguments are parsed all the same."""

SLOW = (
    r"opabinia (plan|train (?!classification/digits)|train .*plugins|sweep|bench|export|eval .*--(evaluator|data)|"
    r".*--(nproc|seeds|folds|explain|grad-cam))|python"
)
"""Commands that take longer than some seconds."""

SLOW_PAGES = r"docs/(?!index\.md)"
"""Pages with variants of the commands of README and docs/index.md; `make test` only parses their commands."""

OWN_PROCESS = r"--nproc|plugins=|my\.yaml"
"""Commands that run in their own process: they start processes, or register parts that other tests must not see."""

SERVER = r"(opabinia serve|curl) "
"""A server and its clients, which are tested together."""

RUN = {
    r"gallery": "runs/reid/digits/default",
    r"boxes|maps|identities": "runs/multitask/digits/default",
    r"predict.*--split|tile": "runs/detection/digits/default",
    r"track": "runs/detection/digits/default",
    r"replay|data (labels|select)": "runs/classification/digits/default",
    r"": "runs/selfsup/digits_vicreg/default",
}
"""The run that RUN stands for, by the rest of the line; the first matching pattern counts."""

MULTIGRID = '"shapes={name: multigrid, size: 32, milestones: [9, 15, 20]}" train.length=24ep data.batch_size=16'


def commands() -> list[tuple[str, str]]:
    """Return page and line of each command once, continuation lines joined, comments removed."""
    pages: dict[str, str] = {}
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+#.*", "", line).replace(".venv/bin/", "").strip()
            if line and not line.startswith("#"):
                pages.setdefault(line, block.page)
    return [(page, line) for line, page in pages.items()]


def reason(line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


RUNNABLE = [
    pytest.param(
        line, marks=pytest.mark.slow if re.match(SLOW, line) or re.match(SLOW_PAGES, page) else (), id=f"{page}: {line}"
    )
    for page, line in commands()
    if reason(line) is None and not re.match(SERVER, line)
]


@pytest.mark.parametrize("line", RUNNABLE)
def test_the_command_runs(line: str, workspace: Callable[..., Path], opabinia: Callable[..., CommandResult]) -> None:
    line, implied_runs = substitute(line)
    workspace(*re.findall(r"runs/(?:\w+/)+(?:default|slow|fast|slower|mixup|pretrained)\b", line), *implied_runs)
    program, *words = shlex.split(line.partition(">")[0])
    if program != "opabinia":
        shell = "zsh" if "zsh" in line else "bash"
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed")
        setup = "autoload -U compinit; compinit -u; " if shell == "zsh" else ""
        completed = subprocess.run([shell, "-ec", setup + line], capture_output=True, text=True, env=environment())
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return
    words = [*words, *shortening(words)]
    result = run_process(words) if re.search(OWN_PROCESS, line) else opabinia(*words)
    if missing := re.search(r"needs .*: pip install .*", result.err):
        pytest.skip(missing[0])
    assert result.status == 0, result.out + result.err


def run_process(words: list[str]) -> CommandResult:
    completed = subprocess.run([sys.executable, "-m", "opabinia", *words], capture_output=True, text=True)
    return CommandResult(completed.returncode, completed.stdout, completed.stderr)


def substitute(line: str) -> tuple[str, list[str]]:
    """Replace RUN and RECIPE; return the line and the runs that it needs but does not name by folder."""
    recipe = f"classification/digits {MULTIGRID}" if "--schedule" in line else "classification/digits"
    line = re.sub(r"\bRECIPE\b", recipe, line)
    run = next(run for pattern, run in RUN.items() if re.search(pattern, line))
    implied = ["runs/classification/digits/slow"] if "--name slow --resume" in line else []
    implied += ["runs/clothes/slower"] if "--name slower --resume" in line else []
    implied += ["runs/flowers/default"] if "lilies.yaml" in line else []
    return re.sub(r"\bRUN\b", run, line), implied


def shortening(words: list[str]) -> list[str]:
    """Return overrides that shorten a training, or avoid downloading weights."""
    if words[:2] == ["config", "check"]:
        return ["task.backbone.pretrained=false"]
    if words[0] not in ("train", "sweep", "benchmark"):
        return []
    axes = {word.partition("=")[0] for word in words} if words[0] == "sweep" else set()
    local = ["vars.pretrained=false"] if "vars.pretrained=true" in words else []
    return [*local, *(override for override in small(words[1]) if override.partition("=")[0] not in axes)]


def environment() -> dict[str, str]:
    """An environment with the programs of this installation and without the settings of the user."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "HOME": str(Path.cwd()), "PYTHONPATH": str(ROOT), "PATH": programs}


SERVED = [line for _, line in commands() if line.startswith("opabinia serve ") and reason(line) is None]


@pytest.mark.slow
@pytest.mark.parametrize("line", SERVED)
def test_the_server_answers(line: str, workspace: Callable[..., Path], warm_server: Server) -> None:
    for library in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(library, reason=f"{library} is absent: pip install 'opabinia[serve]'")
    run, *options = shlex.split(substitute(line)[0])[2:]
    workspace(run)
    with started(warm_server, Path(run), *options) as server:
        for request in (line for _, line in commands() if re.match("curl (?!.*/track/)", line)):
            request = request.replace("http://127.0.0.1:8000", server.address)
            response = json.loads(subprocess.run(shlex.split(request), capture_output=True, check=True).stdout)
            (documented,) = (json.loads(block.text) for block in blocks("json"))
            assert response.keys() == documented.keys()
            if "classification" in run:
                assert response["predictions"][0].keys() == documented["predictions"][0].keys()


# --- commands that are not run ----------------------------------------------------------------------------------------


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the parsed arguments of a command line; nothing is run."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"there is no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    params: dict[str, Any] = command.make_context(command.name, list(words)).params
    return params


PARSED = [line for page, line in commands() if reason(line) or re.match(SLOW_PAGES, page)]


@pytest.mark.parametrize("line", [line for line in PARSED if re.match("opabinia [a-z]", line)])
def test_commands_that_are_not_run_can_be_parsed(line: str) -> None:
    parsed(with_resume_value(shlex.split(line)[1:]))


def test_sentences_name_existing_commands_and_options() -> None:
    root: Any = typer.main.get_command(app)
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for line in re.findall(r"`opabinia ([^`]+)`", prose):
            command = root
            for word in itertools.takewhile(str.islower, line.split()):
                if not hasattr(command, "commands"):
                    break
                assert word in command.commands, f"{page.name}: {line}"
                command = command.commands[word]
            options = {option for param in command.params for option in [*param.opts, *param.secondary_opts]}
            assert set(re.findall(r"--[a-z-]+", line)) <= options, f"{page.name}: {line}"


def test_every_block_names_its_language() -> None:
    """Otherwise a block could contain a command that no test runs."""
    assert {block.language for block in blocks()} <= {"sh", "yaml", "python", "json", "text"}
    assert not [
        block.name for block in blocks("text") if re.search(r"^(\$ )?(\.venv/bin/)?opabinia ", block.text, re.M)
    ]
    assert len(RUNNABLE) > 80
