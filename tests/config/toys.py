"""A register of toy parts, so that these tests need neither torch nor Opabinia's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from opabinia.config import Catalog, Part
from opabinia.config.registry import Register
from opabinia.runtime.durations import Duration, Units

register = Register()

Fraction = Annotated[float, Interval(ge=0, le=1)]
Count = Annotated[int, Ge(1)]
TaskPart = Annotated[Callable[..., Any], Part("task")]
BackbonePart = Annotated[Callable[..., Any], Part("backbone")]
LossPart = Annotated[Callable[..., float], Part("loss")]
OptimizerPart = Annotated[Callable[..., Any], Part("optimizer")]
SchedulePart = Annotated[Callable[[float], float], Part("schedule")]
TransformPart = Annotated[Callable[[Any], Any], Part("transform")]
HookPart = Annotated[Any, Part("hook")]


class Mode(Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"


@register.loss(renamed={"eps": "label_smoothing"})
def cross_entropy(logits: float, target: float, /, *, label_smoothing: Fraction = 0.0) -> float:
    """Toy cross entropy.

    Args:
        label_smoothing: spread over
            all classes.
    """
    return float(logits - target - label_smoothing)


@register.loss
def focal(logits: float, target: float, /, *, gamma: float = 2.0) -> float:
    """Toy focal loss."""
    raise ValueError("no logits")


@register.schedule
def constant(progress: float, /) -> float:
    """Always 1."""
    return 1.0


@register.optimizer
@dataclass(frozen=True)
class SGD:
    """Toy SGD.

    Args:
        lr: step size.
    """

    lr: Annotated[float, Gt(0)] = 0.1
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum")


@register.optimizer
def adam(*, lr: float | SchedulePart = 1e-3, betas: tuple[float, float] = (0.9, 0.999)) -> tuple[Any, ...]:
    """Toy Adam."""
    return ("adam", lr, betas)


@register.transform
@dataclass(frozen=True)
class Crop:
    """Toy crop."""

    size: int | list[int]
    mode: Mode = Mode.NEAREST


@register.transform
@dataclass(frozen=True)
class Several:
    """Transforms in a row."""

    transforms: tuple[TransformPart, ...] = ()


@register.hook
@dataclass(frozen=True)
class Ema:
    """Toy average."""

    decay: Fraction = 0.999


@register.hook
@dataclass(frozen=True)
class Stop:
    """Toy stop."""

    after: Annotated[Duration, Units("ep", "it", "h")]


@register.backbone
def timm(channels: int, /, *, model: str, pretrained: bool = False, options: dict[str, Any] | None = None) -> Any:
    """Toy backbone."""
    if model == "unknown":
        raise ValueError(f"there is no model {model!r}")
    return ("timm", channels, model, options)


@register.task(name="classification")
class Classification:
    """Toy task."""

    def __init__(self, channels: int, /, *, backbone: BackbonePart, loss: LossPart = cross_entropy) -> None:
        self.backbone = backbone(channels)
        self.loss = loss


@register.section(name="checkpoint")
@dataclass(frozen=True)
class Checkpointing:
    """Checkpoint settings."""

    every: Annotated[Duration, Units("ep", "it", "h")] = Duration(1, "ep")
    keep: Count = 2


@register.section
@dataclass(frozen=True)
class Training:
    """Training settings."""

    length: Duration
    device: Literal["auto", "cpu", "cuda"] = "auto"


@register.section
@dataclass(frozen=True)
class Data:
    """Data settings."""

    root: Path
    batch_size: Count = 32
    transforms: Sequence[TransformPart] = ()


@register.command
def train(
    folder: Any,
    /,
    *,
    task: TaskPart,
    data: Data,
    train: Training,
    optimizer: OptimizerPart = SGD,
    checkpoint: Checkpointing,
    hooks: dict[str, HookPart] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Toy training."""
    return {"folder": folder, "task": task, "data": data, "train": train, "optimizer": optimizer, "hooks": hooks}


CATALOG = Catalog.of(register)

RECIPE = """\
# A comment first.
task:
  name: classification
  backbone: {name: timm, model: resnet}
data:
  root: digits
  transforms:
    - {name: crop, size: 2}
    - {name: several, transforms: [{name: crop, size: 3}]}
train:
  length: 12ep
"""
