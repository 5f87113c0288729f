"""Distillation: teachers beside any task (Hinton et al. 2015, Touvron et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    DatasetInfo,
    Fraction,
    Hook,
    NonNegative,
    Positive,
    Predictions,
    Run,
    SchedulePart,
    Task,
)
from opabinia.models.layers import Normalize, normalize_as
from opabinia.models.losses.distillation import FeaturesLoss, LogitsLoss, features_loss, logits_loss
from opabinia.models.weights.files import read_weights
from opabinia.models.weights.init import fit
from opabinia.optim.ema import Average
from opabinia.optim.schedules import constant
from opabinia.runtime.processes import all_reduce_mean, world_size

PROJECTOR = "distill_projector"
"""How the names begin of what is trained and saved beside the student, and is of no use without its teachers."""


@register.section(name="teacher")
@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Who teaches: the model of a run, or a backbone with its classifier.

    Args:
        run: folder of a run whose model teaches.
        backbone: or a backbone that teaches, with its own classifier, such as a pretrained timm model.
        weights: a file with weights of that backbone and classifier.
        mean: of the images in 0..1 as that backbone knows them; null takes what its pretraining had.
        std: their standard deviation, likewise.
        teacher_logits: module of the teacher whose output are its logits.
        teacher_features: module of the teacher whose output are its features: vectors, tokens or maps.
    """

    run: Path | None = None
    backbone: BackbonePart | None = None
    weights: Path | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    teacher_logits: str = "head"
    teacher_features: str = "backbone"


@register.section(name="own_average")
@dataclass(frozen=True, kw_only=True)
class OwnAverage:
    """An average of the student's weights, updated after every optimizer step, that teaches the student.

    Running statistics are averaged like weights, from their mean over processes.

    Args:
        momentum: share of the average that an update keeps; the default is FastReID's.
    """

    momentum: Fraction = 0.999


@register.section(name="distill")
@dataclass(frozen=True, kw_only=True)
class Distill(Teacher):
    """Teachers, and what is learned from them: from several the mean of what is learned from each.

    Args:
        run: folder of a run whose model teaches.
        backbone: or a backbone that teaches, with its own classifier, such as a pretrained timm model.
        weights: a file with weights of that backbone and classifier.
        mean: of the images in 0..1 as that backbone knows them; null takes what its pretraining had.
        std: their standard deviation, likewise.
        teachers: further ones, each with keys of its own: ``[{run: runs/a}, {run: runs/b}]``.
        average: the student's own average teaches, too; null: it does not.
        task_weight: multiplies the task's own losses.
        logits_weight: multiplies ``distill_logits_loss``.
        features_weight: multiplies ``distill_features_loss``.
        logits_loss: soft compares distributions at a temperature, symmetric does so both ways, binary class by class;
            hard takes the teacher's best class as label; mse compares the logits.
        features_loss: how vectors are compared: 1 - cosine, squared error, or Huber's.
        temperature: of the soft, symmetric and binary logits losses, which are multiplied by its square.
        temperature_schedule: multiplies the temperature over time.
        student_logits: module of the task whose output are its logits.
        teacher_logits: the same of the teacher.
        student_features: module of the task whose output are its features: vectors, tokens or maps.
        teacher_features: the same of the teacher.
    """

    teachers: Sequence[Teacher] = ()
    average: OwnAverage | None = None
    task_weight: NonNegative = 0.5
    logits_weight: NonNegative = 0.5
    features_weight: NonNegative = 0.0
    logits_loss: LogitsLoss = "soft"
    features_loss: FeaturesLoss = "cosine"
    temperature: Positive = 1.0
    temperature_schedule: SchedulePart = constant
    student_logits: str = "head"
    student_features: str = "backbone"

    @property
    def others(self) -> list[Teacher]:
        """The teachers beside the student's own average.

        Raises:
            ValueError: nobody teaches.
        """
        alone = self.run is not None or self.backbone is not None
        found = [*([self] if alone else []), *self.teachers]
        if not found and self.average is None:
            raise ValueError("nobody teaches; give a run, a backbone, teachers or average")
        return found


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


def make_teacher(
    teacher: Teacher, dataset_info: DatasetInfo, load: Callable[[Path], nn.Module], *, logits: bool
) -> nn.Module:
    """The model of one who teaches.

    Args:
        teacher: who.
        facts: of the data that the student learns from.
        load: gives the model of a run; only those can tell who can read its config.
        logits: whether its logits are learned.

    Raises:
        ValueError: it is told twice or not at all, would teach what nobody taught it, or knows other classes or
            channels than those of the data.
    """
    if (teacher.backbone is None) == (teacher.run is None):
        raise ValueError("give either a run or a backbone that teaches; further ones are listed under teachers")
    if teacher.run is not None:
        unread = [key for key in ("weights", "mean", "std") if getattr(teacher, key) is not None]
        if unread:
            raise ValueError(f"{unread[0]}: belongs to a backbone that teaches; a run has its own")
        model = load(teacher.run)
        channels = getattr(getattr(model, "dataset_info", None), "channels", dataset_info.channels)
        if channels != dataset_info.channels:
            raise ValueError(
                f"run: {teacher.run} knows images with {channels} channels, the data's have {dataset_info.channels}"
            )
        return model
    return _image_teacher(teacher, teacher.backbone, dataset_info, logits)


def _image_teacher(teacher: Teacher, make: Any, dataset_info: DatasetInfo, logits: bool) -> ImageTeacher:
    backbone = make(dataset_info.channels)
    known, classes = backbone.preprocessing, len(dataset_info.classes)
    if teacher.weights is None and known is None:
        raise ValueError("backbone: nobody taught this teacher; give it weights, or pretrained: true")
    if teacher.weights is None and logits and backbone.trained_classes != classes:
        raise ValueError(
            f"backbone: the teacher's classifier has {backbone.trained_classes} classes, the data {classes}; "
            "give weights that fit, or logits_weight: 0"
        )
    head = backbone.make_head(classes) if logits else nn.Identity()
    model = ImageTeacher(backbone, head, normalize_as(known, dataset_info.channels, teacher.mean, teacher.std))
    if teacher.weights is not None:
        report = fit(model, read_weights(teacher.weights))
        if report.missing or report.other_shape:
            raise ValueError(f"weights: they do not fill the teacher; {teacher.weights}: {report}")
    return model


class Follow(Hook):
    """Lets an average follow the task it is of, once per optimizer step; it is the same on every process.

    Args:
        task: the task that is trained.
        average: a copy of it, spread over processes like it.
        momentum: share of the average that an update keeps.
    """

    def __init__(self, task: Task, average: Task, momentum: float) -> None:
        self._average, self._momentum = Average(task, twin=average), momentum
        buffers = average.named_buffers()
        self._statistics = [one for name, one in buffers if name.rpartition(".")[2].startswith("running_")]
        self._loaded = False

    def start(self, run: Run) -> None:
        """Begin with the weights as they are, unless an average came with the checkpoint."""
        if not self._loaded:
            self._update(0.0)

    def after_step(self, run: Run) -> None:
        """Follow the new weights."""
        self._update(self._momentum)

    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights, as a state of the task."""
        state: dict[str, Tensor] = self._average.model.state_dict()
        return state

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See :meth:`tensors`."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        # Whole tensors, also for an average of which each process holds a part.
        set_model_state_dict(self._average.model, dict(tensors), options=StateDictOptions(full_state_dict=True))
        self._loaded = True

    def _update(self, momentum: float) -> None:
        self._average.update(momentum)
        if world_size() > 1:  # every process trains with running statistics of its own
            for own, mean in zip(self._statistics, all_reduce_mean(self._statistics), strict=True):
                own.copy_(mean)


# --- the task -------------------------------------------------------------------------------------------------------


class Distilled(Task):
    """What a task is besides itself while it learns from teachers; see :func:`distilled`."""

    _lessons: _Lessons

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """The task's losses, weighted, and ``distill_logits_loss``, ``distill_features_loss``.

        Where the task gives a ``total_loss``, theirs is added to it.
        """
        lessons = self._lessons
        with _open(lessons.taps.values()):
            losses = super().forward(batch, clock)
        said = {kind: tap.take() for kind, tap in lessons.taps.items()}
        taught = lessons.ask(batch, clock)
        settings, distilled = lessons.settings, {}
        if "logits" in said:
            temperature = settings.temperature * settings.temperature_schedule(clock)
            parts = [logits_loss(said["logits"], one, settings.logits_loss, temperature) for one in taught["logits"]]
            distilled["distill_logits_loss"] = settings.logits_weight * _mean(parts)
        if "features" in said:
            projected = [self._projected(said["features"], number) for number in range(len(lessons.teachers))]
            pairs = zip(projected, taught["features"], strict=True)
            parts = [features_loss(own, one, settings.features_loss) for own, one in pairs]
            distilled["distill_features_loss"] = settings.features_weight * _mean(parts)
        return _together(losses, settings.task_weight, distilled)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Those of the task, and what lets its own average follow it."""
        hooks, average = super().hooks(dataset_info), own_average(self)
        if average is None or self._lessons.settings.average is None:
            return hooks
        return [*hooks, Follow(self, average, self._lessons.settings.average.momentum)]

    def extra_repr(self) -> str:
        """The teachers, so that the log shows them with the model."""
        own = super().extra_repr()
        return "\n".join([own] * bool(own) + [f"({one.name}): {one.kind}" for one in self._lessons.teachers])

    def _projected(self, features: Tensor, number: int) -> Tensor:
        projector = self._modules.get(_projector(number))
        return features if projector is None else projector(features)

    def _apply(self, fn: Any, recurse: bool = True) -> Distilled:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for one in self._lessons.teachers:
            one.model._apply(fn, recurse)
        return self


def distilled(task: Task, teachers: Sequence[nn.Module], settings: Distill) -> Distilled:
    """Let a task learn from teachers, too.

    It stays the object it is, with the same parameters, modules and attributes under the same names, so groups,
    freezes, checkpoints and hooks mean what they mean without teachers; only its class becomes one of its own class
    and :class:`Distilled`, as FSDP does it. Teachers are no part of it: they are neither trained nor saved (an average
    is, by its hook), stay in evaluation mode, and follow to other devices. Logits and features are what named modules
    give while student and teachers work, so that no forward pass is done twice.

    Where student and teacher have features of different widths, a linear layer projects the student's; it is trained
    and saved with the student, as ``distill_projector``, for a second teacher as ``distill_projector_2``.

    Args:
        task: the student.
        teachers: modules with ``predict(batch)``, one for each of ``settings.others``.
        settings: what is learned from them.

    Raises:
        ValueError: nothing is to be learned from the teachers, a module is not there, or the task finds things in
            images instead of telling what each is.
    """
    if task.size_multiple is not None:
        raise ValueError("teachers tell what whole images are; a task that finds things in them cannot be taught")
    if not (settings.logits_weight or settings.features_weight):
        raise ValueError("logits_weight and features_weight are both 0: nothing is learned from the teachers")
    lessons = [
        _taught_by(model, settings, one.teacher_logits, one.teacher_features)
        for one, model in zip(settings.others, teachers, strict=True)
    ]
    if settings.average is not None:
        lessons.append(_taught_by_average(task, settings))
    taps = _taps("student", task, settings, settings.student_logits, settings.student_features)
    if "features" in taps:
        width = taps["features"].width()
        for number, taught in enumerate(lesson.taps["features"].width() for lesson in lessons):
            if taught != width:
                task.add_module(_projector(number), nn.Linear(width, taught))
    task.__class__ = _with_teachers(type(task))
    assert isinstance(task, Distilled)
    task._lessons = _Lessons(settings, taps, lessons)
    return task


def own_average(task: Task) -> Task | None:
    """The average of its own weights that teaches a task, if one does."""
    lessons = task._lessons.teachers if isinstance(task, Distilled) else []
    return next((one.model for one in lessons if one.name == _AVERAGE), None)


def student_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the tensors of a distilled task those that the task has without teachers."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PROJECTOR)}


def _with_teachers(kind: type[Task]) -> type[Distilled]:
    return type(f"Distilled{kind.__name__}", (Distilled, kind), {})


def _projector(number: int) -> str:
    return f"{PROJECTOR}_{number + 1}" if number else PROJECTOR


def _mean(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(losses)).mean()


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

_AVERAGE = "average"


@dataclass
class _Lesson:
    """A teacher at work.

    Attributes:
        name: what it is: ``teacher`` or ``average``.
        model: in evaluation mode and without gradients.
        ask: lets the model look at a batch.
        taps: by kind what it gives meanwhile.
    """

    name: str
    model: Any
    ask: Callable[[Batch, Clock], object]
    taps: dict[str, _Tap]

    @property
    def kind(self) -> str:
        """What the model is."""
        return type(self.model).__name__

    def __deepcopy__(self, memo: dict[int, Any]) -> _Lesson:
        return self  # an average of the weights needs no second teacher


@dataclass
class _Lessons:
    """What is heard of a student and of its teachers while they work."""

    settings: Distill
    taps: dict[str, _Tap]
    teachers: list[_Lesson]

    @torch.no_grad()
    def ask(self, batch: Batch, clock: Clock) -> dict[str, list[Tensor]]:
        """By kind what each teacher gives."""
        for one in self.teachers:
            with _open(one.taps.values()):
                one.ask(batch, clock)
        return {kind: [one.taps[kind].take() for one in self.teachers] for kind in self.taps}


def _taught_by(model: nn.Module, settings: Distill, logits: str, features: str) -> _Lesson:
    taps = _taps("teacher", model, settings, logits, features)
    return _Lesson("teacher", model.eval().requires_grad_(False), partial(_predict, model, taps), taps)


def _predict(model: Any, taps: Mapping[str, _Tap], batch: Batch, clock: Clock) -> None:
    """What a teacher makes of a batch, whose labels may be none of its own."""
    model.predict(batch)
    for tap in taps.values():
        # Once it has looked at the whole batch, it looks at mirror images, which the student does not see.
        if tap.outputs and len(tap.outputs[0]) == len(batch["image"]):
            del tap.outputs[1:]


def _taught_by_average(task: Task, settings: Distill) -> _Lesson:
    """It does what the student does, losses too, so that the same modules are heard in the same order."""
    model = copy.deepcopy(task).eval().requires_grad_(False)
    taps = _taps(_AVERAGE, model, settings, settings.student_logits, settings.student_features)
    return _Lesson(_AVERAGE, model, model, taps)


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


def _taps(owner: str, root: nn.Module, settings: Distill, logits: str, features: str) -> dict[str, _Tap]:
    names = {"logits": (settings.logits_weight, logits), "features": (settings.features_weight, features)}
    return {kind: _Tap(owner, root, name) for kind, (weight, name) in names.items() if weight}


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
