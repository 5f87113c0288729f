"""A folder in which everything lies that the documentation names, and the command in this process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import opabinia
from tests.docs.examples_data import MADE, trained
from tests.docs.pages import ROOT

__all__ = ["opabinia"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files and data sets, made once, only to be read; runs come when they are asked for."""
    folder = tmp_path_factory.mktemp("made")
    for name, make in MADE.items():
        make(folder / name)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``place("runs/classification/digits/default")``: one works in a fresh folder with all files, and these runs."""

    def lay(*runs: str) -> Path:
        monkeypatch.chdir(made)
        for run in runs:
            shutil.copytree(trained(made, run), tmp_path / run)
        (tmp_path / "docs").symlink_to(ROOT / "docs")
        for name in os.listdir(made):
            if name != "runs":
                (tmp_path / name).symlink_to(made / name)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return lay
