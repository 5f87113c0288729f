"""Images with five channels of 16 bits, from training to the exported file: the embedded scenes, written as arrays."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import load_file

import opabinia as package
from opabinia.inference.export.exported_task import load_exported
from opabinia.inference.load import RunModel
from opabinia.inference.serving.inference import Inference
from opabinia.inference.serving.limits import Limits, RequestError, Upload
from opabinia.training.launch import train
from scripts.write_channel_scenes import write_scenes

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "scenes"
    write_scenes(folder, {"val": 8})
    for kind in ("images", "labels"):
        shutil.copytree(folder / kind / "val", folder / kind / "train")
    for number in range(4, 8):
        (folder / "images" / "val" / f"{number:04d}.npy").unlink()
        (folder / "labels" / "val" / f"{number:04d}.txt").unlink()
    return folder


def recipe_of(scenes: Path, out: Path, channels: Any = 5, **train_source: Any) -> Path:
    source = {"_delete_": True, "name": "yolo", "data": str(scenes / "data.yaml"), "channels": channels}
    recipe = {
        "base": "detection/digits",
        "task": {
            "mean": [0.3],
            "std": [0.2],
            "backbone": {"options": {"stem_width": 8, "channels": [8, 8, 16, 16]}},
            "detector": {"neck": {"channels": 8, "norm": "batch"}, "norm": "none", "num_convs": 1},
        },
        "data": {
            "train": {
                "source": {**source, "split": "train", **train_source},
                "transforms": [
                    {"name": "RandomAffine", "degrees": 0, "scale": [0.9, 1.1]},
                    {"name": "channel_jitter", "noise": 0.01},
                ],
            },
            "val": {"source": {**source, "split": "val"}},
            "batch_size": 4,
            "num_workers": 0,
        },
        "schedule": {"warmup": "1it"},
        "train": {"length": "4it", "device": "cpu"},
        "evaluate": {"every": "4it"},
        "checkpoint": {"every": "2it"},
        "loggers": [],
    }
    file = out / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    folder, _ = train(str(recipe_of(scenes, out)), [], out=out)
    return folder


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    (file,) = (folder / "checkpoints" / f"step-{step:08d}").glob("model*.safetensors")
    return dict(load_file(file))


def test_a_resumed_run_is_bitwise_identical(scenes: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "recipe" / "default"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    expected = weights(run, 4)
    checkpoint = copy / "checkpoints" / "step-00000002"
    folder, _ = train(str(recipe_of(scenes, tmp_path)), [], out=tmp_path, resume=str(checkpoint))
    actual = weights(folder, 4)
    assert folder == copy and expected["backbone.model.conv1.0.weight"].shape[1] == 5
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())


def test_a_folder_is_planned_with_its_channels(
    scenes: Path, tmp_path: Path, opabinia: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = opabinia("plan", scenes, "--budget", "5m", "--device-memory", "24GiB", "--out", tmp_path / "planned.yaml")
    assert result.status == 0, result.err
    planned = yaml.safe_load((tmp_path / "planned.yaml").read_text(encoding="utf-8"))
    assert planned["data"]["train"]["source"]["channels"] == {"count": 5}
    assert "channel_jitter" in [transform["name"] for transform in planned["data"]["train"]["transforms"]]
    assert len(planned["task"]["mean"]) == len(planned["task"]["std"]) == 5


def test_images_without_labels_are_planned_with_views_for_their_channels(
    scenes: Path, tmp_path: Path, opabinia: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = scenes / "images" / "train"
    options = ["--task", "selfsup", "--budget", "5m", "--device-memory", "24GiB", "--out", tmp_path / "planned.yaml"]
    result = opabinia("plan", images, *options)
    assert result.status == 0, result.err
    planned = yaml.safe_load((tmp_path / "planned.yaml").read_text(encoding="utf-8"))
    assert "channel_jitter" in [transform["name"] for transform in planned["vars"]["views"][0]["transforms"]]


def test_statistics_of_the_channels_are_printed_as_the_config_takes_them(
    scenes: Path, tmp_path: Path, opabinia: Run
) -> None:
    result = opabinia("data", "check", recipe_of(scenes, tmp_path), "--workers", 0, "--json", tmp_path / "check.json")
    assert result.status == 2, result.err  # training data repeats the validation data
    report = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    channels = report["datasets"]["train"]["channels"]
    pixels = np.stack([np.load(file) for file in sorted((scenes / "images" / "train").glob("*.npy"))]) / 65535
    assert channels["mean"] == pytest.approx(pixels.mean((0, 1, 2)), abs=1e-4)
    assert channels["std"] == pytest.approx(pixels.std((0, 1, 2)), abs=1e-4)
    shown = " ".join(result.out.split())
    assert f"mean of the channels │ {channels['mean']}" in shown


def test_predictions_are_drawn_in_the_chosen_bands(scenes: Path, run: Path, tmp_path: Path, opabinia: Run) -> None:
    images = scenes / "images" / "val"
    result = opabinia("predict", run, images, "--bands", "5,3,1", "--out", tmp_path / "out", "--device", "cpu")
    assert result.status == 0, result.err
    assert len(list((tmp_path / "out" / "images").iterdir())) == 4
    invalid = opabinia("predict", run, images, "--bands", "5,3", "--out", tmp_path / "out")
    assert invalid.status == 2 and "one or three numbers" in invalid.err
    absent = opabinia("predict", run, images, "--bands", "6", "--out", tmp_path / "out", "--device", "cpu")
    assert absent.status == 2 and "there is no band 6: the images have 5" in absent.err


def test_a_report_is_written(run: Path, tmp_path: Path, opabinia: Run) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = opabinia("report", copy, "--device", "cpu")
    assert result.status == 0, result.err
    assert (copy / "report.html").is_file()
    assert "missing" not in result.err


@pytest.mark.slow
def test_an_exported_model_predicts_the_same_as_the_run(scenes: Path, run: Path, tmp_path: Path, opabinia: Run) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is absent: pip install 'opabinia[export]'")
    graph = tmp_path / "model.onnx"
    result = opabinia("export", run, "--out", graph)
    assert result.status == 0, result.err
    image = scenes / "images" / "val" / "0000.npy"
    script = subprocess.run(
        [sys.executable, str(tmp_path / "predict.py"), str(graph), str(image)],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = package.load(run, device="cpu")(image).readable["detections"]
    actual = json.loads(script.stdout)["detections"]
    assert len(actual) == len(expected) > 0
    for row, known in zip(actual[:10], expected, strict=False):
        assert row["score"] == pytest.approx(known["score"], abs=1e-4)
    loaded = load_exported(graph)(image).readable["detections"]
    assert loaded[0]["score"] == pytest.approx(expected[0]["score"], abs=1e-4)


def test_a_server_takes_arrays(scenes: Path, run: Path) -> None:
    predictor = RunModel(run, [], "best", None, "cpu").load()
    inference = Inference(predictor, Limits(), None)
    content = (scenes / "images" / "val" / "0000.npy").read_bytes()
    (result,) = inference([Upload("0000.npy", content)])
    assert result["detections"] == predictor(scenes / "images" / "val" / "0000.npy").readable["detections"]
    with pytest.raises(RequestError, match="cannot be decoded") as error:
        inference([Upload("cut.npy", content[:-10])])
    assert error.value.status == 422


def tiff(values: NDArray[Any], **options: Any) -> bytes:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is absent: pip install 'opabinia[tiff]'")
    file = BytesIO()
    tifffile.imwrite(file, values, photometric="minisblack", **options)
    return file.getvalue()


@pytest.mark.parametrize("options", [{}, {"bigtiff": True, "compression": "zlib"}], ids=["plain", "big, compressed"])
def test_a_server_takes_tiffs_of_many_channels(options: dict[str, Any], scenes: Path, run: Path) -> None:
    inference = Inference(RunModel(run, [], "best", None, "cpu").load(), Limits(), None)
    path = scenes / "images" / "val" / "0000.npy"
    content = tiff(np.load(path), planarconfig="contig", **options)
    of_tiff, of_array = inference([Upload("0000.tif", content), Upload("0000.npy", path.read_bytes())])
    assert of_tiff["detections"] == of_array["detections"]
    with pytest.raises(RequestError, match=r"^cut.tif is broken: ") as error:
        inference([Upload("cut.tif", content[: len(content) // 2])])
    assert error.value.status == 422


def test_a_server_refuses_tiffs_before_it_decodes_them(run: Path) -> None:
    inference = Inference(RunModel(run, [], "best", None, "cpu").load(), Limits(pixels=10_000), None)
    values = np.zeros((100, 101, 5), np.uint16)
    for content, status, text in [
        (tiff(values, planarconfig="contig"), 413, r"101 x 100 .* more than 0.01"),
        (tiff(values[:90, :90, :4], planarconfig="contig"), 422, r"its shape is 90 x 90 x 4; channels: 5 expects"),
    ]:
        with pytest.raises(RequestError, match=text) as error:
            inference([Upload("x.tif", content)])
        assert error.value.status == status


def test_images_of_many_channels_have_as_many_values_as_color_images() -> None:
    limits = Limits(pixels=1000)
    assert [limits.for_channels(count).pixels for count in (1, 3, 5, 30)] == [1000, 1000, 600, 100]


def test_color_transforms_are_refused_before_the_first_step(scenes: Path, tmp_path: Path, opabinia: Run) -> None:
    recipe = recipe_of(scenes, tmp_path)
    change = "data.train.transforms=[{name: ColorJitter, saturation: 0.5}]"
    result = opabinia("train", recipe, "--out", tmp_path, change)
    assert result.status == 2
    assert "data.train.transforms" in result.err and "ColorJitter" in result.err and "channels: 5" in result.err
    assert "Traceback" not in result.err


def test_images_of_another_number_of_channels_are_one_error(scenes: Path, tmp_path: Path, opabinia: Run) -> None:
    result = opabinia("train", recipe_of(scenes, tmp_path, channels=4), "--out", tmp_path)
    assert result.status == 2
    assert "its shape is 128 x 128 x 5; channels: 4 expects" in result.err and "0000.npy" in result.err
