"""The hook for quantization-aware training: rounding as in an INT8 file, in steps only."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, Predictions, Task
from opabinia.engine.hooks.quantization_aware import QuantizationAware, round_weight
from opabinia.inference.export.precision import write_int8
from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch
from tests.engine.toys import Line, make_run


def test_weights_are_multiples_of_a_part_of_the_largest_one_of_each_channel() -> None:
    weight = torch.tensor([[64.0, -0.6, 31.4], [-0.32, 0.004, 0.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[64.0, -1.0, 31.0], [-0.32, 0.005, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(round_weight(weight), expected)
    kernels = torch.randn(3, 2, 3, 3)
    assert torch.equal(round_weight(kernels).flatten(1), round_weight(kernels.flatten(1)))


class Images(Task):
    """Convolutions and a linear layer, and a layer that no prediction needs."""

    body: Any

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head, self.unused = nn.Linear(8, 5), nn.Linear(2, 2)

    def logits(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": self.logits(batch["image"]).square().sum()}

    def predict(self, batch: Batch) -> Predictions:
        return {"logits": self.logits(batch["image"])}


def images_of(seed: int) -> Batch:
    return {"image": torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed))}


def started(task: Task, **options: Any) -> tuple[QuantizationAware, Any]:
    hook = QuantizationAware(**options)
    run = make_run(task, batches=lambda name, count: [images_of(seed) for seed in range(count)])
    hook.start(run)
    return hook, run


def test_a_step_computes_what_an_int8_file_does(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is absent: pip install 'opabinia[export]'")
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    task, batch = Images(), images_of(0)
    with torch.no_grad():  # few levels are left to the other weights
        task.body[2].weight[:, 0, 0, 0] = 5.0

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.task = task

        def forward(self, image: Tensor) -> Tensor:
            return task.logits(image)

    path = tmp_path / "model.onnx"
    torch.onnx.export(Module().eval(), (batch["image"],), path, input_names=["image"], output_names=["logits"])
    write_int8(path, tmp_path / "int8.onnx", [], [{"image": images_of(seed)["image"]} for seed in range(2)])
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    int8 = torch.from_numpy(np.asarray(session.run(["logits"], {"image": batch["image"].numpy()})[0]))

    hook, run = started(task, batches=2)
    precise = task.logits(batch["image"])
    hook.before_step(run, batch)
    rounded = task.logits(batch["image"])
    hook.after_backward(run)
    assert torch.equal(task.logits(batch["image"]), precise)
    ours, unrounded = ((logits - int8).abs().mean() for logits in (rounded, precise))
    assert ours < 0.2 * unrounded, (ours, unrounded)  # the outputs of the file are rounded, too


def test_gradients_are_those_of_the_rounded_model_and_weights_stay_precise() -> None:
    task, batch = Images(), images_of(3)
    before = {name: value.clone() for name, value in task.state_dict().items()}
    hook, run = started(task)
    hook.before_step(run, batch)
    assert torch.equal(task.head.weight, round_weight(before["head.weight"]))
    task(batch, run.clock)["loss"].backward()
    hook.after_backward(run)
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())
    rounded = task.head.weight.grad
    task.zero_grad()
    task(batch, run.clock)["loss"].backward()
    assert rounded is not None and task.head.weight.grad is not None
    torch.testing.assert_close(rounded, task.head.weight.grad, rtol=0.1, atol=0.1)
    assert not torch.equal(rounded, task.head.weight.grad)


def test_ranges_are_those_of_all_batches_and_contain_zero() -> None:
    hook, _ = started(Images(), batches=2)
    assert hook.tensors().keys() == {"body.0", "body.2", "head"}
    images = torch.cat([images_of(seed)["image"] for seed in range(2)])
    assert torch.equal(hook.tensors()["body.0"], torch.stack(images.aminmax()))
    assert hook.tensors()["body.2"][0] == 0 < hook.tensors()["body.2"][1]


def test_a_failed_step_leaves_the_weights_and_the_model_as_they_were() -> None:
    task = Images()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    hook, run = started(task)
    hook.before_step(run, images_of(0))
    hook.finish(run, RuntimeError("interrupted"))
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())
    assert not task.body[0]._forward_pre_hooks


def test_layers_are_excluded_by_name() -> None:
    hook, _ = started(Images(), exclude=["body.*"])
    assert hook.tensors().keys() == {"head"}
    with pytest.raises(ValueError, match=r"no layer is named 'neck\.\*'; layers: body\.0, body\.2, head, unused"):
        started(Images(), exclude=["neck.*"])
    with pytest.raises(ValueError, match="no convolution or linear layer that could be rounded"):
        started(Images(), exclude=["body.*", "head"])


def test_nothing_is_measured_in_an_evaluation() -> None:
    hook = QuantizationAware()
    hook.start(make_run(Line(), loader=None))
    assert not hook.tensors()


def test_a_resumed_run_is_identical(tmp_path: Path) -> None:
    changes = [
        *("hooks.int8={name: quantization_aware, batches: 2}", "train.length=4it", "checkpoint.every=2it"),
        *("evaluate.every=4it", "train.device=cpu", "data.num_workers=0"),
    ]
    recipe = "classification/digits"
    checkpoints = launch.train(recipe, changes, out=tmp_path)[0] / "checkpoints"
    expected = {file.name: load_safetensors(file) for file in (checkpoints / "step-00000004").glob("*.safetensors")}
    shutil.rmtree(checkpoints / "step-00000004")
    launch.train(recipe, changes, out=tmp_path, resume=str(checkpoints / "step-00000002"))
    assert {*expected} >= {"model.safetensors", "optimizer.safetensors", "int8.safetensors"}
    for name, tensors in expected.items():
        resumed = load_safetensors(checkpoints / "step-00000004" / name)
        assert all(torch.equal(value, resumed[key]) for key, value in tensors.items())
