"""A backbone shared by several tasks: one forward pass per batch, whose tensors are released."""

import copy
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DatasetInfo, Features, GlobalBatch, select_features
from opabinia.data.streams.batches import join_batches
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.pyramids import SemanticFpn
from opabinia.models.necks import fpn
from opabinia.tasks.classification import Classification
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.segmentation import Segmentation

SWIN = {"img_size": 32, "window_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [1, 2]}
FAMILIES: dict[str, dict[str, Any]] = {
    "test_resnet": {},
    "test_convnext": {},
    "test_efficientnet": {},
    "mobilenetv3_small_050": {},
    "test_vit": {},
    "regnetx_002": {},
    "swin_tiny_patch4_window7_224": SWIN,
}


def test_shared_features_equal_those_of_separate_passes() -> None:
    images = torch.rand(2, 3, 64, 64)
    for model, options in FAMILIES.items():
        net, pyramid = (timm(3, model=model, options=options).eval() for _ in range(2))
        pyramid.load_state_dict(net.state_dict())
        net.is_shared = True
        levels = net.enable_multi_scale()
        assert pyramid.enable_multi_scale() == levels
        with torch.no_grad():
            features = net.all_features(images)
            assert torch.allclose(features["vectors"], net(images), atol=1e-5), model
            assert torch.allclose(features["maps"], net.feature_maps(images), atol=1e-5), model
            for level, expected_level in zip(features["pyramid"], pyramid.pyramid_features(images), strict=True):
                assert torch.allclose(level, expected_level, atol=1e-5), model
    mixer = timm(3, model="mixer_s32_224", options={"img_size": 64})
    mixer.is_shared = True
    mixer.enable_multi_scale()
    with pytest.raises(ValueError, match="timm's MlpMixer gives no feature maps"):
        mixer.all_features(images)


INFO = DatasetInfo(4, classes=("a", "b", "c"), maps=True)
MAPS = partial(
    Segmentation,
    backbone=shared,
    decoder=partial(SemanticFpn, neck=partial(fpn, channels=32), channels=32),
)


def make_batch(sizes: list[tuple[int, int]]) -> Batch:
    return {
        "id": [f"x/{number}" for number in range(len(sizes))],
        "image": torch.rand(len(sizes), 3, 64, 64),
        "image_sizes": sizes,
        "original_size": sizes,
        "label": torch.arange(len(sizes)) % 3,
        "mask": torch.randint(3, (len(sizes), 64, 64)),
    }


def test_tasks_of_a_stream_share_a_forward_pass_and_release_it() -> None:
    torch.manual_seed(0)
    info = DatasetInfo(4, classes=INFO.classes, streams={"x": INFO})
    classes = partial(Classification, backbone=shared)
    task: Any = Multitask(
        info,
        backbone=partial(timm, model="test_convnext"),
        tasks={"x": Subtask(task=MAPS), "y": Subtask(task=classes, stream="x"), "z": Subtask(task=classes, stream="x")},
    )
    passes: list[Tensor] = []
    stem: Any = task.backbone.model.stem
    stem.register_forward_hook(lambda module, inputs, output: passes.append(output))
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=2)
    for sizes in ([(64, 64), (64, 64)], [(64, 40), (33, 64)]):  # the second batch is padded
        batch = make_batch(sizes)
        passes.clear()
        losses = task(join_batches(global_batch, {"x": batch}, {"x": global_batch}), Clock())
        losses["total_loss"].backward()
        assert len(passes) == 1
        passes.clear()
        predictions = task.eval().predict(batch)
        assert len(passes) == 1 and {name.split("/")[0] for name in predictions} == {"x", "y", "z"}
        predictions_of_z = task.predict({**batch, "task": "z"})
        assert predictions_of_z and all(
            torch.equal(value, predictions[f"z/{name}"]) for name, value in predictions_of_z.items()
        )
        task.train()
    released = [weakref.ref(tensor) for tensor in passes]
    passes.clear()
    del predictions, predictions_of_z, losses
    assert all(reference() is None for reference in released), "tensors of the batch are released"
    copied = copy.deepcopy(task)
    assert copied.state_dict().keys() == task.state_dict().keys()
    assert {param.data_ptr() for param in copied.parameters()}.isdisjoint(p.data_ptr() for p in task.parameters())


def test_the_backbone_is_a_module_of_every_task_and_saved_once() -> None:
    info = DatasetInfo(4, classes=INFO.classes, streams={"x": INFO})
    parts = {"x": Subtask(task=partial(Classification, backbone=shared))}
    parts["y"] = Subtask(task=partial(Classification, backbone=shared), stream="x")
    models: list[Any] = [Multitask(info, backbone=partial(timm, model="test_convnext"), tasks=parts) for _ in range(2)]
    for model in (*models, copy.deepcopy(models[0])):
        for name in parts:
            single = model.single_task(name)
            assert single.backbone is model.tasks[name].backbone is model.backbone
            assert single.normalize is model.normalize and single.head is model.tasks[name].head
    names = {name.split(".")[0] for name in models[0].state_dict()}
    assert names == {"backbone", "tasks"} and not any("backbone" in name[1:] for name in models[0].state_dict())
    assert {name for name, _ in models[0].named_parameters()} <= models[0].state_dict().keys()
    models[1].load_state_dict(models[0].state_dict())
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))
    with pytest.raises(RuntimeError, match=r"Missing key.*backbone"):
        models[1].load_state_dict({name: value for name, value in models[0].state_dict().items() if "head" in name})


def test_a_shared_backbone_keeps_what_other_tasks_read() -> None:
    net = timm(3, model="resnet10t")
    net.is_shared = True
    net.enable_multi_scale()
    assert net.keep_dilated_stages() == []
    with pytest.raises(ValueError, match="the tasks of a multi-task run share the last stage of the backbone"):
        net.split_last_stage()


def test_rows_of_features_are_selected() -> None:
    features: Features = {"vectors": torch.arange(3.0), "pyramid": [torch.arange(3.0) + 10]}
    selected = select_features(features, torch.tensor([2, 0, 2]))
    assert selected.keys() == {"vectors", "pyramid"} and selected["vectors"].tolist() == [2, 0, 2]
    assert [level.tolist() for level in selected["pyramid"]] == [[12, 10, 12]]
