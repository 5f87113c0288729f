"""A classifier of digits that most tests of inference share."""

from __future__ import annotations

from pathlib import Path

import pytest

import opabinia
from opabinia.inference.predictor import Predictor
from opabinia.training import launch

SHORT = ["train.length=60it", "schedule.warmup=20it", "checkpoint.every=30it", "data.batch_size=16", "loggers=[]"]
SHORT += ["data.num_workers=0", "evaluate.batch_size=7", "evaluate.every=60it", "train.num_threads=1"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ``classification/digits``; tests may add files and must not change any."""
    return launch.train("classification/digits", SHORT, out=tmp_path_factory.mktemp("runs"))[0]


@pytest.fixture(scope="session")
def predictor(run: Path) -> Predictor:
    return opabinia.load(run)
