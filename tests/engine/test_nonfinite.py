"""Non-finite losses and gradients: skipped updates, checked by the host or on the device, and error messages."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions, Task
from opabinia.engine.loop.nonfinite import NonFiniteError, UpdateGuard, find_non_finite_layer, suspect_samples
from opabinia.engine.loop.step import StandardStep
from tests.kernels import Kernels

ROW = GlobalBatch(step=0, epoch=0, first=0, count=4)
CLOCK = Clock(total_steps=10)


class Normed(Task):
    """A batch norm, whose running statistics must be restored, and a layer."""

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


class Logged(Normed):
    """A loss with a term that has no gradient."""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        losses = super().forward({**batch, "image": batch["image"].nan_to_num()}, clock)
        return {**losses, "constant_loss": batch["image"].sum()}


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
    """Return copies of weights, running statistics and optimizer state."""
    optimizer_state = [
        value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)
    ]
    return [value.detach().clone() for value in [*task.state_dict().values(), *optimizer_state]]


@pytest.mark.parametrize("kind", [Normed, Logged])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(name: str, checks: bool, precision: Any, kind: type[Normed]) -> None:
    task = kind()
    optimizer = OPTIMIZERS[name](task.parameters())
    step = StandardStep(task, optimizer, {}, StepOptions(0, precision, skip_non_finite=True))
    step._checks_losses = checks  # as on a GPU
    step(batch(), ROW, CLOCK, lambda: None)
    initial, scaler_state = state(task, optimizer), step.state_dict()
    scalars = step(batch(wrong=True), ROW, CLOCK, lambda: None)
    assert float(scalars["skipped"]) == 1
    assert all(map(torch.equal, state(task, optimizer), initial))
    assert step.state_dict() == scaler_state
    scalars = step(batch(), ROW, CLOCK, lambda: None)
    assert float(scalars.get("skipped", 0.0)) == 0
    assert not all(map(torch.equal, state(task, optimizer), initial))
    assert all(bool(value.isfinite().all()) for value in state(task, optimizer))


def test_guarding_buffers_takes_as_few_kernels_for_many_as_for_one() -> None:
    counts = []
    for norms in (1, 50):
        task = nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(norms)))
        guard, scaler = UpdateGuard(task), torch.amp.GradScaler("cpu", enabled=False)
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], fused=True)
        with Kernels() as kernels:
            guard.save_buffers()
            guard.update_unless(torch.zeros(()), optimizer, scaler)
        counts.append(kernels.count)
    assert counts[0] == counts[1]


def test_a_skipped_first_update_leaves_no_momentum() -> None:
    """In fp16 the first update often overflows, and torch leaves fused momentum buffers uninitialized."""
    task = Normed()
    optimizer = OPTIMIZERS["fused with momentum"](task.parameters())
    step = StandardStep(task, optimizer, {}, StepOptions(0, "fp16"))
    step._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    initial = [parameter.detach().clone() for parameter in task.parameters()]
    torch.use_deterministic_algorithms(True)  # memory without values is filled with NaN then
    try:
        step(batch(), ROW, CLOCK, lambda: None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, task.parameters(), initial))
    assert all(float(values["momentum_buffer"].abs().sum()) == 0 for values in optimizer.state.values())


@pytest.mark.parametrize("checks", [True, False])
def test_non_finite_gradients_alone_are_skipped(checks: bool) -> None:
    task = Steep()
    initial = [tensor.clone() for tensor in task.state_dict().values()]
    step = StandardStep(task, torch.optim.SGD(task.parameters(), lr=0.1), {}, StepOptions(0, skip_non_finite=True))
    step._checks_losses = checks
    scalars = step(batch(), ROW, CLOCK, lambda: None)
    assert float(scalars["loss"]) == 0 and not math.isfinite(float(scalars["grad_norm"]))
    assert all(map(torch.equal, task.state_dict().values(), initial))


@pytest.mark.parametrize(
    ("task", "wrong", "message"),
    [
        (Steep(), False, r"grad_norm is (nan|inf) at step 8; every layer's output is finite"),
        (Normed(), True, r"train/loss is nan at step 8; the batch itself is not finite: image; samples: c;"),
    ],
    ids=["gradient", "batch"],
)
def test_the_error_names_value_and_layer_and_no_weight_has_changed(task: Task, wrong: bool, message: str) -> None:
    initial = [parameter.detach().clone() for parameter in task.parameters()]
    step = StandardStep(task, torch.optim.SGD(task.parameters(), lr=0.1), {}, StepOptions(0))
    with pytest.raises(NonFiniteError, match=message) as caught:
        step(batch(wrong=wrong), ROW, Clock(step=7, total_steps=10), lambda: None)
    assert caught.value.step == 8
    assert all(map(torch.equal, task.parameters(), initial))


def test_suspect_samples_have_non_finite_inputs() -> None:
    assert suspect_samples(batch(wrong=True)) == ["c"]
    assert suspect_samples(batch()) == list("abcd")
    assert suspect_samples({"image": torch.zeros(2)}) == []


def test_the_repeated_forward_pass_runs_to_its_end() -> None:
    """Other processes may wait in a later layer."""
    task = Normed()
    calls: list[int] = []
    task.layer.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        task.norm.weight.fill_(math.inf)
    message = find_non_finite_layer(task, batch(), CLOCK)
    assert message is not None and "after layer norm (BatchNorm1d, input 4 x 3); its weights are not finite" in message
    assert calls == [1]
