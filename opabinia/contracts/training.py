"""The task, the step that updates its weights, and the hooks that observe a run.

Task, Run and Hook refer to each other, so they share a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch, DatasetInfo
from opabinia.contracts.evaluation import Evaluator, Predictions
from opabinia.contracts.export import ExportModule
from opabinia.contracts.logging import CheckpointManager, MetricsLog, Scalars
from opabinia.contracts.models import Backbone, FeatureKind, Features
from opabinia.contracts.plans import GlobalBatch, Loader
from opabinia.contracts.presenting import Presenter


@dataclass(frozen=True)
class StepOptions:
    """Numerical options of a training step.

    Attributes:
        seed: of the run; random numbers of the model come from (seed, step, micro-batch, rank).
        precision: of forward passes (autocast); weights and their updates are in full precision.
        micro_batch: samples of one process in one forward pass; larger batches use gradient accumulation. None: no
            limit.
        check_losses: check every loss before it changes the weights, even though that waits for the device.
        skip_non_finite: skip an update whose losses or gradients are not finite; otherwise that is an error.
    """

    seed: int
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    micro_batch: int | None = None
    check_losses: bool = False
    skip_non_finite: bool = False


class Step(Protocol):
    """Turns gradients into an update. It owns the optimizer; one call is one optimizer step.

    A step is built with the task, or with the :class:`ParallelTask` around it. With several processes gradients are
    averaged over them, so each process weights the mean over its samples by ``len(samples) * world /
    global_batch.num_processed(world)``; returned scalars likewise, because the metrics log averages them.

    ``after_backward`` must be called once, when all gradients of the step are there and before they are used. Returned
    scalars stay on the device. The learning rate that was used is in the optimizer's first group.
    """

    optimizer: torch.optim.Optimizer

    def __call__(
        self, batch: Batch, global_batch: GlobalBatch, clock: Clock, after_backward: Callable[[], None]
    ) -> Scalars: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ParallelTask(Protocol):
    """A task that is trained by several processes: called like the task, with gradients averaged over processes.

    Attributes:
        module: the task itself.
        sharded: whether a process holds only a shard of each parameter; then every forward pass needs all processes.
    """

    module: Task
    sharded: bool

    def __call__(self, batch: Batch, clock: Clock) -> Any: ...

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context manager inside which gradients only accumulate; they are all-reduced in the first backward
        pass outside."""


class Stop(NamedTuple):
    """A request to end a run early.

    Attributes:
        reason: for the log.
        final: whether the run counts as done (early stopping), with an evaluation after its last step. Otherwise it can
            be resumed (a signal, a time limit).
    """

    reason: str
    final: bool = False


@dataclass
class Run:
    """The state that hooks may read and use.

    Attributes:
        task: the model being trained, unwrapped.
        metrics_log: receives numbers and writes them.
        folder: the run folder.
        optimizer: of the task; None in an evaluation-only run.
        loader: the training loader; None in an evaluation-only run.
        clock: the progress of the run. In ``before_step`` and ``after_backward`` the step is not counted yet.
        checkpoints: saves and finds checkpoints; None in an evaluation-only run.
        evaluate: evaluates the validation sets whose names the given function accepts, and returns the scores.
        scores: the newest scores by name (``val/top1``).
        stop: set it to end the run after this step, with a checkpoint; the first reason is kept. It is a request until
            all processes have agreed on it at the end of the step or the evaluation; one process alone may set it.
        ends_at: set it to end the run at an earlier step than planned, with schedules that end there. One process alone
            may set it; all have agreed on it at the end of the step. It is saved with the checkpoint.
        models: every model that is evaluated: ``task``, and an average of its weights if there is one.
        batches: reads batches of this process again, on its device: ``batches(name, count)`` gives ``count`` batches,
            over all processes, of ``train`` or a validation set. Empty in an evaluation-only run.
        available_scores: the scores that evaluations of this run compute, and the better direction of each; empty if
            unknown.
        start_time: the start time of this process, in seconds of ``time.monotonic``; a rollback does not reset it.
        autocast: gives the context of forward passes, with the mixed precision of the run.
    """

    task: Task
    metrics_log: MetricsLog
    folder: Path
    optimizer: torch.optim.Optimizer | None = None
    loader: Loader | None = None
    clock: Clock = field(default_factory=Clock)
    checkpoints: CheckpointManager | None = None
    evaluate: Callable[[Callable[[str], bool]], dict[str, float]] = lambda selects: {}
    scores: dict[str, float] = field(default_factory=dict)
    stop: Stop | None = None
    ends_at: int | None = None
    models: Sequence[Task] = ()
    batches: Callable[[str, int], Iterable[Batch]] = lambda name, count: ()
    available_scores: Mapping[str, str] = field(default_factory=dict)
    start_time: float = field(default_factory=time.monotonic)
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext


class Phase(NamedTuple):
    """One training epoch (``kind`` "train") or one evaluation ("evaluate", with the ``name`` of the set)."""

    kind: str
    name: str


class Hook:
    """Observes a run at seven moments. Override the methods that you need::

        start                                  everything is built; a checkpoint, if any, is loaded
        for each phase:
            before_phase                       a training epoch or an evaluation begins
                for each batch of a training phase:
                    before_step
                    after_backward             gradients are computed, not yet used
                    after_step                 the update is done and counted
            after_phase
        finish                                 always, with the outcome: "done", "stopped" or the exception

    Batches are changed by transforms and mix, not by hooks. ``state_dict`` must return JSON-serializable values, which
    are saved under the hook's key in the config; tensors go through ``tensors``.
    """

    def start(self, run: Run) -> None: ...

    def before_phase(self, run: Run, phase: Phase) -> None: ...

    def before_step(self, run: Run, batch: Batch) -> None: ...

    def after_backward(self, run: Run) -> None: ...

    def after_step(self, run: Run) -> None: ...

    def after_phase(self, run: Run, phase: Phase) -> None: ...

    def finish(self, run: Run, how: str | BaseException) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return tensors to save in every checkpoint, in a file named after the hook's key."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors that :meth:`tensors` returned."""


class Task(nn.Module):
    """Define what a batch means: losses, predictions, evaluators. DDP, FSDP and compile wrap this one object.

    A task is an ``nn.Module`` with the methods below, in this order in every built-in task. Its network has two parts:
    a backbone that computes features of the images, and heads that read them::

        forward(batch, clock) = losses(extract(batch), batch, clock)
        predict(batch)        = predictions(extract(batch), batch)

    ``losses`` computes from the features and the labels alone and never calls the backbone, so a multi-task run passes
    the features of one backbone to all of its tasks; ``predictions`` likewise, but for views of test-time augmentation.
    Required are these two; of a task whose features are no function of a batch's images, as in most self-supervised
    methods, ``forward`` and ``predict`` instead. From ``trunk`` on the methods serve inference commands and have
    defaults that fit most tasks; a :class:`Presenter` shows the predictions.

    Attributes:
        reads: features of the images that ``extract`` computes: ``vectors``, ``maps``, ``pyramid``. In a multi-task run
            they are computed once for all tasks that learn from a batch. Empty: it has an ``extract``, or a
            ``forward``, of its own, and shares the weights of the backbone but none of its computation.
        requires_full_batch: losses compare the samples of a batch with each other, so a batch cannot be split into
            micro-batches.
        compares_samples_of_class: losses compare samples of a class with those of others, so a batch must hold both.
        min_samples_per_rank: smallest number of samples per process that a step can train on.
        size_multiple: images of a batch may differ in size; they are padded at the right and bottom to the largest of
            them, rounded up to a multiple of this. None: all images have the same size.
        needs_weights: why a training cannot begin with the weights that the task is built with: it needs a config
            section ``init``. Empty: it can.
        takes_video: samples are videos, of which transforms make clips; the inference commands then take video files.
        predicts_embedding_only: ``predict`` returns the vectors of ``trunk``; heads take part in training only.
        masks_of_files: ``predict`` computes masks of all its queries in the size of the image as it was read, which
            takes much memory for large files.
        next_commands: names of the commands that are suggested after a training, see
            :data:`opabinia.cli.outcome.NEXT_COMMANDS`.
        label_keys: keys of a sample without which it learns nothing from it: ``label``, ``boxes``, ``mask`` ... In
            multi-task training it skips samples that lack one of them; None: samples that lack any label.
    """

    reads: tuple[FeatureKind, ...] = ()
    requires_full_batch: bool = False
    compares_samples_of_class: bool = False
    min_samples_per_rank: int = 1
    size_multiple: int | None = None
    needs_weights: str = ""
    takes_video: bool = False
    predicts_embedding_only: bool = False
    masks_of_files: bool = False
    next_commands: tuple[str, ...] = ("eval", "predict", "report", "export", "extract")
    label_keys: tuple[str, ...] | None = None

    def size_multiple_of(self, name: str) -> int | None:
        """Return the size multiple of the images of a stream or validation set of a multi-task run; by default
        ``size_multiple``.

        Args:
            name: of the stream, or of the task that is evaluated; empty in a run of one task.
        """
        return self.size_multiple

    def stream_of(self, name: str) -> str:
        """Return the stream of training data of the task ``name`` of a multi-task run; empty in a run of one task."""
        return ""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor] | Tensor | Sequence[Tensor]:
        """Return the losses of a batch.

        ``total_loss`` alone is trained if given, otherwise the sum of all values whose key contains ``loss``; other
        values are only logged. A bare tensor is the loss; the tensors of a list are summed.
        """
        return self.losses(self.extract(batch), batch, clock)

    def predict(self, batch: Batch) -> Predictions:
        """Return batched predictions, for evaluators and the predict command."""
        return self.predictions(self.extract(batch), batch)

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return the predictions of an ensemble, like :meth:`predict`. A task that does not define it has no ensembles.

        Args:
            models: models of this task; the first one is this.
            batch: as for :meth:`predict`.
        """
        raise NotImplementedError

    def extract(self, batch: Batch) -> Features:
        """Return the features of a batch's images that ``losses`` and ``predictions`` take: by default those that
        ``reads`` names, of its ``backbone``, after its ``normalize``."""
        backbone, normalize = self.get_submodule("backbone"), self.get_submodule("normalize")
        assert isinstance(backbone, Backbone)
        return backbone.extract(normalize(batch["image"], batch.get("image_sizes")), self.reads)

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor] | Tensor | Sequence[Tensor]:
        """Return the losses of a batch; see :meth:`forward`.

        Args:
            features: of all images of the batch, see :meth:`extract`.
            batch: the labels; its images are read by :meth:`extract`.
            clock: of the run.
        """
        raise NotImplementedError

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return batched predictions; see :meth:`predict`.

        Args:
            features: of all images of the batch, see :meth:`extract`.
            batch: facts about the images, such as their original sizes.
        """
        raise NotImplementedError

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D), the input of the head. Outputs of other layers are captured by module name."""
        raise NotImplementedError

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return new evaluators for one evaluation of a dataset."""
        return []

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the hooks that the method itself needs, such as the update of a momentum teacher."""
        return []

    def attach_teachers(self, load: Callable[[Path], Task]) -> None:
        """Called once before training, also of a resumed run: build frozen teachers, which nothing else needs.

        Args:
            load: returns the trained task of a run folder.
        """

    def weights_loaded(self, names: Collection[str]) -> None:
        """Called after pretrained weights have been loaded into the tensors ``names``: re-synchronize tensors that
        started as copies of them (EMA or momentum teachers)."""

    @property
    def trunk(self) -> nn.Module | None:
        """The network whose vectors are evaluated, extracted and handed to other runs; by default ``backbone``."""
        return self._modules.get("trunk") or self._modules.get("backbone")

    def presenter(self) -> Presenter | None:
        """Return how commands show the predictions; None: by the keys of the predictions, see
        :func:`opabinia.visualization.presenters.by_keys.presenter_of`."""
        return None

    def explain(self, batch: Batch) -> Tensor | None:
        """Return a heatmap (B x H x W, 0 to 1) of the evidence for each prediction; None (the default): Grad-CAM."""
        return None

    def export_module(self) -> ExportModule:
        """Return the function of tensors that is exported; by default ``predict`` of images or clips of one size."""
        return ExportModule(self, dims=5 if self.takes_video else 4)


def total_loss(losses: Mapping[str, Tensor] | Tensor | Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Return the loss to backpropagate, and all values to log by name (the rule of basecls).

    A tensor is the loss; a list is summed. In a dictionary, ``total_loss`` alone is trained if it is present, else the
    sum of every key that contains "loss"; the rest is only logged. The trained value is logged as ``loss``, or as
    ``total_loss`` if one of several terms has that name.

    Raises:
        ValueError: a dictionary without a loss, or an empty list.

    Example: ``{"loss_a": 2, "aux": 10}`` trains 2; ``{"total_loss": 1, "x_loss": 5}`` trains 1.
    """
    if isinstance(losses, Tensor):
        return losses, {"loss": losses}
    if type(losses) is not dict and not isinstance(losses, Mapping):
        losses = {f"loss_{number}": loss for number, loss in enumerate(losses)}
    terms = [losses["total_loss"]] if "total_loss" in losses else [v for k, v in losses.items() if "loss" in k]
    if not terms:
        raise ValueError(f"the task returned no loss: no key of {sorted(losses)} contains 'loss'")
    total = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
    return total, {**losses, "total_loss" if "loss" in losses and len(terms) > 1 else "loss": total}
