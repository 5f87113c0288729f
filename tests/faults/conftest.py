"""A warm server for programs, the recipe, and the run that nothing disturbed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.programs import Server
from tests.faults.runs import RECIPE, Outcome


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.fixture
def server(warm_server: Server) -> Iterator[Server]:
    yield warm_server
    warm_server.end_programs()


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "faults.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def undisturbed(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a run that nothing disturbed leaves behind."""
    out = tmp_path_factory.mktemp("undisturbed")
    warm_server.run("train", str(recipe), "--out", str(out))
    return Outcome.of(out / "faults" / "default")
