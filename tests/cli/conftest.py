"""Fixtures that run the command in this process, where torch is already imported, and train a run of six steps."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from opabinia.cli import main

SIX_STEPS = ["train.length=6it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0", "data.batch_size=16"]


class CommandResult(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def opabinia(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., CommandResult]]:
    """``opabinia("train", ...)`` runs a command and returns its exit status, stdout and stderr."""
    log = logging.getLogger("opabinia")
    before = log.propagate, log.level

    def run(*arguments: object) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as error:
            main([str(argument) for argument in arguments])
        assert isinstance(error.value.code, int)
        return CommandResult(error.value.code, *capsys.readouterr())

    yield run
    log.propagate, log.level = before


@pytest.fixture(scope="session")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of ``classification/digits``, trained once; tests must not change it."""
    from opabinia.training.launch import train

    log = logging.getLogger("opabinia")
    before = log.propagate, log.level
    folder, _ = train("classification/digits", SIX_STEPS, out=tmp_path_factory.mktemp("runs"))
    log.propagate, log.level = before
    return folder


@pytest.fixture
def copied_run(six_steps: Path, tmp_path: Path) -> Path:
    """A copy of that run which a test may change."""
    return Path(shutil.copytree(six_steps, tmp_path / "classification" / "digits" / "default"))
