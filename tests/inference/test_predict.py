"""Predictions from Python; tests/cli tests the command."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import opabinia
from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo, Task
from opabinia.data.decoding.images import read_image
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.inference.predict import predict
from opabinia.inference.predictor import Predictor, image_from
from opabinia.runtime.local_copies import local_copy
from opabinia.training import launch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of twenty digits, two of them in a subfolder."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "inside").mkdir()
    source = Digits(split="val")
    for number in range(20):
        path = folder / ("inside" if number % 10 == 3 else "") / f"{number:02d}-is-{source[number]['label']}.png"
        Image.fromarray(source[number]["image"][0].numpy()).save(path)
    return folder


def test_predictions_have_the_accuracy_of_the_evaluation(run: Path, predictor: Predictor, folder: Path) -> None:
    source = Digits(split="val")
    images = [source[number]["image"] for number in range(len(source))]
    predictions = predictor(images)
    correct = [
        prediction["logits"].argmax() == source[number]["label"] for number, prediction in enumerate(predictions)
    ]
    assert sum(map(int, correct)) / len(source) == launch.evaluate(run)["val/top1"]
    assert predictions[0]["probabilities"].sum() == pytest.approx(1, abs=1e-5)


def test_every_kind_of_input_gives_the_same_prediction(predictor: Predictor, folder: Path) -> None:
    path = sorted(folder.glob("*.png"))[0]
    image = Image.open(path)
    array = np.array(image)
    tensor = torch.from_numpy(array)[None]
    kinds: list[Any] = [
        path,
        str(path),
        image,
        image.convert("RGB"),
        array,
        np.stack([array] * 3, 2),
        tensor,
        tensor / 255,
    ]
    single = [predictor(kind) for kind in kinds]
    batched = predictor(kinds[:7])
    for prediction in [*single, *batched]:
        assert torch.allclose(
            prediction["logits"], single[0]["logits"], atol=0.05
        )  # floats are resized without rounding to whole values
        assert prediction.readable["top"][0]["class"] == single[0].readable["top"][0]["class"]
    assert predictor([]) == []
    top = [entry["probability"] for entry in single[0].readable["top"]]
    assert len(top) == 5 and top == sorted(top, reverse=True)
    assert top[0] == pytest.approx(float(single[0]["probabilities"].max()), abs=1e-6)


def test_names_with_line_breaks_and_of_maximum_length(predictor: Predictor, tmp_path: Path, capsys: Any) -> None:
    names = ["a\nb.png", "\x1b[31m.png", "y" * 251 + ".png"]
    for name in names:
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "images" / name)
    predict(predictor, [tmp_path / "images"], tmp_path / "out", explain=True)
    printed = capsys.readouterr().out.splitlines()
    assert sum(f"{tmp_path}/images/" in line for line in printed) == 3 and any(
        "a\\nb.png  " in line for line in printed
    )
    assert all(line.isprintable() for line in printed)
    paths = [json.loads(line)["path"] for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert paths == [str(path) for path in sorted((tmp_path / "images").iterdir())]
    assert len(list((tmp_path / "out" / "explained").iterdir())) == 3
    assert all(path.name.isprintable() for path in (tmp_path / "out").rglob("*"))


def test_drawings_of_earlier_calls_are_removed(predictor: Predictor, folder: Path, tmp_path: Path) -> None:
    out, images = tmp_path / "out", sorted(folder.glob("*.png"))
    other = [out / "notes.txt", out / "images" / "00001-mine.png", out / "sheet-9.png"]
    for path in other:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the user's")

    def drawn() -> list[str]:
        return sorted(path.name for path in out.rglob("*.png") if path not in other)

    predict(predictor, images[:2], out, explain=True)
    both = [*(f"{number:05d}-{path.stem}.png" for number, path in enumerate(images[:2])), "sheet-1.png"]
    assert drawn() == both
    predict(predictor, images[:1], out, explain=True)
    assert drawn() == [both[0], "sheet-1.png"]
    predict(predictor, images[1:2], out)
    assert drawn() == ["sheet-1.png"] and all(path.read_text() == "the user's" for path in other)


def test_heatmaps_of_images_of_different_sizes(run: Path, tmp_path: Path) -> None:
    """The deepest feature map of an image of 8 x 8 has one pixel: the layer depends on the size."""
    original = ["data.val.transforms=[]"]
    small = {"image": torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8) * 4}
    large = {"image": torch.arange(4096).reshape(1, 64, 64).remainder(256).to(torch.uint8)}
    expected, predictor = opabinia.load(run, original).explain([small]), opabinia.load(run, original)
    predictor.explain([large])
    assert torch.equal(predictor.explain([small]), expected) and expected.unique().numel() > 10
    for name, side in (("a", 1), ("b", 8), ("c", 64)):
        Image.fromarray(np.arange(side * side, dtype=np.uint8).reshape(side, side)).save(tmp_path / f"{name}.png")
    with pytest.raises(DataError, match=r"1 of 3 files .*\n.*a\.png has no heatmap: the model has no feature maps"):
        predict(predictor, [tmp_path / f"{name}.png" for name in "abc"], tmp_path / "out", explain=True)
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 3
    assert sorted(path.name for path in (tmp_path / "out" / "explained").iterdir()) == ["00001-b.png", "00002-c.png"]


def test_predictions_of_remote_images_name_their_urls(
    predictor: Predictor,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "remote"))
    (folder / "inside" / "broken.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=f"\nfile://{folder}/inside/broken.png cannot be decoded"):
        predict(predictor, [Path(local_copy(f"file://{folder}/inside"))], tmp_path / "out")
    (folder / "inside" / "broken.png").unlink()
    urls = [f"file://{path}" for path in sorted((folder / "inside").iterdir())]
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == urls
    printed = capsys.readouterr().out
    assert all(f"{url}  " in printed for url in urls) and str(tmp_path / "remote") not in printed


def test_predicting_leaves_the_random_generators_unchanged(predictor: Predictor, folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    predictor(sorted(folder.glob("*.png")))
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4)), "an array is uint8, H x W or H x W x 3"),
        (np.zeros((4, 4, 2), dtype=np.uint8), "an array is uint8"),
        (torch.zeros(4, 4), "a tensor is C x H x W"),
        (torch.zeros(1, 4, 4, dtype=torch.int64), "a tensor is uint8, or float in 0 to 1"),
        (np.zeros((0, 4, 3), dtype=np.uint8), r"an array has pixels, not \(0, 4, 3\)"),
        (torch.zeros(3, 4, 0), r"a tensor has pixels, not \(3, 4, 0\)"),
        (None, "an image is a path, a PIL image, an array or a tensor, not a NoneType"),
    ],
    ids=str,
)
def test_invalid_images_are_refused(predictor: Predictor, image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predictor(image)


def test_channels_are_in_rgb_order() -> None:
    red = np.zeros((2, 2, 3), dtype=np.uint8)
    red[..., 0] = 200
    for kind in (red, Image.fromarray(red), torch.from_numpy(red).permute(2, 0, 1)):
        assert image_from(kind, 3)[:, 0, 0].tolist() == [200, 0, 0]
        assert image_from(kind, 1)[0, 0, 0].item() == 60  # ITU-R 601: 0.299 of red
    for kind in (red, torch.from_numpy(red).permute(2, 0, 1)):
        assert image_from(kind, 3, "BGR")[:, 0, 0].tolist() == [0, 0, 200]
    with pytest.raises(ValueError, match="the color order is RGB or BGR, not 'bgr'"):
        image_from(red, 3, "bgr")  # type: ignore[arg-type]


def test_a_run_can_be_loaded_without_its_data(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "checkpoints").symlink_to(run / "checkpoints")
    missing_source = f"source: {{name: image_folder, root: {tmp_path}/gone}}"
    changed = re.sub(r"source: {name: digits, split: \w+}", missing_source, config)
    assert changed.count("gone") == 2
    (moved / "config.yaml").write_text(changed)
    assert opabinia.load(moved, checkpoint="last").classes == tuple("0123456789")


def test_loading_a_missing_run_or_checkpoint(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        opabinia.load(tmp_path / "no")
    with pytest.raises(ConfigError, match="there is no 'step-00000007'; there are: best, last, step-"):
        opabinia.load(run, checkpoint="step-00000007")


def test_an_image_file_is_decoded_once(
    predictor: Predictor, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Path] = []
    decode = read_image
    monkeypatch.setattr(
        "opabinia.inference.predictor.read_image", lambda path, channels: decoded.append(path) or decode(path, channels)
    )
    predict(predictor, [folder], tmp_path)
    assert sorted(decoded) == sorted(folder.rglob("*.png"))


def test_a_minimal_task_needs_no_drawing() -> None:
    prediction = {"angle": torch.tensor(0.5), "value": torch.tensor(1 / 3)}
    presenter = Predictor(Task(), [], DatasetInfo(samples=1)).presenter(prediction)
    sample = {"image": torch.zeros(3, 4, 4, dtype=torch.uint8), "id": "a", "label": 1}
    assert presenter.readable(prediction) == {"angle": 0.5, "value": 0.333333}
    assert presenter.caption(presenter.readable(prediction)) == ["angle: 0.5", "value: 0.3333"]
    assert presenter.draw(sample, {}) is None and presenter.compare(sample, {}, ["cat", "dog"]) is None
    assert presenter.ground_truth_caption(sample, ["cat", "dog"]) == ["dog"]
    assert presenter.ground_truth_caption({"id": "a"}, []) == []
    assert presenter.ground_truth_caption({"label": torch.tensor([1.0, 0, 1])}, ["a", "b", "c"]) == ["a", "c"]
    assert presenter.ground_truth_caption({"label": 0.5}, []) == ["label: 0.5"]
    assert presenter.ground_truth_caption({"value": 0.25}, []) == ["value: 0.25"]


def test_the_keys_of_predictions_say_how_they_are_shown() -> None:
    predictor = Predictor(Task(), [], DatasetInfo(samples=1, classes=("cat", "dog")))
    predictions: dict[str, dict[str, Tensor]] = {
        "top": {"probabilities": torch.tensor([0.25, 0.75])},
        "detections": {"boxes": torch.zeros(1, 4), "scores": torch.ones(1), "labels": torch.tensor([1])},
        "classes": {"pixel_logits": torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]])},
        "embedding": {"embedding": torch.ones(3)},
    }
    captions = []
    for name, prediction in predictions.items():
        readable = predictor.presenter(prediction).readable(prediction)
        assert list(readable) == [name]
        captions += predictor.presenter(readable).caption(readable)
    assert captions == ["dog 75.0%", "cat 25.0%", "1 x dog", "dog 100.0%", "embedding: [1.0, 1.0, 1.0]"]
    sample = {"image": torch.zeros(1, 4, 8, dtype=torch.uint8), "mask": torch.zeros(4, 8, dtype=torch.uint8)}
    assert predictor.presenter(sample).ground_truth_caption(sample, ["cat", "dog"]) == ["cat 100.0%"]
    comparison = predictor.presenter(predictions["classes"]).compare(sample, predictions["classes"], ["cat", "dog"])
    assert comparison is not None and comparison.caption == "ground truth: cat 100.0%; predicted: dog 100.0%"
