import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.config import Catalog, ConfigError, Resolved, build, check, compose, dump, register
from opabinia.config.families import Entry, Parameter
from opabinia.engine.checkpoint import load_optimizer_state, load_tensors, optimizer_state, save_tensors
from opabinia.optim.optimizers import NAMES

DOOR = Entry("command", "door", lambda part: part, (Parameter("part", {"kind": "part", "family": "optimizer"}),))
CATALOG = Catalog({"optimizer": register.entries["optimizer"], "command": {"door": DOOR}})
OUTSIDE = {"Optimizer": "the base of all", "LBFGS": "needs a closure", "SparseAdam": "needs sparse gradients"}


def resolve(section: dict[str, Any], folder: Path) -> Resolved:
    (folder / "one.yaml").write_text(dump({"part": section}))
    return check(compose(folder / "one.yaml"), CATALOG, "door")


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """``made(name, **keys)``: the factory that a config makes of such a section."""
    return lambda name, **keys: build(resolve({"name": name, **keys}, tmp_path).config, CATALOG, "door")()


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


def test_every_optimizer_of_torch_is_registered_or_left_out_for_a_reason() -> None:
    classes = {name for name, cls in inspect.getmembers(torch.optim, inspect.isclass) if "." not in name}
    optimizers = {name for name in classes if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)}
    assert optimizers == set(NAMES) | OUTSIDE.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_torchs_own(name: str, made: Callable[..., Any]) -> None:
    ours = made(name.lower())(model().parameters())
    theirs = getattr(torch.optim, name)(model().parameters())
    assert type(ours) is type(theirs)
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize("name", NAMES)
def test_it_trains(name: str, made: Callable[..., Any]) -> None:
    net = model()
    before = train(net, torch.optim.SGD(net.parameters(), lr=0.0), 1)
    assert train(net, made(name.lower())(net.parameters()), 20) < before


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_goes_on_to_the_same_bits(name: str, made: Callable[..., Any], tmp_path: Path) -> None:
    straight, stopped, resumed = model(), model(), model()
    train(straight, made(name.lower(), lr=0.05)(straight.parameters()), 6)
    first = made(name.lower(), lr=0.05)(stopped.parameters())
    train(stopped, first, 3)
    tensors, plain = optimizer_state(stopped, first)
    save_tensors(tmp_path / "state", tensors)
    resumed.load_state_dict(stopped.state_dict())
    second = made(name.lower(), lr=0.05)(resumed.parameters())
    load_optimizer_state(resumed, second, load_tensors(tmp_path / "state"), plain)
    train(resumed, second, 3)
    assert torch.equal(straight.weight, resumed.weight)


def test_keys_reach_the_optimizer(made: Callable[..., Any]) -> None:
    sgd = made("sgd", lr=0.2, momentum=0.9, nesterov=True)(model().parameters())
    assert (sgd.defaults["lr"], sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.2, 0.9, True)
    adamw = made("adamw", betas=[0.8, 0.9])(model().parameters())
    assert adamw.defaults["betas"] == (0.8, 0.9)


def test_what_torch_refuses_is_told_with_its_place(made: Callable[..., Any]) -> None:
    factory = made("sgd", nesterov=True)
    with pytest.raises(ConfigError, match=r"^part: .*Nesterov momentum requires a momentum"):
        factory(model().parameters())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"params": [1]}, r"part\.params: unknown key"),
        ({"learning_rate": 0.1}, r"part\.learning_rate: unknown key .*sgd knows: lr, momentum"),
        ({"momentum": "much"}, r"part\.momentum: expected a number \(found 'much'\)"),
    ],
)
def test_keys_that_are_wrong(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"name": "sgd", **keys}, tmp_path)
