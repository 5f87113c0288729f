"""The same command gives bitwise identical results; another seed gives others."""

import json
from pathlib import Path

import pytest

from tests.faults.programs import Server
from tests.faults.runs import Outcome, assert_same, checkpoint, metrics


def test_the_same_command_gives_identical_results(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    server.run("train", str(recipe), "--out", str(tmp_path), "data.num_workers=3")
    assert_same(Outcome.of(tmp_path / "faults" / "default"), uninterrupted)


def test_another_seed_gives_other_results(server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    server.run("train", str(recipe), "--out", str(tmp_path), "seed=4")
    other = Outcome.of(tmp_path / "faults" / "default")
    assert other.model != uninterrupted.model
    assert other.metrics != uninterrupted.metrics


@pytest.mark.slow
def test_every_source_of_randomness_changes_the_weights(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """Otherwise the other tests would prove little."""
    overrides = {
        "augmentation": "data.train.transforms=[]",
        "mixup": "data.mix=[]",
        "dropout": "task.dropout=0",
        "order": "data.shuffle=false",
    }
    length = "train.length=2it"
    server.run("train", str(recipe), length, "--out", str(tmp_path), "--name", "all")
    models = {(checkpoint(tmp_path / "faults" / "all", 2) / "model.safetensors").read_bytes()}
    for name, override in overrides.items():
        server.run("train", str(recipe), length, override, "--out", str(tmp_path), "--name", name)
        models.add((checkpoint(tmp_path / "faults" / name, 2) / "model.safetensors").read_bytes())
    assert len(models) == 5


def test_logged_samples_do_not_depend_on_the_number_of_workers(server: Server, recipe: Path, tmp_path: Path) -> None:
    lines = []
    for workers in (0, 2):
        arguments = [
            "train.log_samples=true",
            "train.length=5it",
            f"data.num_workers={workers}",
            "--name",
            str(workers),
        ]
        server.run("train", str(recipe), *arguments, "--out", str(tmp_path))
        lines.append(metrics(tmp_path / "faults" / str(workers)))
    assert lines[0] == lines[1]
    sample_ids = [line["sample_ids"] for line in lines[0] if "sample_ids" in line]
    assert [len(ids) for ids in sample_ids] == [8] * 5
    assert len({name for ids in sample_ids for name in ids}) == 40
    assert json.dumps(sample_ids)
