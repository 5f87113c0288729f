"""The server of programs, the recipes, and reference runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.programs import Server
from tests.faults.runs import MANY_RECIPE, RECIPE, Outcome, Run, Trained, Trainings


@pytest.fixture
def server(warm_server: Server) -> Iterator[Server]:
    yield warm_server
    warm_server.end_programs()


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "faults.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def run(server: Server, recipe: Path, tmp_path: Path) -> Run:
    """A run of the recipe."""
    return Run(server, recipe, tmp_path)


@pytest.fixture(scope="session")
def uninterrupted(trainings: Trainings) -> Outcome:
    """The results of an uninterrupted run."""
    return Outcome.of(trainings(RECIPE, 1))


@pytest.fixture(scope="session")
def two_process_outcome(trainings: Trainings) -> Outcome:
    """The results of an uninterrupted run with two processes."""
    return Outcome.of(trainings(RECIPE, 2, "train.num_threads=1"))


@pytest.fixture(scope="session")
def many_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "many.yaml"
    path.write_text(MANY_RECIPE)
    return path


@pytest.fixture
def many_run(server: Server, many_recipe: Path, tmp_path: Path) -> Run:
    """A run of the recipe whose training does not depend on the number of processes."""
    return Run(server, many_recipe, tmp_path)


@pytest.fixture(scope="session")
def trainings(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(warm_server, tmp_path_factory.mktemp("trainings"))


@pytest.fixture(scope="session")
def trained(trainings: Trainings) -> Trained:
    """Train that recipe on a number of processes; return the run folder."""
    return partial(trainings, MANY_RECIPE)


@pytest.fixture(scope="session")
def one_process_run(trained: Trained) -> Path:
    """The folder of a run with one process."""
    return trained(1)
