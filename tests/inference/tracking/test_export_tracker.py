"""The folder of ``opabinia export --tracker``, whose ``track.py`` tracks without this library."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.config import ConfigError, register
from opabinia.data.decoding.images import read_image
from opabinia.data.decoding.sequential import TimedFrame, read_frames
from opabinia.inference.export import track_script
from opabinia.inference.export.export import prepare
from opabinia.inference.export.predict_script import open_image
from opabinia.inference.export.track_script import Tracker
from opabinia.inference.export.track_script import read_frames as script_frames
from opabinia.inference.export.tracker import code_files, export_tracker
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.tracking.pipeline import Pipeline
from opabinia.inference.tracking.streams import find_streams
from opabinia.inference.tracking.track import track
from opabinia.models.trackers.association import Ints
from opabinia.models.trackers.sequences import Frame
from opabinia.training.tracking import Tracking, resolve_tracking
from opabinia.visualization.drawing import to_pil
from tests.cli.conftest import CommandResult, opabinia
from tests.inference.tracking.conftest import BOTSORT, EAGER, RUNS

assert opabinia  # a fixture

DETECTOR = RunModel(RUNS / "detection" / "run")
REID = RunModel(RUNS / "reid" / "run", ["data.val.transforms=[{name: Resize, size: [16, 16]}]"])
TRACKING = resolve_tracking({"tracker": "botsort", "camera_motion": True}, [*EAGER, *BOTSORT])
OPTIONS = {
    "sort": {"new_track_score": 0.05, "min_hits": 1},
    "bytetrack": {"high_score": 0.05, "new_track_score": 0.05, "min_hits": 1},
    "ocsort": {"high_score": 0.05, "min_hits": 1},
    "botsort": TRACKING.config["tracker"],
}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline(DETECTOR.load(), REID.load(), min_score=0.05)


def write_images(folder: Path, frames: list[TimedFrame], name: str) -> Path:
    folder.mkdir(parents=True)
    for frame in frames:
        to_pil(frame.image).save(folder / name.format(frame.number + 8))
    return folder


def assert_equal(frame: Frame, ids: Ints, expected: Frame, expected_ids: Ints) -> None:
    """Compare the tracks. The detector is hardly trained: its scores are so close that their order may differ."""
    orders = [np.argsort(each)[(each < 0).sum() :] for each in (ids, expected_ids)]
    assert (ids[orders[0]] == expected_ids[orders[1]]).all()
    for name, margin in (("boxes", 1e-3), ("scores", 1e-4), ("embeddings", 1e-4)):
        pair = zip((frame, expected), orders, strict=True)
        actual, wanted = (getattr(each.detections, name)[order] for each, order in pair)
        assert actual == pytest.approx(wanted, abs=margin)


def run_blocked(folder: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a process in which importing these fails."""
    names = ["torch", "torchvision", "opabinia", "av", "safetensors", "yaml"]
    (folder / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({names}))")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    words = (sys.executable, *map(str, words))
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)


@pytest.mark.slow
def test_the_script_writes_the_rows_of_the_command(
    pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is absent: pip install 'opabinia[export]'")
    exported = export_tracker(DETECTOR, TRACKING, REID, tmp_path / "exported", score=0.05)
    names = sorted(path.name for path in exported.iterdir())
    assert names == ["detector.onnx", "reid.onnx", "track.py", "tracker", "tracker.json"]
    settings = json.loads((exported / "tracker.json").read_text())
    assert settings == {**SETTINGS, "tracker": TRACKING.config["tracker"]}
    images = write_images(tmp_path / "images", frames, "frame-{}.png")  # 8, 9, 10: in natural order
    track(pipeline, TRACKING, find_streams([str(images)]), tmp_path / "out", settings={}, video=False)
    result = run_blocked(tmp_path, exported / "track.py", images, "--out", "rows.txt")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    files = tmp_path / "out" / "mot" / "images.txt", tmp_path / "rows.txt"
    rows = [np.loadtxt(file, delimiter=",") for file in files]
    assert (rows[0][:, :2] == rows[1][:, :2]).all() and len(rows[0]) > 20
    assert rows[1] == pytest.approx(rows[0], abs=0.0101)  # rounded to 0.01
    frames_of_script = Tracker(exported).track(script_frames(images, 1))
    for (_, expected, ids), (frame, actual) in zip(pipeline.track(frames, TRACKING), frames_of_script, strict=True):
        assert_equal(frame, actual, expected, ids)


# --- with the models in torch, since writing them as ONNX takes half a minute -----------------------------------------

SETTINGS = {"per_class": True, "camera_motion": True, "score": 0.05}


@pytest.fixture(scope="module")
def graphs() -> dict[str, Any]:
    """Metadata, shapes and function of each model, as ``open_onnx`` returns them."""

    def graph(model: RunModel) -> Any:
        job = prepare(model, "onnx").job

        def run(inputs: dict[str, Any]) -> dict[str, Any]:
            with torch.no_grad():
                outputs = job.module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
            return {name: value.numpy() for name, value in outputs.items()}

        return job.description.metadata(), {}, run

    return {"detector.onnx": graph(DETECTOR), "reid.onnx": graph(REID)}


@pytest.fixture
def folder(graphs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as it is exported."""
    monkeypatch.setattr(track_script, "open_onnx", lambda path: graphs[Path(path).name])
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in graphs:
        (folder / name).touch()
    (folder / "tracker.json").write_text(json.dumps({**SETTINGS, "tracker": TRACKING.config["tracker"]}))
    return folder


def test_every_tracker_gives_the_same_ids(
    folder: Path, pipeline: Pipeline, frames: list[TimedFrame], tmp_path: Path
) -> None:
    path = write_images(tmp_path / "street" / "img1", frames[:5], "{:06d}.png").parent
    (path / "seqinfo.ini").write_text("[Sequence]\nname=street\nframeRate=25\n")
    tracker = Tracker(folder)
    for name, options in OPTIONS.items():
        tracking = resolve_tracking({"tracker": {"name": name, **options}, "camera_motion": True})
        tracker.settings["tracker"] = tracking.config["tracker"]
        results = tracker.track(script_frames(path, 1))
        for (image, expected, ids), (frame, actual) in zip(pipeline.track(frames[:5], tracking), results, strict=True):
            assert_equal(frame, actual, expected, ids)
            assert (frame.number, frame.detections.time) == (image.number + 8, pytest.approx(image.seconds))
            assert frame.detections.camera_shift == pytest.approx(expected.detections.camera_shift, abs=1e-6)
        assert max(ids) > 2


@pytest.mark.parametrize("channels", [1, 3])
def test_videos_are_read_as_by_the_library(channels: Any, video: Path) -> None:
    for expected, actual in zip(read_frames(str(video), channels), script_frames(video, channels), strict=True):
        assert (actual.number, actual.seconds) == (expected.number + 1, expected.seconds)
        assert (actual.image == expected.image.numpy()).all()


def test_the_script_needs_few_packages(tmp_path: Path) -> None:
    for name, text in code_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    result = run_blocked(tmp_path, "track.py", "--help")
    assert result.returncode == 0 and "--rate" in result.stdout, result.stderr


def test_trackers_and_their_code() -> None:
    built_in = {name for name, entry in register.entries["tracker"].items() if entry.module.startswith("opabinia.")}
    assert built_in - {"trackers"} == track_script.TRACKERS.keys() == OPTIONS.keys()  # a package of its own
    files = code_files()
    assert {"track.py", "tracker/__init__.py", "tracker/sequences.py", "tracker/kalman.py"} <= files.keys()
    runtimes = {
        "onnxruntime",
        "openvino",
        "executorch",
        "torch",
        "ai_edge_litert",
        "tifffile",
    }  # torch: for ExecuTorch's tensors
    known = {"numpy", "scipy", "PIL", "tracker", "av", *runtimes, *sys.stdlib_module_names}
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {module.split(".")[0] for module in modules} <= known, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.mp4"], "reading video files needs PyAV: pip install av"),
        (["empty"], "empty has no images"),
        (
            ["large"],
            "a frame of 64 x 200 pixels comes to 64 x 200: the detector takes at most 64 x 64, the size",
        ),
        (["broken"], "1.png cannot be decoded: cannot identify image file"),
        (["large", "--rate", "0"], "--rate: 0 is not above 0"),
        (["large", "--out", "no/x"], "No such file or directory"),
    ],
)
def test_errors_of_the_script(
    words: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    write_images(tmp_path / "large", [TimedFrame(0, 0, torch.zeros(1, 64, 200, dtype=torch.uint8))], "{}.png")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "1.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(sys, "argv", ["track.py", *words])
    with pytest.raises(SystemExit) as error:
        track_script.main(folder)
    assert error.value.code == 2 and message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "empty", "folder", "large"]


# --- what an export refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tracker", "bytetrak"], "did you mean 'bytetrack'"),
        (["--tracker", "sort", "tracker.min_hit=1"], "did you mean 'min_hits'"),
        (["--tracker", "sort", "tracker.min_hits=0"], "tracker.min_hits"),
        (["--tracker", "sort", "--reid", "nowhere"], "nowhere"),
        (["--tracker", "sort", "--format", "openvino"], "--format: trackers are exported as ONNX"),
        (["--tracker", "sort", "--evaluate"], "--evaluate: trackers are exported as ONNX, and are not evaluated"),
        (["--tracker", "sort", "--out", "."], "--out: . exists already"),
        (["--score", "0.5"], "--score: is for trackers: add --tracker NAME"),
        (["tracker.min_hits=1"], "tracker.min_hits=1: is for trackers: add --tracker"),
        (
            ["--tracker", "sort", "--reid", RUNS / "reid" / "run"],
            "--reid: data.val.transforms give objects different",
        ),
        (
            ["--tracker", "sort", "--reid", RUNS / "classification" / "run"],
            "--reid: its exported model has no emb",
        ),
        (
            ["--tracker", "sort", "data.val.transforms=[{name: CenterCrop, size: 32}]"],
            "RUN: data.val.transforms: the transform CenterCrop is none of Resize and resize_shortest_edge",
        ),
    ],
)
def test_mistakes(opabinia: Callable[..., CommandResult], words: list[Any], message: str, tmp_path: Path) -> None:
    out = [] if "--out" in words else ["--out", tmp_path / "out"]
    result = opabinia("export", DETECTOR.run, *words, *out)
    assert result.status == 2 and message in result.err, result.err
    assert not list(tmp_path.iterdir()) or "--out" in words


def test_other_trackers_are_refused(tmp_path: Path) -> None:
    tracking = Tracking(lambda state, frame: np.zeros(0, int), config={"tracker": {"name": "mine"}})
    with pytest.raises(ConfigError, match="--tracker: mine needs its own package: of the trackers, sort, bytetrack, o"):
        export_tracker(DETECTOR, tracking, out=tmp_path / "out")


def test_a_model_that_is_no_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its model predicts embedding, logits; a detector"):
        export_tracker(REID, TRACKING, out=tmp_path / "out")


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [
        {"name": "Resize", "size": [30, 50]},
        {"name": "Resize", "size": [33]},
        {"name": "Resize", "size": 20, "interpolation": "bicubic"},
        {"name": "resize_shortest_edge", "short_edge_length": 45},
        {"name": "resize_shortest_edge", "short_edge_length": [45], "max_size": 51},
    ],
)
@pytest.mark.parametrize("size", [(40, 31), (29, 60), (50, 50)])
def test_images_are_resized_as_by_the_predictor(transform: dict[str, Any], size: tuple[int, int]) -> None:
    changes = [f"data.val.transforms={json.dumps([transform])}"]
    model = RunModel(RUNS / "detection" / "run", changes)
    from opabinia.training.run_folder import resolve

    predictor: Predictor = model.load()
    transforms = resolve(model.run, changes).config["data"]["val"]["transforms"]
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
    image = np.asarray(small)[None]
    expected = predictor.sample(torch.from_numpy(image.copy()))["image"].numpy()
    actual = track_script.prepared(image, 1, transforms, "uint8")
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(int) - expected).max() <= (1 if "interpolation" not in transform else 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_files_are_read_as_by_the_library(channels: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    color = Image.fromarray(rng.integers(0, 256, (9, 13, 3), np.uint8))
    color.save(tmp_path / "a.jpg")
    exif = Image.Exif()
    exif[0x112] = 6
    color.save(tmp_path / "rotated.jpg", exif=exif)
    color.convert("RGBA").save(tmp_path / "b.png")
    color.convert("P").save(tmp_path / "c.png")
    Image.fromarray(rng.integers(0, 65536, (9, 13), np.uint16)).save(tmp_path / "d.png")
    for file in sorted(tmp_path.iterdir()):
        pixels = np.asarray(open_image(str(file), channels))
        expected = read_image(file, channels).numpy().transpose(1, 2, 0)
        assert (pixels.reshape(expected.shape) == expected).all(), file.name


def test_color_and_gray() -> None:
    from opabinia.inference.predictor import image_from

    image = np.random.default_rng(0).integers(0, 256, (3, 20, 30), np.uint8)
    assert (track_script.with_channels(image, 1) == image_from(torch.from_numpy(image), 1).numpy()).all()
    assert track_script.with_channels(image[:1], 3).shape == (3, 20, 30)


@pytest.mark.parametrize(
    ("info", "name", "message"),
    [
        ("[Sequence]\nframeRate=0\n", "1.png", r"seqinfo.ini: frameRate: 0 is not a number above 0"),
        ("[Sequence]\nframeRate=fast\n", "1.png", r"seqinfo.ini: frameRate: fast is not a number above 0"),
        ("frameRate=30\n", "1.png", r"seqinfo.ini is not an INI file: File contains no section headers"),
        ("[Sequence]\nframeRate=29.97\n", "first.png", r"first.png: its name has no number"),
    ],
)
def test_damaged_sequences(info: str, name: str, message: str, tmp_path: Path) -> None:
    write_images(tmp_path / "img1", [TimedFrame(0, 0, torch.zeros(1, 8, 8, dtype=torch.uint8))], name)
    (tmp_path / "seqinfo.ini").write_text(info)
    with pytest.raises(ValueError, match=message):
        list(script_frames(tmp_path, 1))


def test_a_sequence_with_a_fractional_frame_rate(tmp_path: Path) -> None:
    frames = [TimedFrame(number, 0, torch.zeros(1, 8, 8, dtype=torch.uint8)) for number in (0, 1)]
    write_images(tmp_path / "frames", frames, "{}.png")
    (tmp_path / "seqinfo.ini").write_text("[Sequence]\nimDir=frames\nframeRate=29.97\n")
    assert [(frame.number, frame.seconds) for frame in script_frames(tmp_path, 1)] == [(8, 0), (9, 1 / 29.97)]
