"""All optimizers of torch.optim and transforms of torchvision v2 are available, except a few refused with a reason."""

import inspect
import json
from collections.abc import Callable
from enum import Enum, IntEnum
from numbers import Number
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from opabinia.config import adapt
from opabinia.config.registry import Entry, Register
from opabinia.config.types import describe

OPTIMIZERS = {
    name: cls for name, cls in vars(torch.optim).items() if inspect.isclass(cls) and cls is not torch.optim.Optimizer
}
TRANSFORMS = {
    name: cls
    for name, cls in inspect.getmembers(v2, inspect.isclass)
    if issubclass(cls, v2.Transform) and cls is not v2.Transform
}
IMPOSSIBLE = {"Lambda", "LinearTransformation"}
REQUIRED: dict[str, Any] = {
    "size": 4,
    "padding": 1,
    "kernel_size": 3,
    "degrees": 10,
    "transforms": [v2.Identity()],
    "min_size": 4,
    "max_size": 8,
    "target_size": [4, 4],
    "format": "XYXY",
    "mean": [0.5],
    "std": [0.5],
    "dtype": "float32",
    "quality": [50, 90],
    "bits": 4,
    "sharpness_factor": 1.5,
    "threshold": 0.5,
    "clamping_mode": "soft",
    "num_samples": 2,
    "num_classes": 3,
}


def entry_of(target: Callable[..., Any], family: str = "transform") -> Entry:
    register = Register()
    return register.add(family, target, None, {})


def all_arguments(entry: Entry) -> dict[str, Any]:
    """Return all arguments as plain data, as in a complete config."""
    return {
        parameter.name: REQUIRED[parameter.name] if parameter.required else parameter.default
        for parameter in entry.parameters
    }


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer(name: str) -> None:
    make = adapt(OPTIMIZERS[name], runtime=("params",))
    entry = entry_of(make, "optimizer")
    assert (entry.name, entry.runtime) == (name, ("params",))
    assert json.dumps(entry.to_json())
    optimizer = make([nn.Parameter(torch.zeros(2, 2))], **all_arguments(entry))
    assert isinstance(optimizer, OPTIMIZERS[name])
    assert optimizer.defaults["lr"] == entry.by_name["lr"].default


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - IMPOSSIBLE))
@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning", "ignore:.*deprecated:UserWarning")
def test_every_transform(name: str) -> None:
    make = adapt(TRANSFORMS[name])
    entry = entry_of(make)
    assert entry.name == name and entry.doc
    assert json.dumps(entry.to_json())
    assert isinstance(make(**all_arguments(entry)), TRANSFORMS[name])


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE))
def test_types_without_yaml_values_are_rejected(name: str) -> None:
    with pytest.raises(TypeError, match=rf"adapt\({name}\): parameter .*write a short wrapper function"):
        adapt(TRANSFORMS[name])


def test_types_are_narrowed() -> None:
    sgd = entry_of(adapt(torch.optim.SGD, runtime=("params",)), "optimizer").by_name
    assert describe(sgd["lr"].spec) == "a number"
    assert sgd["momentum"].default == 0.0 and type(sgd["momentum"].default) is float
    assert sgd["lr"].doc.startswith("learning rate")
    affine = entry_of(adapt(v2.RandomAffine)).by_name
    assert describe(affine["degrees"].spec) == "a number or a list of numbers"
    assert describe(affine["fill"].spec) == "a number, a list of numbers or null"
    resize = entry_of(adapt(v2.Resize)).by_name
    assert describe(resize["size"].spec) == "an integer, a list of integers or null"
    assert "'bilinear'" in describe(resize["interpolation"].spec)
    assert describe(entry_of(adapt(v2.RandomApply)).by_name["transforms"].spec) == "a list of transforms"
    assert describe(entry_of(adapt(v2.SanitizeBoundingBoxes)).by_name["labels_getter"].spec) == "text or null"


def test_enums_and_dtypes_are_converted_back() -> None:
    resize = adapt(v2.Resize)(size=3, interpolation="bicubic")
    assert resize.interpolation is v2.InterpolationMode.BICUBIC
    assert adapt(v2.AutoAugment)(policy="svhn").policy is v2.AutoAugmentPolicy.SVHN
    assert adapt(v2.ToDtype)(dtype="bfloat16", scale=True).dtype is torch.bfloat16
    assert adapt(v2.ConvertBoundingBoxFormat)(format="CXCYWH").format.name == "CXCYWH"


def test_runtime_parameters_come_first_and_in_the_order_given() -> None:
    class Net(nn.Module):
        """A net."""

        def __init__(self, width: int, channels: int, classes: int, head: nn.Module | None = None) -> None:
            super().__init__()
            self.arguments = (width, channels, classes)

    make = adapt(Net, runtime=("classes", "channels", "head"))
    assert str(inspect.signature(make)).startswith("(classes: int, channels: int, head:")
    assert make(10, 3, None, width=64).arguments == (64, 3, 10)


def test_a_runtime_parameter_must_exist() -> None:
    with pytest.raises(TypeError, match="runtime names no parameter: parameters"):
        adapt(torch.optim.SGD, runtime=("parameters",))


class Level(IntEnum):
    LOW = 0
    HIGH = 1


class TupleEnum(Enum):
    ONE = (1,)


class Strange:
    """Uses types that torch and torchvision do not use at present."""

    def __init__(self, level: Level = Level.HIGH, odd: TupleEnum | None = None, amount: Number = 3, on=False) -> None:  # type: ignore[no-untyped-def, assignment]
        self.arguments = (level, odd, amount, on)


def test_enums_without_text_values_are_given_by_name() -> None:
    make = adapt(Strange)
    entry = entry_of(make)
    assert all_arguments(entry) == {"level": "HIGH", "odd": None, "amount": 3, "on": False}
    assert describe(entry.by_name["on"].spec) == "true or false"
    assert make(level="LOW", odd="ONE", amount=2.5, on=True).arguments == (Level.LOW, TupleEnum.ONE, 2.5, True)
