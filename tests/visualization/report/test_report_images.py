"""Images of the report: choice of samples, missing data, and limits of the page."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.cli.report import leave_report
from opabinia.inference import report_galleries
from opabinia.inference.load import RunModel
from opabinia.inference.report_galleries import round_robin, spread_samples
from opabinia.inference.report_images import write_images
from opabinia.training import launch
from opabinia.visualization.report import write_report
from opabinia.visualization.report.images import ByteBudget, galleries_of, read_index

SHORT = ["train.length=3it", "data.num_workers=0", "data.batch_size=32", "loggers=[]", "schedule.warmup=1it"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier trained for three steps."""
    return launch.train("classification/digits", SHORT, out=tmp_path_factory.mktemp("runs"))[0]


# --- which samples ----------------------------------------------------------------------------------------------------


def test_samples_are_spread_over_classes() -> None:
    assert spread_samples(5, np.array([0, 0, 1, 1, 1]), 5) == [0, 1, 2, 3, 4]
    assert spread_samples(100, None, 4) == [0, 25, 50, 75]
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    assert Counter(labels[spread_samples(1000, labels, 60)].tolist()) == {0: 20, 1: 20, 2: 10}
    labels = np.arange(1000).repeat(4)
    counts = Counter(labels[spread_samples(4000, labels, 100)].tolist())
    assert set(counts.values()) == {4} and len(counts) == 25, "of many classes some, with all their samples"


def test_round_robin_alternates_classes() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    assert round_robin(labels, range(6), 4) == [0, 3, 5, 1]


# --- a run ------------------------------------------------------------------------------------------------------------


def test_images_of_a_classifier(run: Path) -> None:
    write_images(RunModel(run))
    index = json.loads((run / "pictures" / "index.json").read_text())
    assert not index["missing"]
    titles = [group["title"] for group in index["groups"]]
    assert titles[:2] == ["Some of the training data", "Most wrong"]
    assert [split["set"] for split in index["counts"]] == ["train", "val"]
    assert sum(index["counts"][1]["of_class"].values()) == index["counts"][1]["samples"] == 360
    (wrong,) = (group for group in index["groups"] if group["title"] == "Most wrong")
    shown = [entry for row in wrong["rows"] for entry in row["pictures"]]
    assert {entry["verdict"] for entry in shown} == {"wrong"}
    with Image.open(run / "pictures" / shown[0]["file"]) as image:
        assert image.format == "WEBP"
    page = write_report([run]).read_text()
    assert "Most wrong" in page and page.count("data:image/webp;base64,") >= 24 + len(shown)


def test_the_most_wrong_are_those_of_the_whole_evaluation(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_galleries, "PREDICTED", 10)
    monkeypatch.setattr(report_galleries, "PREDICTED_PER_CLASS", 5)
    (run / "pictures" / "index.json").unlink(missing_ok=True)
    write_images(RunModel(run))
    groups = {group["title"]: group for group in json.loads((run / "pictures" / "index.json").read_text())["groups"]}
    details = json.loads((run / "eval" / "val" / "details.json").read_text())
    shown = [image["text"].split(" · ")[1] for row in groups["Most wrong"]["rows"] for image in row["pictures"]]
    assert shown == [sample["id"] for sample in details["worst"][: report_galleries.SHOWN]]
    wrong = sum(count for row, column, count in details["confusion"] if row != column)
    assert groups["Most wrong"]["note"].startswith(f"{wrong} of 360 samples are wrong")
    pairs = [(row, column, count) for row, column, count in details["confusion"] if row != column]
    row, column, count = max(pairs, key=lambda pair: (pair[2], pair[0], pair[1]))
    assert groups["Most confused"]["rows"][0]["title"] == f"{row} taken for {column}: {count}"
    (run / "pictures" / "index.json").unlink()


def test_images_are_made_once_per_checkpoint(run: Path) -> None:
    write_images(RunModel(run))
    index = run / "pictures" / "index.json"
    before = index.stat().st_mtime_ns
    write_images(RunModel(run))
    assert index.stat().st_mtime_ns == before
    write_images(RunModel(run, ["data.val.transforms=[{name: Resize, size: 40}]"]))
    assert index.stat().st_mtime_ns != before, "other overrides"
    index.write_text("{}")
    write_images(RunModel(run))
    assert json.loads(index.read_text())["groups"]


def test_queries_that_cannot_be_read_leave_the_predictions(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("pictures")))
    file = copy / "eval" / "val" / "details.json"
    query = {"query": "removed", "nearest": [], "right": [], "AP": 0.0, "first_match": 1}
    file.write_text(json.dumps({**json.loads(file.read_text()), "retrieval": {"worst": [query]}}))
    write_images(RunModel(copy))
    index = json.loads((copy / "pictures" / "index.json").read_text())
    assert [group["title"] for group in index["groups"]][:2] == ["Some of the training data", "Most wrong"]
    assert index["missing"] == ["images of val: 'removed'"]


def test_missing_data_is_reported(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("checkpoints", "metrics.jsonl"):
        (copy / name).symlink_to(run / name)
    config = (run / "config.yaml").read_text()
    source = f"{{name: image_folder, root: {tmp_path}/nowhere, channels: 1}}"
    for split in ("train", "val"):
        config = config.replace(f"source: {{name: digits, split: {split}}}", f"source: {source}")
    (copy / "config.yaml").write_text(config)
    write_images(RunModel(copy))
    index = json.loads((copy / "pictures" / "index.json").read_text())
    assert not index["groups"]
    assert len(index["missing"]) == 2 and "nowhere" in index["missing"][0]
    assert "its data is not there" in write_report([copy]).read_text()


def test_a_report_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_report(tmp_path / "nowhere")
    assert "no report of" in capsys.readouterr().err


# --- on the page ------------------------------------------------------------------------------------------------------


def add_images(folder: Path, names: list[str]) -> Path:
    (folder / "pictures").mkdir()
    for name in names:
        Image.new("RGB", (40, 20), (200, 10, 10)).save(folder / "pictures" / name, "WEBP")
    entries = [{"file": name, "text": name} for name in names]
    index = {"groups": [{"title": "some", "rows": [{"pictures": entries}]}]}
    (folder / "pictures" / "index.json").write_text(json.dumps(index))
    return folder


def galleries(folder: Path, budget: ByteBudget) -> tuple[list[str], list[str]]:
    """Captions of the images on the page, and notes."""
    notes: list[str] = []
    groups = galleries_of(folder, read_index(folder, notes), budget, notes)
    return [image.text for group in groups for row in group.rows for image in row.images], notes


def test_images_beyond_the_byte_budget_are_omitted(tmp_path: Path) -> None:
    add_images(tmp_path, ["a.webp", "b.webp", "c.webp"])
    size = (tmp_path / "pictures" / "a.webp").stat().st_size
    assert galleries(tmp_path, ByteBudget(2 * size))[0] == ["a.webp", "b.webp"]
    assert "1 image omitted" in galleries(tmp_path, ByteBudget(2 * size))[1][0]


def test_files_outside_of_the_folder_are_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret.webp"
    Image.new("RGB", (4, 4)).save(secret, "WEBP")
    add_images(tmp_path, ["a.webp"])
    (tmp_path / "pictures" / "link.webp").symlink_to(secret)
    (tmp_path / "pictures" / "page.webp").write_text("<script>alert(1)</script>")
    names = ["../secret.webp", str(secret), "link.webp", "page.webp", "none.webp", "", "."]
    rows = [{"pictures": [{"file": name} for name in names]}]
    (tmp_path / "pictures" / "index.json").write_text(json.dumps({"groups": [{"rows": rows}]}))
    assert galleries(tmp_path, ByteBudget())[0] == []


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("transparent", [False, True])
def test_image_sizes_are_read_from_the_file(tmp_path: Path, lossless: bool, transparent: bool) -> None:
    folder = add_images(tmp_path, ["a.webp"])
    color = (1, 2, 3, 128) if transparent else (1, 2, 3)
    Image.new("RGBA" if transparent else "RGB", (37, 211), color).save(
        folder / "pictures" / "a.webp", "WEBP", lossless=lossless
    )
    notes: list[str] = []
    (gallery,) = galleries_of(folder, read_index(folder, notes), ByteBudget(), notes)
    assert gallery.rows[0].images[0].size == (37, 211)
