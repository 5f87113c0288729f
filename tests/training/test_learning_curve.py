"""Learning curves: nested parts of the data, and short runs on them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import Source, SourceInfo
from opabinia.data.sources.subset import nested_order
from opabinia.training.launch import train
from opabinia.training.learning_curve import learning_curve

SHORT = ["train.length=12it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0", "data.batch_size=4"]


class Labeled(Source):
    """Samples with labels, which are never read."""

    def __init__(self, labels: list[int] | None, count: int = 0, identities: bool = False) -> None:
        self._count = len(labels) if labels else count
        self.info = SourceInfo(labels=np.array(labels) if labels else None, identities=identities)

    def __len__(self) -> int:
        return self._count


def test_parts_have_each_class() -> None:
    labels = [0] * 80 + [1] * 16 + [2] * 4
    order = nested_order(Labeled(labels))
    assert sorted(order.tolist()) == list(range(100))
    for part in (25, 50, 75):
        counts = np.bincount(np.array(labels)[order[:part]], minlength=3)
        assert np.abs(counts - np.array([80, 16, 4]) * part / 100).max() <= 1


def test_identities_stay_together() -> None:
    labels = np.arange(60) % 12
    runs = labels[nested_order(Labeled(labels.tolist(), identities=True))]
    assert (np.diff(runs) != 0).sum() == 11
    assert sorted(nested_order(Labeled(None, 7)).tolist()) == list(range(7))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of twelve steps of four images, of three classes with eight images each."""
    for number, name in enumerate("abc"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for sample in range(8):
            Image.new("L", (8, 8), 80 * number + sample).save(tmp_path / "data" / name / f"{sample}.png")
    source = f"{{name: image_folder, root: '{tmp_path / 'data'}', channels: 1}}"
    sources = [f"data.train.source={source}", f"data.val.source={source}"]
    return train("classification/digits", [*SHORT, *sources], out=tmp_path / "runs")[0]


def metrics(folder: Path, step_seconds: float) -> list[dict[str, Any]]:
    """Return the metrics log, with other times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "time/step": step_seconds, "time/val": 0.0} for line in lines]


def test_learning_curve_of_a_run(run: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    curve = learning_curve(run, metrics(run, 0.1), "val/top1", 60)
    assert curve is not None and curve.samples == (6, 12, 24) and curve.steps == 12
    assert curve.scores[-1] == json.loads((run / "results.json").read_text())["val/top1"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == before, "the runs are deleted"
    assert learning_curve(run, metrics(run, 0.1), "val/top1", 25, fractions=(0.1, 0.5)) is None, "less than a batch"


def test_with_little_time_all_data_is_trained_on_too(run: Path) -> None:
    lines = metrics(run, 10.0)
    curve = learning_curve(run, lines, "val/top1", 220)
    assert curve is not None and (curve.samples, curve.steps) == ((6, 12, 24), 6)
    assert learning_curve(run, lines, "val/top1", 200) is None, "five steps are no epoch of all data"
