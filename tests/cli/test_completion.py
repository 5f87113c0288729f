"""Shell completion of commands, recipes, run folders, config keys and parts; also in real shells."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from opabinia.cli import completions
from opabinia.cli.commands import app
from opabinia.config import Catalog, catalog
from opabinia.config.keys import completed

BIN = Path(sys.executable).parent
DIGITS = {"optimizer": {"name": "adamw", "lr": 0.004}, "task": {"name": "classification", "backbone": {"name": "timm"}}}


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``complete(line)`` returns the completions of a command line, in a folder with a recipe and a run."""
    (tmp_path / "mine.yaml").write_text("base: classification/digits\ntask: {name: classification}\n")
    (tmp_path / "runs" / "mine" / "default").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "default" / "config.yaml").write_text("task: {name: classification}\n")
    monkeypatch.chdir(tmp_path)
    full_catalog = catalog()  # another test may have changed the package's files since it was cached
    monkeypatch.setattr("opabinia.config.warm_catalog", lambda plugins=(): full_catalog)
    return lambda line: completions.candidates(completions.describe_command(typer.main.get_command(app)), line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("opabinia tr", ["track", "train"]),
        ("opabinia config li", ["list"]),
        ("opabinia train classification/dig", ["classification/digits", "classification/digits_semi"]),
        ("opabinia train mi", ["mine.yaml"]),
        ("opabinia train --na", ["--name"]),
        ("opabinia train mine.yaml --resume a", ["auto"]),
        ("opabinia train --resume mine.yaml optimizer.l", ["optimizer.lr="]),
        ("opabinia train mine.yaml optimizer.lr=0.1 task.lo", ["task.loss.", "task.loss="]),
        ("opabinia train --name mine mine.yaml optimizer=sg", ["optimizer=sgd", "optimizer=sgdw"]),
        ("opabinia train mine.yaml optimizer=sgd optimizer.mom", ["optimizer.momentum="]),
        ("opabinia train classification/image_folder vars.r", ["vars.root="]),
        ("opabinia train mine.yaml train.precision=f", ["train.precision=fp32", "train.precision=fp16"]),
        ("opabinia eval ru", ["runs/"]),
        ("opabinia eval runs/mine/", ["runs/mine/default"]),
        ("opabinia eval runs/mine/default data.batch", ["data.batch_size="]),
        ("opabinia config list optimiz", ["optimizer"]),
        ("opabinia config list optimizer sgd", ["sgd", "sgdw"]),
        ("opabinia completion z", ["zsh"]),
        ("opabinia export runs/mine/default --format to", ["torch"]),
        ("opabinia train 'mi", ["mine.yaml"]),
        ("opabinia train no/such optimizer.lr", []),
        ("opabinia train mine.yaml there.is.no", []),
        ("opabinia nothing of this", []),
    ],
)
def test_completions_of_a_line(complete: Any, line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_a_new_word_has_all_completions(complete: Any) -> None:
    assert {"train", "eval", "config"} <= set(complete("opabinia "))
    assert {"classification/digits", "reid/digits", "mine.yaml", "runs/"} <= set(complete("opabinia train "))
    assert {"optimizer.", "optimizer=", "seed=", "train."} <= set(complete("opabinia train mine.yaml "))


def test_commands_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert completions.from_cache("opabinia tr") is None
    completions.save_commands(completions.describe_command(typer.main.get_command(app)))
    assert completions.from_cache("opabinia tr") == ["track", "train"]
    program = (
        "import sys; from opabinia.cli import main\ntry: main(['completion', '--line', 'opabinia train reid/digits'])"
    )
    program += "\nfinally: print(*{'typer', 'pydantic', 'opabinia.config'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["reid/digits"], "no heavy module is imported"
    monkeypatch.setattr(completions, "_version", lambda: [])
    assert completions.from_cache("opabinia tr") is None


@pytest.fixture(scope="module")
def parts() -> Catalog:
    return catalog()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.train.transforms.", ["data.train.transforms.0."]),
        ("data.train.transforms.0.", ["data.train.transforms.0.size="]),
        ("task.backbone=", ["task.backbone=timm", "task.backbone=resnet3d"]),
        ("optimizer.lr=", ["optimizer.lr=0.004"]),
        ("train.deterministic=", ["train.deterministic=true", "train.deterministic=false"]),
        ("hooks.mine.", ["hooks.mine.patience="]),
        ("ema=", ["ema=null"]),
    ],
)
def test_keys_and_values_of_a_config(parts: Catalog, word: str, expected: list[str]) -> None:
    resize = {"train": {"transforms": [{"name": "Resize", "size": 32}]}}
    config = {**DIGITS, "data": resize, "hooks": {"mine": {"name": "early_stop"}}}
    assert set(expected) <= set(completed(word, config, parts))


BASH_PROGRAM = """
eval "$(opabinia completion bash)"
press() {
    COMP_LINE="$1" COMP_POINT=${#1}
    _opabinia opabinia
    printf '%s\\n' "${COMPREPLY[@]}"
}
press "opabinia train classification/dig"
press "opabinia train classification/image_folder vars.ro"
"""


DIGIT_RECIPES = ["classification/digits", "classification/digits_semi"]


def run_shell(folder: Path, *shell: str) -> list[str]:
    """Return the words that a shell prints."""
    result = subprocess.run(
        shell,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(folder)},
        check=True,
    )
    return result.stdout.split()


def test_completion_in_bash(tmp_path: Path) -> None:
    assert run_shell(tmp_path, "bash", "--norc", "-c", BASH_PROGRAM) == [*DIGIT_RECIPES, "vars.root="]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_completion_in_fish(tmp_path: Path) -> None:
    program = "opabinia completion fish | source; complete -C 'opabinia train classification/dig'"
    assert run_shell(tmp_path, "fish", "--no-config", "-c", program) == DIGIT_RECIPES


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_the_zsh_script_parses(tmp_path: Path) -> None:
    script = subprocess.run([BIN / "opabinia", "completion", "zsh"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "_opabinia").write_text(script)
    subprocess.run(["zsh", "-f", "-n", tmp_path / "_opabinia"], check=True, timeout=60)
