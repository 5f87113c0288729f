"""Knowledge distillation: teachers beside any task (Hinton et al. 2015, Touvron et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
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
    SchedulePart,
    Task,
)
from opabinia.models.capture import replace_outputs
from opabinia.models.losses.distillation import FeaturesLoss, LogitsLoss, features_loss, logits_loss
from opabinia.models.projectors import PROJECTOR
from opabinia.optim.ema import SavedAverage
from opabinia.optim.schedules import constant
from opabinia.tasks.teachers import CheckTeachers, FrozenTeacher
from opabinia.tasks.wrapper_base import TaskWrapper, combine_losses


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
        decay: fraction of the average that an update keeps; the default is FastReID's.
    """

    decay: Fraction = 0.999


@register.section(name="distill")
@dataclass(frozen=True, kw_only=True)
class Distill(Teacher):
    """Knowledge distillation: teachers and losses. Losses of several teachers are averaged.

    If a run with other classes is the teacher, the logits of the classes that both know are compared, by name
    (learning without forgetting, Li and Hoiem 2016).

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


class DistilledTask(TaskWrapper):
    """A task that learns from teachers, too: a step calls it in place of the task.

    If student and teacher have features of different widths, a linear layer projects the student's. It is trained and
    saved as a module of ``task``: ``distill_projector``, for a second teacher ``distill_projector_2``.

    Args:
        task: the student.
        teachers: modules with ``predict(batch)``, one for each of ``settings.fixed_teachers``.
        settings: losses and layers.

    Raises:
        ValueError: both weights are 0, a layer does not exist, or the task predicts objects in images.
    """

    def __init__(self, task: Task, teachers: Sequence[nn.Module], settings: Distill) -> None:
        if task.size_multiple is not None:
            message = "distillation compares whole images; a task that detects objects in them cannot be distilled"
            raise ValueError(message)
        if not (settings.logits_weight or settings.features_weight):
            raise ValueError("logits_weight and features_weight are both 0: nothing is learned from the teachers")
        average = copy.deepcopy(task).eval().requires_grad_(False) if settings.ema_teacher is not None else None
        super().__init__(task, average, teachers)
        self.settings = settings

        weights = {"logits": settings.logits_weight, "features": settings.features_weight}
        kinds = [kind for kind, weight in weights.items() if weight]
        layers = {kind: getattr(settings, f"student_{kind}") for kind in kinds}
        self._student = LayerOutputs("student", task, layers)
        self._teachers = [
            LayerOutputs("teacher", model, {kind: getattr(teacher, f"teacher_{kind}") for kind in kinds})
            for teacher, model in zip(settings.fixed_teachers, teachers, strict=True)
        ]
        models = [*teachers, *([] if average is None else [average])]
        self._shared_classes = nn.ModuleList(SharedClasses(_class_names(task), _class_names(model)) for model in models)
        self._average = [LayerOutputs("student", self.average, layers)] if self.average is not None else []
        if settings.features_weight:
            width = self._student.width("features")
            for number, teacher in enumerate([*self._teachers, *self._average]):
                if (teacher_width := teacher.width("features")) != width:
                    task.add_module(_projector_name(number), nn.Linear(width, teacher_width))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the task's losses, weighted, and ``distill_logits_loss``, ``distill_features_loss``.

        If the task gives a ``total_loss``, these are added to it.
        """
        with self._student.recording() as student:
            losses = self.task(batch, clock)
        targets = self._targets(batch, clock)
        settings, added = self.settings, {}
        if "logits" in student:
            temperature = settings.temperature * settings.temperature_schedule(clock)
            shared = [
                select(student["logits"], target["logits"])
                for select, target in zip(self._shared_classes, targets, strict=True)
            ]
            parts = [logits_loss(ours, theirs, settings.logits_loss, temperature) for ours, theirs in shared]
            added["distill_logits_loss"] = settings.logits_weight * torch.stack(parts).mean()
        if "features" in student:
            parts = [
                features_loss(self._project(student["features"], number), target["features"], settings.features_loss)
                for number, target in enumerate(targets)
            ]
            added["distill_features_loss"] = settings.features_weight * torch.stack(parts).mean()
        return combine_losses(losses, settings.task_weight, added)

    @torch.no_grad()
    def _targets(self, batch: Batch, clock: Clock) -> list[dict[str, Tensor]]:
        """Return the outputs of each teacher by kind."""
        targets = []
        for teacher, outputs in zip(self.teachers, self._teachers, strict=True):
            # The labels of the batch may not be its classes: predict needs none.
            with outputs.recording(len(batch["image"])) as target:
                teacher.predict(batch)  # type: ignore[operator]
            targets.append(target)
        for outputs in self._average:
            assert self.average is not None
            with outputs.recording() as target:
                self.average(batch, clock)  # its layers are called in the same order as the student's
            targets.append(target)
        return targets

    def _project(self, features: Tensor, number: int) -> Tensor:
        projector = self.task._modules.get(_projector_name(number))
        return features if projector is None else projector(features)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hooks of the task, the update of its EMA teacher, and the check of the others."""
        hooks = self.task.hooks(dataset_info)
        if self.average is not None and self.settings.ema_teacher is not None:
            weight = 1 - self.settings.ema_teacher.decay
            hooks = [*hooks, SavedAverage(self.average, self.task, lambda clock: weight, buffers="synchronized")]
        return [*hooks, CheckTeachers([*self.teachers])] if len(self.teachers) else hooks


def _projector_name(number: int) -> str:
    return f"{PROJECTOR}_{number + 1}" if number else PROJECTOR


class SharedClasses(nn.Module):
    """Selects the columns of logits for the classes that a student and its teacher both know, by name.

    Args:
        student: class names of the student; empty ones are unknown.
        teacher: those of the teacher.
    """

    columns: Tensor

    def __init__(self, student: Sequence[str], teacher: Sequence[str]) -> None:
        super().__init__()
        self._widths = len(student), len(teacher)
        labels = {name: label for label, name in enumerate(student)} if student != teacher else {}
        pairs = [(labels[name], label) for label, name in enumerate(teacher) if name in labels]
        self.register_buffer("columns", torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T, persistent=False)

    def forward(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        """Return both (B x S, of S classes); outputs of other widths, such as those of hidden layers, unchanged, and so
        if no class, or all of them, are shared."""
        if not self.columns.numel() or (student.shape[1], teacher.shape[1]) != self._widths:
            return student, teacher
        return student[:, self.columns[0]], teacher[:, self.columns[1]]


def _class_names(model: nn.Module) -> tuple[str, ...]:
    return tuple(getattr(getattr(model, "dataset_info", None), "classes", ()))


class LayerOutputs:
    """The outputs of the layers of a network that the losses compare, recorded while it runs.

    The hooks stay in place, because compiled modules keep those that they had when they were compiled.

    Args:
        owner: ``student`` or ``teacher``, for messages.
        network: the student or a teacher.
        layers: names of its layers by kind: ``logits``, ``features``.

    Raises:
        ValueError: there is no such layer.
    """

    def __init__(self, owner: str, network: nn.Module, layers: Mapping[str, str]) -> None:
        self._layers = {kind: (name, f"{owner}_{kind}: {name!r}") for kind, name in layers.items()}
        self._recorded: dict[str, list[Any]] | None = None
        try:
            replace_outputs(network, [*layers.values()], self._record)
        except ValueError as error:
            raise ValueError(f"the {owner}: {error}") from error
        self._modules = {kind: network.get_submodule(name) for kind, name in layers.items()}

    def _record(self, name: str, output: Any) -> Any:
        if self._recorded is not None:
            self._recorded[name].append(output)
        return output

    @contextmanager
    def recording(self, batch_size: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Yield a dictionary that has the outputs by kind after the block: vectors, or tokens (feature maps become
        B x HW x C); of several calls (crops) concatenated.

        Args:
            batch_size: if the first call has this many samples it alone counts: later ones are mirrored images of a
                flip test, which the student does not see.

        Raises:
            ValueError: a layer was not called, or an output is not a tensor.
        """
        outputs: dict[str, Tensor] = {}
        recorded = self._recorded = {name: [] for name, _ in self._layers.values()}
        try:
            yield outputs
        finally:
            self._recorded = None
        for kind, (name, label) in self._layers.items():
            calls = recorded[name]
            if not calls or not all(isinstance(output, Tensor) for output in calls):
                raise ValueError(f"{label} {'gave no tensor' if calls else 'was not called'} in the forward pass")
            is_whole = len(calls) == 1 or (batch_size is not None and len(calls[0]) == batch_size)
            output = calls[0] if is_whole else torch.cat(calls)
            outputs[kind] = output.flatten(2).transpose(1, 2) if output.ndim == 4 else output

    def width(self, kind: str) -> int:
        """Return the width of the vectors of a layer, as it or the last submodule with such an attribute has it.

        Raises:
            ValueError: none has.
        """
        layer = self._modules[kind]
        for module in (layer, *reversed(list(layer.modules()))):
            for name in ("out_channels", "out_features", "num_features", "normalized_shape"):
                value = getattr(module, name, None)
                if value is not None:
                    return int(value[-1] if isinstance(value, Sequence) else value)
        raise ValueError(f"{self._layers[kind][1]}: the width of its features is unknown")
