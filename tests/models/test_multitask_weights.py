"""Transfer of weights between multi-task runs and runs of single tasks."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from opabinia.contracts import DatasetInfo, Task
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders import SemanticFpn
from opabinia.models.detectors import Fcos
from opabinia.models.losses.balance import DynamicWeightAverage
from opabinia.models.necks import fpn
from opabinia.models.norms import CurrentStream, convert_stream_batch_norm
from opabinia.models.weights.init import Init, LoadReport, initialize
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.segmentation import Segmentation
from opabinia.tasks.selfsup.moco import MoCo

LABELS = DatasetInfo(samples=8, channels=1, classes=tuple("abcd"))
BOXES = DatasetInfo(samples=8, channels=1, classes=("dot", "bar"), boxes=True)
MAPS = DatasetInfo(samples=8, channels=1, classes=("dark", "bright"), maps=True)
RESNET = partial(timm, model="test_resnet")
NECK = partial(fpn, channels=16)
SINGLE: dict[str, tuple[Any, DatasetInfo]] = {
    "maps": (partial(Segmentation, decoder=partial(SemanticFpn, neck=NECK, channels=16, norm="batch")), MAPS),
    "boxes": (partial(Detection, detector=partial(Fcos, neck=NECK, num_convs=2, norm="batch")), BOXES),
    "labels": (Classification, LABELS),
    "views": (partial(MoCo, queue=8), LABELS),
}


def make_task(name: str) -> Task:
    """Return a single task with random weights."""
    part, dataset_info = SINGLE[name]
    return randomized(part(dataset_info, backbone=RESNET, mean=[0.5], std=[1.0]))


def make_multitask(*names: str, streams: dict[str, str] | None = None, **keys: Any) -> Multitask:
    """Return a multi-task model of tasks with names such as ``boxes`` and ``boxes_2``."""
    kinds = {name: SINGLE[name.partition("_")[0]] for name in names}
    streams = streams or {}
    info = {name: dataset_info for name, (_, dataset_info) in kinds.items() if name not in streams}
    tasks = {
        name: Subtask(task=partial(part, backbone=shared), stream=streams.get(name))
        for name, (part, _) in kinds.items()
    }
    dataset_info = DatasetInfo(samples=8, channels=1, streams=info)
    return randomized(Multitask(dataset_info, backbone=RESNET, tasks=tasks, mean=[0.5], std=[1.0], **keys))


def randomized(task: Any) -> Any:
    for tensor in task.state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return task


def transfer(source: nn.Module, target: Task, folder: Path, **keys: Any) -> LoadReport:
    (folder / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
    save_file(source.state_dict(), folder / "checkpoints" / "step-1" / "model.safetensors")
    return initialize(target, Init(weights=folder / "checkpoints" / "step-1", **keys))


def own_state(multitask: Multitask, name: str) -> dict[str, Tensor]:
    """Return the state dict of a task of a multi-task model, with the batch norm statistics of its stream."""
    prefix, stream = f"tasks.{name}.", f".streams.{multitask.stream_of(name)}."
    state = {
        key.removeprefix(prefix): value for key, value in tensors_with_prefix(multitask, "backbone.", prefix).items()
    }
    statistics = {key.replace(stream, "."): value for key, value in state.items() if stream in key}
    return {**{key: value for key, value in state.items() if ".streams." not in key}, **statistics}


def tensors_with_prefix(task: Task, *prefixes: str) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in task.state_dict().items() if key.startswith(prefixes)}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected and not [name for name, tensor in expected.items() if not torch.equal(actual[name], tensor)]


def test_a_task_of_a_multitask_model_continues_alone_and_returns(tmp_path: Path) -> None:
    multitask = make_multitask("maps", "boxes", "labels", balance=DynamicWeightAverage)
    for name in multitask.tasks:
        task, other_multitask = make_task(name), make_multitask("maps", "boxes", "labels")
        report = transfer(multitask, task, tmp_path)
        assert report.complete, str(report)
        assert_equal(task.state_dict(), own_state(multitask, name))

        before = tensors_with_prefix(
            other_multitask, *(f"tasks.{other}." for other in multitask.tasks if other != name)
        )
        transfer(task, other_multitask, tmp_path)
        # All streams start with the only statistics of the file; other heads are unchanged.
        assert_equal(own_state(other_multitask, name), task.state_dict())
        for other in multitask.tasks:
            assert_equal(own_state(other_multitask, other), tensors_with_prefix(task, "backbone."))
        assert_equal(other_multitask.state_dict(), before)


def test_several_heads_of_a_kind_need_a_prefix(tmp_path: Path) -> None:
    multitask, task = make_multitask("boxes", "boxes_2", "labels"), make_task("boxes")
    with pytest.raises(ValueError, match=r"several ways: set source_prefix to tasks\.boxes or tasks\.boxes_2"):
        transfer(multitask, task, tmp_path)
    with pytest.raises(ValueError, match=r"the file has no task 'dots'; its tasks: boxes, boxes_2, labels"):
        transfer(multitask, task, tmp_path, source_prefix="tasks.dots")
    transfer(multitask, task, tmp_path, source_prefix="tasks.boxes_2")
    assert_equal(task.state_dict(), own_state(multitask, "boxes_2"))
    with pytest.raises(ValueError, match=r"several ways: set target_prefix to tasks\.boxes or tasks\.boxes_2"):
        transfer(task, multitask, tmp_path)
    with pytest.raises(ValueError, match="the file has no task 'boxes'; its tasks: none"):
        transfer(task, multitask, tmp_path, source_prefix="tasks.boxes")
    other = make_task("boxes")
    transfer(other, multitask, tmp_path, target_prefix="tasks.boxes")
    assert_equal(own_state(multitask, "boxes"), other.state_dict())
    first = make_multitask("boxes", "labels")
    transfer(multitask, first, tmp_path, source_prefix="tasks.boxes_2", target_prefix="tasks.boxes")
    assert_equal(own_state(first, "boxes"), own_state(multitask, "boxes_2"))
    # The backbone alone needs no prefix.
    assert transfer(multitask, task, tmp_path, target_prefix="backbone").loaded


def test_the_statistics_are_those_of_the_stream_of_a_task(tmp_path: Path) -> None:
    multitask, task = make_multitask("boxes", "labels", "labels_2", streams={"labels_2": "labels"}), make_task("labels")
    (tmp_path / "config.yaml").write_text("task: {tasks: {labels_2: {stream: labels}}}")
    transfer(multitask, task, tmp_path, source_prefix="tasks.labels_2")
    assert_equal(task.state_dict(), own_state(multitask, "labels_2"))


def test_a_multitask_model_starts_from_another(tmp_path: Path) -> None:
    """A head is added, another replaced; the state of the loss balance is not transferred."""
    first = make_multitask("maps", "boxes", balance=DynamicWeightAverage)
    second = make_multitask("maps", "labels", "boxes_2", balance=DynamicWeightAverage)
    for tensor in second.balance.buffers():
        tensor.zero_()
    transfer(first, second, tmp_path)
    assert_equal(own_state(second, "maps"), own_state(first, "maps"))
    assert not any(tensor.any() for tensor in second.balance.buffers())


def test_a_shared_backbone_starts_with_selfsupervised_weights(tmp_path: Path) -> None:
    views, multitask = make_task("views"), make_multitask("maps", "labels")
    with_views = make_multitask("labels", "views")
    for keys in ({}, {"target_prefix": "backbone"}):
        transfer(views, randomized(multitask), tmp_path, **keys)
        for name in multitask.tasks:
            assert_equal(own_state(multitask, name), tensors_with_prefix(views, "backbone."))
    transfer(views, with_views, tmp_path)
    assert_equal(own_state(with_views, "views"), views.state_dict())


def test_streams_start_with_pretrained_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    nn.init.uniform_(net[1].running_mean)
    expected = net.eval()(torch.ones(2, 1, 8, 8))
    current = CurrentStream("a")
    convert_stream_batch_norm(net, ["a", "b"], current)
    for current.name in ("a", "b"):
        assert torch.equal(net.eval()(torch.ones(2, 1, 8, 8)), expected)
    without_statistics = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False))
    convert_stream_batch_norm(without_statistics, ["a", "b"], current)
    assert type(without_statistics[0]) is nn.BatchNorm2d, "it has none to keep for each stream"
