"""``opabinia bench``; its numbers: tests/faults/test_auto.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended

Command = Callable[..., Ended]
HERE = ["train.device=cpu", "train.threads=1", "data.workers=0"]


def test_a_table_for_people_and_a_file_for_machines(opabinia: Command, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    ended = opabinia("bench", "classification/digits", *HERE, "data.batch_size=8", "--steps", 2, "--out", file)
    assert ended.status == 0, ended.err
    for words in ("samples/s", "reading alone", "waiting for data", "forward", "memory", "GFLOP/s", "reached:"):
        assert words in ended.out
    found = json.loads(file.read_text())
    assert ended.out.rstrip().endswith(found["advice"])
    assert found["recipe"] == "classification/digits" and found["device"] == "cpu"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classification/nothing"], "classification/nothing: there is no such recipe"),
        (["classification/digits", "data.batch_size=some"], "data.batch_size: expected an integer >= 1 or 'auto'"),
        (["classification/digits", "--out", "not/there/found.json"], "--out: not/there/found.json is no file in a"),
        (["classification/digits", "--nproc", "none"], "--nproc: 'none' is neither a number of processes nor auto"),
        (
            ["classification/digits", *HERE, "shapes={name: progressive, start: 16, end: 32}", "train.length=3it"],
            "train.length: the run has fewer than the 36 steps that are needed; --steps takes fewer",
        ),
    ],
)
def test_what_is_wrong_is_told(opabinia: Command, arguments: list[str], message: str) -> None:
    ended = opabinia("bench", *arguments)
    assert ended.status == 2
    assert message in ended.err and "Traceback" not in ended.err


def test_auto_where_it_cannot_be(opabinia: Command, tmp_path: Path) -> None:
    auto = ["train", "classification/digits", *HERE, "data.batch_size=auto", "--out", tmp_path]
    ended = opabinia(*auto, "shapes={name: progressive, start: 16, end: 32}")
    assert ended.status == 2 and "auto is one number, and with shapes batches of several sizes" in ended.err
    ended = opabinia(*auto, "train.tuned_for=4")
    assert ended.status == 2 and "leave train.tuned_for out" in ended.err
    ended = opabinia("config", "show", "classification/digits", "data.batch_size=auto", "--schedule")
    assert ended.status == 2 and "auto is found out by `opabinia train`" in ended.err
    assert opabinia("config", "check", "classification/digits", "data.batch_size=auto", "data.workers=auto").status == 0
