"""Ensembles: folders of several runs, the rules by which predictions are combined, and what cannot be combined."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import opabinia
from opabinia.cli import main
from opabinia.config import ConfigError
from opabinia.contracts import Batch, Detections, Predictions, Task
from opabinia.data.sources import Digits
from opabinia.models.embeddings import join_embeddings
from opabinia.tasks.detection.fusion import fuse_detections, unstack_detections
from opabinia.tasks.ensemble import Ensemble
from opabinia.training.launch import evaluate, train
from opabinia.training.trained_model import write_ensemble

SHORT = ["train.length=2it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0", "loggers=[]"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of three runs of two steps; tests must not change them."""
    out = tmp_path_factory.mktemp("runs")
    return [train("classification/digits", [*SHORT, f"seed={seed}"], out=out, name=f"seed{seed}")[0] for seed in (0, 1)]


@pytest.fixture
def ensemble(seeds: list[Path], tmp_path: Path) -> Path:
    """The folder of their ensemble."""
    write_ensemble(seeds, tmp_path / "both")
    return tmp_path / "both"


def test_probabilities_are_averaged(seeds: list[Path], ensemble: Path) -> None:
    images = [Digits()[index]["image"] for index in range(3)]
    both, *singles = (opabinia.load(folder)(images) for folder in (ensemble, *seeds))
    for row, *own in zip(both, *singles, strict=True):
        expected = torch.stack([single["probabilities"] for single in own]).mean(0)
        torch.testing.assert_close(row["probabilities"], expected)
        torch.testing.assert_close(row["logits"].softmax(0), expected)
        assert row.readable["top"][0]["probability"] == pytest.approx(float(expected.max()), abs=1e-5)


def test_embeddings_are_joined(seeds: list[Path], ensemble: Path) -> None:
    samples = [opabinia.load(ensemble).sample(Digits()[index]["image"]) for index in range(4)]
    both, *singles = (opabinia.load(folder).embeddings(samples) for folder in (ensemble, *seeds))
    torch.testing.assert_close(both @ both.T, torch.stack([rows @ rows.T for rows in singles]).mean(0))


def test_commands_take_the_folder(ensemble: Path, seeds: list[Path], tmp_path: Path) -> None:
    scores = evaluate(ensemble)
    saved = json.loads((ensemble / "eval" / "val" / "scores.json").read_text())
    assert saved["checkpoint"] == "ensemble of 2 runs (best)"
    assert saved["val/nll"] == scores["val/nll"]
    singles = [json.loads((run / "results.json").read_text())["val/nll"] for run in seeds]
    assert scores["val/nll"] <= sum(singles) / 2, "the mean of probabilities is no worse, by Jensen's inequality"
    other = evaluate(ensemble, ["data.val.source.split=train"], name="seen")
    assert other["seen/nll"] != scores["val/nll"]
    for words, status in (
        (["predict", str(ensemble), "--split", "val", "--max-images", "2"], 0),
        (["report", str(ensemble), "--no-images"], 0),
        (["ensemble", *map(str, seeds), "--out", str(tmp_path / "again")], 0),
        (["ensemble", *map(str, seeds), "--out", str(tmp_path / "again")], 2),
        (["ensemble", str(seeds[0]), "--out", str(tmp_path / "one")], 2),
    ):
        with pytest.raises(SystemExit) as error:
            main(words)
        assert error.value.code == status, words
    assert len(list((ensemble / "predictions" / "val" / "images").iterdir())) == 2
    assert (ensemble / "report.html").is_file()
    assert (tmp_path / "again" / "ensemble.json").read_text() == (ensemble / "ensemble.json").read_text()


def test_what_takes_one_run_says_so(
    ensemble: Path, seeds: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words, message in (
        (["extract", str(ensemble)], f"both is an ensemble of 2 runs, and this takes one of them, such as {seeds[0]}"),
        (["export", str(ensemble)], "both is an ensemble of 2 runs"),
        (["merge", str(ensemble), "--out", str(tmp_path / "x.safetensors")], "both is an ensemble of 2 runs"),
        (["train", str(ensemble), "--resume", "last"], "both is an ensemble of runs: resume one of them"),
        (["eval", str(ensemble), "--weights", "both"], "--weights: an ensemble has raw or EMA weights, not both"),
    ):
        with pytest.raises(SystemExit) as error:
            main(words)
        assert error.value.code == 2 and message in capsys.readouterr().err, words
    predictor = opabinia.load(ensemble)
    with pytest.raises(ValueError, match="a heatmap explains the prediction of one model"):
        predictor.explain([predictor.sample(Digits()[0]["image"])])


def test_runs_that_see_images_in_another_way_are_refused(seeds: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(seeds[1], tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("size: 32", "size: 64"))
    with pytest.raises(ConfigError, match=r"other: cannot be combined with .*seed0: transforms.0.size 64, there 32"):
        write_ensemble([seeds[0], other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- rules ------------------------------------------------------------------------------------------------------------


def detections(rows: Sequence[tuple[float, int, float]], masks: bool = False) -> Detections:
    """Return boxes of side 10 at the given left edges, with labels and scores."""
    boxes = torch.tensor([[left, 0.0, left + 10, 10.0] for left, _, _ in rows]).reshape(-1, 4)
    labels, scores = torch.tensor([label for _, label, _ in rows]).long(), torch.tensor([row[2] for row in rows])
    return Detections(boxes, scores, labels, torch.rand(len(rows), 2, 2) if masks else None)


def test_boxes_are_fused() -> None:
    first = detections([(0, 0, 0.8), (50, 0, 0.6), (0, 1, 0.5)])
    second = detections([(2, 0, 0.4), (90, 0, 0.9)])
    fused = fuse_detections([first, second])
    assert fused.scores.tolist() == pytest.approx([0.6, 0.45, 0.3, 0.25])
    assert fused.labels.tolist() == [0, 0, 0, 1], "boxes of another class are another object"
    assert fused.boxes[:, 0].tolist() == pytest.approx([(0.8 * 0 + 0.4 * 2) / 1.2, 90, 50, 0])
    # A model that sees an object twice counts once.
    twice = fuse_detections([detections([(0, 0, 0.8), (1, 0, 0.7)]), detections([])])
    assert twice.scores.tolist() == pytest.approx([0.4]) and len(twice.boxes) == 1
    assert len(fuse_detections([detections([]), detections([])]).scores) == 0


def test_masks_stay_in_their_box() -> None:
    first, second = detections([(0, 0, 0.8)], masks=True), detections([(2, 0, 0.9)], masks=True)
    fused = fuse_detections([first, second])
    assert fused.boxes[0, 0] == 2 and fused.masks is not None and torch.equal(fused.masks, second.masks)
    assert fused.scores.tolist() == pytest.approx([0.85])


def test_oriented_boxes_keep_the_best_one() -> None:
    turned, likewise = [20.0, 20, 10, 4, 30], [20.0, 20, 10, 4, -148]  # the same box but for two degrees
    across, flat = [20.0, 20, 10, 4, 120], [40.0, 20, 10, 0, 0]
    first = Detections(torch.tensor([turned, flat]), torch.tensor([0.8, 0.2]), torch.tensor([0, 0]))
    second = Detections(torch.tensor([likewise, across]), torch.tensor([0.9, 0.4]), torch.tensor([0, 0]))
    fused = fuse_detections([first, second])
    assert fused.boxes.tolist() == [likewise, across, flat]
    assert fused.scores.tolist() == pytest.approx([0.85, 0.2, 0.1])


def test_padding_is_removed() -> None:
    rows = detections([(0, 0, 0.8), (50, 1, 0.6)])
    padded = {
        "boxes": torch.stack([rows.boxes, rows.boxes]),
        "scores": torch.stack([rows.scores, rows.scores]),
        "labels": torch.tensor([[0, 1], [0, -1]]),
    }
    assert [len(image.scores) for image in unstack_detections(padded)] == [2, 1]


def test_the_product_of_joined_embeddings_is_the_mean_of_cosines() -> None:
    first, second = torch.rand(3, 4), 10 * torch.rand(3, 7)
    joined = join_embeddings([first, second])
    cosines = [normalize(rows, dim=1) @ normalize(rows, dim=1).T for rows in (first, second)]
    torch.testing.assert_close(joined @ joined.T, torch.stack(cosines).mean(0))


def test_a_task_without_a_rule_is_refused() -> None:
    class Plain(Task):
        def predict(self, batch: Batch) -> Predictions:
            return {"value": Tensor()}

    with pytest.raises(ValueError, match="predictions of several models of Plain cannot be combined"):
        Ensemble([Plain(), Plain()])
