"""``opabinia benchmark``; tests/faults/test_auto.py tests its measurements."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CommandResult

Command = Callable[..., CommandResult]
ON_CPU = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]


def test_table_and_json_file(opabinia: Command, tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    result = opabinia("benchmark", "classification/digits", *ON_CPU, "data.batch_size=8", "--steps", 2, "--out", file)
    assert result.status == 0, result.err
    for words in ("samples/s", "loader alone", "waiting for data", "forward", "memory", "GFLOP/s", "reached:"):
        assert words in result.out
    report = json.loads(file.read_text())
    assert result.out.rstrip().endswith(report["advice"])
    assert report["recipe"] == "classification/digits" and report["device"] == "cpu"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["throughput.json"]


def test_memory_is_predicted(opabinia: Command) -> None:
    options = ["--memory", "--device-memory", "4GiB", "--precision", "bf16"]
    result = opabinia("benchmark", "classification/digits", *options)
    assert result.status == 0, result.err
    assert "is auto" not in result.out and "fsdp" not in result.out
    for words in ("bf16, batch 64 of 1 x 32 x 32", "4.00 GiB", "H100 SXM", "not calibrated on a GPU"):
        assert words in result.out


def test_memory_names_parts_of_the_config_that_it_does_not_follow(opabinia: Command) -> None:
    overrides = ["data.batch_size=auto", "train.parallel=fsdp", "init.weights=absent.pth", "train.compile=true"]
    result = opabinia("benchmark", "classification/digits", *overrides, "--memory", "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["batch_size"] == 16
    names = ["data.batch_size", "train.parallel", "init", "train.compile"]
    assert [note.partition(" is ")[0] for note in report["notes"]] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                ["classification/digits", "--memory", f"--device-memory={size}"],
                f"--device-memory: '{size}' is no memory",
            )
            for size in ("4Gx", "24", "-1GiB", "0", "", "999999EiB")
        ),
        (
            ["detection/coco_format", "vars.root=absent", "--memory"],
            "instances_train.json; the nearest existing folder",
        ),
        (
            ["selfsup/digits_distillation", "--memory"],
            "task.teacher: there is no folder runs/selfsup/digits_vicreg/default",
        ),
        (["classification/digits", "--memory", "--nproc", "2"], "--nproc: measures; with --memory nothing is"),
        (["classification/digits", "--memory", "--steps", "30"], "--steps: measures; with --memory nothing is"),
        (["classification/digits", "--precision", "bf16"], "--precision: belongs to --memory"),
        (["classification/digits", "--memory", "--precision", "b16"], "expected one of 'fp32', 'bf16', 'fp16'"),
        (["classification/nothing"], "classification/nothing: there is no such recipe"),
        (["classification/digits", "data.batch_size=some"], "data.batch_size: expected an integer >= 1 or 'auto'"),
        (
            ["classification/digits", "--out", "no/such/throughput.json"],
            "--out: no/such/throughput.json is not a file in an existing folder",
        ),
        (["classification/digits", "--nproc", "none"], "--nproc: 'none' is neither a number of ranks nor auto"),
        (
            ["classification/digits", *ON_CPU, "shapes={name: progressive, start: 16, end: 32}", "train.length=3it"],
            "train.length: the run has fewer than the 36 steps that are needed; --steps takes fewer",
        ),
    ],
)
def test_errors_are_reported_without_a_traceback(opabinia: Command, arguments: list[str], message: str) -> None:
    result = opabinia("benchmark", *arguments)
    assert result.status == 2
    assert message in result.err and "Traceback" not in result.err


def test_auto_is_rejected_where_it_cannot_be_tuned(opabinia: Command, tmp_path: Path) -> None:
    auto = ["train", "classification/digits", *ON_CPU, "data.batch_size=auto", "--out", tmp_path]
    result = opabinia(*auto, "shapes={name: progressive, start: 16, end: 32}")
    assert result.status == 2 and "auto is one number, but with shapes batches of several sizes" in result.err
    result = opabinia(*auto, "train.reference_world_size=4")
    assert result.status == 2 and "remove train.reference_world_size" in result.err
    result = opabinia("config", "show", "classification/digits", "data.batch_size=auto", "--schedule")
    assert result.status == 2 and "auto is tuned by `opabinia train`" in result.err
    assert (
        opabinia("config", "check", "classification/digits", "data.batch_size=auto", "data.num_workers=auto").status
        == 0
    )
