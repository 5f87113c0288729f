"""A folder with every file, dataset and run that the documentation names, and the command in this process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import opabinia
from tests.docs.examples_data import FILES, trained
from tests.docs.pages import ROOT

__all__ = ["opabinia"]


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files and datasets, made once, read-only; runs are added on demand."""
    folder = tmp_path_factory.mktemp("examples")
    for name, make in FILES.items():
        make(folder / name)
    return folder


@pytest.fixture
def workspace(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``workspace("runs/classification/digits/default")``: change to a new folder with all files and these runs."""

    def enter(*runs: str) -> Path:
        monkeypatch.chdir(examples)
        for run in runs:
            shutil.copytree(trained(examples, run), tmp_path / run)
        (tmp_path / "docs").symlink_to(ROOT / "docs")
        for name in os.listdir(examples):
            if name != "runs":
                (tmp_path / name).symlink_to(examples / name)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return enter
