import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm.optim
import torch
from torch import nn

from opabinia.config import Catalog, Resolved, build, check, compose, dump, register
from opabinia.config.registry import Entry
from opabinia.config.types import Parameter
from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.engine.checkpointing.content import load_optimizer_state, optimizer_state
from opabinia.engine.loop.nonfinite import init_momentum_buffers
from opabinia.optim.lars import Lars
from opabinia.optim.optimizers import NAMES, TIMM_NAMES, fuse
from opabinia.runtime.shards import load_safetensors

COMMAND = Entry("command", "root", lambda part: part, (Parameter("part", {"kind": "part", "family": "optimizer"}),))
CATALOG = Catalog({"optimizer": register.entries["optimizer"], "command": {"root": COMMAND}})
EXCLUDED = {
    "Optimizer": "the base class",
    "LBFGS": "needs a closure",
    "SparseAdam": "needs sparse gradients",
    "Muon": "timm's",
}
BOTH = (*((torch.optim, name) for name in NAMES), *((timm.optim, name) for name in TIMM_NAMES))
ALL = [*(name.lower() for _, name in BOTH), Lars.__name__.lower()]


def resolve(section: dict[str, Any], folder: Path) -> Resolved:
    (folder / "config.yaml").write_text(dump({"part": section}))
    return check(compose(folder / "config.yaml"), CATALOG, "root")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """``make(name, **keys)``: the factory built from a config section."""
    return lambda name, **keys: build(resolve({"name": name, **keys}, tmp_path).config, CATALOG, "root")()


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3, bias=False)  # a matrix: Muon takes no other parameters


def train(net: nn.Linear, optimizer: torch.optim.Optimizer, steps: int) -> float:
    inputs = torch.eye(4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(inputs) - 1).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (net(inputs) - 1).square().sum().item()


def test_every_optimizer_of_torch_is_registered_or_excluded_for_a_reason() -> None:
    classes = {name for name, cls in inspect.getmembers(torch.optim, inspect.isclass) if "." not in name}
    optimizers = {name for name in classes if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)}
    assert optimizers == set(NAMES) | EXCLUDED.keys()


@pytest.mark.parametrize(("library", "name"), BOTH)
def test_defaults_are_those_of_the_library(library: Any, name: str, make: Callable[..., Any]) -> None:
    ours = make(name.lower())(model().parameters())
    theirs = getattr(library, name)(model().parameters())
    assert type(ours) is type(theirs)
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize("name", ALL)
def test_the_loss_falls_and_a_restored_state_continues_bit_identically(
    name: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    straight, stopped, resumed = model(), model(), model()
    before = train(straight, torch.optim.SGD(straight.parameters(), lr=0.0), 1)
    assert train(straight, make(name, lr=0.05)(straight.parameters()), 6) < before
    first = make(name, lr=0.05)(stopped.parameters())
    train(stopped, first, 3)
    tensors, plain = optimizer_state(stopped, first)
    save_tensors(tmp_path / "state", tensors)
    resumed.load_state_dict(stopped.state_dict())
    second = make(name, lr=0.05)(resumed.parameters())
    load_optimizer_state(resumed, second, load_safetensors(tmp_path / "state"), plain)
    train(resumed, second, 3)
    assert torch.equal(straight.weight, resumed.weight)


def test_keys_reach_the_optimizer(make: Callable[..., Any]) -> None:
    sgd = make("sgd", lr=0.2, momentum=0.9, nesterov=True)(model().parameters())
    assert (sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.2, 0.9, True)
    adamw = make("adamw", betas=[0.8, 0.9])(model().parameters())
    assert adamw.defaults["betas"] == (0.8, 0.9)


LAMB = {"lr": 0.1, "weight_decay": 0.1, "max_grad_norm": None}


@pytest.mark.parametrize(
    ("name", "keys", "after"),
    [
        (
            "lars",
            {"lr": 0.1, "weight_decay": 0.1, "momentum": 0, "trust_coefficient": 1, "adapt": "direction"},
            [2.7, 3.6],
        ),
        ("lars", {"lr": 0.1, "momentum": 0, "trust_coefficient": 1, "adapt": "direction"}, [2.94, 3.92]),
        (
            "lars",
            {"lr": 0.1, "momentum": 0, "trust_coefficient": 1, "adapt": "direction", "always_adapt": True},
            [2.7, 3.6],
        ),
        ("lamb", LAMB, [2.65977445, 3.63360325]),
        ("lamb", LAMB | {"weight_decay": 0.0}, [2.9, 3.9]),
    ],
)
def test_a_step_equals_that_of_basecls(
    name: str, keys: dict[str, Any], after: list[float], make: Callable[..., Any]
) -> None:
    """LARS and LAMB of basecls: parameter [3, 4], gradient [.6, .8]."""
    exclude = {"exclude_1d": False} if name == "lars" else {}
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([0.6, 0.8])
    make(name, **keys, **exclude)([weight]).step()
    assert weight.tolist() == pytest.approx(after, abs=1e-6)


def steps_of_vissls_lars() -> list[tuple[list[list[float]], list[list[float]]]]:
    """Return a matrix, a vector and a matrix of zeros after each of three steps, and those of VISSL."""
    matrix, vector = nn.Parameter(torch.tensor([[3.0, 4], [0, 0]])), nn.Parameter(torch.tensor([1.0, -1]))
    zeros = nn.Parameter(torch.zeros(2, 2))
    optimizer = Lars([matrix, vector, zeros], lr=0.5, weight_decay=0.1)
    expected = [
        ([2.9993796, 3.9988549, -0.00095433061, -0.0019086612], [0.7, -1.2], -0.5),
        ([2.9982011, 3.9966793, -0.0027673128, -0.0055346256], [0.145, -1.57], -0.95025003),
        ([2.9965208, 3.993577, -0.0053526149, -0.01070523], [-0.61175, -2.0745], -1.3559501),
    ]
    steps = []
    for expected_matrix, expected_vector, expected_zeros in expected:
        matrix.grad, vector.grad = torch.tensor([[1.0, 2], [2, 4]]), torch.tensor([0.5, 0.5])
        zeros.grad = torch.ones(2, 2)
        optimizer.step()
        actual = [matrix.flatten().tolist(), vector.tolist(), zeros.flatten().tolist()]
        steps.append((actual, [expected_matrix, expected_vector, [expected_zeros] * 4]))
    return steps


def test_muon_accepts_all_parameters_of_a_network(make: Callable[..., Any]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    before = [param.detach().clone() for param in net.parameters()]
    optimizer = make("muon")(net.parameters())
    net(torch.randn(2, 3, 3, 3)).square().sum().backward()
    optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))


# --- fused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys", "fused"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9}, True),
        ("Adam", {}, True),
        ("AdamW", {}, True),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, False),  # its first update would differ
        ("SGD", {"lr": 0.1, "fused": False}, False),
        ("Adam", {"foreach": True}, False),
        ("Adam", {"differentiable": True}, False),
        ("RMSprop", {}, False),
    ],
)
def test_fused_updates_are_the_default_if_the_config_does_not_choose(
    name: str, keys: dict[str, Any], fused: bool
) -> None:
    optimizer = getattr(torch.optim, name)(nn.Linear(2, 2).parameters(), **keys)
    fuse(optimizer)
    assert bool(optimizer.param_groups[0].get("fused")) == fused


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fused_updates_are_those_of_the_plain_optimizer(name: str) -> None:
    keys = {"lr": 0.1, "weight_decay": 0.01} | ({"momentum": 0.9, "nesterov": True} if name == "SGD" else {})
    plain = torch.randn(100, generator=torch.Generator().manual_seed(0))
    values = nn.Parameter(plain.clone()), nn.Parameter(plain.clone())
    optimizers = [getattr(torch.optim, name)([value], **keys) for value in values]
    fuse(optimizers[0])
    for step in range(10):
        gradient = torch.randn(100, generator=torch.Generator().manual_seed(step + 1))
        for value, optimizer in zip(values, optimizers, strict=True):
            value.grad = gradient.clone()
            optimizer.step()
    assert not optimizers[1].param_groups[0]["fused"]
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)


def test_a_parameter_whose_first_gradient_comes_later_is_updated_with_the_others() -> None:
    early, late = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([early, late], lr=0.1, momentum=0.9)
    fuse(optimizer)
    init_momentum_buffers(optimizer)
    for gradients in ((1.0, None), (1.0, 2.0)):
        for param, gradient in zip((early, late), gradients, strict=True):
            param.grad = None if gradient is None else torch.full((3,), gradient)
        optimizer.step()
    torch.testing.assert_close(early, nn.Parameter(torch.full((3,), 1 - 0.1 - 0.19)))
    torch.testing.assert_close(late, nn.Parameter(torch.full((3,), 1 - 0.2)))
