"""The task, the step that updates its weights, and the hooks that observe a run.

Task, Run and Hook refer to each other, so they share a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from opabinia.contracts.clock import Clock
from opabinia.contracts.data import Batch, DatasetInfo, Sample, label_names
from opabinia.contracts.drawing import Comparison, DrawOptions, Panel
from opabinia.contracts.evaluation import EMBEDDING, Evaluator, Predictions
from opabinia.contracts.export import ExportModule
from opabinia.contracts.models import Backbone, FeatureKind, Features
from opabinia.contracts.plans import GlobalBatch, Loader
from opabinia.runtime.files import disk_errors

Scalars = Mapping[str, Tensor | float]
"""Named numbers. 0-d tensors stay on the device until the metrics log writes them."""


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
    row.num_processed(world)``; returned scalars likewise, because the metrics log averages them over processes.

    ``after_backward`` must be called once, when all gradients of the step are there and before they are used. Returned
    scalars stay on the device. The learning rate that was used is in the optimizer's first group.
    """

    optimizer: torch.optim.Optimizer

    def __call__(self, batch: Batch, row: GlobalBatch, clock: Clock, after_backward: Callable[[], None]) -> Scalars: ...

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


class MetricsLog(Protocol):
    """The metrics log of a run, ``metrics.jsonl``: one JSON object per line, each value once, in the order of steps.

    :class:`opabinia.engine.loggers.metrics_log.MetricsLogger` is the one that a training run has.

    Attributes:
        newest: the last line written: values by name, such as ``{"step": 100, "train/loss": 0.3}``; None before the
            first.
    """

    newest: dict[str, Any] | None

    def add(self, step: int, values: Mapping[str, Tensor | float], ids: Sequence[Any] = ()) -> None:
        """Add the values of one step. Tensors stay on their device until a line is due.

        Args:
            step: optimizer steps done, this one included.
            values: by name.
            ids: ids of the samples of the step.
        """

    def host_values(self) -> dict[str, float]:
        """Return the pending values of the newest step that are in memory of the host; nothing waits for a device."""

    def flush(self, clock: Clock, extra: Mapping[str, Any] | None = None) -> None:
        """Write the pending values as one line.

        Raises:
            NonFiniteError: one of them is infinite or not a number.
        """

    def write(self, clock: Clock, values: Mapping[str, Any]) -> None:
        """Write a separate line, such as the scores of an evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """Return the byte offset of the file and the pending values, as saved in a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncate the file to the saved offset and restore the pending values."""

    def close(self) -> None:
        """Write what is pending and close the file and the loggers."""


class CheckpointManager(Protocol):
    """Saves the checkpoints of a run and knows which is the best.

    :class:`opabinia.engine.checkpointing.manager.CheckpointManager` is the one that a training run has.
    """

    def save(self) -> Path:
        """Save the current state of the run and return the folder of the checkpoint."""

    def has(self, step: int) -> bool:
        """Return whether there is a checkpoint of this step."""

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of this step as the best one."""

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint; None without one."""

    def forget_best(self) -> None:
        """Discard the mark of :meth:`mark_best`."""

    def point_to_best(self, step: int) -> None:
        """Write the pointer file ``best``."""

    def check(self) -> None:
        """Raise the error of a save that failed in the background."""


class Stop(NamedTuple):
    """A request to end a run early.

    Attributes:
        reason: for the log.
        final: whether the run counts as done (early stopping). Otherwise it can be resumed (a signal, a time limit).
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
        stop: set it to end the run after this step, with a checkpoint; the first reason is kept. With several processes
            it is a request until all have agreed on it at the end of the step or the evaluation; one process alone may
            set it.
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


class Logger(Protocol):
    """Writes each line of the metrics log somewhere: terminal, TensorBoard. Built with the run folder and the clock at
    the start (step 0 of a new run, a later one after a resume)."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class NextCommand(NamedTuple):
    """A command worth trying with a finished run.

    Attributes:
        words: the command line, such as ``["opabinia", "report", "runs/a"]``.
        purpose: what it is for, in a few words.
        needs: the data that the run must have: ``validation`` or ``labels``; empty: none.
    """

    words: Sequence[str]
    purpose: str
    needs: Literal["", "validation", "labels"] = ""


class Task(nn.Module):
    """Define what a batch means: losses, predictions, evaluators. DDP, FSDP and compile wrap this one object.

    A task is an ``nn.Module`` with the methods below, in this order in every built-in task. Its network has two parts:
    a backbone that computes features of the images, and heads that read them::

        forward(batch, clock) = losses(extract(batch), batch, clock)
        predict(batch)        = predictions(extract(batch), batch)

    ``losses`` and ``predictions`` compute from the features alone and never call the backbone, so a multi-task run
    passes the features of one backbone to all of its tasks. Required are these two; of a task whose features are no
    function of a batch's images, as in most self-supervised methods, ``forward`` and ``predict`` instead. From
    ``trunk`` on the methods serve inference commands and have defaults that fit most tasks.

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
        drawings_folder: name of the folder of drawn predictions, see :meth:`save_drawing`.
        predicts_embedding_only: ``predict`` returns the vectors of ``trunk``; heads take part in training only.
        label_keys: keys of a sample without which it learns nothing from it: ``label``, ``boxes``, ``mask`` ... In
            multi-task training it skips samples that lack one of them; None: samples that lack any label.
    """

    reads: Collection[FeatureKind] = ()
    requires_full_batch: bool = False
    compares_samples_of_class: bool = False
    min_samples_per_rank: int = 1
    size_multiple: int | None = None
    needs_weights: str = ""
    takes_video: bool = False
    drawings_folder: str = "images"
    predicts_embedding_only: bool = False
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

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the prediction of one sample (a row of each tensor) as JSON values: class names, not class numbers.

        The default is the ``embedding`` alone, rounded to six digits, or all tensors if there is none.
        """
        if EMBEDDING in prediction:
            return {EMBEDDING: [round(value, 6) for value in prediction[EMBEDDING].tolist()]}
        return {name: value.tolist() for name, value in prediction.items()}

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

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return short lines that describe a readable prediction; by default its values by name.

        Args:
            readable: see :meth:`readable`.
            min_score: detections with a lower score are ignored.
        """
        lines = []
        for name, value in readable.items():
            is_long = isinstance(value, list) and len(value) > 5
            lines.append(f"{name}: {f'{len(value)} values' if is_long else value}")
        return lines

    def ground_truth_caption(self, sample: Sample, classes: Sequence[str]) -> list[str]:
        """Return short lines that describe the ground truth of a sample; by default its class, classes or value.

        Args:
            sample: as the source gives it, before transforms.
            classes: class names of the source.
        """
        return label_names(sample, classes)

    def draw(
        self, sample: Sample, prediction: Mapping[str, Tensor], options: DrawOptions = DrawOptions()
    ) -> Image.Image | None:
        """Return the image with the prediction drawn on it; None (the default): the caption says all.

        Args:
            sample: as it was read, before transforms: ``image`` (uint8, C x H x W); of a video ``video`` and
                ``frames``, the numbers of the frames in each view.
            prediction: a row of each tensor, on the CPU.
            options: see :class:`DrawOptions`.
        """
        return None

    def draw_ground_truth(
        self, sample: Sample, classes: Sequence[str], options: DrawOptions = DrawOptions()
    ) -> Image.Image | None:
        """Return the image with the ground truth of a sample drawn on it; None (the default): there is nothing to draw.

        Args:
            sample: as the source gives it, before transforms.
            classes: class names of the source.
            options: see :class:`DrawOptions`.
        """
        return None

    def compare(
        self,
        sample: Sample,
        prediction: Mapping[str, Tensor],
        classes: Sequence[str],
        options: DrawOptions = DrawOptions(),
    ) -> Comparison | None:
        """Return ground truth and prediction of a sample, drawn side by side; None where there is nothing to draw.

        Args:
            sample: see :meth:`draw`, with the ground truth of the source.
            prediction: see :meth:`draw`.
            classes: class names of the source.
            options: see :class:`DrawOptions`.
        """
        annotated, drawn = self.draw_ground_truth(sample, classes, options), self.draw(sample, prediction, options)
        if annotated is None or drawn is None:
            return None
        readable = self.readable(prediction)
        predicted = ", ".join(self.caption(readable, min_score=options.min_score)) or "nothing"
        truth = ", ".join(self.ground_truth_caption(sample, classes)) or "nothing"
        panels = (Panel(annotated, f"ground truth: {truth}"), Panel(drawn, f"predicted: {predicted}"))
        return Comparison(panels, f"ground truth: {truth}; predicted: {predicted}")

    def save_drawing(
        self,
        folder: Path,
        name: str,
        sample: Sample,
        prediction: Mapping[str, Tensor],
        options: DrawOptions = DrawOptions(),
    ) -> Image.Image | None:
        """Write the drawn prediction as ``NAME.png`` in ``drawings_folder``, if there is one, and return it.

        Args:
            folder: written by the predict command.
            name: of the files, without suffix.
            sample, prediction, options: see :meth:`draw`.

        Raises:
            DiskError: a file cannot be written.
        """
        drawn = self.draw(sample, prediction, options)
        if drawn is not None:
            path = folder / self.drawings_folder / f"{name}.png"
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                drawn.save(path)
        return drawn

    def explain(self, batch: Batch) -> Tensor | None:
        """Return a heatmap (B x H x W, 0 to 1) of the evidence for each prediction; None (the default): Grad-CAM."""
        return None

    def export_module(self) -> ExportModule:
        """Return the function of tensors that is exported; by default ``predict`` of images of one size."""
        return ExportModule(self)

    @classmethod
    def next_commands(cls, run: Path) -> list[NextCommand]:
        """Return the commands worth trying with a finished run; those whose data the run does not have are not printed.

        Args:
            run: the run folder.
        """
        needed = "" if find_spec("onnx") else " (needs pip install 'opabinia[export]')"
        commands = [
            NextCommand(["opabinia", "eval", str(run)], "evaluate the best checkpoint", "validation"),
            NextCommand(["opabinia", "predict", str(run), "IMAGES/"], "predict images and draw the results"),
            NextCommand(["opabinia", "report", str(run)], "write a page with curves and images"),
            NextCommand(["opabinia", "export", str(run)], f"write the model as ONNX{needed}"),
        ]
        if cls.features is not Task.features:
            words = ["opabinia", "extract", str(run)]
            commands.append(NextCommand(words, "write embeddings as NumPy files", "validation"))
        return commands


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
