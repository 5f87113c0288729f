"""Predictions, splits and export of multi-task runs."""

from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import Resize
from torchvision.tv_tensors import BoundingBoxes

from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo, DrawOptions, Sample
from opabinia.data.collate import collate
from opabinia.inference.export import export, samples
from opabinia.inference.export.description import Description
from opabinia.inference.export.exported_task import load_exported
from opabinia.inference.export.files import LIBRARIES, write_file
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.model_card import model_card
from opabinia.inference.export.samples import fitting_tasks
from opabinia.inference.extract import without_objects
from opabinia.inference.load import RunModel
from opabinia.inference.multitask import predictor_of
from opabinia.inference.serving.address import open_socket
from opabinia.inference.serving.limits import Limits, Upload
from opabinia.inference.splits import select_split, sets_for, split_sources, task_of
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.pyramids import SemanticFpn
from opabinia.models.detectors import Fcos
from opabinia.models.necks import fpn
from opabinia.runtime.progress import progress_bar
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.segmentation import Segmentation
from opabinia.tasks.selfsup.simclr import SimCLR
from opabinia.training.run_folder import resolve
from opabinia.training.trained_model import TaskTransforms, TrainedModel
from opabinia.visualization.drawing import to_pil

SCENES = DatasetInfo(samples=8, channels=1, classes=("ground", "a", "b"), boxes=True, maps=True)
IMAGES = DatasetInfo(samples=8, channels=1, classes=("x", "y"))


@pytest.fixture(scope="module")
def task() -> Multitask:
    """Boxes, maps and labels of scenes, and labels of other images; each stream has its own batch norm statistics."""
    torch.manual_seed(0)
    neck = partial(fpn, channels=32)
    classification = partial(Classification, backbone=shared)
    parts: dict[str, Any] = {
        "boxes": partial(
            Detection, detector=partial(Fcos, neck=neck, num_convs=1, score_threshold=0.0), backbone=shared
        ),
        "maps": partial(Segmentation, decoder=partial(SemanticFpn, neck=neck, channels=32), backbone=shared),
        "present": classification,
        "kinds": classification,
        "views": partial(SimCLR, backbone=shared),
    }
    stream = {"maps": "boxes", "present": "boxes"}
    model = Multitask(
        DatasetInfo(samples=24, channels=1, streams={"boxes": SCENES, "kinds": IMAGES, "views": IMAGES}),
        backbone=partial(timm, model="test_efficientnet"),
        tasks={name: Subtask(task=part, stream=stream.get(name)) for name, part in parts.items()},
    )
    for module in model.backbone.modules():
        for norm in getattr(module, "streams", {}).values():
            torch.nn.init.uniform_(norm.running_mean)
    return model.eval()


@pytest.fixture(scope="module")
def trained(task: Multitask) -> TrainedModel:
    groups = [
        TaskTransforms(tasks=["boxes", "maps", "present", "views"]),
        TaskTransforms(tasks=["kinds"], transforms=[Resize([32, 32])]),
    ]
    return TrainedModel(task, [], task.dataset_info, 1, torch.device("cpu"), "fp32", 4, task_transforms=groups)


def images(*sizes: tuple[int, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (1, *size), dtype=torch.uint8, generator=generator) for size in sizes]


def test_joint_predictions_equal_those_of_single_tasks(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One forward pass for tasks that see the same images; another one for other transforms and statistics."""
    task, passes = trained.task, list[tuple[int, ...]]()
    options = {"channels": 1, "batch_size": 4}
    joint_predictor, inputs = predictor_of(trained, [], **options), images((96, 64), (50, 70), (96, 64))
    compute = task.backbone.extract

    def counted(images: Tensor, kinds: Any) -> Any:
        passes.append(tuple(images.shape))
        return compute(images, kinds)

    monkeypatch.setattr(task.backbone, "extract", counted)
    predictions = joint_predictor(inputs)
    assert sorted(passes) == [(1, 1, 64, 96), (2, 1, 96, 64), (3, 1, 32, 32)]
    assert list(predictions[0].readable) == ["boxes", "maps", "present", "kinds"]
    for name in predictions[0].readable:
        for joint_prediction, prediction in zip(
            predictions, predictor_of(trained, [name], **options)(inputs), strict=True
        ):
            assert all(torch.equal(joint_prediction[f"{name}/{key}"], value) for key, value in prediction.items()), name
            assert joint_prediction.readable[name] == prediction.readable
    with pytest.raises(ConfigError, match=r"--task: there is no task 'bokses'.*tasks: boxes, maps"):
        predictor_of(trained, ["boxes", "bokses"], **options)
    sample = joint_predictor.sample(inputs[0])
    with pytest.raises(ConfigError, match="--task: embeddings are those of one task; name it"):
        joint_predictor.embeddings([sample])
    with pytest.raises(ValueError, match="a heatmap explains the prediction of one task; name it"):
        joint_predictor.explain([sample])
    label_predictor = predictor_of(trained, ["present"], **options)
    assert label_predictor.explain([label_predictor.sample(inputs[0])]).shape == (1, 96, 64)
    assert label_predictor.embeddings([label_predictor.sample(inputs[0])]).shape == (1, task.backbone.out_channels)


def test_predictions_are_drawn_together(trained: TrainedModel, tmp_path: Path) -> None:
    (image,) = images((64, 96))
    predictor = predictor_of(trained, [], channels=1)
    prediction, sample = predictor(image), {"image": image}
    drawn = predictor.presenter(prediction).draw(sample, prediction, DrawOptions(min_score=0.0))
    assert drawn is not None and drawn.size == (480, 30 + 320 + 53)  # scaled by 5, with a line above and a legend below
    plain = predictor.presenter(prediction).draw(sample, prediction, DrawOptions(min_score=0.0, legend=False))
    assert plain is not None and plain.tobytes() == drawn.crop((0, 0, 480, 350)).tobytes()
    overlay = predictor_of(trained, ["maps", "kinds"], channels=1)
    drawn_overlay = overlay.presenter({}).draw(sample, overlay(image))
    assert drawn_overlay is not None and drawn_overlay.size == drawn.size and drawn_overlay.tobytes() != drawn.tobytes()
    assert predictor_of(trained, ["present", "kinds"], channels=1).presenter({}).draw(sample, prediction) is None
    lines = predictor.presenter({}).caption(prediction.readable)
    assert [line.partition(":")[0] for line in lines] == ["boxes", "maps", "present", "kinds"]
    predictor.presenter({}).save(tmp_path, "a", sample, prediction, DrawOptions())
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert written == {"images/a.png", "maps/images/a.png", "maps/maps/a.png"}


def test_a_server_returns_the_predictions_of_all_tasks(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="fastapi is absent: pip install 'opabinia[serve]'")
    from opabinia.inference.serving import server

    services = list[Any]()
    kinds = {"boxes": "detection", "maps": "segmentation", "present": "classification", "kinds": "classification"}
    section = {"name": "multitask", "tasks": {name: {"task": {"name": kind}} for name, kind in kinds.items()}}
    monkeypatch.setattr(RunModel, "load", lambda _, task: predictor_of(trained, task, channels=1))
    monkeypatch.setattr(server, "resolve", lambda run, overrides: SimpleNamespace(config={"task": section}))
    monkeypatch.setattr(server, "make_app", lambda service, *_: services.append(service))
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_, **__: None)
    limits = Limits(bytes=10**6, pixels=10**6, waiting=1)
    for names in ([], ["boxes"]):
        with open_socket("127.0.0.1", 0) as listening:
            server.serve(RunModel(Path("run")), listening, limits=limits, task=names)
    all_tasks, boxes = (service.about for service in services)
    assert all_tasks["task"] == "multitask" and list(all_tasks["tasks"]) == list(kinds)
    assert all_tasks["tasks"]["kinds"] == ("x", "y") and all_tasks["classes"] == []
    assert (boxes["task"], boxes["classes"], "tasks" in boxes) == ("detection", ["ground", "a", "b"], False)
    file = BytesIO()
    to_pil(images((64, 96))[0]).save(file, "PNG")
    (result,) = services[0].inference([Upload("a.png", file.getvalue())])
    assert list(result) == ["path", *kinds] and list(result["boxes"]) == ["detections"] and result["kinds"]["top"]


def make_description(tasks: dict[str, dict[str, Any]]) -> Description:
    values: Any = {"channels": 1, "size": (64, 64), "dtype": "uint8", "value_range": "0 to 255", "mean": (0.4,)}
    values |= {"std": (0.2,), "transforms": [], "resize": "shrink", "crop": 1.0, "scores": {"boxes/val/AP": 0.5}}
    return Description("a", "multitask", (), **values, step=3, tasks=tasks)


def test_a_model_card_names_the_data_and_classes_of_each_task() -> None:
    config = resolve("multitask/digits").config
    tasks: dict[str, Any] = {"boxes": {"task": "detection", "classes": ["ground", "a"]}}
    card = model_card(make_description(tasks), config, in_timm=False)
    assert "- trained on: `boxes: image_labels of digit_maps, train; identities: digit_views, train" in card
    assert "- boxes: detection, 2 classes: `ground`, `a`" in card and "| `boxes/val/AP` | 0.5000 |" in card


def test_features_of_another_task_need_no_annotations(trained: TrainedModel) -> None:
    """Images of a task with boxes are collated for one without."""
    boxes = BoundingBoxes([[1.0, 1, 5, 5]], format="XYXY", canvas_size=(64, 64))
    image = images((64, 64))[0]
    samples: list[Sample] = [{"image": image, "id": "a", "boxes": boxes[:count]} for count in (0, 1)]
    batch = collate([without_objects(sample) for sample in samples])
    assert batch.keys() == {"image", "id"}
    kinds = predictor_of(trained, ["kinds"], channels=1)
    assert kinds.task.size_multiple is None and len(kinds.task.features(batch)["embedding"]) == 2


def test_splits_of_streams_and_tasks() -> None:
    resolved = resolve("multitask/digits")
    names = list(split_sources(resolved))
    assert names[:2] == ["boxes/train", "identities/train"] and "maps/val" in names
    assert [task_of(resolved, name) for name in ("boxes/train", "maps/val")] == ["boxes", "maps"]
    assert sets_for(resolved, ["present", "boxes"]) == ["present/val", "boxes/val"]
    assert sets_for(resolved, []) == ["boxes/val"]
    selected = select_split(resolved, "identities/train").config["data"]
    assert selected["val"]["task"] == "identities" and selected["train"]["source"]["split"] == "train"
    with pytest.raises(ConfigError, match=r"--split: there is no 'train'.*boxes/train"):
        select_split(resolved, "train")


def test_exported_function_of_all_tasks(task: Multitask, monkeypatch: pytest.MonkeyPatch) -> None:
    module = task.select(["boxes", "maps", "kinds"]).export_module()
    module.check_static()
    inputs = module.inputs([{"image": image} for image in images((60, 64), (64, 50))])
    assert inputs["image"].shape == (2, 1, 64, 64) and inputs["image_sizes"].tolist() == [[60, 64], [64, 50]]
    with torch.no_grad():
        outputs, expected = module(**inputs), module.expected(inputs)
    assert list(outputs) == [
        "boxes/boxes",
        "boxes/scores",
        "boxes/labels",
        "maps/segmentation",
        "maps/logits",
        "kinds/logits",
        "kinds/probabilities",
    ]
    assert module.difference(expected, outputs) < 1e-5
    assert module.difference(expected, {**outputs, "kinds/logits": outputs["kinds/logits"] + 1}) > 0.1
    selected = task.select(["kinds"])
    selected.load_state_dict(selected.state_dict())
    alone = selected.export_module()
    assert list(alone.inputs([{"image": image} for image in images((8, 8))])) == ["image"]
    monkeypatch.setattr(task.tasks["boxes"], "class_agnostic_nms", 0.5)
    with pytest.raises(
        ValueError, match=r"boxes: task\.class_agnostic_nms: .*; the other tasks can be exported with --task"
    ):
        task.select(["boxes", "kinds"]).export_module().check_static()


@pytest.mark.slow
def test_one_onnx_file_has_the_outputs_of_all_tasks(task: Multitask, tmp_path: Path) -> None:
    for library in LIBRARIES["onnx"].libraries:
        pytest.importorskip(library, reason=f"{library} is absent: pip install 'opabinia[export]'")
    selected, names = task.select(["boxes", "maps", "kinds"]), {"boxes": SCENES, "maps": SCENES, "kinds": IMAGES}
    module = selected.export_module()
    inputs = module.inputs([{"image": image} for image in images((60, 64), (64, 50))])
    tasks = {name: {"task": "", "classes": info.classes} for name, info in names.items()}
    job = ExportJob(module, inputs, make_description(tasks))
    with progress_bar("export", 2, unit="steps") as bar, torch.no_grad():
        write_file("onnx", tmp_path / "model.onnx", job, 1e-3, "two images", bar)
        expected = module.expected(inputs)
    predictor = load_exported(tmp_path / "model.onnx")
    sizes = [(60, 64), (64, 50)]
    batch = {"image": inputs["image"], "image_sizes": sizes, "original_size": sizes}
    joint = predictor.task.predict(batch)
    assert {name.partition("/")[0] for name in joint} == set(names)
    for name in names:  # a validation set belongs to one task
        single = predictor.task.predict({**batch, "task": name})
        assert all(torch.equal(joint[f"{name}/{key}"], value) for key, value in single.items())
    assert torch.allclose(joint["kinds/logits"], expected["kinds/logits"], atol=1e-4)
    readable = predictor(images((64, 64))[0]).readable
    assert list(readable) == list(names) and readable["kinds"]["top"][0]["class"] in ("x", "y")


def test_an_exported_file_has_the_tasks_whose_images_fit(task: Multitask, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"boxes/val": (60, 64), "maps/val": (90, 64), "kinds/val": (32, 32)}
    sets = [{"prefix": name, "task": name.removesuffix("/val")} for name in sizes]
    resolved: Any = type("Resolved", (), {"config": {"task": {"name": ""}, "data": {"val": sets}}})()
    monkeypatch.setattr(
        samples, "split_samples", lambda _, split, count: [{"image": image} for image in images(sizes[split])]
    )
    fitting, others = fitting_tasks(resolved, task.select(["boxes", "maps", "present", "kinds"]), (64, 64))
    assert fitting == ["boxes", "present"]
    assert others == [
        "maps: its validation images have 96 x 64 pixels; the file takes 64 x 64",
        "kinds: its validation images have 32 x 32 pixels; the file takes 64 x 64",
    ]


def test_a_file_of_one_task_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "export" / "kinds-model.onnx"
    file.parent.mkdir()
    file.touch()
    with pytest.raises(ConfigError, match=r"export/kinds-model\.onnx exists already"):
        export(tmp_path, task=["kinds"])
