"""Tasks on a GPU: mixed precision compared with single precision, steps that do not wait, and exported models."""

from __future__ import annotations

import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.export.passes import move_to_device_pass

import opabinia
from opabinia.contracts import Batch, Clock, DatasetInfo, GlobalBatch, StepOptions, Task, total_loss
from opabinia.data.sources import Digits
from opabinia.engine.loop.prefetch import to_device
from opabinia.engine.loop.step import StandardStep
from opabinia.inference.export import export
from opabinia.inference.export.files import trace
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.losses.metric import triplet
from opabinia.models.necks import fpn_p3_p7_from_p5
from opabinia.models.pooling import Average
from opabinia.optim.ema import WeightAverage
from opabinia.runtime.device import autocast
from opabinia.runtime.seeds import seed_model
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.reid.baseline import Baseline
from opabinia.tasks.selfsup.dino import DINO
from opabinia.training import launch

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
B, SIDE = 8, 64
INFO = DatasetInfo(samples=B, channels=3, classes=tuple("abcd"), boxes=True)
NET = partial(timm, model="test_resnet")
TASKS: dict[str, Any] = {
    "convolutions": partial(Classification, backbone=NET),
    "attention": partial(Classification, backbone=partial(timm, model="test_vit", options={"img_size": SIDE})),
    "reid": partial(Baseline, backbone=NET, pooling=Average, metric_losses=[triplet]),
    "dino": partial(DINO, backbone=NET, outputs=32, hidden=32, bottleneck=8),
    "detection": partial(
        Detection, backbone=NET, detector=partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1)
    ),
}


def make(name: str) -> Task:
    torch.manual_seed(0)
    task: Task = TASKS[name](INFO)
    return task


def batch() -> Batch:
    """Two images of each class; the classes differ in brightness."""
    draw, label = torch.Generator().manual_seed(0), torch.arange(B) // 2
    image = torch.randint(128, (B, 3, SIDE, SIDE), generator=draw, dtype=torch.uint8) + 30 * label.view(-1, 1, 1, 1)
    image = image.to(torch.uint8)
    boxes = [torch.tensor([[4.0, 4.0, 40.0, 40.0], [20.0, 10.0, 60.0, 60.0]])] * B
    sizes = [(SIDE, SIDE)] * B
    objects = {"boxes": boxes, "labels": [torch.tensor([0, 2])] * B, "image_sizes": sizes, "original_size": sizes}
    views = (image, image.flip(-1))
    return to_device({"image": image, "label": label, "views": views, **objects, "id": list("abcdefgh")}, DEVICE)


# --- mixed precision --------------------------------------------------------------------------------------------------


def loss_and_gradient(task: Task, precision: str) -> tuple[float, Tensor]:
    task = copy.deepcopy(task)
    seed_model(0, 0, 0, 0, DEVICE)
    with autocast(DEVICE, precision):
        loss, _ = total_loss(task(batch(), Clock(total_steps=10)))
    scale = 2.0**10 if precision == "fp16" else 1.0
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    gradients = [param.grad.flatten() / scale for param in task.parameters() if param.grad is not None]
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    return loss.item(), torch.cat(gradients)


@pytest.mark.parametrize("name", TASKS)
def test_mixed_precision_has_the_gradient_of_single_precision(name: str, record_property: Any) -> None:
    task = make(name).to(DEVICE).train()
    loss, gradient = loss_and_gradient(task, "fp32")
    for precision, difference, smallest in (("bf16", 0.05, 0.95), ("fp16", 0.01, 0.99)):
        mixed_loss, mixed_gradient = loss_and_gradient(task, precision)
        cosine = float(torch.cosine_similarity(gradient, mixed_gradient, dim=0))
        record_property(f"{precision} loss / fp32", round(mixed_loss / loss, 5))
        record_property(f"{precision} cosine of the gradients", round(cosine, 5))
        assert mixed_loss == pytest.approx(loss, rel=difference)
        assert cosine > smallest


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", ["convolutions", "attention", "reid", "dino"])
def test_a_step_never_synchronizes(name: str) -> None:
    """A detector selects boxes, whose number the host must know."""
    task, data = make(name).to(DEVICE, memory_format=torch.channels_last).train(), batch()
    optimizer = torch.optim.AdamW([param for param in task.parameters() if param.requires_grad], lr=1e-3, fused=True)
    step, global_batch = (
        StandardStep(task, optimizer, {}, StepOptions(0, "bf16"), clip_norm=1.0),
        GlobalBatch(0, 0, 0, B),
    )
    first = step(data, global_batch, Clock(total_steps=10), lambda: None)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(data, global_batch, Clock(step=1, total_steps=10), lambda: None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.isfinite() for value in first.values() if isinstance(value, Tensor))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_average_of_the_weights_is_that_of_the_cpu() -> None:
    averages = {}
    for device in ("cpu", DEVICE):
        task = make("convolutions").to(device)
        average = copy.deepcopy(task)
        update = WeightAverage(average, task, lambda clock: 0.1)
        with torch.no_grad():
            for param in task.parameters():
                param += 1
        torch.cuda.set_sync_debug_mode("error")
        try:
            update.update(0.1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        averages[str(device)] = {name: value.cpu() for name, value in average.state_dict().items()}
    torch.testing.assert_close(averages["cuda"], averages["cpu"])


# --- trained models ---------------------------------------------------------------------------------------------------


def test_a_model_trained_on_the_gpu_is_loaded_and_exported(tmp_path: Path) -> None:
    overrides = ["train.device=cuda", "train.length=4it", "data.batch_size=16", "data.num_workers=0", "loggers=[]"]
    folder = launch.train("classification/digits", overrides, out=tmp_path)[0]
    source, logits = Digits(split="val"), {}
    images = torch.stack([source[number]["image"] for number in range(5)]).repeat(1, 1, 4, 4)
    for device in ("cpu", "cuda"):
        task = opabinia.load(folder, device=device).task
        with torch.no_grad():
            logits[device] = task.predict({"image": images.to(device)})["logits"].cpu()
    torch.testing.assert_close(logits["cuda"], logits["cpu"], rtol=1e-2, atol=1e-2)
    assert export(folder, form="torch").stat().st_size
    if all(map(find_spec, ("onnx", "onnxruntime", "onnxscript"))):
        assert export(folder, form="onnx").stat().st_size


@pytest.mark.parametrize("name", ["convolutions", "attention", "detection"])
def test_exported_programs_run_on_the_gpu(name: str) -> None:
    module = make(name).eval().export_module().eval()
    inputs = {"image": batch()["image"].cpu()}
    if name == "detection":
        inputs["image_sizes"] = torch.tensor([[SIDE, SIDE]] * B)
    with torch.no_grad():
        module(**inputs)  # as in an export: caches the anchors, which have no values while tracing
    program = move_to_device_pass(trace(module, inputs, Dim("batch", min=1)), DEVICE)
    inputs = {key: value.to(DEVICE) for key, value in inputs.items()}
    with torch.no_grad():
        outputs, expected = program.module()(**inputs), module.to(DEVICE)(**inputs)
    assert outputs.keys() == expected.keys() and all(value.device.type == DEVICE.type for value in outputs.values())
    for key in {"probabilities", "scores"} & outputs.keys():
        torch.testing.assert_close(outputs[key], expected[key], rtol=1e-2, atol=1e-3)
