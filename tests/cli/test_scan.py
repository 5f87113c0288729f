"""The commands predict (with a gallery), extract, search and map."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.data.sources import Digits
from tests.cli.conftest import CommandResult

Command = Callable[..., CommandResult]


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "gallery" / f"000{number % 3}_c{number % 2 + 1}_{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(Digits(split="val")[number]["image"][0].numpy()).save(path)
    return path.parent


def test_predict(opabinia: Command, six_steps: Path, gallery: Path, tmp_path: Path) -> None:
    """Files that cannot be decoded are reported and skipped; predictions of all others are written and drawn."""
    (tmp_path / "text.jpg").write_text("not an image")
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "TIFF")
    # Strip offsets that are text: PIL's plugin raises a TypeError.
    (tmp_path / "bad.tif").write_bytes(content.getvalue().replace(b"\x11\x01\x04\0", b"\x11\x01\x02\0"))
    Image.new("L", (8, 8)).save(tmp_path / "eps.png", "EPS")  # PIL would run Ghostscript
    broken = (tmp_path / "bad.tif", tmp_path / "text.jpg", tmp_path / "eps.png")
    result = opabinia("predict", six_steps, broken[0], gallery, *broken[1:], "--out", tmp_path / "out")
    assert result.status == 2 and "3 of 9 files were skipped" in result.err
    assert all(f"{path} cannot be decoded" in result.err for path in broken) and "it is no image" in result.err
    assert "Traceback" not in result.err
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == [str(path) for path in sorted(gallery.glob("*.png"))]
    with Image.open(tmp_path / "out" / "sheet-1.png") as sheet:
        assert sheet.size == (5 * 192, 2 * (192 + 3 + 4 * 14))


def test_predict_reports_all_missing_files_before_it_starts(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = (tmp_path / "no.png", tmp_path / "nor")
    result = opabinia("predict", six_steps, *missing, "--out", tmp_path / "out")
    assert result.status == 2 and all(f"there is no file or folder {path}" in result.err for path in missing)
    result = opabinia("predict", six_steps, tmp_path / "empty", "--out", tmp_path / "out")
    assert result.status == 2 and "empty has no images" in result.err
    assert not (tmp_path / "out").exists()


def test_predict_with_a_gallery(opabinia: Command, six_steps: Path, gallery: Path, tmp_path: Path) -> None:
    query = gallery / "0001_c2_1.png"
    options = ("--gallery", gallery, "--nearest", 9, "--explain", "--out", tmp_path / "out")
    result = opabinia("predict", six_steps, query, *options)
    assert result.status == 0, result.err
    assert f"{query}  nearest: {gallery}" in result.out and "1 image; predictions.jsonl and sheets are in" in result.out
    (prediction,) = map(json.loads, (tmp_path / "out" / "predictions.jsonl").read_text().splitlines())
    verdicts = {Path(neighbor["path"]).name: neighbor["verdict"] for neighbor in prediction["nearest"]}
    assert len(verdicts) == 5 and verdicts.pop("0001_c1_4.png") == "right" and set(verdicts.values()) == {"wrong"}
    assert (tmp_path / "out" / "sheets" / "00000-0001_c2_1.png").is_file()
    assert (tmp_path / "out" / "explained" / "00000-0001_c2_1.png").is_file()


def test_extract(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    result = opabinia("extract", six_steps, "--layers", "head, embedding", "--out", out)
    assert result.status == 0, result.err
    assert np.load(out / "head.npy").shape == (len(Digits(split="val")), 10)
    assert np.load(out / "embedding.npy").shape[1] > 10
    result = opabinia("extract", six_steps, "--split", "test", "--out", out)
    assert (result.status, result.err) == (2, "error: command line: --split: there is no 'test'; sets: train, val\n")
    assert opabinia("extract", six_steps, "--format", "csv").status == 2


def test_search(opabinia: Command, six_steps: Path, gallery: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the extra opabinia[search] is not installed")
    words = ("search", six_steps, gallery, gallery / "0001_c2_1.png", "--index", tmp_path / "index")
    result = opabinia(*words, "--nearest", 2)
    assert result.status == 0 and "building an index of 6 images" in result.err
    assert result.out.count(".png") == 3
    again = opabinia(*words, "--json")
    assert "building an index" not in again.err and len(json.loads(again.out)["nearest"]) == 5
    assert opabinia(*words, "nothing") == (2, "", "error: command line: there is no file or folder nothing\n")


def test_map(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    """Features are extracted once; the image next to them is not read as features."""
    folder = six_steps / "map" / "val"  # not the folder of the extract command
    result = opabinia("map", six_steps)
    assert result.status == 0 and f"a map of 360 samples is in {folder / 'map-pca.png'}" in result.out, result.err
    modified = (folder / "features.npy").stat().st_mtime_ns
    again = opabinia("map", six_steps, "--max-samples", 40, "--out", tmp_path / "map.png")
    assert again.status == 0 and "a map of 40 samples" in again.out, again.err
    assert (folder / "features.npy").stat().st_mtime_ns == modified
    assert "a map shows one set" in opabinia("map", six_steps, "--split", "all").err
    assert opabinia("map", tmp_path).err == (
        f"error: command line: {tmp_path} is neither a run nor a folder of features (no about.json)\n"
    )
