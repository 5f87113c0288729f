"""Baselines: scores of constant answers and of the most similar thumbnails, by hand and on the embedded datasets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.training.baselines import constant_baseline, pixel_baseline
from opabinia.training.run_folder import resolve

LABELS = [{"class": "cat", "samples": 30}, {"class": "dog", "samples": 10}, {"class": "cow", "samples": 0}]
PIXELS = [{"class": "road", "pixels": 600}, {"class": "tree", "pixels": 400}]
OBJECTS = [{"class": "cell", "objects": 7, "AP": 0.1}]

CONSTANTS: list[tuple[str, Sequence[Any], float, str]] = [
    ("val/top1", LABELS, 0.75, 'always answering "cat"'),
    ("val_ema/mean_recall", LABELS, 0.5, "always answering one class"),
    ("val/mAP", LABELS, 0.5, "equal scores for all images"),  # of 40 images 30 and 10 have the label
    ("val/mA", LABELS, 0.5, "the same answer for all images"),
    ("val/mIoU", PIXELS, 0.3, '"road" for all pixels'),
    ("val/AP", OBJECTS, 0.0, "finding nothing"),
    ("val/PQ", [], 0.0, "finding nothing"),
]


@pytest.mark.parametrize(("metric", "rows", "score", "text"), CONSTANTS)
def test_constant_answers(metric: str, rows: Sequence[Any], score: float, text: str) -> None:
    assert constant_baseline(metric, {"per_class": rows}, 40) == (text, pytest.approx(score))


def test_scores_without_a_constant_baseline() -> None:
    assert constant_baseline("val/mAP", {"retrieval": {"queries": 3}}, 9) is None
    assert constant_baseline("val/mAP", {"per_class": LABELS}, None) is None
    assert constant_baseline("val/ece", {"per_class": LABELS}, 40) is None


def write_images(root: Path, classes: Sequence[str], shift: int) -> None:
    """Write six images of each class with an edge at the place of the class, each of its own brightness and noise."""
    random = np.random.default_rng(shift)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for sample in range(6):
            pixels = random.normal(80 + 10 * sample, 5, (40, 60))
            pixels[:, 20 * number : 20 * number + 20] += 60
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB").save(root / name / f"{sample}.jpg")


def test_the_most_similar_training_image(tmp_path: Path) -> None:
    names = ["left", "middle", "right"]
    write_images(tmp_path / "train", names, 0)
    write_images(tmp_path / "val", names, 1)
    (tmp_path / "val" / "left" / "0.jpg").write_bytes(b"broken")
    resolved = resolve("classification/image_folder", [f"vars.root={tmp_path}"])
    for metric in ("val/top1", "val/mean_recall"):
        baseline = pixel_baseline(resolved, metric, 10)
        assert baseline is not None and baseline.score == 1.0
        assert baseline.text == "class of the most similar training image (16 x 16 pixels)"
    assert pixel_baseline(resolved, "val/AP", 10) is None
    assert pixel_baseline(resolved, "test/top1", 10) is None


EMBEDDED = [
    ("classification/digits", "val/top1", 0.97, 1.0),
    pytest.param("video/digits", "val/top1", 0.1, 0.9, marks=pytest.mark.slow),
    pytest.param("selfsup/digits_simclr", "val_ema/knn_top1", 0.4, 0.7, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("recipe", "metric", "low", "high"), EMBEDDED)
def test_embedded_datasets(recipe: str, metric: str, low: float, high: float) -> None:
    baseline = pixel_baseline(resolve(recipe), metric, 20)
    assert baseline is not None and low < baseline.score < high


def test_a_gallery_is_read_as_a_whole(shared_data: Path) -> None:
    resolved = resolve("reid/grocery", [f"vars.root={shared_data / 'grocery_reid'}"])
    baseline = pixel_baseline(resolved, "val/mAP", 30)
    assert baseline is not None and baseline.score == pytest.approx(0.061, abs=0.003), "as its README says"
    assert pixel_baseline(resolved, "val/mAP", 0) is None
