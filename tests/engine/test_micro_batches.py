"""Gradient accumulation and mixed precision: gradients are those of the mean over the whole batch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions, Task
from opabinia.engine.loop.step import StandardStep, split_micro_batches
from tests.engine.toys import constant

SAMPLES = 64


class Net(Task):
    """Two layers without batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.layers(batch["image"])
        return {"loss": cross_entropy(logits, batch["label"]), "largest": logits.mean()}


def batch_of(samples: int = SAMPLES, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(samples, 8, generator=generator)
    label = torch.randint(5, (samples,), generator=generator)
    return {"image": image, "label": label, "id": [str(number) for number in range(samples)]}


def trained(micro_batch: int | None, optimizer: str, samples: int = SAMPLES, **keys: Any) -> tuple[Task, list[Any]]:
    task = Net()
    makers = {
        "sgd": lambda: torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        "adamw": lambda: torch.optim.AdamW(task.parameters(), lr=0.01),
    }
    step = StandardStep(task, makers[optimizer](), {"lr": constant}, StepOptions(0, micro_batch=micro_batch), **keys)
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=samples)
    scalars = [
        step(batch_of(samples, seed), global_batch, Clock(step=seed, total_steps=5), lambda: None) for seed in range(5)
    ]
    return task, scalars


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("micro_batch", "samples"), [(16, 64), (1, 64), (48, 64), (10, 37), (64, 64), (100, 64)])
def test_gradient_accumulation_equals_the_whole_batch(optimizer: str, micro_batch: int, samples: int) -> None:
    reference, expected_scalars = trained(None, optimizer, samples)
    accumulated, step_scalars = trained(micro_batch, optimizer, samples)
    for expected_param, param in zip(reference.parameters(), accumulated.parameters(), strict=True):
        assert torch.allclose(expected_param, param, rtol=0, atol=1e-6)
    for expected, scalars in zip(expected_scalars, step_scalars, strict=True):
        assert expected.keys() == scalars.keys()
        for name, value in expected.items():
            assert float(scalars[name]) == pytest.approx(float(value), abs=1e-5)


def test_the_clipped_norm_is_that_of_the_whole_batch() -> None:
    _, expected = trained(None, "sgd", clip_norm=0.1)
    _, accumulated = trained(16, "sgd", clip_norm=0.1)
    norms = [[float(scalars["grad_norm"]) for scalars in steps] for steps in (expected, accumulated)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and min(norms[0]) > 0.1


def test_views_of_samples_are_split_with_them() -> None:
    batch = {
        "views": (torch.arange(5.0), torch.arange(5.0) + 10),
        "label": torch.arange(5),
        "id": list("abcde"),
        "n": 3,
    }
    micro_batches = [part for part, _ in split_micro_batches(batch, 2)]
    assert [part["id"] for part in micro_batches] == [["a", "b"], ["c", "d"], ["e"]]
    assert [part["views"][1].tolist() for part in micro_batches] == [[10, 11], [12, 13], [14]]
    assert [part["label"].tolist() for part in micro_batches] == [[0, 1], [2, 3], [4]]
    assert [part["n"] for part in micro_batches] == [3, 3, 3]
    assert list(split_micro_batches(batch, 5)) == [(batch, 5)] == list(split_micro_batches(batch, None))


def test_views_are_not_mistaken_for_samples() -> None:
    views = tuple(torch.arange(3.0) + 10 * number for number in range(3))
    batch = {"views": views, "boxes": [torch.zeros(count, 4) for count in range(3)], "id": list("abc")}
    micro_batches = [part for part, _ in split_micro_batches(batch, 2)]
    assert [[view.tolist() for view in part["views"]] for part in micro_batches] == [
        [[0, 1], [10, 11], [20, 21]],
        [[2], [12], [22]],
    ]
    assert [[len(boxes) for boxes in part["boxes"]] for part in micro_batches] == [[0, 1], [2]]


def test_every_process_has_as_many_micro_batches_as_the_largest() -> None:
    batch = {"image": torch.arange(5), "id": list("abcde")}
    id_counts = [(part["id"], count) for part, count in split_micro_batches(batch, 3, largest=7)]
    assert id_counts == [(["a"], 1), (["b", "c"], 2), (["d", "e"], 2)]
    id_counts = [(part["id"], count) for part, count in split_micro_batches({"id": ["a"]}, 1, largest=2)]
    assert id_counts == [(["a"], 0), (["a"], 1)]  # a forward pass, but no sample


# --- precision --------------------------------------------------------------------------------------------------------


class SingleWeight(Task):
    """A single weight whose gradient is 1 for every sample."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(())), factor

    def forward(self, batch: Batch, clock: Clock) -> Tensor:
        return self.weight * self.factor * len(batch["id"])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_unscaling_happens_once(precision: Any) -> None:
    """basecls unscales again with every micro-batch, which gives 1.0078 for a scale of 128."""
    task = SingleWeight()
    step = StandardStep(
        task, torch.optim.SGD(task.parameters(), lr=1.0), {"lr": constant}, StepOptions(0, precision, micro_batch=2)
    )
    grads: list[float] = []

    def after_backward() -> None:
        assert task.weight.grad is not None
        grads.append(task.weight.grad.item())

    step({"id": list("abcd")}, GlobalBatch(step=0, epoch=0, first=0, count=4), Clock(), after_backward)
    assert grads == [2.0] and task.weight.item() == -1.0


def test_an_overflowing_update_is_skipped_and_the_scale_is_halved() -> None:
    task = SingleWeight(factor=1e5)  # times the scale of 65536 it overflows in fp16
    step = StandardStep(task, torch.optim.SGD(task.parameters(), lr=1.0), {"lr": constant}, StepOptions(0, "fp16"))
    task.weight.register_hook(lambda gradient: gradient * math.inf)
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=1)
    first_scalars = step({"id": ["a"]}, global_batch, Clock(), lambda: None)
    second_scalars = step({"id": ["a"]}, global_batch, Clock(step=1), lambda: None)
    assert task.weight.item() == 1.0
    assert float(second_scalars["loss_scale"]) == float(first_scalars["loss_scale"]) / 2


def test_the_scale_is_saved() -> None:
    def step() -> StandardStep:
        task = SingleWeight()
        return StandardStep(task, torch.optim.SGD(task.parameters(), lr=0.1), {"lr": constant}, StepOptions(0, "fp16"))

    saved, resumed = step(), step()
    saved.load_state_dict({"scaler": {**saved.state_dict()["scaler"], "scale": 512.0}})
    resumed.load_state_dict(saved.state_dict())
    scalars = resumed({"id": ["a"]}, GlobalBatch(step=0, epoch=0, first=0, count=1), Clock(), lambda: None)
    assert float(scalars["loss_scale"]) == 512.0
