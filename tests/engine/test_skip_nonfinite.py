"""Updates that are left out, looked at by the host or by the device alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, Row, StepOptions, Task
from opabinia.engine.loop.nonfinite import NonFinite, first_non_finite, suspects
from opabinia.engine.loop.step import Standard

ROW = Row(step=0, epoch=0, first=0, count=4)
CLOCK = Clock(total_steps=10)


class Normed(Task):
    """A norm, whose statistics numbers gone wrong would spoil, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": self.layer(self.norm(batch["image"])).square().mean()}


class Steep(Normed):
    """A finite loss whose gradient is not."""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        value = self.layer(batch["image"]).sum()
        return {"loss": (value - value.detach()).abs().sqrt()}


OPTIMIZERS: dict[str, Any] = {
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "not fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
}


def batch(*, wrong: bool = False) -> Batch:
    image = torch.arange(12.0).view(4, 3)
    if wrong:
        image[2, 1] = math.nan
    return {"image": image, "id": list("abcd")}


def state(task: Task, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Weights, statistics and what the optimizer keeps."""
    kept = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
    return [value.detach().clone() for value in [*task.state_dict().values(), *kept]]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_left_out_changes_nothing(name: str, looks: bool, precision: Any) -> None:
    task = Normed()
    optimizer = OPTIMIZERS[name](task.parameters())
    step = Standard(task, optimizer, {}, StepOptions(0, precision, skip_non_finite=True))
    step._looks = looks  # on a GPU nobody looks
    step(batch(), ROW, CLOCK, lambda: None)
    before = state(task, optimizer)
    scalars = step(batch(wrong=True), ROW, CLOCK, lambda: None)
    assert float(scalars["skipped"]) == 1
    assert all(map(torch.equal, state(task, optimizer), before))
    scalars = step(batch(), ROW, CLOCK, lambda: None)
    assert float(scalars.get("skipped", 0.0)) == 0
    assert not all(map(torch.equal, state(task, optimizer), before))
    assert all(bool(value.isfinite().all()) for value in state(task, optimizer))


def test_the_first_update_left_out_leaves_no_momentum() -> None:
    """A loss scale begins high: in fp16 the first update often overflows, and torch leaves fused momentum unwritten."""
    task = Normed()
    optimizer = OPTIMIZERS["fused with momentum"](task.parameters())
    step = Standard(task, optimizer, {}, StepOptions(0, "fp16"))
    step._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = [parameter.detach().clone() for parameter in task.parameters()]
    torch.use_deterministic_algorithms(True)  # memory without values is filled with NaN then
    try:
        step(batch(), ROW, CLOCK, lambda: None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, task.parameters(), before))
    assert all(float(values["momentum_buffer"].abs().sum()) == 0 for values in optimizer.state.values())


@pytest.mark.parametrize("looks", [True, False])
def test_gradients_alone_can_be_wrong(looks: bool) -> None:
    task = Steep()
    before = [one.clone() for one in task.state_dict().values()]
    step = Standard(task, torch.optim.SGD(task.parameters(), lr=0.1), {}, StepOptions(0, skip_non_finite=True))
    step._looks = looks
    scalars = step(batch(), ROW, CLOCK, lambda: None)
    assert float(scalars["loss"]) == 0 and not math.isfinite(float(scalars["grad_norm"]))
    assert all(map(torch.equal, task.state_dict().values(), before))


def test_stop_says_which_number_and_where() -> None:
    task = Steep()
    step = Standard(task, torch.optim.SGD(task.parameters(), lr=0.1), {}, StepOptions(0))
    with pytest.raises(NonFinite, match=r"grad_norm is (nan|inf) at step 1; every layer's output is finite") as caught:
        step(batch(), ROW, CLOCK, lambda: None)
    assert caught.value.step == 1
    task = Normed()
    step = Standard(task, torch.optim.SGD(task.parameters(), lr=0.1), {}, StepOptions(0))
    with pytest.raises(NonFinite, match=r"train/loss is nan at step 1; not finite in the batch.*its samples: c;"):
        step(batch(wrong=True), ROW, CLOCK, lambda: None)


def test_suspects_are_the_samples_that_are_wrong_themselves() -> None:
    assert suspects(batch(wrong=True)) == ["c"]
    assert suspects(batch()) == list("abcd")
    assert suspects({"image": torch.zeros(2)}) == []


def test_every_layer_works_to_the_end() -> None:
    """Other processes may wait for one that comes after the layer that went wrong."""
    task = Normed()
    seen: list[int] = []
    task.layer.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        task.norm.weight.fill_(math.inf)
    found = first_non_finite(task, batch(), CLOCK)
    assert found is not None and "after layer norm (BatchNorm1d, input 4 x 3); its weights are not finite" in found
    assert seen == [1]
