"""The server of programs, the recipes, and reference runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.many import RECIPE as MULTI_PROCESS_RECIPE
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
def uninterrupted(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The results of an uninterrupted run."""
    out = tmp_path_factory.mktemp("uninterrupted")
    warm_server.run("train", str(recipe), "--out", str(out))
    return Outcome.of(out / "faults" / "default")


@pytest.fixture(scope="session")
def two_process_outcome(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The results of an uninterrupted run with two processes."""
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
def multi_process_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("together") / "together.yaml"
    path.write_text(MULTI_PROCESS_RECIPE)
    return path


@pytest.fixture
def trained(server: Server, multi_process_recipe: Path, tmp_path: Path) -> Trained:
    """Train on a number of processes in a folder with this name; return the run folder."""

    def train(name: str, processes: int, *overrides: str, status: int = 0, **options: Any) -> Path:
        out = str(tmp_path)
        for program in start(
            server, processes, str(multi_process_recipe), "--out", out, "--name", name, *overrides, **options
        ):
            program.expect(status)
        return tmp_path / "together" / name

    return train


@pytest.fixture(scope="session")
def one_process_run(warm_server: Server, multi_process_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one process."""
    out = tmp_path_factory.mktemp("alone")
    warm_server.run("train", str(multi_process_recipe), "--out", str(out))
    return out / "together" / "default"
