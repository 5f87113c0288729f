"""The same command twice gives the same bytes; another seed gives others."""

import json
from pathlib import Path

import pytest

from tests.faults.programs import Server
from tests.faults.runs import Outcome, assert_same, checkpoint, metrics


def test_the_same_command_twice(server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    server.run("train", str(recipe), "--out", str(tmp_path), "data.num_workers=3")
    assert_same(Outcome.of(tmp_path / "faults" / "default"), undisturbed)


def test_another_seed(server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    server.run("train", str(recipe), "--out", str(tmp_path), "seed=4")
    other = Outcome.of(tmp_path / "faults" / "default")
    assert other.model != undisturbed.model
    assert other.metrics != undisturbed.metrics


@pytest.mark.slow
def test_everything_random_counts(server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    """Without it the other tests would prove little: each of the four changes the weights."""
    off = {
        "augmentation": "data.train.transforms=[]",
        "mixup": "data.mix=[]",
        "dropout": "task.dropout=0",
        "order": "data.shuffle=false",
    }
    short = "train.length=2it"
    server.run("train", str(recipe), short, "--out", str(tmp_path), "--name", "all")
    models = {(checkpoint(tmp_path / "faults" / "all", 2) / "model.safetensors").read_bytes()}
    for name, override in off.items():
        server.run("train", str(recipe), short, override, "--out", str(tmp_path), "--name", name)
        models.add((checkpoint(tmp_path / "faults" / name, 2) / "model.safetensors").read_bytes())
    assert len(models) == 5


def test_samples_are_logged_the_same_with_any_workers(server: Server, recipe: Path, tmp_path: Path) -> None:
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
    first = [line["sample_ids"] for line in lines[0] if "sample_ids" in line]
    assert [len(ids) for ids in first] == [8] * 5
    assert len({name for ids in first for name in ids}) == 40
    assert json.dumps(first)
