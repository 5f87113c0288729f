"""Loss balancing of several tasks, compared with reference implementations."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Clock, DataMismatch, LossBalance, Phase
from opabinia.models.losses.balance import DynamicWeightAverage, GradNorm, UncertaintyWeights

CLOCK = Clock()
NAMES = ("a", "b", "c")
SGD_LR = 0.1


def apply_balance(
    balance: LossBalance, share: float = 1.0, shared: Any = tuple, **losses: float | Tensor
) -> dict[str, Tensor]:
    return balance({name: torch.as_tensor(loss) for name, loss in losses.items()}, share, shared, CLOCK)


def end_step(balance: LossBalance) -> None:
    for hook in balance.hooks():
        hook.after_backward(SimpleNamespace())  # type: ignore[arg-type]


def end_epoch(balance: LossBalance) -> None:
    for hook in balance.hooks():
        hook.after_phase(SimpleNamespace(), Phase("evaluate", "val"))  # type: ignore[arg-type]
        hook.after_phase(SimpleNamespace(), Phase("train", "train"))  # type: ignore[arg-type]


def test_uncertainty_is_the_likelihood_of_the_task() -> None:
    """A Gaussian likelihood for half the squared error, and equation 10 of the paper for a cross-entropy."""
    balance = UncertaintyWeights(NAMES)
    with torch.no_grad():
        balance.log_variances[1] = math.log(0.25)
    error, cross_entropy = 0.3, 1.7
    loss = apply_balance(balance, b=error**2 / 2)["b"]
    density = torch.distributions.Normal(0.0, 0.5).log_prob(torch.tensor(error))
    assert loss.item() == pytest.approx(-density.item() - math.log(2 * math.pi) / 2)
    sigma = 0.5
    assert apply_balance(balance, b=cross_entropy)["b"].item() == pytest.approx(
        cross_entropy / sigma**2 + math.log(sigma)
    )
    assert {name: round(weight.item(), 5) for name, weight in balance.weights().items()} == {"a": 1, "b": 4, "c": 1}


def test_dwa_follows_the_ratios_of_epochs() -> None:
    epochs = [  # losses of the steps; not every step has all tasks
        [{"a": 4.0, "b": 1.0}, {"b": 3.0, "c": 5.0}],
        [{"a": 2.0, "b": 1.0}, {"b": 1.0}],
        [{"a": 1.0, "b": 4.0, "c": 2.0}],
        [{"a": 1.0}],
    ]
    balance = DynamicWeightAverage(NAMES, temperature=1.5)
    means: dict[str, list[float]] = {name: [] for name in NAMES}
    for steps in epochs:
        ratios = [values[-1] / values[-2] if len(values) > 1 else 1.0 for values in means.values()]
        powers = [math.exp(ratio / 1.5) for ratio in ratios]
        for losses in steps:
            weighted = apply_balance(balance, 0.25, **losses)
            apply_balance(balance, 0.75, **losses)  # the other micro-batch
            expected = {
                name: 3 * power / sum(powers) * losses.get(name, 0) for name, power in zip(NAMES, powers, strict=True)
            }
            assert {name: loss.item() for name, loss in weighted.items()} == pytest.approx(
                {name: expected[name] for name in losses}
            )
            end_step(balance)
            with torch.no_grad():
                apply_balance(balance, a=math.nan)  # a forward pass without a step is not counted
            copied = DynamicWeightAverage(NAMES, temperature=1.5)
            copied.load_state_dict(balance.state_dict())
            balance = copied  # resumed in the middle of an epoch
        end_epoch(balance)
        for name in NAMES:
            values = [losses[name] for losses in steps if name in losses]
            means[name] += [sum(values) / len(values)] if values else []
    apply_balance(balance, a=-1.0)
    end_step(balance)
    with pytest.raises(DataMismatch, match="the loss of a is -1; DynamicWeightAverage compares positive losses"):
        end_epoch(balance)


class SharedNet(nn.Module):
    """A shared layer with two linear heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 1)})

    def losses(self, inputs: Tensor) -> dict[str, Tensor]:
        features = self.shared(inputs).tanh()
        return {"a": self.heads["a"](features).exp().mean() * 30, "b": (self.heads["b"](features) - 3).square().mean()}

    def last(self) -> list[nn.Parameter]:
        return [self.shared.weight]


def reference_steps(batches: list[Tensor], alpha: float, lr: float) -> list[list[float]]:
    """Train with GradNorm as its paper defines it, by automatic differentiation of its loss; return the weights."""
    net = SharedNet()
    logs = torch.zeros(2, requires_grad=True)
    first: Tensor | None = None
    history = []
    for inputs in batches:
        weights = logs.exp()
        losses = torch.stack(list(net.losses(inputs).values()))
        first = losses.detach() if first is None else first
        norms = [
            torch.autograd.grad(weight * loss, net.shared.weight, create_graph=True, retain_graph=True)[0].norm()
            for weight, loss in zip(weights, losses, strict=True)
        ]
        mean = torch.stack(norms).mean().detach()
        rates = losses.detach() / first
        targets = mean * (rates / rates.mean()) ** alpha
        grad_loss = (torch.stack(norms) - targets).abs().sum() / mean
        (slope,) = torch.autograd.grad(grad_loss, logs, retain_graph=True)
        grads = torch.autograd.grad((weights.detach() * losses).sum(), list(net.parameters()))
        with torch.no_grad():
            for param, grad in zip(net.parameters(), grads, strict=True):
                param -= SGD_LR * grad
            logs -= lr * slope
            logs -= logs.exp().mean().log()
        history.append(logs.detach().exp().tolist())
    return history


@pytest.mark.parametrize("parts", [1, 2])
def test_gradnorm_follows_the_gradient_of_its_loss(parts: int) -> None:
    """With micro-batches, and resumed after every step."""
    batches = list(torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(1)))
    expected = reference_steps(batches, 0.5, 0.1)
    net, balance, history = SharedNet(), GradNorm(("a", "b"), alpha=0.5, lr=0.1), []
    for inputs in batches:
        net.zero_grad()
        for part in inputs.chunk(parts):
            total = torch.stack(list(balance(net.losses(part), 1 / parts, net.last, CLOCK).values())).sum() / parts
            total.backward()
        end_step(balance)
        with torch.no_grad():
            for param in net.parameters():
                param -= SGD_LR * (param.grad if param.grad is not None else 0)
        resumed = GradNorm(("a", "b"), alpha=0.5, lr=0.1)
        resumed.load_state_dict(balance.state_dict())
        balance = resumed
        history.append([weight.item() for weight in balance.weights().values()])
    torch.testing.assert_close(history, expected)
    assert sum(history[-1]) == pytest.approx(2) and min(history)[0] < 0.8


def test_gradnorm_with_alternating_tasks_and_a_frozen_backbone() -> None:
    net, balance = SharedNet(), GradNorm(("a", "b", "c"))
    inputs = torch.randn(8, 3)
    for name in ("a", "b", "a"):
        balance({name: net.losses(inputs)[name]}, 1.0, net.last, CLOCK)
        end_step(balance)
    weights = balance.weights()
    assert weights["a"] < 1 < weights["b"] and weights["c"] == 1
    assert sum(weight.item() for weight in weights.values()) == pytest.approx(3)
    before = balance.log_weights.clone()
    balance(net.losses(inputs), 1.0, list, CLOCK)  # the backbone is frozen
    end_step(balance)
    assert torch.equal(balance.log_weights, before)


def test_steps_without_labels_do_not_count_as_the_first_loss() -> None:
    """A batch without labels for a task has a loss of 0: the step is treated as one without the task."""
    inputs = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(0))
    histories = []
    for absent in (False, True):
        net, balance, history = SharedNet(), GradNorm(("a", "b")), []
        for step, batch in enumerate(inputs):
            losses = net.losses(batch)
            if step in (0, 2):  # no labels of b
                losses = {"a": losses["a"]} if absent else {**losses, "b": losses["b"] * 0}
            balance(losses, 1.0, net.last, CLOCK)
            end_step(balance)
            history.append(torch.stack([*balance.weights().values(), *balance.losses, *balance.first_losses]))
            resumed = GradNorm(("a", "b"))
            resumed.load_state_dict(balance.state_dict())
            balance = resumed
        histories.append(torch.stack(history))
    assert torch.equal(*histories) and histories[0][0, 1] == 1 and histories[0][0, 5] == 0
    assert histories[0][-1, 5] == net.losses(inputs[1])["b"] and histories[0][-1, 1] != 1
    average = DynamicWeightAverage(("a", "b"))
    for losses in ({"a": 2.0, "b": 0.0}, {"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 0.0}):
        apply_balance(average, **losses)
        end_step(average)
        end_epoch(average)
    assert average.means.tolist() == [[1, 0], [1, 3]]


def test_gradnorm_refuses_losses_that_it_cannot_balance() -> None:
    net, inputs = SharedNet(), torch.randn(8, 3)
    with pytest.raises(DataMismatch, match="the loss of a does not depend on the last layer"):
        GradNorm(("a",))({"a": net.heads["b"](torch.ones(4)).mean()}, 1.0, net.last, CLOCK)
    balance = GradNorm(("a",))
    balance({"a": -net.losses(inputs)["a"]}, 1.0, net.last, CLOCK)
    with pytest.raises(DataMismatch, match=r"the loss of a is -\d.*; GradNorm compares positive losses"):
        end_step(balance)
    (hook,) = balance.hooks()
    net.shared._compiled_call_impl = net.shared.forward  # what Module.compile sets
    with pytest.raises(ValueError, match=r"excludes train\.compile"):
        hook.start(SimpleNamespace(task=net))  # type: ignore[arg-type]
