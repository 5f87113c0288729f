"""Inference with a trained detector: the Python API, the predict command and other commands."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import opabinia
from opabinia.cli.commands import app
from opabinia.data.sources import DigitScenes
from opabinia.inference import compare
from opabinia.inference.predictor import Prediction, Predictor
from opabinia.training import launch

RECIPE = """
plugins: [tests.faults.parts]
task:
  name: detection
  backbone: {name: timm, model: test_resnet}
  detector: {name: fcos, neck: {name: fpn_p3_p7, channels: 64}, num_convs: 1, score_threshold: 0.01, max_detections: 20}
  mean: [0.4]
  std: [0.25]
data:
  train: {source: {name: some_scenes, n: 24, split: val}}
  val:
    source: {name: some_scenes, n: 6, split: val}
    transforms: [{name: resize_shortest_edge, short_edge_length: 96}]
  batch_size: 8
optimizer: {name: adamw, lr: 0.003}
train: {length: 6it, num_threads: 1}
evaluate: {every: 6it, batch_size: 4}
loggers: []
seed: 0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detection")
    (folder / "fcos.yaml").write_text(RECIPE)
    return launch.train(str(folder / "fcos.yaml"), [], out=folder / "runs")[0]


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return opabinia.load(run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save three scenes as files: original, twice as wide, cropped."""
    folder = tmp_path_factory.mktemp("images")
    source = DigitScenes(split="val")
    images = [Image.fromarray(source[number]["image"][0].numpy()) for number in range(3)]
    for name, image in zip(
        "abc", (images[0], images[1].resize((256, 128)), images[2].crop((0, 0, 128, 80))), strict=True
    ):
        image.save(folder / f"{name}.png")
    return folder


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def detected_boxes(prediction: Prediction) -> torch.Tensor:
    return prediction["boxes"][prediction["labels"] >= 0]


# --- from Python ------------------------------------------------------------------------------------------------------


def test_single_images_and_batches_of_any_size_agree(predictor: Predictor, folder: Path) -> None:
    paths = sorted(folder.glob("*.png"))
    batched = predictor(paths)
    for path, prediction in zip(paths, batched, strict=True):
        single = predictor(path)
        assert torch.equal(single["labels"], prediction["labels"]) and len(detected_boxes(prediction)) > 0
        assert torch.allclose(single["boxes"], prediction["boxes"], atol=1e-3)
        assert torch.allclose(single["scores"], prediction["scores"], atol=1e-5)
    samples = [predictor.sample(path) for path in paths]
    for sample, expected in zip(samples, predictor.embeddings(samples), strict=True):
        assert torch.allclose(predictor.embeddings([sample])[0], expected, atol=1e-5) and expected.shape == (96,)


def test_boxes_are_in_the_pixels_of_the_image(predictor: Predictor, folder: Path) -> None:
    """The model resizes both to the same size."""
    with Image.open(folder / "a.png") as image:
        large = image.resize((256, 256), Image.Resampling.NEAREST)
        original, doubled = predictor(image), predictor(large)
    best = [detected_boxes(prediction)[0] for prediction in (original, doubled)]
    assert torch.allclose(best[0] * 2, best[1], atol=3)
    for prediction, side in ((original, 128), (doubled, 256)):
        assert detected_boxes(prediction).max() <= side and detected_boxes(prediction).min() >= 0
        assert detected_boxes(prediction)[:, 2:].max() > side / 2


# --- the predict command ----------------------------------------------------------------------------------------------


def test_the_command_writes_and_draws_detections(run: Path, folder: Path, tmp_path: Path) -> None:
    result = command("predict", run, folder, "--out", tmp_path, "--score", "0.011")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["a.png", "b.png", "c.png"]
    for line, (width, height) in zip(lines, ((128, 128), (256, 128), (128, 80)), strict=True):
        corners = np.array([detection["box"] for detection in line["detections"]])
        assert (corners >= 0).all() and (corners[:, 2] <= width).all() and (corners[:, 3] <= height).all()
        assert {detection["class"] for detection in line["detections"]} <= set("0123456789")
    sizes = []
    for path in sorted((tmp_path / "images").iterdir()):
        with Image.open(path) as drawing:
            sizes.append((path.name, drawing.size))
            colours = {colour for _, colour in drawing.getcolors(1 << 20) or ()}
        assert any(len(set(colour)) > 1 for colour in colours), "something is drawn on a grey image"
    assert sizes == [("00000-a.png", (512, 512)), ("00001-b.png", (512, 256)), ("00002-c.png", (512, 320))]
    assert (tmp_path / "sheet-1.png").is_file()
    result = command("predict", run, folder / "a.png", "--out", tmp_path, "--score", "1")
    assert result.exit_code == 0 and "a.png  nothing" in result.output
    with Image.open(tmp_path / "images" / "00000-a.png") as drawing:
        assert all(len(set(colour)) == 1 for _, colour in drawing.getcolors(1 << 20) or ())
    assert json.loads((tmp_path / "predictions.jsonl").read_text())["detections"], "the file has them all"


def test_ground_truth_and_predictions_are_drawn_the_worst_images_first(run: Path, tmp_path: Path) -> None:
    details = json.loads((run / "eval" / "val" / "details.json").read_text())
    result = command("predict", run, "--split", "val", "--out", tmp_path, "--max-images", "4", "--score", "0.011")
    assert result.exit_code == 0, result.output
    drawn_names = [path.name.split("-")[1].removesuffix(".png") for path in sorted((tmp_path / "images").iterdir())]
    worst = [Path(row["id"]).stem for row in details["worst"]]
    others = [name for name in (f"{number:06d}" for number in range(6)) if name not in worst]
    assert drawn_names == [*worst, *others][:4]
    assert "val/000000.png  ground truth: " in command("predict", run, "--split", "val", "--out", tmp_path).output
    with Image.open(tmp_path / "images" / f"00000-{drawn_names[0]}.png") as drawing:
        assert drawing.width > 2 * 512
    with Image.open(tmp_path / "sheet-1.png") as sheet:
        assert sheet.width == 4 * 432
        tiles = [np.array(sheet.crop((left, 6, left + 420, 426))) for left in (6, 438)]
    same = (tiles[0] == tiles[1]).all(2).mean()
    assert 0.5 < same < 1, "ground truth beside the prediction for the same image"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give images or videos, or --split for those of the run's data"),
        (("IMAGE", "--split", "val"), "give images or videos, or --split for those of the run's data"),
        (("--split", "test"), "there is no 'test'"),
        (("IMAGE", "--explain"), "a detector's boxes show where its predictions come from"),
    ],
    ids=["neither", "both", "another set", "explain"],
)
def test_invalid_arguments_are_reported(run: Path, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    words = [str(folder / "a.png") if word == "IMAGE" else word for word in arguments]
    result = command("predict", run, *words)
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output


def test_tasks_that_draw_no_ground_truth_are_reported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "compare_sample", lambda *arguments: None)
    result = command("predict", run, "--split", "val", "--out", tmp_path)
    assert result.exit_code == 2 and "Detection draws no ground truth of the samples of val" in result.output
