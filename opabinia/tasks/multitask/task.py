"""Several tasks on one backbone, each with datasets of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import lcm
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import MinLen
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    BalancePart,
    Batch,
    Clock,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    ExportModule,
    Hook,
    Positive,
    Predictions,
    Task,
    total_loss,
)
from opabinia.models.backbones.module import build_backbone
from opabinia.models.backbones.shared import SharedBackbone, SharedNetwork, SharedNormalize, select_rows, sharing
from opabinia.models.layers import build_normalization
from opabinia.models.losses.balance import FixedWeights
from opabinia.models.norms import convert_stream_batch_norm
from opabinia.runtime.collectives import counted_samples
from opabinia.runtime.processes import world_size
from opabinia.tasks.multitask.export import MultitaskExport
from opabinia.tasks.multitask.idle import IdleParameters
from opabinia.tasks.multitask.presenter import MultitaskPresenter
from opabinia.tasks.multitask.settings import Subtask
from opabinia.tasks.multitask.single import SingleTask
from opabinia.visualization.presenters.by_keys import presenter_of


@register.task(name="multitask")
class Multitask(Task):
    """Several tasks on one backbone: classification, detection, segmentation, re-identification, self-supervision.

    Each task is an ordinary one that reads the shared backbone. Images with labels for some tasks only are streams of
    their own: an image is read by the tasks of its stream, and the losses of each are means over its samples of the
    global batch.

    Args:
        backbone: shared by all tasks.
        tasks: by name; metrics of a task begin with it: ``boxes/loss``, ``boxes/val/AP``.
        balance: weighs the losses of the tasks against each other.
        alternate: false: each batch has images of every stream; true: of one stream, and streams take turns in the
            proportion of their shares.
        temperature: of shares by size: in proportion to ``samples ** (1 / temperature)``, see
            :func:`opabinia.data.streams.order.stream_shares`.
        norms: ``stream``: batch norms of the backbone have running statistics for each stream, since datasets differ in
            theirs; all tasks' predictions for an image then take a forward pass for each stream. ``shared``: one set,
            and one forward pass; for backbones without batch norms, and streams of similar images.
        mean: channel means of images in 0..1, for all tasks; null: see
            :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: there is no training data for a task, a task refuses its data or the backbone, or has a backbone of
            its own.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        tasks: Annotated[dict[str, Subtask], MinLen(1)],
        balance: BalancePart = FixedWeights,
        alternate: bool = False,
        temperature: Positive = 1.0,
        norms: Literal["stream", "shared"] = "stream",
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__()
        self.dataset_info, self._settings = dataset_info, tasks
        net = build_backbone(backbone, dataset_info.channels)
        self.normalize = build_normalization(net.preprocessing, dataset_info.channels, mean, std)
        self.backbone = net  # before the tasks: a copy of this module copies it first
        self._network = SharedNetwork(net, self.normalize)
        self._stream_of = {name: settings.stream or name for name, settings in tasks.items()}
        if unread := dataset_info.streams.keys() - self._stream_of.values():
            raise ValueError(f"no task learns from the training data of {min(unread)}; omit it")
        self.tasks: Any = nn.ModuleDict()
        for name, settings in tasks.items():
            if not name.replace("-", "_").isidentifier() or hasattr(self.tasks, name):
                message = "cannot name a task: take letters, digits, _ or -, and no attribute of torch.nn.Module"
                raise ValueError(f"tasks: {name!r} {message}")
            self.tasks[name] = self._build(name, settings)
        self._shared_layers = self._layers_of_all_tasks()
        if all(user.multi_scale for user in self._network.users):
            net.drop_vector_layers()
        streams = list(dict.fromkeys(self._stream_of.values()))
        has_batch_norms = any(isinstance(module, _BatchNorm) for module in net.modules())
        self._norms = norms if has_batch_norms and len(streams) > 1 else "shared"
        if self._norms == "stream":
            convert_stream_batch_norm(net, streams, self._network.stream)
        self.balance = balance(list(tasks))
        self.idle = IdleParameters(self)
        self.requires_full_batch = any(task.requires_full_batch for task in self._tasks())
        self._size_multiples = {name: task.size_multiple for name, task in zip(tasks, self._tasks(), strict=True)}
        self.size_multiple = self._common_multiple(tasks)
        self.needs_weights = next((task.needs_weights for task in self._tasks() if task.needs_weights), "")

    def _build(self, name: str, settings: Subtask) -> Task:
        stream = self._stream_of[name]
        streams = self.dataset_info.streams
        if stream not in streams:
            known = ", ".join(streams) or "none"
            raise ValueError(f"tasks.{name}: there is no training data for it: no stream {stream!r} (streams: {known})")
        with sharing(self._network):
            task = settings.task(streams[stream])
        views = [
            (module, child)
            for module in task.modules()
            for child, view in module.named_children()
            if isinstance(view, SharedBackbone)
        ]
        if not views:
            raise ValueError(f"tasks.{name}: it has a backbone of its own; its backbone must be `shared`")
        for module, child in views:  # attributes, not children: the weights belong to this module
            object.__setattr__(module, child, module._modules.pop(child))
        task.normalize = SharedNormalize(self._network)
        return task

    def _tasks(self) -> list[Task]:
        return [task for task in self.tasks.values() if isinstance(task, Task)]

    def size_multiple_of(self, name: str) -> int | None:
        """Return the size multiple of the images of a stream, also in the evaluation of its tasks."""
        if not name:
            return self.size_multiple
        stream = self._stream_of.get(name, name)
        return self._common_multiple(self._tasks_of(stream))

    def _common_multiple(self, names: Iterable[str]) -> int | None:
        multiples = [multiple for name in names if (multiple := self._size_multiples[name]) is not None]
        return lcm(*multiples) if multiples else None

    def stream_of(self, name: str) -> str:
        """Return the stream of training data of a task.

        Raises:
            ValueError: there is no task of this name.
        """
        if name not in self._stream_of:
            raise ValueError(f"task: there is no task {name!r}; tasks: {', '.join(self._stream_of)}")
        return self._stream_of[name]

    def predicting_tasks(self) -> list[str]:
        """Return the tasks that predict something for an image: all but self-supervision, and those of videos."""
        names = [task.predicts_embedding_only or task.takes_video for task in self._tasks()]
        return [name for name, excluded in zip(self.tasks, names, strict=True) if not excluded] or list(self.tasks)

    def select(self, names: Sequence[str]) -> Multitask:
        """Return this model with these tasks only."""
        selected = copy.copy(self)
        selected._modules = {**self._modules, "tasks": nn.ModuleDict({name: self.tasks[name] for name in names})}
        streams = {self._stream_of[name] for name in names}  # padded as in training, where other tasks read them, too
        selected.size_multiple = self._common_multiple(name for own in streams for name in self._tasks_of(own))
        return selected

    def single_task(self, name: str) -> Task:
        """Return a task as a run of it alone has it, with the backbone among its modules, which from now on has the
        batch norm statistics of its stream. It reads batches like the task of this model."""
        task = SingleTask.of(self.tasks[name], self._network, self._stream_of[name])
        task.size_multiple = self.size_multiple_of(name)
        return task

    def reading(self, batch: Batch, stream: str) -> AbstractContextManager[None]:
        """Return the context in which all tasks read features of this batch from one forward pass."""
        return self._network.reading(stream, batch.get("image"), batch.get("image_sizes"))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``total_loss``, and the values of each task as ``<task>/<name>``. Tasks of weight 0 are skipped."""
        values: dict[str, Any] = {}
        losses: dict[str, Tensor] = {}
        factors = stream_factors(batch)
        weights = {name: own.weight * own.weight_schedule(clock) for name, own in self._settings.items()}
        for stream, own in batch["streams"].items():
            # A stream with too few samples repeats one, which counts 0.
            with self.reading(own, stream), counted_samples(batch.get("counts", {}).get(stream) != 0):
                for name in (name for name in self._tasks_of(stream) if weights[name]):
                    with _errors_of(name):
                        loss, logged, share = self._loss_of_labeled(self.tasks[name], own, clock)
                    factor = factors[stream] * share
                    losses[name] = loss * factor
                    for key, value in logged.items():
                        values[f"{name}/{key}"] = value if factor == 1 else value * factor
        balanced = self.balance(losses, batch_share(batch), self._last_shared, clock)
        values |= {f"{name}/weight": weight for name, weight in self.balance.weights().items()}
        terms = [loss * weights[name] for name, loss in balanced.items()]
        total = torch.stack(terms).sum() if terms else torch.zeros((), device=self.normalize.mean.device)
        return {**values, "total_loss": self.idle(total, tuple(losses))}

    def _loss_of_labeled(self, task: Task, batch: Batch, clock: Clock) -> tuple[Tensor, Mapping[str, Any], float]:
        """Return the loss and the logged values of the samples that have the labels of a task, and their share.

        Raises:
            DataMismatch: the task cannot learn from partly labeled samples.
        """
        count, least = len(batch["id"]), task.min_samples_per_rank
        rows = _labeled_rows(batch, task.label_keys)
        if rows is None:
            return *total_loss(task(batch, clock)), 1.0
        if task.requires_full_batch:
            raise DataMismatch("its losses compare samples with each other; all of them need its labels")
        # Without a labeled sample another one counts 0: losses may communicate between processes. Too few are repeated.
        chosen = rows or [0]
        chosen = chosen * -(-least // len(chosen)) if len(chosen) < least else chosen
        labeled = _take(batch, chosen)
        with self._network.selecting(labeled.get("image"), chosen), counted_samples(len(rows) / len(chosen)):
            return *total_loss(task(labeled, clock)), len(rows) / count

    def _layers_of_all_tasks(self) -> list[str]:
        """Return the layers of the backbone with weights, without those that only some tasks need."""
        net = self.backbone
        if any(user.multi_scale for user in self._network.users):
            net = copy.deepcopy(net, {id(param): param for param in net.parameters()})
            net.drop_vector_layers()
        return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in net.named_parameters()))

    def _last_shared(self) -> list[nn.Parameter]:
        """Return the trainable weights of the last layer that all tasks share."""
        for layer in map(self.backbone.get_submodule, reversed(self._shared_layers)):
            params = [param for param in layer.parameters(recurse=False) if param.requires_grad and param.ndim > 1]
            if params:
                return params
        return []

    def predict(self, batch: Batch) -> Predictions:
        """Return the predictions of one task, if the batch says which (``task``), or of all as ``<task>/<name>``."""
        if "task" in batch:
            with self.reading(batch, self._stream_of[batch["task"]]), _errors_of(batch["task"]):
                own: Predictions = self.tasks[batch["task"]].predict(batch)
                return own
        if "streams" in batch:  # training batches, to measure batch norm statistics or FLOPs
            streams = {stream: _with_images(own) for stream, own in batch["streams"].items()}
            return self._predict([(self._tasks_of(stream), stream, own) for stream, own in streams.items()])
        return self._predict([(names, stream, batch) for stream, names in self.joint_tasks()])

    def _predict(self, parts: Sequence[tuple[Sequence[str], str, Batch]]) -> dict[str, Tensor]:
        """Return the predictions of tasks, each group from one forward pass over the batch of a stream."""
        predictions: dict[str, Tensor] = {}
        for names, stream, batch in parts:
            with self.reading(batch, stream):
                for name in names:
                    with _errors_of(name):
                        own = self.tasks[name].predict(batch)
                    predictions |= {f"{name}/{key}": value for key, value in own.items()}
        return predictions

    def _tasks_of(self, stream: str) -> list[str]:
        return [name for name, own in self._stream_of.items() if own == stream]

    def joint_tasks(self) -> list[tuple[str, list[str]]]:
        """Return the tasks that read an image from one forward pass, all, or with norms per stream those of each; and
        the stream."""
        of_stream: dict[str, list[str]] = {}
        for name in self.tasks:
            of_stream.setdefault(self._stream_of[name], []).append(name)
        return [(next(iter(of_stream)), list(self.tasks))] if self._norms == "shared" else list(of_stream.items())

    def presenter(self) -> MultitaskPresenter:
        """Show the predictions of each task as its own presenter does."""
        infos = self.dataset_info.streams
        own = {name: partial(presenter_of, task, infos[self._stream_of[name]]) for name, task in self.tasks.items()}
        return MultitaskPresenter(self.dataset_info, own)

    def export_module(self) -> ExportModule:
        """Return the predictions of all tasks; see :class:`opabinia.tasks.multitask.export.MultitaskExport`."""
        return MultitaskExport(self)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D), the vectors of the backbone."""
        with self.reading(batch, next(iter(self._stream_of.values()))):
            images = self._network.normalized(batch["image"], batch.get("image_sizes"))
            return {"embedding": self._network.vectors(images)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the evaluators of the task that the dataset is for.

        Raises:
            ValueError: the dataset does not say for which task it is, or the task refuses it.
        """
        if dataset_info.task not in self.tasks:
            known = ", ".join(self.tasks)
            raise ValueError(f"task: it is for no task of this run ({dataset_info.task or 'null'}); tasks: {known}")
        evaluators: list[Evaluator] = self.tasks[dataset_info.task].evaluators(dataset_info)
        return evaluators

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hooks of all tasks and of the balance."""
        infos = dataset_info.streams
        hooks = [hook for name, task in self.tasks.items() for hook in task.hooks(infos[self._stream_of[name]])]
        return [*hooks, *self.balance.hooks(), self.idle]

    def attach_teachers(self, load: Callable[[Path], Task]) -> None:
        """See :meth:`opabinia.contracts.Task.attach_teachers`."""
        for task in self._tasks():
            task.attach_teachers(load)

    def weights_loaded(self, names: Collection[str]) -> None:
        """See :meth:`opabinia.contracts.Task.weights_loaded`; the backbone's are those of every task."""
        shared = [name for name in names if name.startswith("backbone.")]
        for name, task in self.tasks.items():
            prefix = f"tasks.{name}."
            own = [loaded.removeprefix(prefix) for loaded in names if loaded.startswith(prefix)]
            if own or shared:
                task.weights_loaded([*shared, *own])

    def extra_repr(self) -> str:
        """Return the weights of the tasks, so that the log shows them with the model."""
        return "\n".join(f"({name}): weight {settings.weight:g}" for name, settings in self._settings.items())


def _labeled_rows(batch: Batch, keys: tuple[str, ...] | None) -> list[int] | None:
    """Return the positions of the samples that lack none of these labels, or no label at all; None: all of them."""
    lacking = [set(text.split()) for text in batch.get("missing", ())]
    rows = [row for row, missing in enumerate(lacking) if not (missing if keys is None else missing & set(keys))]
    return None if len(rows) == len(lacking) else rows


def _take(batch: Batch, rows: list[int]) -> Batch:
    """Return some samples of a batch."""

    def column(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(column(view) for view in value)
        return select_rows(value, rows) if isinstance(value, Tensor) else [value[row] for row in rows]

    return {key: column(value) if isinstance(value, Tensor | list | tuple) else value for key, value in batch.items()}


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Name the task in its errors about data."""
    try:
        yield
    except DataMismatch as error:
        raise DataMismatch(f"task.tasks.{name}: {error}") from error


def stream_factors(batch: Batch) -> dict[str, float]:
    """Return the factor of each stream's mean loss with which a micro-batch, weighted by its share of all samples,
    contributes to the mean over the stream's samples in the global batch.

    Args:
        batch: see :data:`opabinia.contracts.Batch`.
    """
    counts = batch.get("counts") or {name: len(own["id"]) for name, own in batch["streams"].items()}
    total = sum(counts.values())
    if not total:  # only repeated samples, which count 0
        return dict.fromkeys(counts, 1.0)
    world = world_size()
    processed = batch["row"].num_processed(world)
    return {
        name: count / batch["rows"][name].num_processed(world) * processed / total for name, count in counts.items()
    }


def batch_share(batch: Batch) -> float:
    """Return the samples of a micro-batch relative to those of an average process in the whole step, the weight of its
    losses in :class:`opabinia.engine.loop.step.StandardStep`.

    Args:
        batch: see :data:`opabinia.contracts.Batch`.
    """
    counts = batch.get("counts") or {name: len(own["id"]) for name, own in batch["streams"].items()}
    return float(sum(counts.values()) * world_size() / batch["row"].num_processed(world_size()))


def _with_images(batch: Batch) -> Batch:
    """Return a training batch in the form of an evaluation batch: the first of several views is the image."""
    return {**batch, "image": batch["views"][0]} if "views" in batch and "image" not in batch else batch
