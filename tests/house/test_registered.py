"""Every registered part: signature closed, typed and documented, schema builds, defaults build and work.

A new part is covered as soon as it is registered. ``MINIMAL`` needs values for the keys that it requires; a new family
needs a check of its parts in ``FAMILY_CHECKS``.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import tarfile
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad
from torchvision import tv_tensors
from torchvision.ops import box_convert

from opabinia.config import Catalog, ConfigError, build, check, compose, dump, json_schema, live_catalog
from opabinia.config.registry import Entry
from opabinia.config.types import Parameter
from opabinia.contracts import (
    IGNORE_LABEL,
    Batch,
    BatchSchedule,
    Clock,
    DatasetInfo,
    Detections,
    Detector,
    FrameDetections,
    GlobalBatch,
    GroundTruth,
    GroundTruthMap,
    Head,
    Hook,
    InstanceMasks,
    Level,
    LossBalance,
    Neck,
    Predictions,
    PseudoLabeler,
    RaggedArray,
    RunSpec,
    Sample,
    SegmentationDecoder,
    Source,
    StepOptions,
    Target,
    Task,
    Tracker,
    TrackerState,
)
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.data.decoding.pack import pack
from opabinia.data.sampling.batches import ConstantPlan, StagedPlan
from opabinia.data.sources import Concat, Digits, Videos
from opabinia.data.sources.subset import write_split
from opabinia.engine.loop.step import total_loss
from opabinia.models.losses.masks import semantic_segments
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.distillation import Distillation
from opabinia.tasks.teachers import FrozenTeacher
from scripts import small_data
from tests.data.videos import write as write_video

ROOT = Path(__file__).parents[2]
CATALOG = live_catalog()
ENTRIES = sorted(
    (entry for entries in CATALOG.entries.values() for entry in entries.values()), key=attrgetter("family", "name")
)
OWN = [entry for entry in ENTRIES if entry.target.__module__.startswith("opabinia.")]  # type: ignore[union-attr]

IDENTITY = [{"name": "Identity"}]
TINY = {"name": "timm", "model": "test_resnet"}
TINY_VIT = {"name": "timm", "model": "test_vit", "options": {"img_size": 32}}


TASKS = (
    "barlow_twins byol classification deepcluster dino distillation jigsaw moco moco_v3 npid pirl reid rotation simclr "
    "simsiam swav vicreg"
)
"""Tasks that need a backbone only."""

FOLDERS = (
    "class_folders cuhk03 dota kitti market1501 msmt17 in_shop online_products roboflow vehicleid veri veri_wild "
    "visdrone voc"
)
"""Sources of folders that ``scripts/small_data.py`` makes."""


def named(family: str, names: str, **keys: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(family, name): keys for name in names.split()}


MINIMAL: dict[tuple[str, str], dict[str, Any]] = {
    **named("task", TASKS, backbone=TINY),
    **{
        (family, name): {"root": name.upper()}
        for family, name in named("source", f"{FOLDERS} packed_videos idx images")
    },
    **named("transform", "CenterCrop RandomCrop RandomResizedCrop", size=8),
    **named("transform", "Resize resize_and_crop resize_and_crops multi_scale_crop scale_jitter three_crop", size=16),
    **named("transform", "RandomApply RandomChoice RandomOrder", transforms=IDENTITY),
    **named("section", "stream validation", source="digits"),
    ("backbone", "iresnet"): {"image_size": [64, 64]},
    ("backbone", "shufflenet"): {"model": "shufflenet_v2_x0_5"},
    ("backbone", "regnet"): {"depth": 8, "initial_width": 8, "slope": 8, "multiplier": 2, "group_width": 8},
    ("backbone", "mvit"): {"blocks": [1, 1]},
    ("backbone", "timesformer"): {"model": "test_vit"},
    ("backbone", "timm"): {"model": "test_resnet"},
    ("backbone", "torchvision_video"): {"model": "mc3_18"},
    ("backbone", "tsn"): {"backbone": TINY},
    ("backbone", "vit"): {"model": "test_vit", "image_size": [64, 64]},
    ("hook", "early_stop"): {"metric": "val/top1"},
    ("hook", "expected_scores"): {"scores": {"val/top1": [0.9, 0.1]}},
    ("hook", "freeze"): {"pattern": "^backbone"},
    ("hook", "time_limit"): {"max_time": "1h"},
    ("schedule", "composite"): {"schedules": ["constant", "cosine"], "shares": [0.5, 0.5]},
    ("schedule", "cosine_restarts"): {"cycle": "2it"},
    ("schedule", "multi_step"): {"milestones": ["3it", "1ep"]},
    ("schedule", "piecewise"): {"times": ["1it", "1ep"], "values": [0.5, 1]},
    ("schedule", "step"): {"every": "1ep"},
    ("section", "deformable"): {"stages": [4]},
    ("section", "pixels"): {"count": 5},
    ("section", "data"): {"batch_size": 2},
    ("section", "init"): {"weights": "x.pth"},
    ("section", "evaluator_run"): {"evaluator": "knn"},
    ("section", "semi_supervised"): {"unlabeled": {"source": "digits"}, "pseudo_labels": "classes"},
    ("section", "subtask"): {"task": {"name": "classification", "backbone": "shared"}},
    ("section", "task_transforms"): {"tasks": ["digits"]},
    ("section", "train"): {"length": "1ep"},
    ("section", "view"): {"transforms": IDENTITY},
    ("section", "test_time_augmentation"): {"scales": [1.0]},
    ("section", "tiles"): {"size": 64},
    ("shapes", "multi_scale"): {"sizes": [32, 24]},
    ("shapes", "multigrid"): {"size": 32, "milestones": [8]},
    ("shapes", "progressive"): {"start": 32, "end": 64},
    ("sampler", "mixed_sources"): {"weights": [1, 3]},
    ("sampler", "mixed_identities"): {"weights": [1, 1]},
    ("source", "box_list"): {"file": "BOXES"},
    ("source", "via"): {"file": "VIA"},
    ("source", "coco"): {"root": "COCO", "file": "COCO_FILE"},
    ("source", "dukemtmc"): {"root": "MARKET1501"},
    ("source", "hugging_face"): {"dataset": "HUGGING_FACE"},
    ("source", "concat"): {"sources": ["digits", "digits"]},
    ("source", "concat_identities"): {"sources": ["digits", "digits"]},
    ("source", "frame_folders"): {"file": "FRAMES"},
    ("source", "identities"): {"file": "LIST"},
    ("source", "image_labels"): {"source": "digit_scenes"},
    ("source", "indexed"): {"source": "digits"},
    ("source", "object_maps"): {"source": {"name": "digit_scenes", "masks": True}},
    ("source", "random_part"): {"source": "digits"},
    ("source", "shards"): {"files": "SHARD"},
    ("source", "stuff_maps"): {"source": {"name": "digit_maps", "panoptic": True}},
    ("source", "subset"): {"source": "digits", "file": "SPLIT"},
    ("source", "corrected"): {"source": "digits", "file": "CORRECTED"},
    ("source", "replaced"): {"source": "digits", "by": "digits"},
    ("source", "table"): {"file": "TABLE"},
    ("source", "video_list"): {"file": "VIDEO_LIST"},
    ("source", "videos"): {"root": "VIDEO_FOLDERS"},
    ("source", "video_views"): {"source": "moving_digits"},
    ("source", "wider_face"): {"root": "FACES", "file": "FACES_FILE"},
    ("source", "yolo"): {"data": "YOLO_FILE"},
    ("source", "image_folder"): {"root": "IMAGES"},
    ("source", "unlabeled"): {"source": "digits"},
    ("section", "sliding_window"): {"size": [64, 64]},
    ("task", "segmentation"): {"backbone": TINY, "decoder": "linear"},
    ("task", "panoptic"): {
        **{"backbone": TINY, "decoder": {"name": "fpn", "neck": None, "channels": 32}},
        "detector": {"name": "mask_rcnn", "neck": {"name": "fpn", "channels": 8}, "box": {"fc_dim": 8}},
    },
    ("task", "detection"): {"backbone": TINY, "detector": "fcos"},
    ("task", "ibot"): {"backbone": TINY_VIT},
    ("task", "mae"): {"backbone": TINY_VIT},
    ("task", "mgn"): {"backbone": {"name": "timm", "model": "resnet10t", "options": {"output_stride": 8}}},
    ("task", "video"): {"backbone": "resnet3d"},
    ("mix", "one_of"): {"mixes": ["mixup", "cutmix"]},
    ("transform", "GaussianBlur"): {"kernel_size": 3},
    ("transform", "JPEG"): {"quality": 50},
    ("transform", "Pad"): {"padding": 2},
    ("transform", "RandomAdjustSharpness"): {"sharpness_factor": 2},
    ("transform", "RandomAffine"): {"degrees": 10},
    ("transform", "RandomPosterize"): {"bits": 3},
    ("transform", "RandomResize"): {"min_size": 8, "max_size": 12},
    ("transform", "RandomRotation"): {"degrees": 10},
    ("transform", "RandomShortestSize"): {"min_size": 8},
    ("transform", "RandomSolarize"): {"threshold": 128},
    ("transform", "ScaleJitter"): {"target_size": [20, 20]},
    ("transform", "block_patch_mask"): {"patch_size": 4},
    ("transform", "clip"): {"frames": 4},
    ("transform", "random_patch_mask"): {"patch_size": 4},
    ("transform", "resize_shortest_edge"): {"short_edge_length": 16},
    ("transform", "views"): {"views": [{"transforms": IDENTITY}]},
    ("transform", "views_and_image"): {"views": [{"transforms": IDENTITY}], "image": IDENTITY},
    ("transform", "timm_policy"): {"policy": "rand-m9-mstd0.5"},
    ("transform", "SetClampingMode"): {"clamping_mode": "soft"},
}
"""Values for the keys that a part requires, as in YAML. Names in capitals are replaced by paths."""

NOT_FOR_DIGITS = {"ElasticTransform": "blurs over 20 pixels, a digit has 8", "pca_lighting": "needs colors"}
NOT_FOR_IMAGES = {
    **dict.fromkeys(("copy_paste", "mixup_boxes", "mosaic"), "combines several samples"),
    "RandomIoUCrop": "needs boxes",
    "clip": "takes frames of videos",
    "frame_differences": "takes clips",
    "SanitizeBoundingBoxes": "needs boxes",
}


def label(entry: Entry) -> str:
    return f"{entry.family}-{entry.name}"


def of(family: str) -> Any:
    return pytest.mark.parametrize("entry", CATALOG.entries[family].values(), ids=lambda entry: entry.name)


# --- closed, typed, documented ----------------------------------------------------------------------------------------


def signature_problems(entry: Entry) -> list[str]:
    """Return why a config cannot give every argument by name, checked by its type."""
    signature = inspect.signature(entry.target)  # type: ignore[arg-type]
    problems = []
    for name, param in signature.parameters.items():
        if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD):
            problems.append(f"{name} is variadic")
        adapted = param.kind is param.POSITIONAL_ONLY and hasattr(entry.target, "__adapts__")
        if not adapted and param.annotation in (param.empty, Any):
            problems.append(f"{name} has no type")
    runtime = [name for name, param in signature.parameters.items() if param.kind is param.POSITIONAL_ONLY]
    if list(entry.runtime) != runtime or [*runtime, *entry.by_name] != list(signature.parameters):
        problems.append(f"the entry has {[*entry.runtime, *entry.by_name]}, the signature {[*signature.parameters]}")
    return problems


def test_signatures_are_closed_and_typed() -> None:
    assert {label(entry): problems for entry in ENTRIES if (problems := signature_problems(entry))} == {}


def test_runtime_parameters_have_types_that_exist() -> None:
    missing = {}
    for entry in OWN:
        target = inspect.unwrap(entry.target)  # type: ignore[arg-type]
        # Hints of a dataclass are resolved class by class: inherited fields are defined in another module.
        has_init = inspect.isclass(target) and not is_dataclass(target)
        hints = typing.get_type_hints(target.__init__ if has_init else target, include_extras=True)
        missing[label(entry)] = set(entry.runtime) - hints.keys()
    assert {name: names for name, names in missing.items() if names} == {}


def test_parts_and_their_parameters_are_documented() -> None:
    assert [label(entry) for entry in ENTRIES if len(entry.doc) <= 10 or "TODO" in entry.doc] == []
    own = [entry for entry in OWN if not hasattr(entry.target, "__adapts__")]
    missing = {label(entry): [param.name for param in entry.parameters if not param.doc] for entry in own}
    assert {name: names for name, names in missing.items() if names} == {}, "describe them in Args"


# --- schema -----------------------------------------------------------------------------------------------------------


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*map(references, schema.values()))
    return set().union(*map(references, schema)) if isinstance(schema, list) else set()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return typing.cast("dict[str, Any]", json.loads(json.dumps(json_schema(CATALOG), allow_nan=False)))


def test_every_reference_of_the_schema_resolves(schema: dict[str, Any]) -> None:
    assert references(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_every_schema_builds(schema: dict[str, Any]) -> None:
    problems = []
    others = (json_schema(CATALOG, command)["$defs"] for command in ("predictor", "tracking"))
    definitions = dict(ChainMap(schema["$defs"], *others))
    for entry in ENTRIES:
        is_command = entry.family == "command"
        definition = json_schema(CATALOG, entry.name) if is_command else definitions[f"{entry.family}.{entry.name}"]
        if (
            definition["additionalProperties"] is not False
            or not entry.by_name.keys() <= definition["properties"].keys()
        ):
            problems.append(label(entry))
        for param in entry.parameters:
            property_schema = definition["properties"].get(param.name, {})
            if property_schema.get("description", "") != param.doc:
                problems.append(f"{label(entry)}: {param.name}: its description")
            if not param.required and ("default" not in property_schema or property_schema["default"] != param.default):
                problems.append(f"{label(entry)}: {param.name}: its default")
    assert problems == []


# --- defaults ---------------------------------------------------------------------------------------------------------


SMALL_DATA = [getattr(small_data, name) for name in f"{FOLDERS} coco identities wider_face yolo".split()]
"""Functions that create a small dataset in a folder."""

PATHS = {make.__name__.upper(): f".{make.__name__}" for make in SMALL_DATA} | {
    **{"IMAGES": "", "IDX": "cat", "TABLE": "list.csv", "SHARD": "shard.tar", "FRAMES": ".frames.txt"},
    **{"VIDEO_LIST": ".videos/videos.txt", "VIDEO_FOLDERS": ".videos", "PACKED_VIDEOS": ".packed"},
    **{"COCO_FILE": ".coco/annotations.json", "YOLO_FILE": ".yolo/data.yaml", "LIST": ".identities/list.csv"},
    **{"FACES": ".wider_face/images", "FACES_FILE": ".wider_face/wider_face_train_bbx_gt.txt"},
    **{"SPLIT": ".split.json", "BOXES": "boxes.csv", "VIA": "via.json", "CORRECTED": ".corrected.csv"},
}
"""Paths in the folder of data by their names in ``MINIMAL``."""


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for make in SMALL_DATA:
        make(root / f".{make.__name__}")  # hidden, so that it is not read as a class
    for number, name in enumerate(["cat", "dog"]):
        (root / name).mkdir()
        Image.new("RGB", (20, 16), (number * 200, 90, 30)).save(root / name / "image.png")
    for name in ("jump", "run"):
        write_video(root / ".videos" / name / "video.mp4", 2)
    (root / ".videos" / "videos.txt").write_text("jump/video.mp4 0\nrun/video.mp4 1\n")
    pack(Videos(root=root / ".videos"), root / ".packed")
    (root / ".corrected.csv").write_text(f"id,corrected\n{Digits().id(0)},7\n")
    write_split(root / ".split.json", list(Digits().split_keys())[::5])
    (root / ".frames.txt").write_text("cat 1 0\ndog 1 1\n")
    (root / "list.csv").write_text("path,label\ncat/image.png,cat\ndog/image.png,dog\n")
    (root / "boxes.csv").write_text(
        "path,label,xmin,ymin,xmax,ymax\ncat/image.png,a,1,2,10,12\ndog/image.png,b,1,2,9,9\n"
    )
    region = {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 9, "height": 10}, "region_attributes": {}}
    files = [{"filename": f"{name}/image.png", "regions": [region]} for name in ("cat", "dog")]
    (root / "via.json").write_text(json.dumps(files))
    with tarfile.open(root / "shard.tar", "w") as shard:
        for name in ("cat", "dog"):
            (root / name / "image.cls").write_text(name)
            for extension in ("png", "cls"):
                shard.add(root / name / f"image.{extension}", f"{name}/image.{extension}")
    for name, array in (("images-idx3", np.zeros((2, 16, 20))), ("labels-idx1", np.arange(2))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (root / "cat" / f"train-{name}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    return root


def with_test_command(catalog: Catalog, entry: Entry) -> Catalog:
    """Return ``catalog`` with a command that takes such a part as its only key, and returns it."""
    spec = {"kind": "part", "family": entry.family}
    if entry.family == "section":
        spec["name"] = entry.name
    command = Entry("command", "build_part", lambda part: part, (Parameter("part", spec),))
    return Catalog({**catalog.entries, "command": {"build_part": command}})


def resolve_section(entry: Entry, keys: dict[str, Any], folder: Path, catalog: Catalog = CATALOG) -> dict[str, Any]:
    """Return the complete section of a part."""
    named = keys if entry.family == "section" else {"name": entry.name, **keys}
    (folder / "part.yaml").write_text(dump({"part": named}))
    config = check(compose(folder / "part.yaml"), with_test_command(catalog, entry), "build_part").config
    return typing.cast("dict[str, Any]", config["part"])


def build_default(entry: Entry, folder: Path, data_folder: Path) -> Any:
    """Build a part from a config with the required keys only."""
    required = [p.name for p in entry.parameters if p.required and not CATALOG.fills_itself(p.spec)]
    keys = MINIMAL.get((entry.family, entry.name), {})
    assert keys.keys() == set(required), f"MINIMAL needs values for these keys of {label(entry)}: {required}"
    paths = {name: str(data_folder / path) for name, path in PATHS.items()}
    keys = {key: paths.get(value, value) if isinstance(value, str) else value for key, value in keys.items()}
    section = resolve_section(entry, keys, folder)
    return build({"part": section}, with_test_command(CATALOG, entry), "build_part")()


PLAN = ConstantPlan(samples=20, batch_size=4, length=Duration(3, "ep"))
CLOCK = Clock.at(PLAN, 0)
INFO = DatasetInfo(samples=20, channels=1, classes=tuple("0123456789"))


def batch_of(count: int = 4) -> Batch:
    images = torch.arange(count * 32 * 32).reshape(count, 1, 32, 32) % 251
    labels = torch.arange(count) % 10
    return {"image": images.to(torch.uint8), "label": labels, "id": [str(number) for number in range(count)]}


def with_objects(batch: Batch) -> Batch:
    """Return the batch with one object in each image but the first, which is empty: a small, a medium and a large one
    according to the ground truth; and with segmentation maps."""
    boxes = [torch.tensor([[4.0, 2, 4 + 6 * number, 20]] if number else []).view(-1, 4) for number in range(4)]
    labels = [torch.full((len(image_boxes),), 3) for image_boxes in boxes]
    ground_truth = [
        GroundTruth(
            image_id=name,
            size=(32, 32),
            ids=np.arange(len(image_boxes)) + 10 * number,
            boxes=torch.cat([image_boxes[:, :2], image_boxes[:, 2:] - image_boxes[:, :2]], 1).double().numpy(),
            labels=image_labels.numpy(),
            areas=np.full(len(image_boxes), 50.0 * 10**number),
            crowd=np.zeros(len(image_boxes), dtype=np.bool_),
            segments=[[[x, y, right, y, right, bottom, x, bottom]] for x, y, right, bottom in image_boxes.tolist()],
        )
        for number, (name, image_boxes, image_labels) in enumerate(zip(batch["id"], boxes, labels, strict=True))
    ]
    sizes = {"image_sizes": [(32, 32)] * 4, "original_size": [(32, 32)] * 4}
    mask = (torch.arange(4 * 32 * 32).reshape(4, 32, 32) // 32 % 11).to(torch.uint8)
    mask[mask == 10] = IGNORE_LABEL
    segments = torch.where(mask == IGNORE_LABEL, 0, mask + 1).int()  # one segment for each class
    maps = [
        GroundTruthMap(name, labels.numpy(), numbers.numpy(), np.arange(10), np.zeros(10, dtype=np.bool_))
        for name, labels, numbers in zip(batch["id"], mask, segments, strict=True)
    ]
    masks = [torch.ones(len(image_boxes), 32, 32, dtype=torch.uint8) for image_boxes in boxes]
    objects = {"boxes": boxes, "labels": labels, "masks": masks, "ground_truth": ground_truth}
    return {**batch, **sizes, **objects, "mask": mask, "ground_truth_map": maps}


class Line(Task):
    """The smallest trainable task; its only weight is a matrix, the only kind that Muon accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=False)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": self.layer(torch.ones(2, 4)).square().sum()}


def task_works(make: Callable[[DatasetInfo], Task], folder: Path) -> None:
    """The batch has labels, sample indices, boxes and views; tasks ignore the keys that they do not need."""
    dataset_info = replace(INFO, boxes=True, masks=True, maps=True, thing_labels=(3,))
    batch = with_objects(batch_of())
    batch["views"] = (batch["image"], batch["image"].flip(-1))
    batch["patch_mask"] = torch.tensor([[True, False, True, True]] * 4)  # of 32 x 32 pixels in patches of 16
    batch["patch_masks"] = (batch["patch_mask"],) * 2
    batch["index"] = torch.arange(len(batch["id"]))
    task = make(dataset_info)
    if getattr(getattr(task, "backbone", None), "clips", False):
        batch["image"] = torch.stack([batch["image"]] * 4, 1)
    if isinstance(task, Distillation):  # its defaults have no teacher
        task._settings = FrozenTeacher(run=folder)
    task.attach_teachers(lambda run: copy.deepcopy(task))
    total_loss(task(batch, CLOCK))[0].backward()  # type: ignore[no-untyped-call]
    assert any(param.grad is not None for param in task.parameters())
    with torch.no_grad():
        predictions = task.eval().predict(batch)
    assert all(len(value) == 4 for value in predictions.values())
    for name, features in task.features(batch).items():
        assert (name, features.ndim, len(features)) == ("embedding", 2, 4)
    for evaluator in task.evaluators(dataset_info):
        for _ in range(2):  # evaluators that compare samples need two of each class
            evaluator.update(predictions, batch)
        assert evaluator.compute([evaluator.state()]).keys() == evaluator.better.keys()
        assert set(evaluator.better.values()) <= {"max", "min"}
    assert all(isinstance(hook, Hook) for hook in task.hooks(dataset_info))


def step_works(make: Callable[..., Any], folder: Path) -> None:
    task = Line()
    before = task.layer.weight.clone()
    step = make(task, torch.optim.SGD(task.parameters(), lr=0.1), {"lr": constant}, StepOptions(0))
    calls = []
    scalars = step(batch_of(), PLAN.global_batch(0), CLOCK, lambda: calls.append(1))
    assert calls == [1], "after_backward is called once"
    assert all(math.isfinite(float(value)) for value in scalars.values())
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in scalars.values())
    assert not torch.equal(before, task.layer.weight)
    json.dumps(step.state_dict())
    step.load_state_dict(step.state_dict())


def parallel_works(make: Callable[..., Any], folder: Path) -> None:
    """A process group of a single process; tests/faults tests larger ones."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    try:
        task = Line()
        parallel = make(task, [task], torch.device("cpu"))
        assert parallel.module is task and isinstance(parallel.sharded, bool)
        with parallel.no_sync():
            first, _ = total_loss(parallel(batch_of(), CLOCK))
            first.backward()  # type: ignore[no-untyped-call]
        second, _ = total_loss(parallel(batch_of(), CLOCK))
        second.backward()  # type: ignore[no-untyped-call]
        assert task.layer.weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


def backbone_works(make: Callable[[int], Any], folder: Path) -> None:
    for channels in (1, 3):
        net = make(channels).eval()
        shape = (4, 64, 64) if net.clips else (64, 64)
        assert net(torch.zeros(2, channels, *shape)).shape == (2, net.out_channels)


def pooling_works(make: Callable[[int], nn.Module], folder: Path) -> None:
    feature_maps = torch.rand(2, 5, 4, 3, requires_grad=True)
    vectors = make(5)(feature_maps)
    assert vectors.shape == (2, 5)
    vectors.sum().backward()
    assert feature_maps.grad is not None
    assert feature_maps.grad.isfinite().all()


def head_works(make: Callable[[int, int], Head], folder: Path) -> None:
    head = make(5, 3)
    features = torch.rand(2, 5, requires_grad=True)
    logits = head(features)
    trained = head.with_margin(logits, torch.tensor([0, 2]))
    assert logits.shape == trained.shape == (2, 3)
    trained.sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert all(param.grad is not None for param in head.parameters())


def neck_works(make: Callable[[Sequence[Level]], Neck], folder: Path) -> None:
    """Some necks take multi-scale feature maps, others the single one of a plain transformer."""
    levels = [Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32)]
    try:
        neck = make(levels)
    except ConfigError:
        levels = levels[2:3]
        neck = make(levels)
    feature_maps = [
        torch.rand(2, channels, 128 // stride, 64 // stride, requires_grad=True) for channels, stride in levels
    ]
    pyramid = neck(feature_maps)
    assert [tuple(feature_map.shape) for feature_map in pyramid] == [
        (2, channels, -(-128 // stride), -(-64 // stride)) for channels, stride in neck.out_levels
    ]
    torch.stack([feature_map.sum() for feature_map in pyramid]).sum().backward()  # type: ignore[no-untyped-call]
    assert feature_maps[-1].grad is not None
    assert all(param.grad is not None for param in neck.parameters())


def detector_works(make: Callable[[Sequence[Level], DatasetInfo], Detector], folder: Path) -> None:
    """Losses of batches with and without objects, and descriptions of images with and without detections."""
    dataset_info = replace(INFO, boxes=True, masks=True, keypoints=("top", "bottom"))
    levels = [Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32)]
    detector = make(levels, dataset_info)
    shape, sizes = (32, 64), [(32, 64), (25, 50)]  # small: two-stage detectors are slow
    feature_maps = [torch.rand(2, channels, 32 // stride, 64 // stride) for channels, stride in levels]
    points = torch.tensor([[[15.0, 6, 2], [15, 24, 1]]])
    box = [17.5, 15, 25, 20, 30] if detector.oriented else [5.0, 5, 30, 25]
    full = Target(torch.tensor([box]), torch.tensor([3]), InstanceMasks.encode(torch.ones(1, *shape)), points)
    empty = Target(full.boxes[:0], full.labels[:0], InstanceMasks.encode(torch.ones(0, *shape)), points[:0])
    for targets in ([full, empty], [empty, empty]):
        detector.zero_grad()
        losses = detector.losses(detector.pyramid(feature_maps), shape, sizes, targets)
        assert all(value.shape == () and value.isfinite() for value in losses.values())
        total_loss(losses)[0].backward()  # type: ignore[no-untyped-call]
        assert [name for name, param in detector.named_parameters() if param.requires_grad and param.grad is None] == []
    feature_maps = detector.pyramid(feature_maps)
    detections = detector.detect(feature_maps, shape, sizes)
    assert all(len(image.boxes) <= detector.max_detections and (image.scores.diff() <= 0).all() for image in detections)
    for count in (2, 0):
        first = [Detections(image.boxes[:count], image.scores[:count], image.labels[:count]) for image in detections]
        for described in detector.describe(feature_maps, shape, sizes, first):
            assert (
                described.boxes.shape == (len(described.labels), len(box))
                and len(described.labels) == len(described.scores) <= count
            )
            assert described.masks is None or len(described.masks) == len(described.labels)
            assert described.keypoints is None or described.keypoints.shape == (len(described.labels), 2, 3)


def decoder_works(make: Callable[[Sequence[Level], int], SegmentationDecoder], folder: Path) -> None:
    levels = [Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32)]
    decoder = make(levels, 5)
    feature_maps = [torch.rand(2, channels, 64 // stride, 96 // stride) for channels, stride in levels]
    targets = with_objects(batch_of())["mask"][:2].long().repeat(1, 2, 3) % 5
    if decoder.own_losses:
        losses = decoder.losses(decoder.query_masks(feature_maps), semantic_segments(targets))
    else:
        losses = {"loss": decoder(feature_maps).square().mean()}
    assert all(value.shape == () and value.isfinite() for value in losses.values())
    total_loss(losses)[0].backward()  # type: ignore[no-untyped-call]
    assert [name for name, param in decoder.named_parameters() if param.requires_grad and param.grad is None] == []
    assert decoder.eval()(feature_maps).shape[:2] == (2, 5)


def segmentation_loss_works(loss: Callable[[Tensor, Tensor], Tensor], folder: Path) -> None:
    """Check the loss and its gradient with and without labeled pixels."""
    logits = torch.randn(2, 4, 6, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
    targets = torch.arange(84).reshape(2, 6, 7) % 4
    targets[0, 0] = IGNORE_LABEL
    for labels, is_positive in ((targets, True), (torch.full_like(targets, IGNORE_LABEL), False)):
        logits.grad = None
        value = loss(logits, labels)
        assert value.shape == () and bool(value > 0) == is_positive
        value.backward()  # type: ignore[no-untyped-call]
        assert logits.grad is not None
        assert logits.grad.isfinite().all() and bool(logits.grad.any()) == is_positive


def loss_works(loss: Callable[[Tensor, Tensor], Tensor], folder: Path) -> None:
    logits = torch.tensor([[2.0, 1, 0.1], [0, 0, 0]], requires_grad=True)
    value = loss(logits, torch.tensor([0, 2]))
    assert value.shape == ()
    value.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def balance_works(make: Callable[[list[str]], LossBalance], folder: Path) -> None:
    balance, layer = make(["a", "b"]), nn.Linear(2, 2)
    features = layer(torch.ones(1, 2))
    losses = {"a": features[0, 0].square(), "b": features[0, 1].exp()}
    weighted = balance(losses, 1.0, lambda: [layer.weight], CLOCK)
    assert weighted.keys() == losses.keys() and balance.weights().keys() <= losses.keys()
    for name, loss in losses.items():  # all start with the weights of the config
        assert weighted[name].item() == pytest.approx(loss.item())
    torch.stack(list(weighted.values())).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


def pseudo_labels_work(make: Callable[[Task, Source], PseudoLabeler], folder: Path) -> None:
    """Labels themselves are tested in tests/tasks/test_semi_supervised.py."""
    with pytest.raises(ConfigError, match="the task is Line"):
        make(Line(), Digits())


def metric_loss_works(loss: Callable[[Tensor, Tensor], Tensor], folder: Path) -> None:
    features = torch.tensor([[1.0, 0.2], [0.1, 1.0], [0.9, 0.5], [-0.5, 1.0]], requires_grad=True)
    value = loss(features, torch.tensor([0, 0, 3, 3]))
    assert value.shape == () and value > 0
    value.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert features.grad.isfinite().all() and features.grad.any()


def optimizer_works(make: Callable[..., torch.optim.Optimizer], folder: Path) -> None:
    task = Line()
    before = task.layer.weight.detach().clone()
    optimizer = make(list(task.parameters()))
    for _ in range(2):  # the first step of Adopt changes no weights
        task(batch_of(), CLOCK)["loss"].backward()
        optimizer.step()
    assert task.layer.weight.isfinite().all()
    assert not torch.equal(before, task.layer.weight)


def schedule_works(schedule: Callable[[Clock], float], folder: Path) -> None:
    """Values at every step of runs of whole epochs, with an incomplete epoch, of one step, and of none."""
    for length in (Duration(3, "ep"), Duration(7, "it"), Duration(1, "it"), Duration(0, "it")):
        plan = ConstantPlan(samples=20, batch_size=4, length=length)
        values = [schedule(Clock.at(plan, step)) for step in range(plan.total_steps + 1)]
        assert all(isinstance(value, float) and 0 <= value < math.inf for value in values)


def source_works(source: Any, folder: Path) -> None:
    assert isinstance(source, Source)
    for sample in (source[0], source[len(source) - 1]):
        image = sample["video"].read([0])[0] if "video" in sample else sample["image"]
        assert image.dtype == torch.uint8
        assert image.shape[0] == source.channels
        assert isinstance(sample["id"], str)
        if source.classes:
            key = next(key for key in ("labels", "mask", "label") if key in sample)
            labels = torch.as_tensor(sample[key]).flatten()
            assert all(0 <= class_label < len(source.classes) for class_label in labels)
    assert source[0]["id"] != source[len(source) - 1]["id"]


def sampler_works(make: Callable[..., Any], folder: Path) -> None:
    source: Any = Concat(sources=[Digits(), Digits()])
    source.info = replace(
        source.info,
        shards=np.array([len(Digits())] * 2),
        cameras=np.arange(len(source)) % 3,
        sizes=np.stack([np.arange(len(source)) % 5, np.arange(len(source)) % 3], 1),
        present=RaggedArray(np.arange(number % 3) for number in range(len(source))),
    )
    sampler = make(source, 3, 8)
    positions = np.arange(min(50, len(sampler)))
    indices = sampler.order(1)(positions)
    assert indices.shape == positions.shape and indices.dtype == np.int64
    assert indices[7] == sampler.order(1)(positions[7:8])[0]
    assert 0 <= indices.min() <= indices.max() < 2 * len(Digits())


def mix_works(mix: Callable[[Batch, DatasetInfo], Batch], folder: Path) -> None:
    mixed = mix(batch_of(), INFO)
    assert mixed["image"].shape == (4, 1, 32, 32)
    assert mixed["id"] == batch_of()["id"]


def hook_works(hook: Any, folder: Path) -> None:
    assert isinstance(hook, Hook)
    json.dumps(hook.state_dict())
    hook.load_state_dict(hook.state_dict())


def logger_works(make: Callable[[Path, Clock], Any], folder: Path) -> None:
    logger = make(folder, CLOCK)
    training = {"train/loss": 1.5, "lr": 0.1, "time/data": 0.1, "time/step": 0.2, "samples_per_s": 20.0}
    logger.write({"step": 1, "epoch": 0.2, "samples": 4, **training})
    logger.write({"step": 1, "epoch": 0.2, "samples": 4, "val/top1": None})
    logger.close()


def is_built(part: Any, folder: Path) -> None:
    """Transforms are tested below; sections are read, not called."""
    assert part is not None


def detected_objects() -> tuple[Predictions, list[GroundTruth]]:
    """Four images with a small, a medium and a large object each, all detected."""
    boxes = torch.tensor([[10.0, 10, 30, 30], [40, 40, 100, 100], [20, 20, 220, 220]])
    labels = torch.arange(3)
    sides = (boxes[:, 2:] - boxes[:, :2]).double().numpy()
    coco_boxes = np.concatenate([boxes[:, :2].double().numpy(), sides], 1)
    ground_truths = [
        GroundTruth(
            number, (240, 240), np.arange(3), coco_boxes, labels.numpy(), sides.prod(1), np.zeros(3, dtype=bool)
        )
        for number in range(4)
    ]
    predictions = {"boxes": boxes, "scores": torch.tensor([0.9, 0.8, 0.7]), "labels": labels}
    return {name: torch.stack([value] * 4) for name, value in predictions.items()}, ground_truths


def oriented_objects(
    predictions: Mapping[str, Tensor], ground_truths: Sequence[GroundTruth]
) -> tuple[Any, list[GroundTruth]]:
    """The same objects with oriented boxes of angle 0."""
    boxes = pad(box_convert(predictions["boxes"], "xyxy", "cxcywh"), (0, 1))
    corners = box_corners(boxes[0].double()).numpy()
    return {**predictions, "boxes": boxes}, [replace(ground_truth, corners=corners) for ground_truth in ground_truths]


def evaluator_works(make: Callable[[DatasetInfo], Any], folder: Path) -> None:
    """Four images of two identities, the first of each a query, all with objects. Evaluators of features get forty
    images of two classes."""
    if getattr(getattr(make, "target", make), "layers", ()):
        evaluator = make(replace(INFO, classes=("a", "b")))
        embedding = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
        evaluated: tuple[Any, Any] = {"embedding": embedding}, {**batch_of(40), "label": torch.arange(40) % 2}
        lowest, highest = -math.inf, math.inf
    else:
        detections, ground_truths = detected_objects()
        dataset_info = replace(INFO, queries=True, boxes=True, frequencies=tuple("rcf" + 7 * "f"), thing_labels=(3,))
        if oriented := getattr(getattr(make, "target", make), "oriented", False):
            detections, ground_truths = oriented_objects(detections, ground_truths)
        evaluator = make(replace(dataset_info, oriented=bool(oriented)))
        batch = {**batch_of(), "label": torch.tensor([0, 0, 1, 1]), "query": torch.tensor([True, False] * 2)}
        predictions = {"losses/loss": torch.full((4,), 0.5), "embedding": torch.eye(4), **detections}
        ground_truth_maps = with_objects(batch)["ground_truth_map"]
        predictions |= {
            "segmentation": torch.stack(
                [torch.from_numpy(ground_truth_map.labels) for ground_truth_map in ground_truth_maps]
            ),
            "segments": torch.stack(
                [torch.from_numpy(ground_truth_map.segments) for ground_truth_map in ground_truth_maps]
            ),
            "segment_labels": torch.arange(10).expand(4, 10),
            "image_size": torch.tensor([[32, 32]] * 4),
        }
        evaluated = predictions, {**batch, "ground_truth": ground_truths, "ground_truth_map": ground_truth_maps}
        lowest, highest = 0.0, 1.0
    getattr(evaluator, "learn", lambda *evaluated: None)(*evaluated)
    evaluator.update(*evaluated)
    states = [evaluator.state()]
    scores = evaluator.compute(states)
    assert scores.keys() == evaluator.better.keys()
    assert all(lowest <= score <= highest for score in scores.values())
    assert set(evaluator.better.values()) <= {"max", "min"}
    for output in ("details", "files"):
        json.dumps(getattr(evaluator, output, lambda states: None)(states), allow_nan=False)


def tracker_works(tracker: Tracker, folder: Path) -> None:
    """An object that stands still gets a track within five frames, and keeps it; a frame without detections."""
    state: TrackerState = {}
    still = FrameDetections(np.array([[10.0, 10, 30, 50]]), np.array([0.9]))
    ids = [tracker(state, still) for _ in range(6)]
    assert all(row.shape == (1,) and row.dtype == np.int64 for row in ids)
    assert ids[-2] == ids[-1] == 0
    assert tracker(state, FrameDetections(np.zeros((0, 4)), np.zeros(0))).shape == (0,)
    pickle.dumps(state)


def shapes_work(make: Callable[[RunSpec], BatchSchedule], folder: Path) -> None:
    spec = RunSpec(samples=20, batch_size=4, length=Duration(12, "ep"))
    schedule = make(spec)
    plan = StagedPlan(spec.samples, schedule.stages, schedule.length)
    for step in range(plan.total_steps):
        shape = plan.global_batch(step).shape
        assert shape is not None and len(shape) in (2, 3)
        assert all(isinstance(size, int) and size > 0 for size in shape)
    assert make(spec) == schedule


FAMILY_CHECKS: dict[str, Callable[[Any, Path], None]] = {
    "task": task_works,
    "step": step_works,
    "parallel": parallel_works,
    "backbone": backbone_works,
    "pooling": pooling_works,
    "head": head_works,
    "neck": neck_works,
    "detector": detector_works,
    "decoder": decoder_works,
    "segmentation_loss": segmentation_loss_works,
    "loss": loss_works,
    "balance": balance_works,
    "metric_loss": metric_loss_works,
    "pseudo_labels": pseudo_labels_work,
    "optimizer": optimizer_works,
    "schedule": schedule_works,
    "source": source_works,
    "transform": is_built,
    "mix": mix_works,
    "sampler": sampler_works,
    "hook": hook_works,
    "logger": logger_works,
    "section": is_built,
    "evaluator": evaluator_works,
    "shapes": shapes_work,
    "tracker": tracker_works,
}
"""Checks of parts that were built from a config, by family."""


LARGE = ("barlow_twins", "vicreg", "cascade_rcnn", "keypoint_rcnn")
"""Parts that are large by default (projectors of 8,192 values, several heads) and take two to five seconds each."""


DATA = "tests/data/sources"
TESTED_ELSEWHERE = {
    "tests/tasks/test_attributes.py": ("attributes",),
    "tests/models/test_detectors.py": ("rf_detr",),
    "tests/models/test_shared_backbone.py": ("shared",),
    "tests/training/test_multitask_optimization.py": ("multitask",),
    "tests/engine/test_experiment_loggers.py": ("wandb", "mlflow"),
    f"{DATA}/test_pedestrian_attributes.py": ("pa100k", "market1501_attributes", "dukemtmc_attributes"),
    f"{DATA}/test_image_pairs.py": ("image_pairs", "verification"),
    f"{DATA}/test_segmentation.py": (
        "segmentation_folder",
        "segmentation_list",
        "cityscapes",
        "ade20k",
        "voc_segmentation",
        "coco_panoptic",
    ),
    f"{DATA}/test_stuff_maps.py": ("coco_stuff",),
    f"{DATA}/test_annotation_tools.py": ("labelme", "cvat"),
    f"{DATA}/test_label_studio.py": ("label_studio",),
    f"{DATA}/test_supervisely.py": ("supervisely",),
    f"{DATA}/test_instance_maps.py": ("instance_maps",),
    f"{DATA}/test_mask_files.py": ("mask_files",),
    "tests/models/trackers/test_package.py": ("trackers",),
    f"{DATA}/test_mot.py": ("mot",),
    f"{DATA}/test_track_crops.py": ("track_crops",),
    f"{DATA}/test_identities.py": ("gallery_folders",),
    f"{DATA}/test_revisited.py": ("revisited",),
    f"{DATA}/test_cuhk03_archive.py": ("cuhk03_archive",),
    f"{DATA}/test_hugging_face.py": ("hugging_face",),
    f"{DATA}/test_parquet_images.py": ("parquet_images",),
    f"{DATA}/test_sources.py": ("named_images",),
}
"""Parts that fit none of the checks, since they need data of their own, large images or an extra, by the file of their
tests."""


@pytest.mark.parametrize("path", TESTED_ELSEWHERE)
def test_parts_that_are_not_checked_here_are_tested_elsewhere(path: str) -> None:
    assert (ROOT / path).is_file()


NEED_TRANSFORMERS = ("rt_detr", "d_fine", "detr", "deformable_detr", "windowed_dinov2", "mask2former")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, marks=[pytest.mark.slow] * (entry.name in LARGE))
        for entry in ENTRIES
        if entry.family != "command" and entry.name not in chain(*TESTED_ELSEWHERE.values())
    ],
    ids=label,
)
def test_defaults_build_and_work(entry: Entry, tmp_path: Path, data_folder: Path) -> None:
    """Commands are tested with the packaged recipes (tests/golden)."""
    assert entry.family in FAMILY_CHECKS, f"FAMILY_CHECKS needs a check of the family {entry.family!r}"
    if entry.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers", reason="the extra detr is not installed")
    FAMILY_CHECKS[entry.family](build_default(entry, tmp_path, data_folder), tmp_path)


def test_no_minimal_values_are_obsolete() -> None:
    assert MINIMAL.keys() <= {(entry.family, entry.name) for entry in ENTRIES}


# --- families with tests of their own ---------------------------------------------------------------------------------


def color_image() -> Sample:
    pixels = torch.arange(3 * 24 * 36).reshape(3, 24, 36) % 256
    return {"image": tv_tensors.Image(pixels.to(torch.uint8)), "label": 1, "id": "color"}


@pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding"
)  # JPEG still uses functions that torchvision deprecates
@pytest.mark.parametrize("sample", [pytest.param(lambda: Digits()[0], id="digit"), pytest.param(color_image)])
@of("transform")
def test_a_transform_runs(entry: Entry, sample: Callable[[], Sample], tmp_path: Path, data_folder: Path) -> None:
    before = sample()
    excluded = NOT_FOR_IMAGES | (NOT_FOR_DIGITS if before["image"].shape[0] == 1 else {})
    transform = build_default(entry, tmp_path, data_folder)
    if entry.name in excluded:
        with pytest.raises((TypeError, ValueError, RuntimeError)):  # otherwise the list is out of date
            transform(before)
        return
    after = transform(before)
    assert (after["label"], after["id"]) == (before["label"], before["id"])
    image = after["views"][0] if entry.name == "views" else after["image"]
    assert image.dtype == torch.uint8
    assert image.ndim == (4 if entry.name == "resize_and_crops" else 3)


def test_no_exception_is_obsolete() -> None:
    assert NOT_FOR_DIGITS.keys() | NOT_FOR_IMAGES.keys() <= CATALOG.entries["transform"].keys()


def test_every_step_applies_the_lr_factor_of_a_batch(tmp_path: Path, data_folder: Path) -> None:
    """Multigrid training relies on it."""
    for entry in CATALOG.entries["step"].values():
        task = Line()
        step = build_default(entry, tmp_path, data_folder)(
            task, torch.optim.SGD(task.parameters(), lr=0.1), {"lr": constant}, StepOptions(0)
        )
        half = GlobalBatch(step=0, epoch=0, first=0, count=4, lr_factor=0.5)
        step(batch_of(), half, CLOCK, lambda: None)
        assert [group["lr"] for group in step.optimizer.param_groups] == [pytest.approx(0.05)]
