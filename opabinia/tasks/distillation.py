"""Knowledge distillation: teachers beside any task (Hinton et al. 2015, Touvron et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    Clock,
    DatasetInfo,
    Fraction,
    Hook,
    NonNegative,
    Positive,
    Run,
    SchedulePart,
    Task,
)
from opabinia.models.losses.distillation import FeaturesLoss, LogitsLoss, features_loss, logits_loss
from opabinia.models.projectors import PROJECTOR
from opabinia.optim.ema import WeightAverage
from opabinia.optim.schedules import constant
from opabinia.runtime.processes import all_reduce_mean, world_size
from opabinia.tasks.teachers import CheckTeachers, FrozenTeacher


@register.section(name="teacher")
@dataclass(frozen=True, kw_only=True)
class Teacher(FrozenTeacher):
    """A teacher: the model of a run, or a backbone with its classifier.

    Args:
        run: folder of a run whose model is the teacher.
        backbone: a backbone with its own classifier, such as a pretrained timm model.
        weights: file with weights of that backbone and classifier.
        mean: channel means of images in 0..1 for that backbone; null takes those of its pretraining.
        std: channel standard deviations, likewise.
        teacher_logits: name of the teacher's module whose output are its logits.
        teacher_features: name of the teacher's module whose output are its features: vectors, tokens or feature maps.
    """

    teacher_logits: str = "head"
    teacher_features: str = "backbone"


@register.section(name="ema_teacher")
@dataclass(frozen=True, kw_only=True)
class EmaTeacher:
    """An exponential moving average of the student's weights as a teacher, updated after every optimizer step.

    Running statistics are averaged like weights, from their mean over processes.

    Args:
        decay: share of the average that an update keeps; the default is FastReID's.
    """

    decay: Fraction = 0.999


@register.section(name="distill")
@dataclass(frozen=True, kw_only=True)
class Distill(Teacher):
    """Knowledge distillation: teachers and losses. Losses of several teachers are averaged.

    Args:
        run: folder of a run whose model is the teacher.
        backbone: a backbone with its own classifier as the teacher, such as a pretrained timm model.
        weights: file with weights of that backbone and classifier.
        mean: channel means of images in 0..1 for that backbone; null takes those of its pretraining.
        std: channel standard deviations, likewise.
        teachers: further teachers, each with keys of its own: ``[{run: runs/a}, {run: runs/b}]``.
        ema_teacher: an EMA of the student's weights is a teacher, too; null: it is not.
        task_weight: multiplies the task's own losses.
        logits_weight: multiplies ``distill_logits_loss``.
        features_weight: multiplies ``distill_features_loss``.
        logits_loss: soft compares distributions at a temperature, symmetric does so both ways, binary class by class;
            hard takes the teacher's best class as label; mse compares the logits.
        features_loss: comparison of vectors: 1 - cosine, squared error, or Huber loss.
        temperature: of the soft, symmetric and binary logits losses, which are multiplied by its square.
        temperature_schedule: multiplies the temperature over time.
        student_logits: name of the task's module whose output are its logits.
        teacher_logits: the same of the teacher.
        student_features: name of the task's module whose output are its features: vectors, tokens or feature maps.
        teacher_features: the same of the teacher.
    """

    teachers: Sequence[Teacher] = ()
    ema_teacher: EmaTeacher | None = None
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
    def fixed_teachers(self) -> list[Teacher]:
        """The teachers without the EMA of the student.

        Raises:
            ValueError: there is no teacher at all.
        """
        is_teacher = self.run is not None or self.backbone is not None
        teachers = [*([self] if is_teacher else []), *self.teachers]
        if not teachers and self.ema_teacher is None:
            raise ValueError("there is no teacher; give a run, a backbone, teachers or ema_teacher")
        return teachers


# --- teachers -------------------------------------------------------------------------------------------------------


class UpdateEmaTeacher(Hook):
    """Update the EMA of a task once per optimizer step; it is the same on every process.

    Args:
        task: the task that is trained.
        average: a copy of it, sharded over processes like it.
        decay: share of the average that an update keeps.
    """

    def __init__(self, task: Task, average: Task, decay: float) -> None:
        self._average, self._decay = WeightAverage(task, twin=average), decay
        buffers = average.named_buffers()
        self._statistics = [buffer for name, buffer in buffers if name.rpartition(".")[2].startswith("running_")]
        self._loaded = False

    def start(self, run: Run) -> None:
        """Start from the current weights, unless an average came with the checkpoint."""
        if not self._loaded:
            self._update(0.0)

    def after_step(self, run: Run) -> None:
        """Update the average."""
        self._update(self._decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averaged weights as a state dict of the task."""
        return self._average.model.state_dict()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the averaged weights, see :meth:`tensors`."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        # Tensors are whole, also for an average of which each process holds a shard.
        set_model_state_dict(self._average.model, dict(tensors), options=StateDictOptions(full_state_dict=True))
        self._loaded = True

    def _update(self, decay: float) -> None:
        self._average.update(decay)
        if world_size() > 1 and self._statistics:  # every process trains with running statistics of its own
            torch._foreach_copy_(self._statistics, all_reduce_mean(self._statistics))


# --- the task -------------------------------------------------------------------------------------------------------


class DistilledTask(Task):
    """The methods that a task gets while it is distilled; see :func:`add_teachers`."""

    _distillation: _Distillation

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the task's losses, weighted, and ``distill_logits_loss``, ``distill_features_loss``.

        If the task gives a ``total_loss``, these are added to it.
        """
        distillation = self._distillation
        with _recording(distillation.recorders.values()):
            losses = super().forward(batch, clock)
        student = {kind: recorder.take() for kind, recorder in distillation.recorders.items()}
        targets = distillation.targets(batch, clock)
        settings, added = distillation.settings, {}
        if "logits" in student:
            temperature = settings.temperature * settings.temperature_schedule(clock)
            output = student["logits"]
            parts = [logits_loss(output, target, settings.logits_loss, temperature) for target in targets["logits"]]
            added["distill_logits_loss"] = settings.logits_weight * torch.stack(parts).mean()
        if "features" in student:
            parts = [
                features_loss(self._project(student["features"], number), target, settings.features_loss)
                for number, target in enumerate(targets["features"])
            ]
            added["distill_features_loss"] = settings.features_weight * torch.stack(parts).mean()
        return _combine_losses(losses, settings.task_weight, added)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hooks of the task, the update of its EMA teacher, and the check of the others."""
        hooks, teacher = super().hooks(dataset_info), ema_teacher(self)
        if teacher is not None and self._distillation.settings.ema_teacher is not None:
            hooks = [*hooks, UpdateEmaTeacher(self, teacher, self._distillation.settings.ema_teacher.decay)]
        frozen = [teacher.model for teacher in self._distillation.teachers if teacher.name != _EMA]
        return [*hooks, CheckTeachers(frozen)] if frozen else hooks

    def extra_repr(self) -> str:
        """Return the teachers, so that the log shows them with the model."""
        own = super().extra_repr()
        teachers = [f"({teacher.name}): {type(teacher.model).__name__}" for teacher in self._distillation.teachers]
        return "\n".join([own] * bool(own) + teachers)

    def _project(self, features: Tensor, number: int) -> Tensor:
        projector = self._modules.get(_projector_name(number))
        return features if projector is None else projector(features)

    def _apply(self, fn: Any, recurse: bool = True) -> DistilledTask:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for teacher in self._distillation.teachers:
            teacher.model._apply(fn, recurse)
        return self


def add_teachers(task: Task, teachers: Sequence[nn.Module], settings: Distill) -> DistilledTask:
    """Let a task learn from teachers, too.

    The task stays the same object with the same parameters, modules and attributes, so parameter groups, freezes,
    checkpoints and hooks mean what they mean without teachers; only its class becomes a subclass of its own class and
    :class:`DistilledTask`, as FSDP does it. Teachers are not submodules: they are neither trained nor saved (the EMA
    teacher is saved by its hook), stay in evaluation mode, and move to other devices with the task. Logits and features
    are recorded from named modules while student and teachers run, so no forward pass is done twice.

    If student and teacher have features of different widths, a linear layer projects the student's; it is trained and
    saved with the student as ``distill_projector``, for a second teacher as ``distill_projector_2``.

    Args:
        task: the student.
        teachers: modules with ``predict(batch)``, one for each of ``settings.fixed_teachers``.
        settings: losses and modules.

    Raises:
        ValueError: both weights are 0, a module does not exist, or the task predicts objects in images.
    """
    if task.size_multiple is not None:
        raise ValueError("distillation compares whole images; a task that detects objects in them cannot be distilled")
    if not (settings.logits_weight or settings.features_weight):
        raise ValueError("logits_weight and features_weight are both 0: nothing is learned from the teachers")
    active = [
        _ActiveTeacher("teacher", model, settings, teacher.teacher_logits, teacher.teacher_features)
        for teacher, model in zip(settings.fixed_teachers, teachers, strict=True)
    ]
    if settings.ema_teacher is not None:
        modules = settings.student_logits, settings.student_features
        active.append(_ActiveTeacher(_EMA, copy.deepcopy(task), settings, *modules))
    recorders = _recorders("student", task, settings, settings.student_logits, settings.student_features)
    if "features" in recorders:
        width = recorders["features"].width()
        for number, teacher_width in enumerate(teacher.recorders["features"].width() for teacher in active):
            if teacher_width != width:
                task.add_module(_projector_name(number), nn.Linear(width, teacher_width))
    task.__class__ = type(f"Distilled{type(task).__name__}", (DistilledTask, type(task)), {})
    assert isinstance(task, DistilledTask)
    task._distillation = _Distillation(settings, recorders, active)
    return task


def teachers(task: Task) -> list[nn.Module]:
    """Return the models that teach a task; they are not among its modules."""
    return [teacher.model for teacher in task._distillation.teachers] if isinstance(task, DistilledTask) else []


def ema_teacher(task: Task) -> Task | None:
    """Return the EMA of its own weights that teaches a task, if it has one."""
    active = task._distillation.teachers if isinstance(task, DistilledTask) else []
    return next((teacher.model for teacher in active if teacher.name == _EMA), None)


def _projector_name(number: int) -> str:
    return f"{PROJECTOR}_{number + 1}" if number else PROJECTOR


def _combine_losses(losses: Any, weight: float, added: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the losses of a task (a tensor, a sequence or a mapping), weighted, with those of distillation."""
    if isinstance(losses, Tensor):
        losses = {"loss": losses}
    elif not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    if "total_loss" in losses:
        return {**losses, **added, "total_loss": weight * losses["total_loss"] + sum(added.values())}
    return {**{name: weight * value if "loss" in name else value for name, value in losses.items()}, **added}


# --- recording outputs ----------------------------------------------------------------------------------------------

_EMA = "average"


class _ActiveTeacher:
    """A teacher in evaluation mode, without gradients, and the recorders of its outputs (see :func:`_recorders`).

    Args:
        name: ``teacher`` or ``average``.
        model: the teacher.
        settings: the losses.
        logits, features: names of its modules.
    """

    def __init__(self, name: str, model: Any, settings: Distill, logits: str, features: str) -> None:
        self.name, self.model = name, model.eval().requires_grad_(False)
        self.recorders = _recorders(name, model, settings, logits, features)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ActiveTeacher:
        return self  # an average of the student's weights needs no second teacher

    def run(self, batch: Batch, clock: Clock) -> None:
        """Let the model process a batch: an average in ``forward`` like the student, so that its modules are called in
        the same order; others in ``predict``, because the labels of the batch may not be their classes."""
        if self.name == _EMA:
            self.model(batch, clock)
            return
        self.model.predict(batch)
        for recorder in self.recorders.values():
            # Calls after one with the whole batch are mirrored images of a flip test, which the student does not see.
            if recorder.outputs and len(recorder.outputs[0]) == len(batch["image"]):
                del recorder.outputs[1:]


@dataclass
class _Distillation:
    """The student's recorders and its teachers."""

    settings: Distill
    recorders: dict[str, _Recorder]
    teachers: list[_ActiveTeacher]

    @torch.no_grad()
    def targets(self, batch: Batch, clock: Clock) -> dict[str, list[Tensor]]:
        """Return the outputs of each teacher for a batch, by kind."""
        for teacher in self.teachers:
            with _recording(teacher.recorders.values()):
                teacher.run(batch, clock)
        return {kind: [teacher.recorders[kind].take() for teacher in self.teachers] for kind in self.recorders}


class _Recorder:
    """Record the outputs of a module while recording is on.

    Args:
        owner: whose module it is, for messages.
        root: where ``name`` is looked up.
    """

    def __init__(self, owner: str, root: nn.Module, name: str) -> None:
        self.label = f"the {owner}'s {name!r}"
        try:
            self.module = root.get_submodule(name)
        except AttributeError as error:
            children = ", ".join(child for child, _ in root.named_children())
            raise ValueError(f"the {owner} has no module {name!r}; it has: {children}") from error
        self.outputs: list[Tensor] = []
        self.is_recording = False
        self.module.register_forward_hook(self)

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.is_recording:
            self.outputs.append(output)

    def take(self) -> Tensor:
        """Return and forget the outputs: vectors, or tokens (feature maps become B x HW x C); of several calls (crops)
        concatenated.

        Raises:
            ValueError: the module was not called, or an output is not a tensor.
        """
        outputs, self.outputs = self.outputs, []
        if not outputs or not all(isinstance(output, Tensor) for output in outputs):
            raise ValueError(f"{self.label} {'gave no tensor' if outputs else 'was not called'} in the forward pass")
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.flatten(2).transpose(1, 2) if output.ndim == 4 else output

    def width(self) -> int:
        """Return the width of its vectors, as the module or the last of its submodules with such an attribute has it.

        Raises:
            ValueError: none has.
        """
        for module in (self.module, *reversed(list(self.module.modules()))):
            for name in ("out_channels", "out_features", "num_features", "normalized_shape"):
                value = getattr(module, name, None)
                if value is not None:
                    return int(value[-1] if isinstance(value, Sequence) else value)
        raise ValueError(f"{self.label}: the width of its features is unknown")


def _recorders(owner: str, root: nn.Module, settings: Distill, logits: str, features: str) -> dict[str, _Recorder]:
    """Return recorders of the outputs that the losses compare, by kind (``logits``, ``features``)."""
    names = {"logits": (settings.logits_weight, logits), "features": (settings.features_weight, features)}
    return {kind: _Recorder(owner, root, name) for kind, (weight, name) in names.items() if weight}


@contextmanager
def _recording(recorders: Collection[_Recorder]) -> Iterator[None]:
    for recorder in recorders:
        recorder.outputs, recorder.is_recording = [], True
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.is_recording = False
