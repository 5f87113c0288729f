"""The facts that a recipe is planned from: data, machine, budget, weights at hand and measured speeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opabinia.config import compose
from opabinia.data.layouts.layout import TaskName
from opabinia.data.profile import DatasetProfile
from opabinia.runtime.resources import available_memory, cores
from opabinia.runtime.text import plural

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that trains.

    Attributes:
        device: kind of the device.
        gpus: number of GPUs; 0 without.
        memory: bytes of one GPU, or of the host where there is none.
        cores: CPU cores.
        name: of the device, for reasons.
        here: whether it is this machine, so that speeds can be measured.
    """

    device: Literal["cpu", "cuda", "mps"]
    gpus: int = 0
    memory: int
    cores: int
    name: str
    here: bool = True

    @property
    def has_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def ranks(self) -> int:
        """Number of processes that train."""
        return max(1, self.gpus)


def this_machine(ranks: int | None = 1, device: str = "auto") -> Machine:
    """Return the machine of this process.

    Args:
        ranks: number of processes that will train on it; None: one for each GPU.
        device: the device that they will use, as in ``train.device``.
    """
    import torch  # for few commands

    if torch.cuda.is_available() and device not in ("cpu", "mps"):
        ranks = ranks or torch.cuda.device_count()
        properties = torch.cuda.get_device_properties(0)
        name = f"{ranks} x {properties.name}"
        return Machine(device="cuda", gpus=ranks, memory=properties.total_memory, cores=cores(), name=name)
    if torch.backends.mps.is_available() and device != "cpu":
        return Machine(device="mps", gpus=1, memory=available_memory(), cores=cores(), name="Apple's GPU")
    return Machine(device="cpu", memory=available_memory(), cores=cores(), name=plural(cores(), "CPU core"))


def device_of(overrides: Sequence[str]) -> str:
    """Return the device that overrides of a recipe choose for the run; without one ``auto``.

    A wrong one is reported with the other mistakes of the config.
    """
    keys = [word.removeprefix("--").partition("=")[0].strip() for word in overrides]
    words = [word for word, key in zip(overrides, keys, strict=True) if key in ("train", "train.device")]
    train: Any = compose({}, words).root.plain().get("train")
    return str(train.get("device", "auto")) if isinstance(train, dict) else "auto"


def other_machine(gpus: int, memory: int) -> Machine:
    """Return a machine with GPUs that is not at hand.

    Args:
        gpus: number of GPUs.
        memory: bytes of each.
    """
    name = f"{gpus} x GPU with {memory / GIB:.3g} GiB"
    return Machine(device="cuda", gpus=gpus, memory=memory, cores=8 * gpus, name=name, here=False)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured seconds per sample of a model at an image size.

    Attributes:
        model: name of the backbone.
        size: image size in pixels: the side, or the shorter side.
        train: of a training step, with reading where that is slower.
        evaluate: of an evaluation.
        threads: number of threads that was fastest on a CPU; None on other devices.
    """

    model: str
    size: int
    train: float
    evaluate: float
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Values in place of those of the rules, which a search tries or has found.

    Attributes:
        model: name of the backbone: that of the rules.
        size: image size, as in :class:`Speed`.
        lr_factor: the learning rate relative to that of the rule.
        batch: samples of a step, for which this learning rate was found; None: that of the rule.
        size_reason, lr_reason: for the recipe; empty: that of the rule.
    """

    model: str
    size: int
    lr_factor: float = 1.0
    batch: int | None = None
    size_reason: str = ""
    lr_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that the rules know. Equal situations give equal recipes.

    Attributes:
        profile: facts about the data.
        machine: the machine.
        budget: seconds of training with its evaluations.
        weights: timm models whose ImageNet weights are at hand without a network, the most accurate first.
        speeds: measurements of recipes that earlier rounds chose; empty in the first round.
        tuning: values of a search; None: all are those of the rules.
    """

    profile: DatasetProfile
    machine: Machine
    budget: float
    weights: tuple[str, ...] = ()
    speeds: tuple[Speed, ...] = ()
    tuning: Tuning | None = None

    @property
    def task(self) -> TaskName:
        """The task to plan for."""
        return self.profile.task
