"""train.compile: what is compiled, what the log says of it, and averages of the weights."""

import copy
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, GlobalBatch, InstanceMasks, Task
from opabinia.data.streams.batches import join_batches
from opabinia.models.backbones.module import build_backbone
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors import Fcos, RetinaNet, mask_rcnn
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.necks import fpn
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.distillation import Distill, DistilledTask, EmaTeacher
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.selfsup.ibot import IBot
from opabinia.training.compiling import compile_modules
from opabinia.training.model import Models
from tests.models.test_detectors import compute_losses, make_detector

# torch 2.15 reads it of the inputs of a compiled module; without warnings as errors nobody sees it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

CPU = torch.device("cpu")
NO_RUN: Any = None
INFO = DatasetInfo(samples=8, channels=1, classes=("a", "b"))


COMPILE = torch.compile


@pytest.fixture(autouse=True)
def compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reports need to know what is compiled, not its graphs."""
    monkeypatch.setattr(torch, "compile", lambda function: lambda *args, **kwargs: function(*args, **kwargs))
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=config.recompile_limit):
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, compiles_nothing: None) -> Iterator[list[int]]:
    """Compile without a C++ compiler; return the number of operations of each call of a graph."""
    sizes: list[int] = []

    def count(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            sizes.append(len([node for node in graph.graph.nodes if node.op.startswith("call")]))
            return graph.forward(*args)

        return run

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=count))
    torch.compiler.reset()
    yield sizes
    torch.compiler.reset()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger("opabinia")
    propagates, log.propagate = log.propagate, True
    with caplog.at_level(logging.INFO, "opabinia"):
        yield caplog
    log.propagate = propagates


def messages(logged: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the report."""
    return [record.message for record in logged.records if record.name == "opabinia"][1:]


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


class Parts(Task):
    """A task with ``count`` children, of which it calls all but the last."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            self.add_module(f"part{number}", layers(number + 1))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        *called, last = self.children()
        values = batch["image"]
        for part in called:
            values = part(values)
        return {"loss": last.forward(values).sum()}


def compiled_step(task: Task, batch: Batch, average: Task | None = None) -> dict[str, Tensor]:
    """Compile the task, run one step, and log the report."""
    report = compile_modules(Models(task, average), CPU)
    assert report is not None
    losses: dict[str, Tensor] = task(batch, Clock(total_steps=2))
    report.after_step(NO_RUN)
    report.after_step(NO_RUN)
    return losses


BATCH = {"image": torch.ones(3, 2), "id": list("abc")}


@pytest.mark.parametrize(
    ("count", "compiled", "others", "level"),
    [
        (3, "part0, part1", "50% of the parameters: part2", "INFO"),
        (1, "nothing", "100% of the parameters: part0", "WARNING"),
    ],
)
def test_the_log_names_what_is_compiled_and_what_is_not(
    logged: pytest.LogCaptureFixture, count: int, compiled: str, others: str, level: str
) -> None:
    compiled_step(Parts(count), BATCH)
    assert messages(logged) == [f"train.compile: compiled: {compiled}", f"train.compile: not compiled, {others}"]
    assert [record.levelname for record in logged.records if record.message == messages(logged)[0]] == [level]


def test_modules_beyond_the_limit_of_torch_are_compiled(graphs: list[int]) -> None:
    """torch counts the graphs of all modules together and runs more than eight uncompiled."""
    task = Parts(10)
    average = copy.deepcopy(task).eval()
    compiled_step(task, BATCH, average)
    average(BATCH, Clock())
    assert graphs == [1, *range(1, 10), *range(1, 10)]


def test_averages_and_teachers_are_compiled_like_the_model(graphs: list[int]) -> None:
    task = Classification(INFO, backbone=partial(timm, model="test_resnet"))
    distilled = DistilledTask(task, [], Distill(ema_teacher=EmaTeacher()))
    batch = {"image": torch.rand(2, 1, 32, 32), "label": torch.tensor([0, 1]), "id": list("ab")}
    compile_modules(Models(task, wrapper=distilled), CPU)
    for _ in range(2):
        distilled(batch, Clock(total_steps=2))
    assert len(graphs) == 1 + 2 * 6, "after the test of the compiler, normalize, backbone and head of both, twice"


SCENES = DatasetInfo(samples=8, channels=1, classes=("a", "b"), boxes=True, masks=True)
HEADS = "detector.head.classification_head", "detector.head.regression_head"
OPTIONS: Any = {"proposals": ProposalOptions(), "pooling": PoolingOptions(), "box": BoxOptions(), "mask": MaskOptions()}
MASK_PARTS = "layers", "predictor"
PYRAMID = partial(fpn, channels=32)


def scene() -> Batch:
    """Return an image with an object."""
    batch = {"image": torch.rand(1, 1, 64, 64), "image_sizes": [(64, 64)], "id": ["a"]}
    masks = [InstanceMasks.encode(torch.ones(1, 64, 64, dtype=torch.uint8)).runs]
    return batch | {"boxes": [torch.tensor([[4.0, 4.0, 40.0, 40.0]])], "labels": [torch.tensor([0])], "masks": masks}


@pytest.mark.parametrize(
    ("detector", "heads"),
    [
        (
            Fcos,
            {f"{HEADS[0]}.conv", f"{HEADS[0]}.cls_logits"}
            | {f"{HEADS[1]}.{part}" for part in ("conv", "bbox_reg", "bbox_ctrness")},
        ),
        (RetinaNet, {*HEADS}),
        (
            partial(
                mask_rcnn, proposals=ProposalOptions(), pooling=PoolingOptions(), box=BoxOptions(), mask=MaskOptions()
            ),
            {"detector.rpn.head", "detector.box.layers", *(f"detector.others.mask.{part}" for part in MASK_PARTS)},
        ),
    ],
)
def test_backbone_neck_and_heads_of_a_detector_are_compiled(
    detector: Any, heads: set[str], logged: pytest.LogCaptureFixture
) -> None:
    task = Detection(SCENES, detector=partial(detector, neck=PYRAMID), backbone=partial(timm, model="test_resnet"))
    compiled_step(task, scene())
    compiled, *others = messages(logged)
    names = compiled.removeprefix("train.compile: compiled: ").split(", ")
    assert {*names} == {"normalize", "backbone.multi_scale", "detector.neck", *heads}
    assert all(line.endswith("% of the parameters: detector.head.scales") for line in others)


@pytest.mark.parametrize(
    "name",
    ["rt_detr", "detr", "mask2former", *(pytest.param(name, marks=pytest.mark.slow) for name in ("d_fine", "rf_detr"))],
)
def test_layers_of_detectors_with_queries_are_one_graph_each(name: str, graphs: list[int]) -> None:
    pytest.importorskip("transformers", reason="the extra detr is not installed")
    detector, maps = make_detector(name)
    parts = [part for key, part in detector.named_modules() if re.fullmatch(detector.compiled_modules, key)]
    for part in parts:
        part.compile(fullgraph=True)
    assert compute_losses(detector, maps, name)
    assert len(graphs) >= len(parts)
    compiled = {param for part in parts for param in part.parameters()}
    assert sum(map(Tensor.numel, compiled)) > 0.6 * sum(map(Tensor.numel, detector.parameters()))


def test_backbone_and_heads_of_a_multitask_model_are_compiled(
    logged: pytest.LogCaptureFixture, graphs: list[int]
) -> None:
    parts: dict[str, Any] = {
        "boxes": Subtask(task=partial(Detection, detector=partial(RetinaNet, neck=PYRAMID), backbone=shared)),
        "labels": Subtask(task=partial(Classification, backbone=shared), stream="boxes"),
        "kinds": Subtask(task=partial(Classification, backbone=shared)),
    }
    info = DatasetInfo(samples=8, channels=1, streams={"boxes": SCENES, "kinds": INFO})
    task = Multitask(info, backbone=partial(timm, model="test_resnet"), tasks=parts)
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=1)
    streams = {"boxes": {**scene(), "label": torch.tensor([0])}}
    streams["kinds"] = {"image": torch.rand(1, 1, 64, 64), "label": torch.tensor([1]), "id": ["b"]}
    batch = join_batches(replace(global_batch, count=2), streams, dict.fromkeys(streams, global_batch))
    compiled_step(task, batch)
    (line,) = messages(logged)
    names = ["normalize", "backbone", "backbone.multi_scale", "tasks.boxes.detector.neck"]
    names += [f"tasks.boxes.{head}" for head in HEADS] + ["tasks.labels.head", "tasks.kinds.head"]
    assert sorted(line.removeprefix("train.compile: compiled: ").split(", ")) == sorted(names)


def test_students_and_teachers_of_vision_transformers_are_compiled(logged: pytest.LogCaptureFixture) -> None:
    net = partial(timm, model="test_vit", options={"img_size": 32})
    task = IBot(INFO, backbone=net, outputs=8, patch_outputs=8, hidden=8, bottleneck=4)
    views = (torch.rand(2, 1, 32, 32), torch.rand(2, 1, 32, 32))
    masks = (torch.arange(4) < 2).expand(2, 2, 4)
    compiled_step(task, {"views": views, "patch_masks": tuple(masks), "id": list("ab")})
    names = messages(logged)[0].removeprefix("train.compile: compiled: ").split(", ")
    blocks, heads = "backbone.model.blocks", "heads.images"
    assert {"normalize", blocks, heads, f"teacher.{blocks}", f"teacher.{heads}"} <= set(names)


def convolutions(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2), nn.ReLU())


@pytest.mark.parametrize(
    ("part", "size", "method", "count"),
    [
        (partial(timm, model="test_vit", options={"img_size": 32}), 32, "tokens", 1),
        (partial(timm, model="test_vit", options={"img_size": 32}), 32, "feature_maps", 1),
        (partial(timm, model="test_vit", options={"img_size": 32}), 32, "forward", 1),
        (partial(timm, model="resnet10t"), 32, "feature_maps", 5),
        (partial(timm, model="test_resnet"), 64, "all_features", 1),
        (convolutions, 64, "pyramid_features", 1),
    ],
)
@torch.no_grad()
def test_methods_of_backbones_run_compiled(part: Any, size: int, method: str, count: int, graphs: list[int]) -> None:
    net: Backbone = build_backbone(part, 1).eval()
    if method == "all_features":
        net.is_shared = True
        net.enable_multi_scale()
    images = torch.rand(1, 1, size, size)
    run = net if method == "forward" else getattr(net, method)
    expected = run(images)
    net.compile()
    torch.testing.assert_close(run(images), expected)
    assert len(graphs) == count
