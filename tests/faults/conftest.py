"""Programs that end with their test, the recipe, and the run that nothing disturbed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.many import RECIPE as TOGETHER
from tests.faults.many import Trained, start
from tests.faults.programs import Server
from tests.faults.runs import RECIPE, Outcome


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


@pytest.fixture(scope="session")
def pair(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a run in two processes leaves behind that nothing disturbed."""
    out = tmp_path_factory.mktemp("pair")
    arguments = [
        "train",
        str(recipe),
        "--out",
        str(out),
        "train.num_threads=1",
        f"train.distributed.init=file://{out}/here",
    ]
    for program in [
        warm_server.start(*arguments, environment={"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)
    ]:
        program.expect(0)
    return Outcome.of(out / "faults" / "default")


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("together") / "together.yaml"
    path.write_text(TOGETHER)
    return path


@pytest.fixture
def trained(server: Server, together: Path, tmp_path: Path) -> Trained:
    """Train on some processes in a folder with this name and return the run's."""

    def train(name: str, processes: int, *overrides: str, status: int = 0, **how: Any) -> Path:
        out = str(tmp_path)
        for program in start(server, processes, str(together), "--out", out, "--name", name, *overrides, **how):
            program.expect(status)
        return tmp_path / "together" / name

    return train


@pytest.fixture(scope="session")
def alone(warm_server: Server, together: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process leaves behind."""
    out = tmp_path_factory.mktemp("alone")
    warm_server.run("train", str(together), "--out", str(out))
    return out / "together" / "default"
