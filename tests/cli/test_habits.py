"""File names and runs that are misspelt: the message names the similar one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SIX_STEPS


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
    for command in ("eval", "serve"):
        result = opabinia(command, tmp_path / "classification" / "digits" / "slwo")
        assert result.status == 2 and f"did you mean '{tmp_path}/classification/digits/slow'?" in result.err
    assert "the nearest existing folder is" in opabinia("eval", tmp_path / "classification" / "nothing").err


def test_resume_auto_starts_a_run_and_resumes_it(opabinia: Callable[..., Any], tmp_path: Path) -> None:
    command = ("train", "classification/digits", *SIX_STEPS, "--out", tmp_path, "--resume", "auto")
    first = opabinia(*command)
    assert first.status == 0 and "starting from the beginning" in first.err
    assert opabinia(*command).status == 0, "the finished run is resumed"
