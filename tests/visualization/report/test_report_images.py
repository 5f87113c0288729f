"""Images for the report: which samples are shown, what is reported where the data is gone, and what a page takes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.cli.report import leave_report
from opabinia.inference import report_galleries
from opabinia.inference.report_galleries import round_robin, spread_samples
from opabinia.inference.report_images import gather
from opabinia.training import launch
from opabinia.visualization.report import write_report
from opabinia.visualization.report.images import ByteBudget, galleries_of, read_index

SHORT = ["train.length=3it", "data.num_workers=0", "data.batch_size=32", "loggers=[]", "schedule.warmup=1it"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that has learned a little."""
    return launch.train("classification/digits", SHORT, out=tmp_path_factory.mktemp("runs"))[0]


# --- which samples ----------------------------------------------------------------------------------------------------


def test_few_samples_are_all_taken() -> None:
    assert spread_samples(5, np.array([0, 0, 1, 1, 1]), 5) == [0, 1, 2, 3, 4]


def test_samples_without_classes_lie_at_even_distances() -> None:
    assert spread_samples(100, None, 4) == [0, 25, 50, 75]


def test_equally_many_of_a_few_classes() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    taken = Counter(labels[spread_samples(1000, labels, 60)].tolist())
    assert taken == {0: 20, 1: 20, 2: 10}


def test_of_many_classes_some_are_taken_whole() -> None:
    labels = np.arange(1000).repeat(4)
    taken = Counter(labels[spread_samples(4000, labels, 100)].tolist())
    assert set(taken.values()) == {4}
    assert len(taken) == 25


def test_classes_take_turns() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    assert round_robin(labels, range(6), 4) == [0, 3, 5, 1]


# --- a run ------------------------------------------------------------------------------------------------------------


def test_images_of_a_classifier(run: Path) -> None:
    gather(run)
    index = json.loads((run / "pictures" / "index.json").read_text())
    assert not index["missing"]
    titles = [group["title"] for group in index["groups"]]
    assert titles[:2] == ["Some of the training data", "Most wrong"]
    assert [one["set"] for one in index["counts"]] == ["train", "val"]
    assert sum(index["counts"][1]["of_class"].values()) == index["counts"][1]["samples"] == 360
    (wrong,) = (group for group in index["groups"] if group["title"] == "Most wrong")
    shown = [one for row in wrong["rows"] for one in row["pictures"]]
    assert {one["verdict"] for one in shown} == {"wrong"}
    with Image.open(run / "pictures" / shown[0]["file"]) as image:
        assert image.format == "WEBP"
    page = write_report([run]).read_text()
    assert "Most wrong" in page and page.count("data:image/webp;base64,") >= 24 + len(shown)


def test_the_most_wrong_are_those_of_the_whole_evaluation(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_galleries, "PREDICTED", 10)
    monkeypatch.setattr(report_galleries, "PREDICTED_PER_CLASS", 5)
    (run / "pictures" / "index.json").unlink(missing_ok=True)
    gather(run)
    groups = {group["title"]: group for group in json.loads((run / "pictures" / "index.json").read_text())["groups"]}
    details = json.loads((run / "eval" / "val" / "details.json").read_text())
    shown = [one["text"].split(" · ")[1] for row in groups["Most wrong"]["rows"] for one in row["pictures"]]
    assert shown == [one["id"] for one in details["worst"][: report_galleries.SHOWN]]
    wrong = sum(count for row, column, count in details["confusion"] if row != column)
    assert groups["Most wrong"]["note"].startswith(f"{wrong} of 360 samples are wrong")
    pairs = [(row, column, count) for row, column, count in details["confusion"] if row != column]
    row, column, count = max(pairs, key=lambda one: (one[2], one[0], one[1]))
    assert groups["Most confused"]["rows"][0]["title"] == f"{row} taken for {column}: {count}"
    (run / "pictures" / "index.json").unlink()


def test_they_are_made_once_for_a_checkpoint(run: Path) -> None:
    gather(run)
    index = run / "pictures" / "index.json"
    before = index.stat().st_mtime_ns
    gather(run)
    assert index.stat().st_mtime_ns == before
    index.write_text("{}")
    gather(run)
    assert json.loads(index.read_text())["groups"]


def test_data_that_is_gone_is_reported(run: Path, tmp_path: Path) -> None:
    gone = tmp_path / "run"
    gone.mkdir()
    for name in ("checkpoints", "metrics.jsonl"):
        (gone / name).symlink_to(run / name)
    config = (run / "config.yaml").read_text()
    source = f"{{name: image_folder, root: {tmp_path}/nowhere, channels: 1}}"
    for split in ("train", "val"):
        config = config.replace(f"source: {{name: digits, split: {split}}}", f"source: {source}")
    (gone / "config.yaml").write_text(config)
    gather(gone)
    index = json.loads((gone / "pictures" / "index.json").read_text())
    assert not index["groups"]
    assert len(index["missing"]) == 2 and "nowhere" in index["missing"][0]
    assert "its data is not there" in write_report([gone]).read_text()


def test_a_report_that_cannot_be_written_fails_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_report(tmp_path / "nowhere")
    assert "no report of" in capsys.readouterr().err


# --- on the page ------------------------------------------------------------------------------------------------------


def put(folder: Path, names: list[str]) -> Path:
    (folder / "pictures").mkdir()
    for name in names:
        Image.new("RGB", (40, 20), (200, 10, 10)).save(folder / "pictures" / name, "WEBP")
    entries = [{"file": name, "text": name} for name in names]
    index = {"groups": [{"title": "some", "rows": [{"pictures": entries}]}]}
    (folder / "pictures" / "index.json").write_text(json.dumps(index))
    return folder


def galleries(folder: Path, budget: ByteBudget) -> tuple[list[str], list[str]]:
    """Texts of the images that come onto the page, and notes."""
    notes: list[str] = []
    found = galleries_of(folder, read_index(folder, notes), budget, notes)
    return [one.text for group in found for row in group.rows for one in row.images], notes


def test_only_so_many_bytes_of_images(tmp_path: Path) -> None:
    put(tmp_path, ["a.webp", "b.webp", "c.webp"])
    size = (tmp_path / "pictures" / "a.webp").stat().st_size
    assert galleries(tmp_path, ByteBudget(2 * size))[0] == ["a.webp", "b.webp"]
    assert "1 image omitted" in galleries(tmp_path, ByteBudget(2 * size))[1][0]


def test_only_images_of_the_folder_itself(tmp_path: Path) -> None:
    secret = tmp_path / "secret.webp"
    Image.new("RGB", (4, 4)).save(secret, "WEBP")
    put(tmp_path, ["a.webp"])
    (tmp_path / "pictures" / "link.webp").symlink_to(secret)
    (tmp_path / "pictures" / "page.webp").write_text("<script>alert(1)</script>")
    names = ["../secret.webp", str(secret), "link.webp", "page.webp", "none.webp", "", "."]
    rows = [{"pictures": [{"file": name} for name in names]}]
    (tmp_path / "pictures" / "index.json").write_text(json.dumps({"groups": [{"rows": rows}]}))
    assert galleries(tmp_path, ByteBudget())[0] == []


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("transparent", [False, True])
def test_sizes_are_those_of_the_file(tmp_path: Path, lossless: bool, transparent: bool) -> None:
    folder = put(tmp_path, ["a.webp"])
    color = (1, 2, 3, 128) if transparent else (1, 2, 3)
    Image.new("RGBA" if transparent else "RGB", (37, 211), color).save(
        folder / "pictures" / "a.webp", "WEBP", lossless=lossless
    )
    notes: list[str] = []
    (gallery,) = galleries_of(folder, read_index(folder, notes), ByteBudget(), notes)
    assert gallery.rows[0].images[0].size == (37, 211)
