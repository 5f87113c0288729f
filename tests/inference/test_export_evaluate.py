"""Exported files: evaluation, reduced precision, the prediction script, and serving."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import opabinia
from opabinia.cli.tables import print_export_benchmark
from opabinia.config import ConfigError, Problem
from opabinia.contracts import ExportModule
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.inference.export import Measured, evaluate, export, predict_script, samples, speed
from opabinia.inference.export.benchmark import benchmark_export
from opabinia.inference.export.description import resize_rule
from opabinia.inference.export.exported_task import ExportedTask, load_exported
from opabinia.inference.export.files import LIBRARIES, trtexec_command, write_openvino
from opabinia.inference.export.job import ExportMismatch
from opabinia.inference.export.precision import excluded_nodes, layer_names, output_layers, write_fp16, write_int8
from opabinia.inference.export.sensitivity import rank_layers, smallest_number
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.serving.address import is_exported, open_socket
from opabinia.inference.serving.inference import Inference
from opabinia.inference.serving.limits import Limits, Upload
from opabinia.tasks.detection.export import DetectionExport
from opabinia.training.run_folder import chosen_checkpoint, resolve


def save_graph(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any]
) -> Path:
    """Write an ONNX file; inputs are the type and shape of each, outputs the shape, weights the values."""
    onnx: Any = pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
    pytest.importorskip("onnxruntime")
    info, FLOAT = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    values = [[info(name, *given) for name, given in inputs.items()], [info(n, FLOAT, s) for n, s in outputs.items()]]
    constants = [onnx.numpy_helper.from_array(np.float32(array), name) for name, array in weights.items()]
    made = [onnx.helper.make_node(kind, *given, name=name, **options) for name, kind, *given, options in nodes]
    graph = onnx.helper.make_graph(made, "graph", *values, constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    model.ir_version = 10
    metadata = {"size": [8, 8], "crop": 1.0, "channels": 3, "classes": list(map(str, range(256))), "transforms": []}
    texts = {"task": "classification", "dtype": "uint8", "resize": "stretch"}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()} | texts)
    onnx.save(model, path)
    return path


FLOAT, UINT8, INT64 = 1, 2, 7
"""ONNX's numbers of these types."""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """An ONNX file: images / 255, convolution, ReLU, convolution; its output goes to a sigmoid and is multiplied by
    1,000, as boxes are."""
    kernels = np.random.default_rng(0).normal(size=(4, 4, 3, 3))
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        ("cast", "Cast", ["image"], ["pixels"], {"to": FLOAT}),
        ("div", "Div", ["pixels", "scale"], ["scaled"], {}),
        ("first", "Conv", ["scaled", "task.body.weight"], ["features"], pads),
        ("relu", "Relu", ["features"], ["positive"], {}),
        ("second", "Conv", ["positive", "task.head.cls.weight"], ["logits"], pads),
        ("sigmoid", "Sigmoid", ["logits"], ["probabilities"], {}),
        ("mul", "Mul", ["logits", "thousand"], ["boxes_"], {}),
    ]
    shape = ["batch", 4, 8, 8]
    inputs, outputs = {"image": (UINT8, ["batch", 3, 8, 8])}, {"probabilities": shape, "boxes_": shape}
    weights = {"scale": 255, "thousand": 1000, "task.body.weight": kernels[:, :3], "task.head.cls.weight": kernels}
    return save_graph(tmp_path / "graph.onnx", nodes, inputs, outputs, weights)


def test_layers_are_between_pre_and_post_processing(graph: Path) -> None:
    assert layer_names(graph) == {"first": "body", "second": "head.cls"}
    assert output_layers(graph) == ["head.cls"]
    assert excluded_nodes(graph, []) == ["cast", "div", "sigmoid", "mul"]
    assert excluded_nodes(graph, ["head.*"]) == ["cast", "div", "second", "sigmoid", "mul"]
    with pytest.raises(ConfigError, match=r"--exclude: no layer is named 'neck\.\*'.*layers: body, head\.cls"):
        excluded_nodes(graph, ["neck.*"])


def test_layers_whose_weight_was_renamed_have_the_name_of_their_module(graph: Path) -> None:
    import onnx

    model = onnx.load(graph)
    (node,) = (node for node in model.graph.node if node.name == "second")
    model.graph.initializer[3].name = node.input[1] = "val_7"
    item = node.metadata_props.add()
    item.key, item.value = "pkg.torch.onnx.name_scopes", "['', 'task.head', 'task.head.cls', 'conv2d']"
    onnx.save(model, graph)
    assert layer_names(graph) == {"first": "body", "second": "head.cls"}


COORDINATES = [
    ("a", "MatMul", ["queries", "a.weight"], ["deltas"], {}),
    ("sigmoid", "Sigmoid", ["deltas"], ["boxes"], {}),
    ("transpose", "Transpose", ["boxes"], ["columns"], {"perm": [0, 2, 1]}),
    ("add", "Add", ["columns", "columns"], ["positions"], {}),
    ("b", "MatMul", ["positions", "b.weight"], ["embedding"], {}),
    ("relu", "Relu", ["embedding"], ["positive"], {}),
    ("c", "MatMul", ["positive", "c.weight"], ["output"], {}),
]
REGIONS = [
    ("stem", "Conv", ["image", "stem.weight"], ["features"], {}),
    ("pool", "GlobalAveragePool", ["features"], ["means"], {}),
    ("rows", "Flatten", ["means"], ["rows"], {}),
    ("score", "MatMul", ["rows", "score.weight"], ["logits"], {}),
    ("softmax", "Softmax", ["logits"], ["scores"], {}),
    ("mul", "Mul", ["scores", "logits"], ["weighted"], {}),
    ("best", "ArgMax", ["weighted"], ["best"], {"axis": 1, "keepdims": 0}),
    ("box", "MatMul", ["rows", "box.weight"], ["regions"], {}),
    ("identity", "Identity", ["regions"], ["rois"], {}),
    ("align", "RoiAlign", ["features", "rois", "best"], ["pooled"], {"output_height": 2, "output_width": 2}),
    ("relu", "Relu", ["pooled"], ["positive"], {}),
    ("mask", "Conv", ["positive", "mask.weight"], ["output"], {}),
]


@pytest.mark.parametrize(
    ("nodes", "inputs", "sizes", "excluded"),
    [
        (
            *(COORDINATES, {"queries": (FLOAT, [1, 5, 8])}, {"a": (8, 4), "b": (5, 8), "c": (8, 3)}),
            ["sigmoid", "transpose", "add"],
        ),
        (
            *(REGIONS, {"image": (FLOAT, [1, 3, 8, 8])}),
            {"stem": (6, 3, 3, 3), "score": (6, 5), "box": (6, 4), "mask": (2, 6, 1, 1)},
            ["softmax", "mul", "best", "identity"],
        ),
    ],
    ids=["coordinates between layers", "scores that select regions"],
)
def test_nodes_that_stay_in_single_precision(
    nodes: list[Any], inputs: dict[str, Any], sizes: dict[str, Any], excluded: list[str], tmp_path: Path
) -> None:
    weights = {f"{name}.weight": np.ones(size) for name, size in sizes.items()}
    path = save_graph(tmp_path / "graph.onnx", nodes, inputs, {"output": None}, weights)
    assert excluded_nodes(path, []) == excluded


RESIDUAL = [
    ("a", "MatMul", ["tokens", "a.weight"], ["product"], {}),
    ("bias", "Add", ["product", "a.bias"], ["values"], {}),
    ("sum", "Add", ["values", "tokens"], ["residual"], {}),
    ("relu", "Relu", ["residual"], ["positive"], {}),
    ("next", "Add", ["positive", "tokens"], ["stream"], {}),
    ("b", "MatMul", ["stream", "b.weight"], ["output"], {}),
]


def test_sums_behind_a_layer_in_single_precision_stay_in_it(tmp_path: Path) -> None:
    weights = {"a.weight": np.ones((8, 8)), "a.bias": np.ones(8), "b.weight": np.ones((8, 3))}
    inputs = {"tokens": (FLOAT, [1, 5, 8])}
    path = save_graph(tmp_path / "graph.onnx", RESIDUAL, inputs, {"output": None}, weights)
    assert excluded_nodes(path, []) == []
    assert excluded_nodes(path, ["a"]) == ["a", "bias", "sum"]


def test_a_layer_whose_outliers_round_other_weights_to_zero_is_the_most_sensitive(tmp_path: Path) -> None:
    """``b`` has weights of 1,000 for a channel that is zero, so in FP32 they change nothing."""
    generator = np.random.default_rng(0)
    weights = {f"{name}.weight": generator.normal(size=(16, 16, 1, 1)) for name in "abc"}
    weights["a.weight"][0] = -1
    weights["b.weight"][:, 0] = 1000
    nodes = [
        ("a", "Conv", ["image", "a.weight"], ["x"], {}),
        ("relu", "Relu", ["x"], ["positive"], {}),
        ("b", "Conv", ["positive", "b.weight"], ["y"], {}),
        ("c", "Conv", ["y", "c.weight"], ["z"], {}),
        ("sigmoid", "Sigmoid", ["z"], ["output"], {}),
    ]
    inputs = {"image": (FLOAT, ["batch", 16, 8, 8])}
    path = save_graph(tmp_path / "graph.onnx", nodes, inputs, {"output": None}, weights)
    rows = torch.rand(4, 1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    assert rank_layers(path, [], [{"image": row} for row in rows])[0] == "b"
    assert set(rank_layers(path, ["b"], [{"image": row} for row in rows])) == {"a", "c"}


@pytest.mark.parametrize("most", [0, 1, 2, 7, 8, 22])
def test_the_smallest_number_that_is_enough(most: int) -> None:
    for enough in range(1, most + 2):
        calls: set[int] = set()

        def is_enough(number: int, enough: int = enough, calls: set[int] = calls) -> bool:
            calls.add(number)
            return number >= enough

        assert smallest_number(most, is_enough) == (enough if enough <= most else None)
        assert len(calls) <= 10 and calls <= {*range(1, most + 1)}


def test_reduced_precisions_keep_names_and_types_and_change_values_little(graph: Path) -> None:
    import onnx

    image = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = ExportedTask(graph).run(image=image)
    write_fp16(graph, fp16_path := graph.with_name("half.onnx"), [])
    write_int8(graph, int8_path := graph.with_name("int8.onnx"), ["body"], [{"image": image[:1]}, {"image": image[1:]}])
    onnx.checker.check_model(str(fp16_path))
    for path, tolerance in ((fp16_path, 0.01), (int8_path, 0.2)):
        actual = ExportedTask(path).run(image=image)
        assert actual.keys() == expected.keys()
        assert all(value.dtype == torch.float32 for value in actual.values())
        error = (actual["probabilities"] - expected["probabilities"]).abs().max()
        assert 0 < error < tolerance, path
    # FP32 after the last layer: large outputs are exact products of its outputs
    nodes = {node.name: node for node in onnx.load(fp16_path).graph.node}
    assert list(nodes["first"].input) == ["scaled_fp16", "task.body.weight_fp16"]
    assert list(nodes["mul"].input) == ["logits", "thousand"]
    types = [node.op_type for node in onnx.load(int8_path).graph.node]
    assert types.count("Conv") == 2 and types.count("QuantizeLinear") == 2


def test_int8_rounds_the_output_of_relu6_and_not_its_input(tmp_path: Path) -> None:
    """One large input would leave few of the 256 levels to all others."""
    generator = np.random.default_rng(0)
    nodes = [
        ("first", "Conv", ["image", "first_weight"], ["wide"], {}),
        ("relu6", "Clip", ["wide", "low", "high"], ["narrow"], {}),
        ("second", "Conv", ["narrow", "second_weight"], ["output"], {}),
    ]
    weights = {name: generator.normal(size=(16, 16, 1, 1)) for name in ("first_weight", "second_weight")}
    image = torch.from_numpy(generator.normal(size=(4, 16, 8, 8)).astype(np.float32))
    weights["first_weight"][0, 0] = 300
    inputs = {"image": (FLOAT, ["batch", 16, 8, 8])}
    path = save_graph(tmp_path / "graph.onnx", nodes, inputs, {"output": None}, {**weights, "low": 0, "high": 6})
    write_int8(path, int8_path := tmp_path / "int8.onnx", [], [{"image": image}])
    expected, actual = (ExportedTask(file).run(image=image)["output"] for file in (path, int8_path))
    assert (actual - expected)[:, 1:].abs().mean() < 0.05 * expected.abs().mean()


def test_int8_sums_fit_into_16_bits_on_every_cpu(tmp_path: Path) -> None:
    """Without VNNI a CPU adds two products of an input and a weight in 16 bits: 8-bit weights gave half of the sum."""
    inputs, weights = {"image": (FLOAT, ["batch", 64, 8, 8])}, {"weight": np.ones((32, 64, 1, 1))}
    path = save_graph(
        tmp_path / "graph.onnx", [("conv", "Conv", ["image", "weight"], ["sum"], {})], inputs, {"sum": None}, weights
    )
    image = torch.full((1, 64, 8, 8), 255.0)
    write_int8(path, int8_path := tmp_path / "int8.onnx", [], [{"image": image}])
    assert torch.allclose(ExportedTask(int8_path).run(image=image)["sum"], torch.tensor(64 * 255.0), rtol=0.01)


def test_the_command_of_tensorrt_has_the_shapes_of_the_graph(graph: Path, tmp_path: Path) -> None:
    engine, build = graph.with_suffix(".engine"), f"trtexec --onnx={graph} --saveEngine="
    shapes = "--minShapes=image:1x3x8x8 --optShapes=image:8x3x8x8 --maxShapes=image:32x3x8x8"
    assert trtexec_command(graph) == f"{build}{engine} --fp16 {shapes}"
    inputs: dict[str, Any] = {"image": (FLOAT, ["batch", 3, 8, 8]), "image_sizes": (INT64, ["batch", 2])}
    nodes = [("relu", "Relu", ["image"], ["output"], {})]
    two = save_graph(tmp_path / "two.onnx", nodes, inputs, {"output": None}, {})
    assert "--optShapes=image:8x3x8x8,image_sizes:8x2 " in trtexec_command(two)
    fixed = save_graph(tmp_path / "one image.onnx", nodes, {"image": (FLOAT, [1, 3, 8, 8])}, {"output": None}, {})
    assert shlex.split(trtexec_command(fixed))[1:] == [
        f"--onnx={fixed}",
        f"--saveEngine={fixed.with_suffix('.engine')}",
        "--fp16",
    ]


def test_openvino_models_are_read_like_onnx_files(graph: Path) -> None:
    if find_spec("openvino") is None:
        pytest.skip("OpenVINO is absent: pip install 'opabinia[openvino]'")
    write_openvino(graph, folder := graph.with_name("openvino"))
    pixels = torch.full((2, 3, 8, 8), 200, dtype=torch.uint8)
    expected = ExportedTask(graph).run(image=pixels)
    for path in (folder, folder / "model.xml"):
        assert is_exported(path)
        assert torch.allclose(ExportedTask(path).run(image=pixels)["boxes_"], expected["boxes_"], rtol=1e-4)
    scripted = [predict_script.open_onnx(str(graph)), predict_script.open_openvino(str(folder / "model.xml"))]
    for metadata, shapes, run in scripted:
        assert metadata == scripted[0][0] and shapes == {"image": [-1, 3, 8, 8]}
        assert np.allclose(run({"image": pixels.numpy()})["boxes_"], expected["boxes_"], rtol=1e-4)
    assert not any(map(is_exported, (graph.parent, folder / "model.bin", graph.with_name("no.onnx"))))


def test_a_served_graph_has_no_number_of_parameters(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="fastapi is absent: pip install 'opabinia[serve]'")
    from opabinia.inference.serving import server

    services: list[Any] = []
    monkeypatch.setattr(server, "make_app", lambda service, *_: services.append(service))
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_, **__: None)
    with open_socket("127.0.0.1", 0) as listening:
        server.serve(RunModel(graph), listening, limits=Limits(bytes=10**6, pixels=10**6, waiting=1))
    assert services[0].about["task"] == "classification" and "parameters" not in services[0].about


def test_images_of_another_size_are_refused(graph: Path) -> None:
    with pytest.raises(DataError, match=r"one view of 8 x 8 pixels, not 3 x 8 x 9; end data.val.transforms with"):
        ExportedTask(graph).predict({"image": torch.zeros(1, 3, 8, 9, dtype=torch.uint8)})
    task = ExportedTask(graph)
    task.size_multiple = 1  # a detector: padded at the right and bottom
    inputs = task.inputs({"image": torch.ones(1, 3, 6, 8, dtype=torch.uint8), "image_sizes": [(6, 7)]})
    assert inputs["image"].shape == (1, 3, 8, 8) and inputs["image"].sum() == 3 * 6 * 8
    assert inputs["image_sizes"].tolist() == [[6, 7]]


def test_calibration_images_have_the_input_size_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def images(count: int, height: int) -> list[Any]:
        return [{"image": torch.full((1, height, 8), index, dtype=torch.uint8)} for index in range(count)]

    def calibrate(module: ExportModule, calibration_samples: Any) -> list[dict[str, torch.Tensor]]:
        def split_samples(*_: object) -> Any:
            if isinstance(calibration_samples, Exception):
                raise calibration_samples
            return calibration_samples

        monkeypatch.setattr(samples, "split_samples", split_samples)
        resolved: Any = None
        return samples.calibration_inputs(resolved, module, images(2, 8), 3)

    task: Any = nn.Identity()
    task.size_multiple, task.normalize, task.backbone = None, nn.Identity(), nn.Identity()
    detector: Any = DetectionExport(task, task)
    (*_, last_row) = rows = calibrate(ExportModule(task), images(3, 8))
    assert len(rows) == 3 and last_row["image"].shape == (1, 1, 8, 8) and (last_row["image"] == 2).all()
    (row,) = calibrate(detector, images(1, 5))
    assert row["image"].shape == (1, 1, 8, 8) and row["image_sizes"].tolist() == [[5, 8]]
    error_of_both_splits = ConfigError(
        [Problem("", name, "cells/ has no images") for name in ("data.train", "data.val")]
    )
    sizes = r"images of several sizes \(\(1, 8, 8\), \(1, 9, 8\)\).*takes one; end them with"
    for module, calibration_samples, reason in (
        (ExportModule(task), [], "the split has no images"),
        (ExportModule(task), error_of_both_splits, "cells/ has no images"),
        (ExportModule(task), OSError("cells/1.png: gone"), "cells/1.png: gone"),
        (ExportModule(task), images(1, 9), sizes),
        (detector, images(1, 9), "9 x 8 pixels; the graph takes 8 x 8: end data.val.transforms with that size"),
    ):
        message = f"^data.train: INT8 is calibrated with images of the training split: .*{reason}"
        with pytest.raises(ConfigError, match=message) as error:
            calibrate(module, calibration_samples)
        assert len(error.value.problems) == 1


def test_the_resize_rule_of_transforms() -> None:
    assert resize_rule([{"name": "resize_and_crop", "size": 224, "crop": 0.875}], 224) == ("crop", 0.875)
    assert resize_rule([{"name": "Resize", "size": [256]}, {"name": "CenterCrop", "size": 192}], 192) == ("crop", 0.75)
    assert resize_rule([{"name": "Resize", "size": [128, 64]}], 64) == ("stretch", 1.0)
    assert resize_rule([], 64) == ("stretch", 1.0)


def test_the_original_has_the_score_of_its_run(run: Path, predictor: Predictor) -> None:
    checkpoint = chosen_checkpoint(run, "best")
    (evaluation,) = evaluate.open_evaluations(resolve(run, []), checkpoint, predictor, {"logits"}, [])
    scores = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert evaluation.score(evaluation.task) == scores[evaluation.metric]


@pytest.mark.slow
def test_exported_files_are_evaluated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is absent: pip install 'opabinia[export]'")
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    run = Path(shutil.copytree(run, tmp_path / "digits" / "default"))
    with pytest.raises(ExportMismatch, match=r"exported: val/top1 is 0\.\d+, 0\.0000 worse(.|\n)*int8"):
        export(run, measured=Measured(["int8"], max_drop=-1.0, calibration_images=4))
    assert list((run / "export").iterdir()) == []
    with pytest.raises(ConfigError, match=r"--format torch is not evaluated"):
        export(run, form="torch", measured=Measured())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"INT8 is calibrated with .*: .*empty has no folders") as error:
        folder = f"data.train.source={{name: image_folder, root: {tmp_path / 'empty'}}}"
        export(run, None, [folder], measured=Measured(["int8"]))
    assert len(error.value.problems) == 1
    capsys.readouterr()
    path = export(run, measured=Measured(["fp16", "int8"], max_drop=0.05, calibration_images=32))
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("┃", "│"))]
    assert [name for name in head if name != "┃"] == ["original", "exported", "fp16", "int8"]
    (score, difference), names = rows[:2], [row[1] for row in rows]
    assert names == ["val/top1", "difference", "MB", "p50", "p95", "samples/s"]
    assert score[3] == score[5] and difference[4] == "+0.0000"
    names = ["model.fp16.onnx", "model.int8.onnx", "model.onnx", "predict.py"]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    path.unlink()
    with pytest.raises(ConfigError, match=r"model\.int8\.onnx exists already"):
        export(run, measured=Measured(["int8"]))


def silence_a_channel(task: nn.Module) -> None:
    """Make one channel between two layers of the stem zero, and its weights 1,000: INT8 rounds the others to zero."""
    _, norm, _, layer, *_ = task.get_submodule("backbone.model.conv1").children()
    with torch.no_grad():
        norm.weight[0], norm.bias[0], layer.weight[:, 0] = 0.0, -1.0, 1000.0


def quantized_layers(path: Path, names: dict[str, str]) -> set[str]:
    """Return the modules of the layers whose weights are in INT8; ``names``: modules by node."""
    import onnx

    nodes = onnx.load(path).graph.node
    made = {output for node in nodes if node.op_type == "DequantizeLinear" for output in node.output}
    return {names[node.name] for node in nodes if node.name in names and node.input[1] in made}


@pytest.mark.slow
def test_a_sensitive_layer_is_found_and_stays_in_single_precision(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is absent: pip install 'opabinia[export]'")
    module = importlib.import_module("opabinia.inference.export.export")
    prepare = module.prepare

    def sensitive(*given: Any) -> Any:
        model = prepare(*given)
        silence_a_channel(model.predictor.task)
        return model

    monkeypatch.setattr(module, "prepare", sensitive)
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    run = Path(shutil.copytree(run, tmp_path / "digits" / "default"))
    path = export(run, measured=Measured(["int8"], max_drop=0.05, calibration_images=32))
    lines = capsys.readouterr().out.splitlines()
    difference = next(line for line in lines if "difference" in line).split("│")[4]
    assert float(difference) >= -0.05
    (note,) = (line for line in lines if line.startswith("int8: "))
    found = re.fullmatch(
        r"int8: ([12]) of 16 layers stay in FP32; with all in INT8 the score drops by 0\.[2-9]\d+. "
        r"The same without a search: --exclude (\S+)(?: --exclude (\S+))?",
        note,
    )
    assert found is not None
    excluded = {*filter(None, found.groups()[1:])}
    assert found[2] == "backbone.model.conv1.3" and len(excluded) == int(found[1])
    names = layer_names(path)
    assert {*names.values()} - quantized_layers(path.with_name("model.int8.onnx"), names) == excluded
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.int8.onnx", "model.onnx", "predict.py"]


@pytest.mark.slow
def test_an_openvino_export_writes_a_folder_for_each_precision(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is absent: pip install 'opabinia[openvino]'")
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    run = Path(shutil.copytree(run, tmp_path / "digits" / "default"))
    measured = Measured(["fp16", "int8"], max_drop=0.05, calibration_images=32)
    path = export(run, form="openvino", measured=measured)
    assert path == run / "export" / "openvino"
    folders = sorted(path.parent.iterdir())
    assert [folder.name for folder in folders] == ["openvino", "openvino.fp16", "openvino.int8"]
    names = ["model.bin", "model.xml", "predict.py"]
    assert all(sorted(file.name for file in folder.iterdir()) == names for folder in folders)
    sizes = [(folder / "model.bin").stat().st_size for folder in folders]
    assert sizes[1] < 0.51 * sizes[0] and sizes[2] < 0.3 * sizes[0]
    predictor = load_exported(path)
    task: Any = predictor.task
    assert (task.metadata["task"], task.metadata["batch_size"]) == ("classification", "dynamic")
    assert json.loads(task.metadata["classes"]) == list("0123456789")
    image = predictor.sample(Digits(split="val")[0]["image"])["image"][None]
    with torch.no_grad():
        expected = opabinia.load(run).task.predict({"image": image})["logits"]
    assert torch.allclose(task.run(image=image)["logits"], expected, atol=1e-4)
    with pytest.raises(ConfigError, match=r"is not an OpenVINO model of opabinia export"):
        load_exported(tmp_path)


def test_an_exported_model_is_benchmarked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
    monkeypatch.setattr("opabinia.inference.export.speed.SECONDS", 0.01)
    path = export(run, tmp_path / "model.onnx")
    report = benchmark_export(path)
    assert report["input"] == "1 x 32 x 32" and report["bytes"] == path.stat().st_size
    assert 0 < report["p50"] <= report["p95"]
    assert list(report["samples_per_s"]) == [1, 2, 4, 8, 16] and min(report["samples_per_s"].values()) > 0
    assert list(report["stages"]) == ["reading", "graph", "predictions"]
    print_export_benchmark(report)
    assert "samples/s in batches of 16" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("form", "absent"), [("executorch", "opabinia"), ("litert", "torch")])
def test_files_for_small_devices(form: Literal["executorch", "litert"], absent: str, run: Path, tmp_path: Path) -> None:
    """They are evaluated, served, and predict images by ``predict.py`` in a process without this library; LiteRT's also
    without torch."""
    for library in LIBRARIES[form].libraries:
        pytest.importorskip(library, reason=f"the extra {form} is absent")
    run = Path(shutil.copytree(run, tmp_path / "digits" / "default"))
    path = export(run, form=form, measured=Measured(max_drop=0.01))
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, "predict.py"]
    source, file = Digits(split="val"), tmp_path / "0.png"
    Image.fromarray(source[0]["image"][0].numpy()).save(file)
    code = (
        f"import sys, runpy; sys.modules.update(opabinia=None); sys.modules[{absent!r}] = None; sys.argv = sys.argv[1:]"
    )
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(path.with_name("predict.py")), str(path), str(file)]
    line = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    expected = opabinia.load(run)(file).readable["top"][0]
    assert (line["class"], line["probability"]) == (expected["class"], pytest.approx(expected["probability"], abs=0.02))
    inference = Inference(load_exported(path), Limits(bytes=10**6, pixels=10**6, waiting=1))
    (result,) = inference([Upload("0.png", file.read_bytes())])
    assert result["top"][0]["class"] == expected["class"]
    path.write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"is not an? (ExecuTorch|LiteRT) file of opabinia export"):
        load_exported(path)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "absent"), [("onnx", "openvino"), ("openvino", "onnxruntime")])
def test_the_script_needs_three_libraries(
    form: Literal["onnx", "openvino"], absent: str, run: Path, tmp_path: Path
) -> None:
    for library in LIBRARIES[form].libraries:
        pytest.importorskip(library, reason="the extra openvino is absent")
    run = Path(shutil.copytree(run, tmp_path / "digits" / "default"))
    path = export(run, form=form)
    path = path / "model.xml" if form == "openvino" else path
    source = Digits(split="val")
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for number, file in enumerate(files):
        Image.fromarray(source[number]["image"][0].numpy()).save(file)
    setup = "import sys, runpy; sys.modules.update(torch=None, torchvision=None, opabinia=None, onnx=None)"
    setup += f"; sys.modules[{absent!r}] = None"
    code = f"{setup}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(path.with_name("predict.py")), str(path), *map(str, files)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    predictor = opabinia.load(run)
    for line, prediction in zip(map(json.loads, lines), predictor(list(files)), strict=True):
        best = prediction.readable["top"][0]
        assert line["class"] == best["class"]
        assert line["probability"] == pytest.approx(best["probability"], abs=0.02)
    inference = Inference(load_exported(path), Limits(bytes=10**6, pixels=10**6, waiting=1))
    (result,) = inference([Upload("0.png", files[0].read_bytes())])
    expected = predictor(files[0]).readable["top"][0]
    assert result["path"] == "0.png" and len(result["top"]) == 5
    assert result["top"][0] == {
        "class": expected["class"],
        "probability": pytest.approx(expected["probability"], abs=1e-4),
    }
    with pytest.raises(ConfigError, match=r"predict.py is not an ONNX file of opabinia export"):
        load_exported(path.with_name("predict.py"))
