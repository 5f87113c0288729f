"""``opabinia data select``: rounds of images to label next, and errors."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from opabinia.config import ConfigError
from opabinia.contracts import Source
from opabinia.data.sources import Digits, DigitScenes, cvat, labelme
from opabinia.inference.load import RunModel
from opabinia.inference.selection.collect import training_split
from opabinia.visualization.drawing import to_pil
from tests.cli.conftest import SIX_STEPS, CommandResult

Command = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def unlabeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 30 digits."""
    folder, digits = tmp_path_factory.mktemp("unlabeled"), Digits(split="val")
    for index in range(30):
        to_pil(digits[index]["image"]).save(folder / f"{index:02d}.png")
    return folder


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_rounds_choose_different_images(opabinia: Command, copied_run: Path, unlabeled: Path) -> None:
    first = opabinia("data", "select", copied_run, unlabeled, "--count", 8)
    assert first.status == 0, first.err
    out = copied_run / "select"
    rows = rows_of(out / "1" / "selected.csv")
    assert list(rows[0]) == ["rank", "path", "uncertainty", "distance", "predicted"]
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 9)]
    assert all(0 < float(row["uncertainty"]) <= 1 and row["distance"] and "%" in row["predicted"] for row in rows)
    page = (out / "1" / "selected.html").read_text()
    assert page.count("<figure") == 8 and Path(rows[0]["path"]).name in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # it needs no network
    second = opabinia("data", "select", copied_run, unlabeled, "--count", 22)
    assert second.status == 0 and "chosen: 22 images" in second.out
    others = rows_of(out / "2" / "selected.csv")
    assert len({row["path"] for row in [*rows, *others]}) == 30
    curve = rows_of(out / "rounds.csv")
    assert [(row["round"], row["labeled"], row["chosen"]) for row in curve] == [("1", "1437", "8"), ("2", "1437", "22")]
    assert float(curve[0]["val/top1"]) > 0 and curve[0]["strategy"] == "both" and curve[0]["run"] == str(copied_run)
    third = opabinia("data", "select", copied_run, unlabeled, "--count", 1)
    assert third.status == 2 and len(third.err.splitlines()) == 1
    assert "--count: 1 images are to be chosen, and there are 0 of 30, without those of earlier rounds" in third.err


def test_a_seed_gives_the_same_images_and_a_strategy_others(
    opabinia: Command, six_steps: Path, unlabeled: Path, tmp_path: Path
) -> None:
    def chosen(*options: object) -> list[dict[str, str]]:
        """Return the rows of a first round; only the features of the training data stay."""
        result = opabinia("data", "select", six_steps, unlabeled, "--count", 6, "--out", tmp_path, *options)
        assert result.status == 0, result.err
        rows = rows_of(tmp_path / "1" / "selected.csv")
        shutil.rmtree(tmp_path / "1")
        return rows

    by_uncertainty = chosen("--strategy", "uncertainty", "--measure", "entropy")
    values = [float(row["uncertainty"]) for row in by_uncertainty]
    assert values == sorted(values, reverse=True)
    assert not (tmp_path / "labeled").exists(), "uncertainty needs no features of the training data"
    by_both = chosen("--seed", 3)
    assert by_both == chosen("--seed", 3) != chosen("--seed", 4)
    paths = [[row["path"] for row in rows] for rows in (chosen("--strategy", "diversity"), by_uncertainty, by_both)]
    assert paths[0] not in paths[1:]


def test_drafts_are_the_predictions(opabinia: Command, six_steps: Path, unlabeled: Path, tmp_path: Path) -> None:
    result = opabinia("data", "select", six_steps, unlabeled, "--count", 5, "--out", tmp_path, "--export", "cvat")
    assert result.status == 0, result.err
    images = ET.parse(tmp_path / "1" / "cvat" / "annotations.xml").getroot().findall("image")
    rows = rows_of(tmp_path / "1" / "selected.csv")
    assert [image.get("name") for image in images] == [Path(row["path"]).name for row in rows]
    for image, row in zip(images, rows, strict=True):
        assert image.find("tag").get("label") == row["predicted"].split()[0]  # type: ignore[union-attr]
        name = image.get("name") or ""
        assert (tmp_path / "1" / "cvat" / "images" / name).read_bytes() == (unlabeled / name).read_bytes()


def test_near_duplicates_are_chosen_once_and_unreadable_files_reported(
    opabinia: Command, six_steps: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (3, 8, 9), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        image = Image.fromarray(pixels).resize((90, 80), Image.Resampling.BICUBIC)
        image.save(photos / f"{number}.png")
        image.save(photos / f"{number}.jpg", quality=60)
    (photos / "broken.png").write_text("no image")
    options = ["--set", "data.val.transforms=[{name: Resize, size: [8, 8]}]", "--out", tmp_path / "out"]
    result = opabinia("data", "select", six_steps, photos, "--count", 5, *options)
    assert result.status == 2 and "1 of 7 files were skipped" in result.err and "broken.png" in result.err
    assert "only 3 images: the others are near-duplicates of chosen ones" in result.err
    assert sorted(Path(row["path"]).stem for row in rows_of(tmp_path / "out/1/selected.csv")) == ["0", "1", "2"]


def test_training_images_are_not_chosen(opabinia: Command, tmp_path: Path, unlabeled: Path) -> None:
    """The folder holds the images that the run was trained on, too."""
    for number, path in enumerate(sorted(unlabeled.iterdir())):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "photos" / "ab"[number % 2])
    rows = ["path,label", *(f"{'ab'[number % 2]}/{number:02d}.png,{'ab'[number % 2]}" for number in range(20))]
    (tmp_path / "photos" / "list.csv").write_text("\n".join(rows))
    source = f"{{name: table, file: {tmp_path}/photos/list.csv, channels: 1}}"
    words = [f"data.{part}.source={source}" for part in ("train", "val")]
    trained = opabinia("train", "classification/digits", *SIX_STEPS, *words, "--out", tmp_path / "runs")
    assert trained.status == 0, trained.err
    run = tmp_path / "runs/classification/digits/default"
    result = opabinia("data", "select", run, tmp_path / "photos", "--count", 11)
    assert result.status == 2 and "11 images are to be chosen, and there are 10" in result.err
    result = opabinia("data", "select", run, tmp_path / "photos", "--count", 10)
    assert result.status == 0, result.err
    shutil.rmtree(tmp_path / "photos" / "a")
    result = opabinia("data", "select", run, unlabeled, "--count", 5, "--out", tmp_path / "out")
    assert result.status == 0 and "note: the training data is not here" in result.err, result.err


# --- models without classes or features -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a self-supervised method, whose predictions are embeddings."""
    from opabinia.training.launch import train

    words = [*SIX_STEPS, "train.length=2it"]
    folder, _ = train("selfsup/digits_vicreg", words, out=tmp_path_factory.mktemp("runs"))
    return folder


def test_embeddings_have_no_uncertainty(
    opabinia: Command, embeddings: Path, unlabeled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = opabinia("data", "select", embeddings, unlabeled, "--count", 4, "--out", tmp_path)
    assert result.status == 0, result.err
    assert "note: chosen by diversity alone: " in result.err and "predicts no classes" in result.err
    rows = rows_of(tmp_path / "1" / "selected.csv")
    assert len(rows) == 4 and all(row["uncertainty"] == row["predicted"] == "" for row in rows)
    monkeypatch.setattr("opabinia.inference.selection.collect.compute_hash", None)  # refused before any image is kept
    for strategy in ("uncertainty", "both"):
        result = opabinia("data", "select", embeddings, unlabeled, "--count", 4, "--strategy", strategy)
        assert result.status == 2 and "--strategy: " in result.err and "--strategy diversity is possible" in result.err


# --- other tasks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 6 scenes."""
    folder, source = tmp_path_factory.mktemp("scenes"), DigitScenes(split="val")
    for index in range(6):
        to_pil(source[index]["image"]).save(folder / f"{index}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "tool", "read"),
    [
        ("detection/digits", "labelme", lambda out: labelme(root=out / "images")),
        (
            "detection/digits_oriented",
            "cvat",
            lambda out: cvat(root=out / "images", file=out / "annotations.xml", broken="fix"),
        ),
        ("segmentation/digits", "cvat", lambda out: cvat(root=out / "images", file=out / "annotations.xml")),
    ],
)
def test_boxes_and_maps(
    opabinia: Command, scenes: Path, tmp_path: Path, recipe: str, tool: str, read: Callable[[Path], Source]
) -> None:
    words = [*SIX_STEPS, "train.length=2it", "data.batch_size=2"]
    trained = opabinia("train", recipe, *words, "--out", tmp_path / "runs")
    assert trained.status == 0, trained.err
    out = tmp_path / "out"
    options = ["--count", 4, "--out", out, "--export", tool, "--score", 0.05, "--strategy", "uncertainty"]
    result = opabinia("data", "select", tmp_path / "runs" / recipe / "default", scenes, *options)
    assert result.status == 0, result.err
    rows = rows_of(out / "1" / "selected.csv")
    assert len(rows) == 4 and all(0 <= float(row["uncertainty"]) <= 1 for row in rows)
    source = read(out / "1" / tool)
    assert sorted(source.id(index) for index in range(len(source))) == sorted(Path(row["path"]).name for row in rows)


def test_the_training_data_of_a_task_of_a_multi_task_run() -> None:
    model = RunModel(Path("multitask/digits"))
    assert training_split(model, "maps") == "boxes/train" and training_split(model, "identities") == "identities/train"
    assert training_split(RunModel(Path("classification/digits")), "") == "train"
    with pytest.raises(ConfigError, match=r"--task: multitask/digits has several tasks: give one; tasks: boxes, maps"):
        training_split(model, "")
    with pytest.raises(ConfigError, match="there is no 'masks'"):
        training_split(model, "masks")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["UNLABELED", "--count", "31"], "31 images are to be chosen, and there are 30"),
        (["UNLABELED", "--count", "0"], "--count"),
        (["UNLABELED"], "--count"),
        (["none", "--count", "3"], "none"),
        (["UNLABELED", "--count", "3", "--strategy", "luck"], "luck"),
        (["UNLABELED", "--count", "3", "--task", "boxes"], "the run has one task only"),
        (["EMPTY", "--count", "3"], "has no images"),
        (["BROKEN", "--count", "1"], "no image can be read"),
    ],
)
def test_wrong_arguments(
    opabinia: Command, six_steps: Path, unlabeled: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("no image")
    names = {"UNLABELED": unlabeled, "EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken.png"}
    words = [str(names.get(word, word)) for word in arguments]
    result = opabinia("data", "select", six_steps, *words, "--out", tmp_path / "out")
    assert result.status == 2 and message in result.err and "Traceback" not in result.err, result.err
    assert not (tmp_path / "out").exists()


def test_a_damaged_record(opabinia: Command, six_steps: Path, unlabeled: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "round.json").write_text('{"round": "one"}')
    result = opabinia("data", "select", six_steps, unlabeled, "--count", 3, "--out", tmp_path)
    assert result.status == 2 and str(tmp_path / "1" / "round.json") in result.err
    assert len(result.err.splitlines()) == 1


def test_a_recipe_is_no_run(opabinia: Command, unlabeled: Path) -> None:
    result = opabinia("data", "select", "classification/digits", unlabeled, "--count", 3)
    assert result.status == 2 and "is a recipe" in result.err
