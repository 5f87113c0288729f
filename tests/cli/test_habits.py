"""Keys, options and file names as users of other frameworks type them: the message names the correct override."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SIX_STEPS


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train.epochs=5", "train.epochs: unknown key (found 5); write train.length=5ep"),
        ("optimizer.learning_rate=0.1", "write optimizer.lr=0.1"),
        ("num_workers=2", "write data.num_workers=2"),
        ("batch_size=8", "write data.batch_size=8"),
        ("data.lr=0.1", "write optimizer.lr=0.1"),
        ("train.shuffle=false", "'shuffle' belongs to data"),
        ("--lr 0.1", "error: command line: --lr: no such option; write optimizer.lr=0.1"),
        ("--epochs=5", "write train.length=5ep"),
        ("--optimizer.lr 0.1", "write optimizer.lr=0.1"),
        ("--amp", "write train.precision=bf16"),
        ("--lr", "write optimizer.lr=VALUE"),
    ],
)
def test_unknown_keys_and_options_suggest_the_override(opabinia: Callable[..., Any], words: str, hint: str) -> None:
    result = opabinia("config", "check", "classification/digits", *words.split())
    assert result.status == 2 and hint in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("words", [["train", "classification/digits", "--nmae"], ["predict", "runs/a", "--lr", "1"]])
def test_other_unknown_options_have_the_message_of_the_parser(opabinia: Callable[..., Any], words: list[str]) -> None:
    result = opabinia(*words)
    assert result.status == 2 and "No such option" in result.err


def test_a_similar_file_is_suggested_for_a_missing_file(
    opabinia: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clothes.yaml").write_text("base: classification/digits\n")
    for name in ("clothes.yml", "clothes", "cloths.yaml"):
        result = opabinia("config", "check", name)
        assert result.status == 2 and "did you mean 'clothes.yaml'?" in result.err and "packaged" not in result.err
    assert "files beside it: clothes.yaml" in opabinia("config", "check", "nothing.yaml").err


def test_resuming_a_nonexistent_run_is_an_error(opabinia: Callable[..., Any], six_steps: Path, tmp_path: Path) -> None:
    shutil.copytree(six_steps, tmp_path / "classification" / "digits" / "slow")
    result = opabinia("train", "classification/digits", *SIX_STEPS, "--out", tmp_path, "--name", "slwo", "--resume")
    assert result.status == 2 and "Traceback" not in result.err
    assert "there is no run" in result.err and "did you mean 'slow'?" in result.err and "--resume auto" in result.err
    assert not (tmp_path / "classification" / "digits" / "slwo").exists()


def test_resume_auto_starts_a_run_and_resumes_it(opabinia: Callable[..., Any], tmp_path: Path) -> None:
    command = ("train", "classification/digits", *SIX_STEPS, "--out", tmp_path, "--resume", "auto")
    first = opabinia(*command)
    assert first.status == 0 and "starting from the beginning" in first.err
    assert opabinia(*command).status == 0, "the finished run is resumed"
