"""Distillation: a teacher beside any task (Hinton et al. 2015, Touvron et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Evaluator,
    Facts,
    Hook,
    NonNegative,
    Positive,
    Predictions,
    SchedulePart,
    Task,
)
from opabinia.losses.distillation import FeaturesLoss, LogitsLoss, features_loss, logits_loss
from opabinia.models.layers import Normalize
from opabinia.models.weights import fit, read_weights
from opabinia.optim.schedules import constant

PROJECTOR = "distill_projector"
"""Name of what is trained and saved beside the student, and is of no use without the teacher."""


@register.section(name="distill")
@dataclass(frozen=True, kw_only=True)
class Distill:
    """A teacher, and what is learned from it.

    Args:
        run: folder of a run whose model teaches.
        backbone: or a backbone that teaches, with its own classifier, such as a pretrained timm model.
        weights: a file with weights of that backbone and classifier.
        mean: of the images in 0..1 as that backbone knows them; null takes what its pretraining had.
        std: their standard deviation, likewise.
        task_weight: multiplies the task's own losses.
        logits_weight: multiplies ``distill_logits_loss``.
        features_weight: multiplies ``distill_features_loss``.
        logits_loss: soft compares distributions at a temperature, symmetric does so both ways, binary
            class by class; hard takes the teacher's
            best class as label; mse compares the logits.
        features_loss: how vectors are compared: 1 - cosine, squared error, or Huber's.
        temperature: of the soft and symmetric logits losses, which are multiplied by its square.
        temperature_schedule: multiplies the temperature over time.
        student_logits: module of the task whose output are its logits.
        teacher_logits: the same of the teacher.
        student_features: module of the task whose output are its features: vectors, tokens or maps.
        teacher_features: the same of the teacher.
    """

    run: Path | None = None
    backbone: BackbonePart | None = None
    weights: Path | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    task_weight: NonNegative = 0.5
    logits_weight: NonNegative = 0.5
    features_weight: NonNegative = 0.0
    logits_loss: LogitsLoss = "soft"
    features_loss: FeaturesLoss = "cosine"
    temperature: Positive = 1.0
    temperature_schedule: SchedulePart = constant
    student_logits: str = "head"
    teacher_logits: str = "head"
    student_features: str = "backbone"
    teacher_features: str = "backbone"


# --- teachers -------------------------------------------------------------------------------------------------------


class ImageTeacher(nn.Module):
    """A backbone and its classifier, which see images as they were trained to."""

    def __init__(self, backbone: nn.Module, head: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalize = normalize
        self.backbone = backbone
        self.head = head

    def predict(self, batch: Batch) -> Predictions:
        """``logits`` (B x K)."""
        return {"logits": self.head(self.backbone(self.normalize(batch["image"])))}


def make_teacher(settings: Distill, facts: Facts) -> ImageTeacher:
    """The teacher that ``backbone`` names; one that is a run of ours is for those to build who can read its config.

    Raises:
        ValueError: it would teach what nobody taught it, or other classes than those of the data.
    """
    if (settings.backbone is None) == (settings.run is None):
        raise ValueError("give either a run or a backbone that teaches")
    assert settings.backbone is not None, "a run is no backbone"
    backbone: Any = settings.backbone(facts.channels)
    known, classes = backbone.preprocessing, len(facts.classes)
    if settings.weights is None and known is None:
        raise ValueError("backbone: nobody taught this teacher; give it weights, or pretrained: true")
    if settings.weights is None and settings.logits_weight and backbone.trained_classes != classes:
        raise ValueError(
            f"backbone: the teacher's classifier has {backbone.trained_classes} classes, the data {classes}; "
            "give weights that fit, or logits_weight: 0"
        )
    head = backbone.make_head(classes) if settings.logits_weight else nn.Identity()
    mean = settings.mean or (known.mean if known else [0.485, 0.456, 0.406] if facts.channels == 3 else [0.5])
    std = settings.std or (known.std if known else [0.229, 0.224, 0.225] if facts.channels == 3 else [0.5])
    teacher = ImageTeacher(backbone, head, Normalize(mean, std, facts.channels))
    if settings.weights is not None:
        report = fit(teacher, read_weights(settings.weights))
        if report.missing or report.other_shape:
            raise ValueError(f"weights: they do not fill the teacher; {settings.weights}: {report}")
    return teacher


# --- the task -------------------------------------------------------------------------------------------------------


class Distillation(Task):
    """A task that learns from a teacher, too.

    It is the student under another class: the same parameters, modules and attributes under the same names, so groups,
    freezes, checkpoints and hooks mean what they mean without a teacher. The teacher is no part of it: it is neither
    trained nor saved, stays in evaluation mode, and follows to other devices. Logits and features are what named
    modules of both give while they work, so that no forward pass is done twice.

    Where student and teacher have features of different widths, a linear layer projects the student's; it is trained
    and saved with the student, as ``distill_projector``.

    Args:
        task: the student. It is not to be used beside this.
        teacher: a module with ``predict(batch)``: another task, or an :class:`ImageTeacher`.
        settings: what is learned from it.

    Raises:
        ValueError: nothing is to be learned from the teacher, or a module is not there.
    """

    _distilling: _Distilling

    def __init__(self, task: Task, teacher: nn.Module, settings: Distill) -> None:
        if not (settings.logits_weight or settings.features_weight):
            raise ValueError("logits_weight and features_weight are both 0: nothing is learned from the teacher")
        taps = _taps(task, teacher, settings)
        if "features" in taps:
            student, taught = (tap.width() for tap in taps["features"])
            if student != taught:
                task.add_module(PROJECTOR, nn.Linear(student, taught))
        object.__setattr__(self, "__dict__", task.__dict__)
        # Past nn.Module, which would make parts of this task of them.
        self.__dict__["_distilling"] = _Distilling(task, teacher.eval().requires_grad_(False), settings, taps)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_distilling"].student, name)  # its own methods

    def __deepcopy__(self, memo: dict[int, Any]) -> Distillation:
        # An average of the weights needs no second teacher.
        shared = (self._distilling.teacher, *(teacher for _, teacher in self._distilling.taps.values()))
        memo.update({id(one): one for one in shared})
        new = Distillation.__new__(Distillation)
        object.__setattr__(new, "__dict__", copy.deepcopy(self._distilling.student, memo).__dict__)
        return new

    def _apply(self, fn: Any, recurse: bool = True) -> Distillation:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._distilling.teacher._apply(fn, recurse)
        return self

    def train(self, mode: bool = True) -> Distillation:
        """Training or evaluation mode of the student."""
        self._distilling.student.train(mode)
        return self

    def extra_repr(self) -> str:
        """The teacher, so that the log shows it with the model."""
        own = self._distilling.student.extra_repr()
        return "\n".join([own] * bool(own) + [f"(teacher): {type(self._distilling.teacher).__name__}"])

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """The student's losses, weighted, and ``distill_logits_loss``, ``distill_features_loss``.

        Where the student gives a ``total_loss``, theirs is added to it.
        """
        losses, seen = self._distilling(batch, clock)
        distilled = {}
        settings = self._distilling.settings
        if "logits" in seen:
            student, teacher = seen["logits"]
            temperature = settings.temperature * settings.temperature_schedule(clock)
            loss = logits_loss(student, teacher, settings.logits_loss, temperature)
            distilled["distill_logits_loss"] = settings.logits_weight * loss
        if "features" in seen:
            student, teacher = seen["features"]
            if (projector := self._modules.get(PROJECTOR)) is not None:
                student = projector(student)
            loss = features_loss(student, teacher, settings.features_loss)
            distilled["distill_features_loss"] = settings.features_weight * loss
        return _together(losses, settings.task_weight, distilled)

    def predict(self, batch: Batch) -> Predictions:
        """What the student predicts."""
        # Not the instance's own: what spreads this task over processes puts itself there, and both share their dict.
        student = self._distilling.student
        return type(student).predict(student, batch)

    def features(self, batch: Batch, layers: Sequence[str] = ()) -> dict[str, Tensor]:
        """The student's features."""
        student = self._distilling.student
        return type(student).features(student, batch, layers)

    def evaluators(self, facts: Facts) -> list[Evaluator]:
        """Those of the student."""
        return self._distilling.student.evaluators(facts)

    def hooks(self, facts: Facts) -> list[Hook]:
        """Those of the student."""
        return self._distilling.student.hooks(facts)


def student_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the tensors of a distilled task those that the task has without a teacher."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{PROJECTOR}.")}


@dataclass
class _Distilling:
    """Student and teacher, and what is heard of them while they work."""

    student: Task
    teacher: Any
    settings: Distill
    taps: dict[str, tuple[_Tap, _Tap]]

    def __call__(self, batch: Batch, clock: Clock) -> tuple[Any, dict[str, tuple[Tensor, Tensor]]]:
        """The student's losses, and by kind what both gave."""
        with _open(student for student, _ in self.taps.values()):
            # Not __call__: its hooks are those of the task that calls this.
            losses = self.student.forward(batch, clock)
        with torch.no_grad(), _open(teacher for _, teacher in self.taps.values()):
            self.teacher.predict(batch)
        return losses, {kind: (student.take(), teacher.take()) for kind, (student, teacher) in self.taps.items()}


def _together(losses: Any, weight: float, distilled: dict[str, Tensor]) -> dict[str, Tensor]:
    """Losses of a task in any of their forms, weighted, with those of distillation."""
    if isinstance(losses, Tensor):
        losses = {"loss": losses}
    elif not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    if "total_loss" in losses:
        return {**losses, **distilled, "total_loss": weight * losses["total_loss"] + sum(distilled.values())}
    return {**{name: weight * value if "loss" in name else value for name, value in losses.items()}, **distilled}


# --- listening ------------------------------------------------------------------------------------------------------


class _Tap:
    """Keeps what a module gives while the tap is open.

    Args:
        owner: whose module it is, for messages.
        root: where ``name`` is looked up.
    """

    def __init__(self, owner: str, root: nn.Module, name: str) -> None:
        self.label = f"the {owner}'s {name!r}"
        try:
            self.module = root.get_submodule(name)
        except AttributeError as error:
            parts = ", ".join(part for part, _ in root.named_children())
            raise ValueError(f"the {owner} has no module {name!r}; it has: {parts}") from error
        self.outputs: list[Tensor] = []
        self.is_open = False
        self.module.register_forward_hook(self)

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.is_open:
            self.outputs.append(output)

    def take(self) -> Tensor:
        """What it gave since it was opened; of several calls (crops) one after the other.

        Raises:
            ValueError: it was not called, or gave no tensor.
        """
        outputs, self.outputs = self.outputs, []
        if not outputs or not all(isinstance(output, Tensor) for output in outputs):
            raise ValueError(f"{self.label} {'gave no tensor' if outputs else 'was not called'} in the forward pass")
        return _vectors(outputs[0] if len(outputs) == 1 else torch.cat(outputs))

    def width(self) -> int:
        """How wide its vectors are, as the module or the last one in it that knows says.

        Raises:
            ValueError: none knows.
        """
        for module in (self.module, *reversed(list(self.module.modules()))):
            for name in ("out_channels", "out_features", "num_features", "normalized_shape"):
                value = getattr(module, name, None)
                if value is not None:
                    return int(value[-1] if isinstance(value, Sequence) else value)
        raise ValueError(f"{self.label} does not tell how wide its features are")


def _taps(student: Task, teacher: nn.Module, settings: Distill) -> dict[str, tuple[_Tap, _Tap]]:
    names = {
        "logits": (settings.logits_weight, settings.student_logits, settings.teacher_logits),
        "features": (settings.features_weight, settings.student_features, settings.teacher_features),
    }
    return {
        kind: (_Tap("student", student, own), _Tap("teacher", teacher, other))
        for kind, (weight, own, other) in names.items()
        if weight
    }


@contextmanager
def _open(taps: Iterable[_Tap]) -> Iterator[None]:
    taps = list(taps)
    for tap in taps:
        tap.outputs, tap.is_open = [], True
    try:
        yield
    finally:
        for tap in taps:
            tap.is_open = False


def _vectors(output: Tensor) -> Tensor:
    """Maps (B x C x H x W) as tokens (B x HW x C); vectors and tokens as they are."""
    return output.flatten(2).transpose(1, 2) if output.ndim == 4 else output
