"""``opabinia benchmark``; its numbers: tests/faults/test_auto.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended

Command = Callable[..., Ended]
HERE = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]


def test_table_and_json_file(opabinia: Command, tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    ended = opabinia("benchmark", "classification/digits", *HERE, "data.batch_size=8", "--steps", 2, "--out", file)
    assert ended.status == 0, ended.err
    for words in ("samples/s", "loader alone", "waiting for data", "forward", "memory", "GFLOP/s", "reached:"):
        assert words in ended.out
    result = json.loads(file.read_text())
    assert ended.out.rstrip().endswith(result["advice"])
    assert result["recipe"] == "classification/digits" and result["device"] == "cpu"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["throughput.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classification/nothing"], "classification/nothing: there is no such recipe"),
        (["classification/digits", "data.batch_size=some"], "data.batch_size: expected an integer >= 1 or 'auto'"),
        (
            ["classification/digits", "--out", "not/there/found.json"],
            "--out: not/there/found.json is not a file in an existing folder",
        ),
        (["classification/digits", "--nproc", "none"], "--nproc: 'none' is neither a number of ranks nor auto"),
        (
            ["classification/digits", *HERE, "shapes={name: progressive, start: 16, end: 32}", "train.length=3it"],
            "train.length: the run has fewer than the 36 steps that are needed; --steps takes fewer",
        ),
    ],
)
def test_errors_are_reported_without_a_traceback(opabinia: Command, arguments: list[str], message: str) -> None:
    ended = opabinia("benchmark", *arguments)
    assert ended.status == 2
    assert message in ended.err and "Traceback" not in ended.err


def test_the_old_name_works_with_a_warning(opabinia: Command) -> None:
    ended = opabinia("bench", "classification/nothing")
    assert ended.status == 2 and "there is no such recipe" in ended.err
    assert "DeprecationWarning: The command 'bench' is deprecated" in ended.err


def test_auto_where_it_cannot_be(opabinia: Command, tmp_path: Path) -> None:
    auto = ["train", "classification/digits", *HERE, "data.batch_size=auto", "--out", tmp_path]
    ended = opabinia(*auto, "shapes={name: progressive, start: 16, end: 32}")
    assert ended.status == 2 and "auto is one number, but with shapes batches of several sizes" in ended.err
    ended = opabinia(*auto, "train.reference_world_size=4")
    assert ended.status == 2 and "remove train.reference_world_size" in ended.err
    ended = opabinia("config", "show", "classification/digits", "data.batch_size=auto", "--schedule")
    assert ended.status == 2 and "auto is tuned by `opabinia train`" in ended.err
    assert (
        opabinia("config", "check", "classification/digits", "data.batch_size=auto", "data.num_workers=auto").status
        == 0
    )
