"""Exported models are read by other libraries and give the same predictions."""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import pytest
import timm
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.export import Dim
from torch.export.passes import move_to_device_pass
from torchvision.ops import batched_nms, roi_align

import opabinia
from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo, Detector, ExportModule, relative_difference
from opabinia.data.sources import Digits
from opabinia.inference.export import Measured, export
from opabinia.inference.export.description import Description
from opabinia.inference.export.files import LIBRARIES, GraphForm, trace, write_file
from opabinia.inference.export.job import ExportJob, ExportMismatch
from opabinia.inference.export.mobile import CoreMlInputs, litert_graph
from opabinia.inference.export.precision import write_fp16
from opabinia.inference.export.runtimes import open_runtime
from opabinia.models.backbones import timm as backbones
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.keypoints import heatmaps_to_keypoints_batch
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.models.detectors.suppression import Candidates, suppress, suppress_static
from opabinia.models.layers import Normalize
from opabinia.models.weights.files import read_weights
from opabinia.runtime.progress import progress_bar
from opabinia.tasks.dense_base import TestTimeAugmentation
from opabinia.tasks.detection.export import detection_difference
from opabinia.tasks.detection.task import Detection
from opabinia.tasks.detections_base import stack_detections
from opabinia.training import launch

SMALL = ["data.num_workers=0", "loggers=[]", "data.batch_size=16", "evaluate.every=1000ep"]


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Five validation images as the model takes them."""
    source = Digits(split="val")
    grey = torch.stack([source[number]["image"] for number in range(5)])
    return nn.functional.interpolate(grey.float(), 32, mode="bilinear").round().to(torch.uint8)


# --- the Hugging Face layout ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layout(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, tmp_path_factory.mktemp("out") / "digits", form="huggingface")


def test_timm_reads_a_classifier(run: Path, layout: Path, images: Tensor) -> None:
    model: Any = timm.create_model(f"local-dir:{layout}", pretrained=True).eval()
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    with torch.no_grad():
        logits = model((images / 255 - torch.tensor(mean)) / torch.tensor(std))
        original = opabinia.load(run).task.predict({"image": images})["logits"]
    assert torch.allclose(logits, original, atol=1e-5)
    assert original.std() > 0.01
    config = json.loads((layout / "config.json").read_text())
    assert (config["architecture"], config["num_classes"]) == ("test_resnet", 10)
    assert config["label_names"] == list("0123456789")


def test_the_folder_is_loaded_like_its_run(run: Path, layout: Path, images: Tensor) -> None:
    task, restored = opabinia.load(run).task, opabinia.load(layout).task
    assert restored.state_dict().keys() == task.state_dict().keys()
    assert torch.equal(restored.predict({"image": images})["logits"], task.predict({"image": images})["logits"])
    assert read_weights(layout).keys() == timm.create_model("test_resnet").state_dict().keys()
    reexported = export(layout, layout.with_name("again"), form="huggingface")
    assert (reexported / "model.safetensors").read_bytes() == (layout / "model.safetensors").read_bytes()
    scores = json.loads((run / "results.json").read_text())
    assert json.loads((reexported / "state.json").read_text())["scores"] == scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "backbone"),
    [
        ("classification/digits", "{name: resnet, model: resnet10t}"),
        ("selfsup/digits_byol", "{name: timm, model: test_resnet}"),
        ("detection/digits", "{name: timm, model: resnet10t}"),
        ("video/digits", ""),
        ("reid/digits", ""),
    ],
)
def test_folders_of_other_models_are_loaded(recipe: str, backbone: str, tmp_path: Path) -> None:
    overrides = ["task.backbone=null", f"task.backbone={backbone}"] if backbone else []
    data_overrides = [] if recipe.startswith("video") else ["data.val=null"]
    run, _ = launch.train(recipe, [*SMALL, "train.length=1it", *data_overrides, *overrides], out=tmp_path)
    folder = export(run, tmp_path / "exported", form="huggingface")  # compares
    original, restored = opabinia.load(run).task.state_dict(), opabinia.load(folder).task.state_dict()
    assert original.keys() == restored.keys() and all(torch.equal(original[name], restored[name]) for name in original)
    if recipe.startswith("selfsup"):
        assert (folder / "rest.safetensors").is_file()
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    if recipe.startswith("reid"):  # more than a backbone: the task keeps the names of its tensors
        assert read_weights(folder / "model.safetensors").keys() == original.keys()
        backbone = timm.create_model(f"local-dir:{folder / 'backbone'}", pretrained=True).state_dict()
        assert all(torch.equal(value, original[f"backbone.model.{name}"]) for name, value in backbone.items())


def test_the_model_card_has_scores_classes_and_usage(layout: Path) -> None:
    card = (layout / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["model-index"][0]["results"][0]["dataset"]["name"] == "digits, val"
    assert "up to step 60; `val` is digits, val." in card and 'opabinia.load("PATH")' in card
    scores = json.loads((layout / "preprocessor_config.json").read_text())
    assert scores["image_mean"] == [0.3]
    assert scores["transforms"][0]["name"] == "Resize"
    assert all(
        text in card for text in ("`val/top1`", "local-dir:PATH", "mode L; logits", "# license: yours to choose")
    )
    names = {"README.md", "config.json", "config.yaml", "model.safetensors", "preprocessor_config.json", "state.json"}
    assert {path.name for path in layout.iterdir()} == names


# --- files ------------------------------------------------------------------------------------------------------------


def in_onnxruntime(path: Path, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is absent: pip install 'opabinia[export]'")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {name: value.numpy() for name, value in inputs.items()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def skip_without_libraries(form: str) -> None:
    needs = LIBRARIES.get(form)
    for library in needs.libraries if needs else ():
        pytest.importorskip(library, reason=f"{library} is absent: pip install 'opabinia[{form}]'")


def written(form: GraphForm, path: Path, job: ExportJob, tolerance: float) -> list[str]:
    """Write a graph, and return the lines that are printed."""
    skip_without_libraries(form)
    with progress_bar("export", 2, unit="steps") as bar:
        return write_file(form, path, job, tolerance, "some samples", bar)


def job_of(module: ExportModule, **inputs: Tensor) -> ExportJob:
    """Return a job with an empty description."""
    values: dict[str, Any] = {field.name: () for field in fields(Description)} | {"tasks": {}}
    return ExportJob(module, inputs, Description(**values))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_a_file_gives_the_same_predictions(
    form: Literal["torch", "onnx"], run: Path, images: Tensor, tmp_path: Path
) -> None:
    path = export(run, tmp_path / f"new/model.{'onnx' if form == 'onnx' else 'pt2'}", form=form)
    if form == "torch":
        extra = {"opabinia.json": ""}
        module: Any = torch.export.load(path, extra_files=extra).module()
        metadata = json.loads(extra["opabinia.json"])
        with pytest.raises(ExportMismatch, match=r"largest difference is .*, allowed is 0e"):
            export(run, tmp_path / "exact.pt2", form="torch", tolerance=0.0)
    else:
        onnx: Any = pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
        metadata = {item.key: item.value for item in onnx.load(path).metadata_props}
    task = opabinia.load(run).task
    for count in (1, 2, 5):
        inputs = {"image": images[:count]}
        with torch.no_grad():
            exported = module(**inputs) if form == "torch" else in_onnxruntime(path, inputs)
            original = task.predict(inputs)
        assert exported.keys() == original.keys()
        assert all(torch.allclose(exported[name], original[name], atol=1e-5) for name in original)
    assert json.loads(metadata["classes"]) == list("0123456789")
    assert json.loads(metadata["size"]) == [32, 32] and metadata["dtype"] == "uint8"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["video/digits", "selfsup/digits_simclr"])
def test_models_of_clips_and_embeddings_are_exported(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
    run, _ = launch.train(recipe, [*SMALL, "train.length=1it"], out=tmp_path)
    path = export(run)  # compares
    shape = (2, 8, 1, 32, 32) if recipe.startswith("video") else (2, 1, 40, 40)
    outputs = in_onnxruntime(path, {"image": torch.randint(0, 256, shape, dtype=torch.uint8)})
    assert outputs.keys() == ({"logits", "probabilities"} if recipe.startswith("video") else {"embedding"})
    assert all(len(value) == 2 for value in outputs.values())


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["fcos", "retinanet"])
def test_an_exported_detector_includes_suppression(detector: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
    settings = ["train.length=8it", "schedule.warmup=0it", "task.detector.max_detections=30", "data.val=null"]
    # RetinaNet begins with scores of about 0.01.
    detector_settings = ["task.detector={name: retinanet, score_threshold: 0.004}"] if detector == "retinanet" else []
    run, _ = launch.train("detection/digits", [*SMALL, *detector_settings, *settings], out=tmp_path)
    path = export(run)
    task = opabinia.load(run).task
    image, sizes = torch.randint(0, 256, (3, 1, 256, 256), dtype=torch.uint8), [(256, 256), (200, 256), (256, 64)]
    exported = in_onnxruntime(path, {"image": image, "image_sizes": torch.tensor(sizes)})
    with torch.no_grad():
        original = task.predict({"image": image, "image_sizes": sizes, "original_size": sizes})
    assert (original["labels"] >= 0).sum() > 30
    detected: Any = task
    assert (
        detection_difference({name: original[name] for name in exported}, exported, detected.detector.score_threshold)
        < 1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch", "onnx", "openvino"])
def test_a_batch_size_that_cannot_vary(form: Literal["torch", "onnx", "openvino"], tmp_path: Path) -> None:
    class Loop(ExportModule):
        def forward(self, image: Tensor) -> dict[str, Tensor]:
            return {"sums": torch.stack([image[index].sum() for index in range(int(image.shape[0]))])}

        def expected(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return self.forward(**inputs)

    path = tmp_path / ("folder" if form == "openvino" else "file")
    lines = written(form, path, job_of(Loop(nn.Identity()), image=torch.rand(3, 1, 4, 4)), 1e-4)
    assert "batch: 1; torch cannot trace the model for any number of samples" in lines
    assert "in batches of 1: largest" in lines[-1]
    if form == "torch":
        extra = {"opabinia.json": ""}
        torch.export.load(path, extra_files=extra)
        assert json.loads(extra["opabinia.json"])["batch_size"] == "1"
    else:
        runtime = open_runtime(path)
        assert (runtime.metadata["batch_size"], list(runtime.shapes["image"])) == ("1", [1, 1, 4, 4])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [4, 5])
def test_suppression_in_openvino(columns: int, tmp_path: Path) -> None:
    class Suppression(ExportModule):
        def candidates(self, image: Tensor) -> list[Candidates]:
            boxes = image[:, 0]
            scores = (boxes[..., 0] * 3.7) % 1
            return [Candidates(scores, (scores * 1000).long() % 2, boxes)]

        def forward(self, image: Tensor, image_sizes: Tensor) -> dict[str, Tensor]:
            kept = suppress_static(self.candidates(image), image_sizes, 0.3, 0.2, 20)
            return {"boxes": kept.boxes, "scores": kept.scores, "labels": kept.labels}

        def expected(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            sizes: Any = inputs["image_sizes"].tolist()
            return stack_detections(suppress(self.candidates(inputs["image"]), sizes, 0.3, 0.2, 20), 20)

    rows = torch.rand(2, 1, 30, columns, generator=torch.Generator().manual_seed(0))
    rows[..., :4] = rows[..., :4] * 20 + torch.tensor([0, 0, 20, 20])
    job = job_of(Suppression(nn.Identity()), image=rows, image_sizes=torch.tensor([[64, 64], [30, 30]]))
    lines = written("openvino", tmp_path / "folder", job, 1e-4)
    assert "in batches of 1 and 2: largest" in lines[-1]


@pytest.mark.slow
def test_programs_are_moved_to_other_devices() -> None:
    """Index tensors, also inside a scan, move with the program; the other device of this test is ``meta``."""

    class Padded(ExportModule):
        def forward(self, image: Tensor, image_sizes: Tensor) -> dict[str, Tensor]:
            boxes = F.pad(image_sizes.flip(1).float(), (2, 0)).unsqueeze(1)
            heatmaps = self.task(image, image_sizes)[:, None, :, :4, :4]
            return {"keypoints": heatmaps_to_keypoints_batch(heatmaps, boxes, (8, 8))}

    inputs = {"image": torch.rand(2, 1, 8, 8), "image_sizes": torch.tensor([[8, 8], [4, 8]])}
    program = trace(Padded(Normalize([0.5], [0.5], 1)), inputs, Dim("batch", min=1))
    moved = move_to_device_pass(program, "meta").module()(**{name: value.to("meta") for name, value in inputs.items()})
    assert moved["keypoints"].is_meta and moved["keypoints"].shape == (2, 1, 1, 3)


# --- suppression and comparison ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("label_offset", [0, 1200])
def test_static_suppression_is_the_same(label_offset: int, columns: int) -> None:
    sizes = [(64, 64), (50, 64), (64, 40)]
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        boxes = torch.rand(3, 60, columns, generator=draw) * 60
        if columns == 4:
            boxes[..., 2:] = boxes[..., :2] + 5 + boxes[..., 2:] * 5 / 12
        scores = torch.rand(3, 60, generator=draw)
        labels = torch.randint(label_offset, label_offset + 3, (3, 60), generator=draw)
        levels = [Candidates(scores[:, part], labels[:, part], boxes[:, part]) for part in (slice(30), slice(30, 60))]
        static = suppress_static(levels, torch.tensor(sizes), 0.3, 0.2, 50)
        static_7 = suppress_static(levels, torch.tensor(sizes), 0.3, 0.2, 7)
        for number, expected in enumerate(suppress(levels, sizes, 0.3, 0.2, 50)):
            count = len(expected.scores)
            assert 7 < count < (scores[number] > 0.3).sum()
            assert torch.equal(static_7.boxes[number], expected.boxes[:7])
            assert torch.equal(static.boxes[number, :count], expected.boxes)
            assert torch.equal(static.scores[number, :count], expected.scores)
            assert torch.equal(static.labels[number, :count], expected.labels)
            assert (static.labels[number, count:] == -1).all() and (static.boxes[number, count:] == 0).all()
            if columns == 4:
                above = scores[number] > 0.3
                clipped = boxes[number].clamp(min=0).minimum(torch.tensor(sizes[number]).flip(0).repeat(2))[above]
                kept_indices = batched_nms(clipped, scores[number][above], labels[number][above], 0.2)
                assert torch.equal(clipped[kept_indices][:50], expected.boxes)


@pytest.mark.slow
def test_labels_and_boxes_are_exact_in_half_precision(tmp_path: Path) -> None:
    """After a layer in FP16: labels of 1,203 classes, and boxes that FP16 would round."""
    onnx: Any = pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")

    class Suppression(ExportModule):
        def forward(self, image: Tensor, image_sizes: Tensor) -> dict[str, Tensor]:
            scores, labels, *sides = self.task(image).squeeze(3).unbind(1)
            boxes = torch.stack(sides, 2) * 3 + 0.3
            boxes[..., 2:] += boxes[..., :2]
            kept = suppress_static([Candidates(scores, labels.long(), boxes)], image_sizes, 0.1, 0.2, 50)
            return {"boxes": kept.boxes, "scores": kept.scores, "labels": kept.labels}

        def expected(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return self.forward(**inputs)

    layer = nn.Conv2d(6, 6, 1, bias=False)
    layer.weight.data = torch.eye(6)[..., None, None]
    draw = torch.Generator().manual_seed(0)
    scores = torch.stack([torch.randperm(100, generator=draw) / 128 for _ in range(2)])  # exact in FP16
    ranges = [(1193, 1203), (0, 300), (0, 300), (60, 200), (60, 200)]
    columns = [torch.randint(*bounds, (2, 100), generator=draw).float() for bounds in ranges]
    image = torch.stack([scores, *columns], 1).unsqueeze(3)
    job = job_of(Suppression(layer), image=image, image_sizes=torch.tensor([[2000, 2000]] * 2))
    fp32_path, fp16_path = tmp_path / "single.onnx", tmp_path / "half.onnx"
    written("onnx", fp32_path, job, 0.0)
    write_fp16(fp32_path, fp16_path, [])
    expected, outputs = job.module.expected(job.inputs), in_onnxruntime(fp16_path, job.inputs)
    assert 30 < (expected["labels"][0] >= 0).sum() <= 50 and expected["boxes"].max() > 1024
    assert all(torch.equal(outputs[name], expected[name]) for name in expected)
    assert "task.weight_fp16" in {item.name for item in onnx.load(fp16_path).graph.initializer}


def detections(*rows: tuple[float, float, int]) -> dict[str, Tensor]:
    """Return detections of one image, given left side, score and label of boxes of 10 x 10."""
    return {
        "boxes": torch.tensor([[[left, 0.0, left + 10, 10.0] for left, _, _ in rows]]),
        "scores": torch.tensor([[score for _, score, _ in rows]]),
        "labels": torch.tensor([[label for _, _, label in rows]]),
    }


REFERENCE = detections((0, 0.9, 1), (30, 0.9, 2), (0, 0, -1))
MANY = [(30.0 * number, 0.5 + number / 100, 1) for number in range(25)]


@pytest.mark.parametrize(
    ("reference", "actual", "difference"),
    [
        (REFERENCE, detections((30, 0.9, 2), (0, 0.9, 1), (0, 0, -1)), 0),
        (REFERENCE, detections((0, 0.8996, 1), (30, 0.9, 2), (0, 0, -1)), 0.0004),
        (REFERENCE, detections((0.02, 0.9, 1), (30, 0.9, 2), (0, 0, -1)), 0.02 / 40),
        (REFERENCE, detections((1, 0.9, 1), (30, 0.9, 2), (0, 0, -1)), inf),
        (REFERENCE, detections((0, 0.8, 1), (30, 0.9, 2), (0, 0, -1)), inf),
        (REFERENCE, detections((0, 0.9, 3), (30, 0.9, 2), (0, 0, -1)), inf),
        (REFERENCE, detections((0, 0.9, 1), (30, 0.9, 2), (60, 0.0504, 1)), 0),
        (detections(*MANY), detections(*MANY[:-1], (723, 0.74, 1)), 0),
        (detections(*MANY), detections(*MANY[:-2], (693, 0.73, 1), (723, 0.74, 1)), inf),
    ],
    ids=["order", "score", "box", "far box", "far score", "label", "at the threshold", "one of 25", "two of 25"],
)
def test_detections_are_matched_before_they_are_compared(
    reference: dict[str, Tensor], actual: dict[str, Tensor], difference: float
) -> None:
    """A detection may be missing if its score is at the threshold; one of 25 may have suppressed another."""
    assert detection_difference(reference, actual, 0.05) == pytest.approx(difference, 1e-3)


@pytest.mark.parametrize(("name", "shape"), [("masks", (1, 3, 4, 4)), ("keypoints", (1, 3, 2, 3))])
def test_masks_and_keypoints_of_detections_are_compared(name: str, shape: tuple[int, ...]) -> None:
    expected = REFERENCE | {name: torch.full(shape, 0.5)}
    near, far = (detection_difference(expected, REFERENCE | {name: torch.full(shape, v)}, 0.05) for v in (0.5004, 0.6))
    assert near == pytest.approx(4e-4, 1e-3) and far == inf


def test_non_finite_values_differ() -> None:
    assert relative_difference(torch.tensor([1.0, 200.0]), torch.tensor([1.0, 202.0])) == pytest.approx(0.01)
    assert relative_difference(torch.tensor([0.1]), torch.tensor([0.2])) == pytest.approx(0.1)
    assert relative_difference(torch.ones(2), torch.tensor([1.0, float("nan")])) == inf
    assert relative_difference(torch.ones(2), torch.ones(3)) == inf


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_missing_library_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opabinia.inference.export.files.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ONNX needs onnx: pip install 'opabinia\[export\]'"):
        export(run, tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=r"LiteRT needs litert-torch: pip install 'opabinia\[litert\]'"):
        export(run, tmp_path / "model.tflite", form="litert")


def test_formats_for_small_devices_have_one_precision(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--precision: only ONNX and OpenVINO models .*: --format onnx"):
        export(run, tmp_path / "model.pte", form="executorch", measured=Measured(["int8"]))
    with pytest.raises(ConfigError, match=r"--evaluate: --format torch is not evaluated; .*: onnx, openvino, exec"):
        export(run, tmp_path / "model.pt2", form="torch", measured=Measured())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_core_ml_package_has_the_names_shapes_and_description_of_the_graph(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_libraries("coreml")
    path = export(run, tmp_path / "model.mlpackage", form="coreml")
    printed = capsys.readouterr()
    assert "not run here: Core ML needs an Apple device" in printed.out and not printed.err
    from coremltools.models import MLModel

    model = MLModel(str(path), skip_model_load=True)
    description = model.get_spec().description
    shapes = {value.name: [*value.type.multiArrayType.shape] for value in (*description.input, *description.output)}
    assert shapes == {"image": [1, 1, 32, 32], "logits": [1, 10], "probabilities": [1, 10]}
    about = json.loads(model.user_defined_metadata["opabinia"])
    assert (about["dtype"], about["value_range"], about["batch_size"]) == ("float32", "0 to 255", "1")
    assert json.loads(about["classes"]) == list("0123456789")


def test_inputs_of_core_ml_have_their_types_and_the_values_of_the_function() -> None:
    class Sums(ExportModule):
        def forward(self, image: Tensor, image_sizes: Tensor) -> dict[str, Tensor]:
            assert (image.dtype, image_sizes.dtype) == (torch.uint8, torch.int64)
            return {"sums": image.sum((1, 2, 3)) + image_sizes.sum(1)}

    sample = {"image": torch.full((1, 1, 2, 2), 200, dtype=torch.uint8), "image_sizes": torch.tensor([[2, 2]])}
    module = CoreMlInputs(Sums(nn.Identity()), sample)
    assert module(image=sample["image"].float(), image_sizes=sample["image_sizes"].int())["sums"].item() == 804


def test_graphs_for_litert_have_constants_and_gather_the_largest_values() -> None:
    class Largest(nn.Module):
        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            powers = 100.0 ** (torch.arange(4, dtype=torch.float64) / 4)
            rows = torch.stack(torch.meshgrid(powers, powers, indexing="ij")).sum(0).float()
            return (image * rows).topk(2).values, image.topk(1, 0).indices

    sample = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    graph: Any = litert_graph(Largest(), {"image": sample})
    operators = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    aten = {name.removeprefix("aten.") for name in operators if name.startswith("aten.")}
    assert aten == {"mul.Tensor", "topk.default", "gather.default"}
    for actual, expected in zip(graph(image=sample), Largest()(sample), strict=True):
        assert torch.equal(actual, expected)


def test_regions_are_sampled_as_by_roi_align() -> None:
    class Crops(nn.Module):
        def forward(self, maps: Tensor, regions: Tensor) -> Tensor:
            return roi_align(maps, regions, (3, 5), 0.25, sampling_ratio=2, aligned=True)

    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 8, 16, generator=generator)
    corners = torch.rand(4, 2, 2, generator=generator).sort(1).values * torch.tensor([64.0, 32.0])
    regions = torch.cat([torch.tensor([[0.0], [1], [1], [0]]), corners.flatten(1)], 1)
    regions[0, 1:] = torch.tensor([0.0, 0, 64, 32])
    graph: Any = litert_graph(Crops(), {"maps": maps, "regions": regions})
    assert not any("roi_align" in str(node.target) for node in graph.graph.nodes)
    assert torch.allclose(graph(maps=maps, regions=regions), Crops()(maps, regions), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("detector", [RTDetr, DFine])
def test_detectors_with_queries_are_litert_files(detector: Any, tmp_path: Path) -> None:
    skip_without_libraries("litert")
    torch.manual_seed(0)
    dataset_info = DatasetInfo(samples=4, classes=("a", "b"), boxes=True)
    small = {"channels": 32, "num_queries": 20, "decoder_layers": 2, "attention_heads": 4, "ffn_dim": 64}
    backbone = partial(backbones.timm, model="resnet10t")
    task = Detection(dataset_info, backbone=backbone, detector=partial(detector, **small)).eval()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    job = job_of(task.export_module(), image=images, image_sizes=torch.full((2, 2), 64))
    written("litert", tmp_path / "model.tflite", job, 1e-4)  # compares


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of coremltools, after an error
@pytest.mark.parametrize("form", ["executorch", "litert", "coreml"])
def test_a_model_with_an_operator_that_a_format_lacks(form: GraphForm, tmp_path: Path) -> None:
    class Eigenvalues(ExportModule):
        def forward(self, image: Tensor) -> dict[str, Tensor]:
            return {"values": torch.linalg.eigvals(image).real}

        def expected(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return self.forward(**inputs)

    job = job_of(Eigenvalues(nn.Identity()), image=torch.rand(2, 1, 4, 4))
    with pytest.raises(
        ConfigError, match=r"--format: (ExecuTorch|LiteRT|Core ML) cannot take this model: .+--format onnx"
    ):
        written(form, tmp_path / "file", job, 1e-4)
    assert not list(tmp_path.iterdir())


def test_invalid_paths_are_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("existing")
    with pytest.raises(ConfigError, match=r"model.pt2 exists already"):
        export(run, path, form="torch")
    assert path.read_text() == "existing"
    with pytest.raises(ConfigError, match=r"--out: .*digits is to be one file: end its name with \.onnx"):
        export(run, tmp_path / "digits")
    with pytest.raises(ConfigError, match="holds no run"):
        export(tmp_path, form="torch")


def test_detectors_without_static_shapes_are_refused() -> None:
    dataset_info = DatasetInfo(samples=4, classes=("a", "b"), boxes=True)
    backbone = partial(backbones.timm, model="test_resnet")
    with pytest.raises(ValueError, match=r"Detector has no detect_batch.*the detectors of Opabinia can be exported"):
        custom = Detection(dataset_info, backbone=backbone, detector=lambda levels, dataset_info: Detector())
        custom.export_module().check_static()
    with pytest.raises(ValueError, match=r"export with task.test_time_augmentation=null"):
        augmentation = TestTimeAugmentation(scales=[0.5])
        augmented = Detection(dataset_info, backbone=backbone, detector=Fcos, test_time_augmentation=augmentation)
        augmented.export_module().check_static()
    Detection(dataset_info, backbone=backbone, detector=Fcos).export_module().check_static()


@pytest.mark.slow
def test_calibrated_scores_are_exported() -> None:
    torch.manual_seed(0)
    dataset_info = DatasetInfo(samples=4, classes=("a", "b"), boxes=True)
    backbone = partial(backbones.timm, model="test_resnet")
    detector = partial(Fcos, score_threshold=0.001, num_convs=1, max_detections=10)
    task = Detection(dataset_info, backbone=backbone, detector=detector, score_calibration={"a": (1.0, 5.0)}).eval()
    module = task.export_module()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    inputs = {"image": images, "image_sizes": torch.tensor([[64, 64], [64, 48]])}
    with torch.no_grad():
        actual = module(**inputs)
    assert module.difference(module.expected(inputs), actual) < 1e-4
    assert actual["scores"].diff(dim=1).max() <= 0 and actual["scores"].max() > 0.5
