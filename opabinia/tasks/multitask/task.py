"""Several tasks on one backbone, each with datasets of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Backbone,
    BackbonePart,
    BalancePart,
    Batch,
    Clock,
    DataMismatch,
    DatasetInfo,
    Evaluator,
    ExportModule,
    Features,
    Hook,
    Positive,
    Predictions,
    Task,
    select_features,
    total_loss,
)
from opabinia.models.backbones.module import build_backbone
from opabinia.models.backbones.shared import shared
from opabinia.models.layers import build_normalization
from opabinia.models.losses.balance import FixedWeights
from opabinia.models.norms import CurrentStream, convert_stream_batch_norm
from opabinia.runtime.collectives import counted_samples
from opabinia.runtime.device import move_tensor
from opabinia.tasks.multitask.export import MultitaskExport
from opabinia.tasks.multitask.idle import IdleParameters
from opabinia.tasks.multitask.partial_labels import (
    batch_share,
    labeled_samples,
    select_samples,
    stream_factors,
    use_first_view,
)
from opabinia.tasks.multitask.presenter import MultitaskPresenter
from opabinia.tasks.multitask.settings import Subtask
from opabinia.visualization.presenters.by_keys import presenter_of


@register.task(name="multitask")
class Multitask(Task):
    """Several tasks on one backbone: classification, detection, segmentation, re-identification, self-supervision.

    Each task is an ordinary one. All have the same backbone as a module: its weights are saved once, and its features
    are computed once for the tasks that read them. Images with labels for some tasks only are streams of their own: an
    image is read by the tasks of its stream, and the losses of each are means over its samples of the global batch.

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
        net.is_shared = True
        self.backbone, self._stream = net, CurrentStream("")
        self.backbone_paths: list[str] = []
        self.register_state_dict_post_hook(_save_backbone_once)  # type: ignore[no-untyped-call]
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
        kinds = {kind for task in self._tasks() for kind in task.reads or ("vectors",)}
        if kinds == {"pyramid"}:
            net.drop_vector_layers()
        elif "pyramid" in kinds and type(net).all_features is Backbone.all_features:
            raise ValueError(f"{type(net).__name__} cannot be shared by tasks that read feature maps; use timm")
        streams = list(dict.fromkeys(self._stream_of.values()))
        has_batch_norms = any(isinstance(module, _BatchNorm) for module in net.modules())
        self._norms = norms if has_batch_norms and len(streams) > 1 else "shared"
        if self._norms == "stream":
            convert_stream_batch_norm(net, streams, self._stream)
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
        task: Task = _on_backbone(settings.task, self.backbone)(streams[stream])
        modules = task.named_modules(remove_duplicate=False)
        paths = [f"tasks.{name}.{path}." for path, module in modules if module is self.backbone]
        if not paths:
            raise ValueError(f"tasks.{name}: it has a backbone of its own; its backbone must be `shared`")
        self.backbone_paths += paths
        task.normalize = self.normalize
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
        selected.backbone_paths = [path for path in self.backbone_paths if path.split(".")[1] in names]
        streams = {self._stream_of[name] for name in names}  # padded as in training, where other tasks read them, too
        selected.size_multiple = self._common_multiple(name for stream in streams for name in self._tasks_of(stream))
        return selected

    def single_task(self, name: str) -> Task:
        """Return a task as a run of it alone has it: with the padding of its stream, and the backbone has from now on
        the batch norm statistics of its stream. Its weights are those of this model."""
        self.use_stream(self._stream_of[name])
        task: Task = copy.copy(self.tasks[name])
        task.size_multiple = self.size_multiple_of(name)
        return task

    def use_stream(self, stream: str) -> None:
        """Let the backbone normalize with the batch norm statistics of a stream from now on."""
        self._stream.name = stream

    def extract_for(self, names: Iterable[str], batch: Batch, stream: str) -> Features:
        """Return the features of a batch's images that some of the tasks read, from one forward pass. The backbone has
        from now on the batch norm statistics of the stream.

        Args:
            names: of the tasks.
            batch: of images; tasks that read none need no ``image``.
            stream: whose batch norm statistics are used.
        """
        self.use_stream(stream)
        kinds = {name: self.tasks[name].reads for name in names if self.tasks[name].reads}
        if not kinds:
            return {}
        with _errors_of(next(iter(kinds))):
            images = self.normalize(batch["image"], batch.get("image_sizes"))
            return self.backbone.extract(images, set().union(*kinds.values()))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``total_loss``, and the values of each task as ``<task>/<name>``. Tasks of weight 0 are skipped."""
        values: dict[str, Any] = {}
        losses: dict[str, Tensor] = {}
        factors = stream_factors(batch)
        weights = {name: task.weight * task.weight_schedule(clock) for name, task in self._settings.items()}
        for stream, samples in batch["streams"].items():
            names = [name for name in self._tasks_of(stream) if weights[name]]
            # A stream with too few samples repeats one, which counts 0.
            with counted_samples(batch.get("counts", {}).get(stream) != 0):
                features = self.extract_for(names, samples, stream)
                for name in names:
                    with _errors_of(name):
                        loss, logged, fraction = self._loss_of_labeled(name, features, samples, clock)
                    factor = factors[stream] * fraction
                    losses[name] = loss * factor
                    for key, value in logged.items():
                        values[f"{name}/{key}"] = value if factor == 1 else value * factor
        balanced = self.balance(losses, batch_share(batch), self._last_shared, clock)
        values |= {f"{name}/weight": weight for name, weight in self.balance.weights().items()}
        terms = [loss * weights[name] for name, loss in balanced.items()]
        total = torch.stack(terms).sum() if terms else torch.zeros((), device=self.normalize.mean.device)
        return {**values, "total_loss": self.idle(total, tuple(losses))}

    def _losses(self, name: str, features: Features, batch: Batch, clock: Clock) -> Any:
        task = self.tasks[name]
        return task.losses(features, batch, clock) if task.reads else task(batch, clock)

    def _loss_of_labeled(
        self, name: str, features: Features, batch: Batch, clock: Clock
    ) -> tuple[Tensor, Mapping[str, Any], float]:
        """Return the loss and the logged values of the samples that have the labels of a task, and their fraction.

        Raises:
            DataMismatch: the task cannot learn from partly labeled samples.
        """
        task = self.tasks[name]
        count, least = len(batch["id"]), task.min_samples_per_rank
        rows = labeled_samples(batch, task.label_keys)
        if rows is None:
            return *total_loss(self._losses(name, features, batch, clock)), 1.0
        if task.requires_full_batch:
            raise DataMismatch("its losses compare samples with each other; all of them need its labels")
        # Without a labeled sample another one counts 0: losses may communicate between processes. Too few are repeated.
        chosen = rows or [0]
        chosen = chosen * -(-least // len(chosen)) if len(chosen) < least else chosen
        index = move_tensor(torch.tensor(chosen), self.normalize.mean.device)
        selected = select_features(features, index)
        samples = select_samples(batch, chosen, index)
        with counted_samples(len(rows) / len(chosen)):
            return *total_loss(self._losses(name, selected, samples, clock)), len(rows) / count

    def _layers_of_all_tasks(self) -> list[str]:
        """Return the layers of the backbone with weights, without those that only some tasks need."""
        net = self.backbone
        if any("pyramid" in task.reads for task in self._tasks()):
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
            name = batch["task"]
            self.use_stream(self._stream_of[name])
            with _errors_of(name):
                prediction: Predictions = self.tasks[name].predict(batch)
            return prediction
        if "streams" in batch:  # training batches, to measure batch norm statistics or FLOPs
            streams = {stream: use_first_view(samples) for stream, samples in batch["streams"].items()}
            return self._predict([(self._tasks_of(stream), stream, samples) for stream, samples in streams.items()])
        return self._predict([(names, stream, batch) for stream, names in self.joint_tasks()])

    def _predict(self, parts: Sequence[tuple[Sequence[str], str, Batch]]) -> dict[str, Tensor]:
        """Return the predictions of tasks, each group from one forward pass over the batch of a stream."""
        predictions: dict[str, Tensor] = {}
        for names, stream, batch in parts:
            features = self.extract_for(names, batch, stream)
            for name in names:
                task = self.tasks[name]
                with _errors_of(name):
                    values = task.predictions(features, batch) if task.reads else task.predict(batch)
                predictions |= {f"{name}/{key}": value for key, value in values.items()}
        return predictions

    def _tasks_of(self, stream: str) -> list[str]:
        return [name for name, read in self._stream_of.items() if read == stream]

    def joint_tasks(self) -> list[tuple[str, list[str]]]:
        """Return the tasks that read an image from one forward pass, all, or with norms per stream those of each; and
        the stream."""
        of_stream: dict[str, list[str]] = {}
        for name in self.tasks:
            of_stream.setdefault(self._stream_of[name], []).append(name)
        return [(next(iter(of_stream)), list(self.tasks))] if self._norms == "shared" else list(of_stream.items())

    def presenter(self) -> MultitaskPresenter:
        """Show the predictions of each task as its own presenter does."""
        infos = {name: self.dataset_info.streams[stream] for name, stream in self._stream_of.items()}
        presenters = {name: partial(presenter_of, task, infos[name]) for name, task in self.tasks.items()}
        return MultitaskPresenter(self.dataset_info, presenters)

    def export_module(self) -> ExportModule:
        """Return the predictions of all tasks; see :class:`opabinia.tasks.multitask.export.MultitaskExport`."""
        return MultitaskExport(self)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D), the vectors of the backbone."""
        self.use_stream(next(iter(self._stream_of.values())))
        return {"embedding": self.backbone(self.normalize(batch["image"], batch.get("image_sizes")))}

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
        hooks: list[Hook] = []
        for name, task in self.tasks.items():
            hooks += task.hooks(dataset_info.streams[self._stream_of[name]])
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
            heads = [loaded.removeprefix(prefix) for loaded in names if loaded.startswith(prefix)]
            if heads or shared:
                task.weights_loaded([*shared, *heads])

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Add the backbone under the names that it has in each task to a state dict that is loaded."""
        weights = {name: state[name] for name in state if name.startswith(f"{prefix}backbone.")}
        for path in self.backbone_paths:
            state.update({prefix + path + name.removeprefix(f"{prefix}backbone."): weights[name] for name in weights})
        super()._load_from_state_dict(state, prefix, *arguments)

    def extra_repr(self) -> str:
        """Return the weights of the tasks, so that the log shows them with the model."""
        return "\n".join(f"({name}): weight {settings.weight:g}" for name, settings in self._settings.items())

    def __repr__(self) -> str:
        """Describe the modules, the backbone once."""
        text, backbone = super().__repr__(), repr(self.backbone)
        for path in self.backbone_paths:
            text = text.replace(backbone.replace("\n", "\n" + "  " * path.count(".")), "the backbone of all tasks")
        return text


def _on_backbone(part: Callable[..., Any], net: Backbone) -> Callable[..., Any]:
    """Return a part with ``net`` in place of the backbone ``shared``, its own or that of its backbone."""
    if getattr(part, "func", getattr(part, "target", part)) is shared:
        return lambda channels: net
    inner = getattr(part, "keywords", {}).get("backbone")
    return part if inner is None else partial(part, backbone=_on_backbone(inner, net))


def _save_backbone_once(model: Multitask, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Remove the backbone under the names that it has in each task from a state dict, which has it under its own."""
    for name in [name for name in state if name.startswith(tuple(prefix + path for path in model.backbone_paths))]:
        del state[name]


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Name the task in its errors about data."""
    try:
        yield
    except DataMismatch as error:
        raise DataMismatch(f"task.tasks.{name}: {error}") from error
