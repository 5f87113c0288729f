"""``opabinia benchmark``; tests/faults/test_auto.py tests its measurements."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import CommandResult

Command = Callable[..., CommandResult]
ON_CPU = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]
FEW_OPERATORS = ["plugins=[tests.faults.parts]", "task.backbone={name: grouped}"]


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
    result = opabinia("benchmark", "classification/digits", *FEW_OPERATORS, *options)
    assert result.status == 0, result.err
    assert "is auto" not in result.out and "fsdp" not in result.out
    for words in ("bf16, batch 64 of 1 x 32 x 32", "4.00 GiB", "H100 SXM", "not calibrated on a GPU"):
        assert words in result.out


def test_memory_names_parts_of_the_config_that_it_does_not_follow(opabinia: Command) -> None:
    overrides = ["data.batch_size=auto", "train.parallel=fsdp", "init.weights=absent.pth", "train.compile=true"]
    result = opabinia("benchmark", "classification/digits", *FEW_OPERATORS, *overrides, "--memory", "--json")
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["batch_size"] == 16
    names = ["data.batch_size", "train.parallel", "init", "train.compile"]
    assert [note.partition(" is ")[0] for note in report["notes"]] == names


def test_auto_can_be_checked(opabinia: Command) -> None:
    words = ["data.batch_size=auto", "data.num_workers=auto"]
    assert opabinia("config", "check", "classification/digits", *words).status == 0


def test_an_exported_model_is_no_recipe(opabinia: Command, tmp_path: Path) -> None:
    damaged = tmp_path / "model.tflite"
    damaged.write_bytes(b"damaged")
    for words in (["--memory"], ["--steps", 3], ["optimizer.lr=1"]):
        refused = opabinia("benchmark", damaged, *words)
        assert refused.status == 2 and "is an exported model, whose graph is measured: remove it" in refused.err
    refused = opabinia("benchmark", damaged)
    assert refused.status == 2 and str(damaged) in refused.err
