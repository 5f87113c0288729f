"""The training step: total loss, clipping, schedules, and no waiting for the device."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions, Task
from opabinia.engine.loop.step import StandardStep, total_loss
from opabinia.optim.groups import ParamGroups, Rule, apply_factors, parameter_groups
from tests.engine.toys import Line, Setup, constant, sample_batch
from tests.host_waits import HostWaits

# --- the total loss (rules of detectron2 and basecls, as run there) ---------------------------------------------------


def tensors(values: Any) -> Any:
    if isinstance(values, int):
        return torch.tensor(float(values))
    if isinstance(values, dict):
        return {name: torch.tensor(float(value)) for name, value in values.items()}
    return [torch.tensor(float(value)) for value in values]


@pytest.mark.parametrize(
    ("losses", "trained", "logged"),
    [
        ({"loss_a": 2, "aux": 10}, 2, {"loss_a": 2, "aux": 10, "loss": 2}),
        ({"total_loss": 1, "x_loss": 5}, 1, {"total_loss": 1, "x_loss": 5, "loss": 1}),
        ([1, 2], 3, {"loss_0": 1, "loss_1": 2, "loss": 3}),
        (3, 3, {"loss": 3}),
        ((4,), 4, {"loss_0": 4, "loss": 4}),
        ({"loss": 4}, 4, {"loss": 4}),
        ({"loss": 4, "loss_b": 1}, 5, {"loss": 4, "loss_b": 1, "total_loss": 5}),
        ({"box_loss": 1, "loss_class": 2, "n": 7}, 3, {"box_loss": 1, "loss_class": 2, "n": 7, "loss": 3}),
    ],
    ids=str,
)
def test_total_loss(losses: Any, trained: float, logged: dict[str, float]) -> None:
    total, scalars = total_loss(tensors(losses))
    assert total.item() == trained
    assert {name: value.item() for name, value in scalars.items()} == logged


@pytest.mark.parametrize(
    ("losses", "message"), [({"acc": 1}, r"no key of \['acc'\] contains 'loss'"), ({}, "no key"), ([], "no key")]
)
def test_a_missing_loss_is_an_error(losses: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        total_loss(tensors(losses))


def test_only_trained_losses_have_a_gradient() -> None:
    weight = torch.ones((), requires_grad=True)
    total_loss({"loss_a": 2 * weight, "loss_b": 10 * weight, "aux": weight})[0].backward()
    assert weight.grad == 12  # detectron2's golden case


# --- the update -------------------------------------------------------------------------------------------------------


class Fixed(Task):
    """Two parameters with gradients [3, 4] and [0, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self, batch: Batch, clock: Clock) -> Tensor:
        return (self.a * torch.tensor([3.0, 4.0])).sum() + (self.b * torch.tensor([0.0, 5.0])).sum()


ROW = GlobalBatch(step=0, epoch=0, first=0, count=2)
CLOCK = Clock(total_steps=10)


def step_of(task: Task, *, lr: float = 1.0, schedule: Any = constant, **keys: Any) -> StandardStep:
    groups = [{"params": [parameter], "lr": lr / (number + 1)} for number, parameter in enumerate(task.parameters())]
    return StandardStep(task, torch.optim.SGD(groups, lr=lr), {"lr": schedule}, StepOptions(0), **keys)


UNCHANGED = ([3, 4], [0, 5])


@pytest.mark.parametrize(
    ("keys", "expected", "norm"),
    [
        ({}, UNCHANGED, math.sqrt(50)),
        ({"clip_norm": 100.0}, UNCHANGED, math.sqrt(50)),
        ({"clip_norm": 1.0}, ([0.42426, 0.56569], [0, 0.70711]), math.sqrt(50)),
        ({"clip_each": 1.0}, ([0.6, 0.8], [0, 1]), math.sqrt(50)),
        ({"clip_value": 1.0}, ([1, 1], [0, 1]), math.sqrt(50)),
        ({"clip_value": 4.0}, ([3, 4], [0, 4]), math.sqrt(50)),
        ({"clip_norm": 1.0, "clip_norm_type": 1.0}, ([0.25, 1 / 3], [0, 5 / 12]), 12),
        ({"clip_norm": 1.0, "clip_norm_type": math.inf}, ([0.6, 0.8], [0, 1]), 5),
        ({"clip_each": 1.0, "clip_norm_type": math.inf}, ([0.75, 1], [0, 1]), 5),
    ],
    ids=str,
)
def test_clipped_gradients_and_their_norm_before(keys: dict[str, float], expected: Any, norm: float) -> None:
    """The golden numbers of a true global norm, and detectron2's by value and by parameter. They do not add up over
    steps."""
    task = Fixed()
    step = step_of(task, **keys)
    for _ in range(2):
        assert step({}, ROW, CLOCK, lambda: None)["grad_norm"] == pytest.approx(norm)
        for parameter, values in zip(task.parameters(), expected, strict=True):
            assert parameter.grad is not None and parameter.grad.tolist() == pytest.approx(values, abs=1e-5)


def test_negative_gradients_are_clipped_by_value_too() -> None:
    task = Fixed()

    def negate() -> None:
        for parameter in task.parameters():
            assert parameter.grad is not None
            parameter.grad.neg_()

    step_of(task, clip_value=1.0)({}, ROW, CLOCK, negate)
    assert [parameter.grad.tolist() for parameter in task.parameters() if parameter.grad is not None] == [
        [-1, -1],
        [0, -1],
    ]


@pytest.mark.parametrize("other", ["clip_each", "clip_value"])
def test_contradictory_clipping_is_refused(other: str) -> None:
    with pytest.raises(ValueError, match="choose one"):
        step_of(Fixed(), **{"clip_norm": 1.0, other: 1.0})


def half(clock: Clock) -> float:
    return 0.5 if clock.step else 1.0


@pytest.mark.parametrize(
    ("optimizer", "name", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum", {"momentum": 0.45}),
        (lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99)), "momentum", {"betas": (0.4, 0.99)}),
        (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.04), "weight_decay", {"weight_decay": 0.02}),
    ],
)
def test_other_options_follow_schedules_too(optimizer: Any, name: str, expected: dict[str, Any]) -> None:
    task = Fixed()
    step = StandardStep(task, optimizer(task.parameters()), {"lr": constant, name: half}, StepOptions(0))
    for number in (0, 1):
        step({}, ROW, Clock(step=number, total_steps=10), lambda: None)
    group = step.optimizer.param_groups[0]
    assert {key: group[key] for key in expected} == expected and group["lr"] == 0.1


def test_a_schedule_of_an_unknown_option_is_an_error() -> None:
    task = Fixed()
    with pytest.raises(ValueError, match=r"no option 'weight_decy'; its options: .*weight_decay"):
        StandardStep(task, torch.optim.AdamW(task.parameters()), {"weight_decy": half}, StepOptions(0))


def test_after_backward_gradients_are_computed_and_not_yet_used() -> None:
    task = Fixed()
    calls: list[Any] = []
    step = step_of(task, clip_norm=1.0)
    step({}, ROW, CLOCK, lambda: calls.append((task.a.grad.tolist(), task.a.tolist())))  # type: ignore[union-attr]
    assert calls == [([3, 4], [0, 0])]
    assert task.a.tolist() != [0, 0]


def test_the_learning_rate_is_that_of_the_group_times_schedule_and_row() -> None:
    task = Fixed()
    step = step_of(task, lr=0.8, schedule=lambda clock: 0.5 if clock.step else 0.25)
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=2, lr_factor=2.0)
    for number, factor in ((0, 0.25), (1, 0.5)):
        clock = Clock(step=number, total_steps=10)
        step({}, global_batch, clock, lambda: None)
        rates = [group["lr"] for group in step.optimizer.param_groups]
        assert rates == pytest.approx([0.8 * factor * 2, 0.4 * factor * 2])


def test_the_learning_rate_of_some_groups_is_constant() -> None:
    task = Fixed()
    groups = ParamGroups(rules=[Rule(pattern="^a$", constant_lr=True), Rule(lr_factor=0.5)])
    optimizer = torch.optim.SGD(parameter_groups(task, groups), lr=0.8)
    apply_factors(optimizer)
    step = StandardStep(task, optimizer, {"lr": lambda clock: 0.25}, StepOptions(0))
    step({}, GlobalBatch(step=0, epoch=0, first=0, count=2, lr_factor=2.0), CLOCK, lambda: None)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4 * 2, 0.4 * 0.25 * 2])


def test_random_numbers_of_the_model_depend_on_seed_and_step_alone() -> None:
    def losses(seed: int, steps: list[int]) -> list[float]:
        torch.manual_seed(1)
        task = Line(dropout=0.5)
        step = StandardStep(task, torch.optim.SGD(task.parameters(), lr=0.0), {"lr": constant}, StepOptions(seed))
        step_losses = []
        for number in steps:
            torch.rand(number * 7)  # earlier draws do not count
            clock = Clock(step=number, total_steps=100)
            step_losses.append(float(step(sample_batch(ROW), ROW, clock, lambda: None)["loss"]))
        return step_losses

    seed_losses = losses(0, [0, 1, 2, 3])
    assert len(set(seed_losses)) == 4
    assert losses(0, [3, 1]) == [seed_losses[3], seed_losses[1]]
    assert not set(losses(1, [0, 1, 2, 3])) & set(seed_losses)


# --- the host never waits for the device ------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_between_two_lines_the_host_waits_for_nothing(tmp_path: Any, optimizer: str) -> None:
    """All built-in hooks, clipping and a schedule, 10 steps in two lines; saved and evaluated at the end only."""
    calls: list[tuple[int, str]] = []
    makers = {
        "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        # On the CPU optimizers that are not fused read their step count; on a GPU this one is common, too.
        "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True),
    }
    setup = Setup(tmp_path, save="0ep", evaluate="0ep", log_every=5, length="5ep", optimizer=makers[optimizer])
    trainer = setup.trainer()
    trainer.step._checks_losses = False  # type: ignore[attr-defined]  # as on a GPU
    with HostWaits() as waits:
        real = setup.events.append

        class Events(list[Any]):
            """Records the calls before each event."""

            def append(self, event: Any) -> None:
                calls.extend((event[3], name) for name in waits.calls.elements())
                waits.calls.clear()
                real(event)

        for hook in trainer._hooks.hooks.values():
            hook.events = Events()  # type: ignore[attr-defined]
        trainer.run()
    # A line at 5, 10, 15 and at each end of an epoch of 4 steps; then the save and the evaluation.
    by_step = {number: [name for at, name in calls if at == number] for number in range(20)}
    assert {number: names for number, names in by_step.items() if names} == {
        number: ["tolist"] for number in (4, 5, 8, 10, 12, 15, 16)
    }
    assert [name for at, name in calls if at == 20].count("tolist") >= 2


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_steps_of_fused_optimizers_wait_for_nothing(precision: Any, skip: bool) -> None:
    task = Line()
    optimizer = torch.optim.AdamW(task.parameters(), fused=True)
    step = StandardStep(task, optimizer, {}, StepOptions(0, precision, skip_non_finite=skip), clip_norm=1.0)
    step._checks_losses = False  # as on a GPU
    for _ in range(2):  # the scaler is set up in the first step
        with HostWaits() as waits:
            scalars = step(sample_batch(ROW), ROW, Clock(total_steps=10), lambda: None)
    assert not waits.calls
    assert all(isinstance(value, Tensor) for value in scalars.values())


def test_the_norm_of_no_gradients_is_on_the_device() -> None:
    step = StandardStep(Line().to("meta"), torch.optim.SGD(Line().to("meta").parameters(), lr=0.1), {}, StepOptions(0))
    assert step._clip_gradients().device.type == "meta"
