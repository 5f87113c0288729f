"""The nouns the engine knows. Read this first.

``engine``, ``data`` and ``tasks`` never import each other: they meet here and are joined in ``run.py``.

Shapes in this package: B samples of a batch, C channels, H height, W width, K classes, D features.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from numpy.typing import NDArray
from torch import Tensor, nn

from opabinia.config import Part
from opabinia.runtime.durations import Duration

if TYPE_CHECKING:
    from opabinia.engine.checkpoint import Checkpoints
    from opabinia.engine.journal import Journal

# --- numbers with a range -------------------------------------------------------------------------------------------

Fraction = Annotated[float, Interval(ge=0, le=1)]
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(1)]


class _InfinityToo:
    """Lets ``.inf`` in where YAML says a number."""

    allow_inf_nan = True


NormOrder = Annotated[float, Ge(1), _InfinityToo()]
"""p of a p-norm: 1, 2, infinity."""

# --- data -----------------------------------------------------------------------------------------------------------

Sample = dict[str, Any]
"""One item: ``image`` (uint8, C x H x W, a ``tv_tensors.Image``), ``label`` (int; of multi-label data float32, K, of 0
and 1), ``id`` (str, unique in its source). Of identities also ``camera`` and ``view`` (int, from 0; where they are
known) and, in data that is searched, ``query`` (bool): whether it is looked for, or lies in the gallery.

Of N things with boxes, in the pixels of ``image``: ``boxes`` (a ``tv_tensors.BoundingBoxes``: float32, N x 4: left,
top, right, bottom) and ``labels`` (int64, N) in place of ``label``; where they are known ``masks`` (a
``tv_tensors.Mask``: uint8 of 0 and 1, N x H x W) and ``keypoints`` (a ``tv_tensors.KeyPoints``: float32, N x P x 2)
with ``visible`` (int64, N x P: 0 unknown, 1 hidden, 2 seen) and ``mirror`` (a list of P: which point is this one in a
mirror). ``picture_size`` (height, width) is that of the picture as it was read, and ``truth`` (:class:`Truth`) what
evaluations compare with. Things that nobody is to learn (crowds) are in ``truth`` only.

Of films ``video`` (a :class:`Film`, of which nothing is decoded yet) stands in place of ``image``, until the transform
``clip`` makes ``image`` of it: T x C x H x W, a ``tv_tensors.Video``. ``directed`` (bool) tells whether a mirror image
would be of another class, ``shape`` ((frames, height, width) or None) which size the batch is to have, and ``view``
((i, n), (j, m)) that it is clip i of n over time and crop j of m in space: the ``id`` is then that of the film."""

Batch = dict[str, Any]
"""Collated samples; a list has an entry for each of B, a tuple V tensors of B rows, one for each view.

``image`` (uint8, or float in 0 to 1, B x C x H x W), ``label`` (int64, B; float, B x K, of multi-label data and after
mixing), ``id`` (list of B), ``index`` (int64, B: which samples they are, of a ``numbered`` source). Where views were
made of an image, ``views`` (tuple of V, B x C x h x w each) stands in its place, with ``patch_masks`` (tuple, bool,
B x N each: the hidden patches of the first views) where they were drawn. Of things with boxes, lists of B: ``boxes``,
``labels`` and the like as in a sample, plain tensors, ``image_sizes`` ((height, width) of each image within the batch,
at its upper left) and ``picture_size``. Of clips ``image`` is B x T x C x H x W."""

Indices = NDArray[np.int64]

Scalars = Mapping[str, Tensor | float]
"""Named numbers. Those that are 0-d tensors on the device are read by the host only when the journal writes."""


@dataclass(frozen=True)
class Facts:
    """What the data tells to the parts that are built on it, so that nobody writes it into a config.

    Attributes:
        samples: number of training samples.
        channels: channels of an image (1 grey, 3 colour).
        classes: class names; the index is the label. Empty when there are none.
        multi_label: whether a sample may belong to several classes, or to none.
        cameras: how many cameras the images are from; 0 when nobody tells.
        views: from how many sides things are seen; 0 when nobody tells.
        queries: whether some images are set apart, to be looked for among the others.
        boxes: whether samples tell where things are, and not only what they are.
        masks: whether they tell the pixels of things, too.
        keypoints: names of the points of a thing; empty when there are none.
        category_ids: the number of each class in the file that things come from; results are written with it.
        frequencies: of each class ``r``, ``c`` or ``f``: rare, common, frequent (LVIS); empty when nobody tells.
    """

    samples: int
    channels: int = 3
    classes: tuple[str, ...] = ()
    multi_label: bool = False
    cameras: int = 0
    views: int = 0
    queries: bool = False
    boxes: bool = False
    masks: bool = False
    keypoints: tuple[str, ...] = ()
    category_ids: tuple[int, ...] = ()
    frequencies: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Truth:
    """What a file says of the N things in a picture, in the picture's own pixels: what evaluations compare with.

    Attributes:
        image_id: the picture's number or name in the file.
        size: height and width of the picture.
        ids: numbers of the annotations in the file (int64, N).
        boxes: left, top, width, height (float64, N x 4).
        labels: class numbers (int64, N).
        areas: in pixels (float64, N).
        crowd: whether it stands for many things that are not told apart (bool, N).
        segments: for each thing polygons (lists of x, y, x, y ...) or run lengths ({"size": [height, width], "counts":
            ...}), as in COCO; None where nobody tells them.
        keypoints: x, y, visibility (float64, N x P x 3).
        absent: classes that are known not to be in the picture (LVIS).
        not_exhaustive: classes of which not all things are told (LVIS).
    """

    image_id: int | str
    size: tuple[int, int]
    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    areas: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    segments: Sequence[Any] | None = None
    keypoints: NDArray[np.float64] | None = None
    absent: tuple[int, ...] = ()
    not_exhaustive: tuple[int, ...] = ()


@runtime_checkable
class Film(Protocol):
    """Moving pictures that are decoded when they are asked for, and only those that are.

    Frames are numbered in the order in which they are shown. Of films with a variable rate equal steps in number are no
    equal steps in time. What is opened is closed after ``read``.

    Attributes:
        path: what messages name.
    """

    path: str

    @property
    def frames(self) -> int:
        """How many there are, as far as its file tells without being decoded; at least 1."""
        ...

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second, on average."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as it is shown: after its rotation flag."""
        ...

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        """Frames by number (uint8, T x C x H x W), in the order asked for; the same one may be asked for several times.

        Frames that are broken are as the last good one before them, and it is told once.

        Args:
            indices: from 0 to ``frames`` - 1.
            short_side: shrink larger frames until their shorter side has so many pixels.

        Raises:
            OSError: the file is not there, or must not be read.
            ValueError: it is no film, none of it can be decoded, or there is no such frame. The text names the file.
        """
        ...


class Unfit(ValueError):
    """What the data holds does not fit a part, as it turns out on the way; the text says all a person needs."""

    exit_status = 2


@runtime_checkable
class Source(Protocol):
    """Samples by index. Reading one must not depend on any other having been read.

    What a source may have beside these is used where it is there: ``labels`` (int64, N; float32, N x K, of 0 and 1
    when ``multi_label`` is True) for samplers that balance, ``batch(indices)`` to hand over a whole batch at once,
    ``encoded(index)``, a sample without boxes or masks whose picture is not decoded yet
    (:class:`opabinia.data.decode.Encoded`),
    ``fingerprint()``, a text that changes with the samples and their order, ``shards`` (int64), how many of the samples
    lie beside each other in each file, for the sampler that reads file by file; of identities ``cameras`` and ``views``
    (int64, N, from 0) and ``queries`` (bool, N); of pictures with boxes ``has_boxes`` and ``has_masks`` (bool),
    ``keypoints``, ``category_ids`` and ``frequencies`` as in :class:`Facts`, ``sizes`` (int64, N x 2: height, width),
    ``present``, the classes in each picture (N arrays of int64, each class once), for samplers, and ``id(index)``, the
    ``id`` of a sample without its picture.
    """

    @property
    def channels(self) -> int: ...

    @property
    def classes(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


Transform = Callable[[Sample], Sample]
"""A change to one sample. Random numbers may come from torch's, Python's or NumPy's global generator:
all three are seeded for each sample from (seed, epoch, position)."""


@runtime_checkable
class Combination(Protocol):
    """A transform that makes one sample of several (a mosaic). Only training has such.

    The others come from the source like the sample itself, changed by the transforms before this one, and depend on
    (seed, epoch, position) alone, so no batch, process or worker has a say in them.
    """

    def __call__(self, sample: Sample) -> Sample:
        """Refuses: there are no others.

        Raises:
            ValueError: always; the text says where it belongs.
        """
        ...

    def combine(self, sample: Sample, another: Callable[[], Sample]) -> Sample:
        """The sample with as many others as it takes; each call of ``another`` gives the next one, and draws nothing
        from the generators."""
        ...


class Sampler(Protocol):
    """Which samples make up an epoch, and in which order: a pure function of (seed, epoch, position)."""

    def __len__(self) -> int:
        """Positions in an epoch."""
        ...

    def order(self, epoch: int) -> Callable[[Indices], Indices]:
        """From positions of this epoch (int64, any shape) to indices of the source, of the same shape."""
        ...


Mix = Callable[[Batch, Facts], Batch]
"""A change to the collated batch of one process, seeded from (seed, step, rank) in the same way."""


@dataclass(frozen=True, slots=True)
class Row:
    """One global batch of a plan: what every process must know to take its slice.

    Attributes:
        step: optimizer steps done before it.
        epoch: epochs done before it.
        first: position of its first sample in the epoch.
        count: samples over all processes.
        shape: size the batch is to have, (height, width) of pictures, (frames, height, width) of clips, or None to
            leave it to the transforms.
        lr_factor: multiplies the learning rate while this row is trained.
    """

    step: int
    epoch: int
    first: int
    count: int
    shape: tuple[int, ...] | None = None
    lr_factor: float = 1.0

    def share(self, rank: int, world: int) -> range:
        """The samples, numbered within the batch, that are for process ``rank`` of ``world``.

        Shares are contiguous, in the order of ranks, and differ in size by at most one. Of a batch with fewer samples
        than there are processes each takes all: an empty forward pass has no mean, and the mean over processes is the
        same.
        """
        if self.count < world:
            return range(self.count)
        return range(rank * self.count // world, (rank + 1) * self.count // world)

    def seen(self, world: int) -> int:
        """Samples in the shares of all processes together."""
        return self.count if self.count >= world else self.count * world


@runtime_checkable
class Plan(Protocol):
    """All global batches of a run, known before training: a pure function from step to row."""

    @property
    def total_steps(self) -> int: ...

    @property
    def epochs(self) -> int: ...

    def row(self, step: int) -> Row: ...

    def epoch_start(self, epoch: int) -> int:
        """Step of the first batch of ``epoch``, for 0 to ``epochs``; the end of the last one may lie beyond
        ``total_steps`` when the run ends within it."""
        ...

    def samples_before(self, step: int) -> int:
        """Samples in the batches before ``step``."""
        ...


@dataclass(frozen=True)
class Course:
    """What a run knows of itself when its batches are laid out (``shapes``).

    Attributes:
        samples: positions in an epoch.
        batch_size: samples of one step over all processes, as the config says.
        length: of the run, likewise.
        world: number of processes.
        drop_last: leave out the incomplete batch at the end of each epoch.
    """

    samples: int
    batch_size: int
    length: Duration
    world: int = 1
    drop_last: bool = False


class BatchShape(NamedTuple):
    """A batch over all processes: how many samples, and their size as in :class:`Row`."""

    samples: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """Some epochs with the same batches.

    Attributes:
        epochs: how many, from 1 on.
        cycle: batches that are taken in turn, each epoch beginning with the first.
        lr_factor: multiplies the learning rate.
        splits: into how many parts batch norms split a process's share of the batch, if they can.
        processes: over how many processes they take their statistics, if they can.
    """

    epochs: int
    cycle: tuple[BatchShape, ...]
    lr_factor: float = 1.0
    splits: int = 1
    processes: int = 1


@dataclass(frozen=True)
class Layout:
    """All batches of a run, as a part of the family ``shapes`` lays them out.

    Attributes:
        stages: one after the other; past their end the last one goes on.
        length: of the run, which may end before they do, or behind.
        baseline: length of the run that this is to take the place of; None: that of the config.
    """

    stages: tuple[Stage, ...]
    length: Duration
    baseline: Duration | None = None


class Loader(Protocol):
    """Batches of this process in order, from any row on.

    Attributes:
        passed_over: samples that could not be read so far.
        seconds: that reading the newest batch took, in whichever process; as long as none has been, 0.
    """

    @property
    def passed_over(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def iterate(self, start: int = 0) -> Iterator[tuple[Row, Batch]]: ...

    def close(self) -> None: ...


# --- time -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """Where the run stands. Everything that changes over time is a function of it.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done (0 during the first).
        epoch_step: steps done in the present epoch; 0 right after the last step of an epoch.
        samples: training samples seen.
        total_steps: length of the whole run.
        steps_per_epoch: steps of the present epoch.
        starts: step of the first batch of an epoch, where epochs differ in length; None where they do not.
    """

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    samples: int = 0
    total_steps: int = 0
    steps_per_epoch: int = 1
    starts: Callable[[int], int] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, plan: Plan, step: int) -> Clock:
        """The clock after ``step`` optimizer steps of ``plan``."""
        epoch = 0
        if step:
            last = plan.row(step - 1).epoch
            epoch = last + (plan.epoch_start(last + 1) == step)
        start = plan.epoch_start(epoch)
        present = min(epoch, max(0, plan.epochs - 1))
        length = plan.epoch_start(present + 1) - plan.epoch_start(present) if plan.epochs else 1
        starts = None if getattr(plan, "steps_per_epoch", None) else plan.epoch_start
        return cls(step, epoch, step - start, plan.samples_before(step), plan.total_steps, length, starts)

    def following(self, plan: Plan, row: Row) -> Clock:
        """The clock one step later, ``row`` being the batch of that step; as :meth:`at`, and quicker."""
        if self.epoch_step + 1 >= self.steps_per_epoch:
            return Clock.at(plan, self.step + 1)
        clock = object.__new__(Clock)  # once a step, and a frozen dataclass takes its time to fill in what changes
        samples = self.samples + row.count
        clock.__dict__.update(self.__dict__, step=self.step + 1, epoch_step=self.epoch_step + 1, samples=samples)
        return clock

    @property
    def progress(self) -> float:
        """From 0 (nothing done) to 1 (all done)."""
        return self.step / self.total_steps if self.total_steps else 1.0

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the present one as a fraction: 2.5 in the middle of the third."""
        return self.epoch + self.epoch_step / self.steps_per_epoch

    @property
    def phase_ended(self) -> bool:
        """Whether the newest step was the last of its epoch or of the run."""
        return self.step > 0 and (self.epoch_step == 0 or self.step >= self.total_steps)

    def steps(self, duration: Duration) -> int:
        """Length of ``duration`` in optimizer steps, from the run's start: where epochs differ, 3ep are the first
        three."""
        if self.starts is not None and duration.unit == "ep":
            return duration.steps_along(self.starts)
        return duration.steps(self.steps_per_epoch)

    def epochs_at(self, step: int) -> float:
        """Epochs done after ``step`` steps of the run, with the one that is not over as a fraction."""
        if self.starts is None:
            return step / self.steps_per_epoch
        behind = 1
        while self.starts(behind) <= step:
            behind *= 2
        epoch = bisect_right(range(behind), step, key=self.starts) - 1
        start = self.starts(epoch)
        return epoch + (step - start) / (self.starts(epoch + 1) - start)

    def length_of(self, epoch: int) -> int:
        """Steps of an epoch, numbered from 0."""
        return self.steps_per_epoch if self.starts is None else self.starts(epoch + 1) - self.starts(epoch)


Schedule = Callable[[Clock], float]
"""A pure function of the clock. Its value multiplies what it is a schedule of: the optimizer's ``lr``, say."""

# --- tasks ----------------------------------------------------------------------------------------------------------

Predictions = Mapping[str, Tensor]
"""What a model says of a batch, one row a sample in every tensor: ``logits`` (B x K), ``embedding`` (B x D) ...

Of things found in pictures, at most D a picture, best first, in the pixels of the picture as it was read: ``boxes``
(B x D x 4: left, top, right, bottom), ``scores`` (B x D), ``labels`` (int64, B x D; -1 where there are fewer),
``masks`` (B x D x S x S: the chance that a pixel belongs to the thing, the box being stretched to S x S), ``keypoints``
(B x D x P x 3: x, y, score); and losses of the batch, where its truth is known, as ``losses/<name>`` (B times the same
number)."""


EMBEDDING = "embedding"
"""What a task itself calls its features; every other layer is a module of it."""


class Evaluator(Protocol):
    """Accumulates over the batches of one evaluation; the result is the same on any number of processes.

    Example: ``update`` counts correct samples, ``gather`` brings the counts of all processes together in the
    order of positions, ``compute`` divides.

    Two more methods are used where they are there, called after ``compute`` with the same states: ``details(states)``
    gives tables by name that are too long for the journal (``eval/<set>/details.json``), ``files(states)`` plain values
    by the name of a file that is written beside it; this one is asked of the first process only.

    One that compares with the training data (a classifier by nearest neighbours) has ``learn(predictions, batch)``,
    too: like ``update``, for the samples of the training data, read as those of this set are, all of them before
    ``update`` sees the first.

    Attributes:
        better: the scores it gives and which way is better ("max" or "min"); the first one is its headline.
        layers: where it is there: names of modules of the task; what they give of each sample (B x D, maps and tokens
            averaged over their places) is in ``predictions`` as ``layers/<name>``. The name ``embedding`` asks for what
            the task's ``features`` gives, which is there as ``embedding``.
        device: where it is there: set to that of the task before the first batch. Predictions and batches themselves
            are on the host, so that a batch is judged while the next one goes through the model.
    """

    better: dict[str, str]

    def update(self, predictions: Predictions, batch: Batch) -> None: ...

    def state(self) -> Any:
        """What this process has seen, plain and small enough to be sent to the others."""
        ...

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Scores from the states of all processes, as fractions of 1. An empty data set gives no scores."""
        ...


class Task(nn.Module):
    """Says what a batch means. DDP, FSDP and compile wrap this one object.

    A task is an ``nn.Module`` with the methods below, in this order in every task of the house.

    Attributes:
        whole_batches: whether its losses compare the samples of a batch with each other, so that a batch cannot go
            through in pieces.
        compares_classes: whether they compare samples of a class with others, of which a batch must hold some.
        least: samples of a process that a step needs at least.
        size_multiple: images of a batch may differ in size; they are padded at the right and below to the largest of
            them, rounded up to a multiple of this. None: they may not.
    """

    whole_batches: bool = False
    compares_classes: bool = False
    least: int = 1
    size_multiple: int | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor] | Tensor | Sequence[Tensor]:
        """Losses of a batch. ``total_loss`` alone is trained if given, else the sum of every key that contains
        ``loss``; the rest is only logged. A bare tensor is the loss; a list is summed."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Predictions:
        """Batched predictions, read by evaluators and by the predict command."""
        raise NotImplementedError

    def readable(self, prediction: Mapping[str, Tensor]) -> dict[str, Any]:
        """One sample's prediction (a row of each tensor) as plain values for people: names of classes, not numbers.

        Here the ``embedding`` alone, rounded to six digits; where there is none all tensors.
        """
        if EMBEDDING in prediction:
            return {EMBEDDING: [round(value, 6) for value in prediction[EMBEDDING].tolist()]}
        return {name: value.tolist() for name, value in prediction.items()}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """``embedding`` (B x D): what stands before the head. Other layers are listened to by the names of modules."""
        raise NotImplementedError

    def evaluators(self, facts: Facts) -> list[Evaluator]:
        """Fresh evaluators for one evaluation of a data set with these facts."""
        return []

    def hooks(self, facts: Facts) -> list[Hook]:
        """Hooks the method itself needs (momentum teachers, prototypes frozen at first)."""
        return []

    def initialised(self, names: Collection[str]) -> None:
        """``init`` has filled the tensors of these names; what began as a copy of them is to be one again."""


# --- the engine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes.

    Attributes:
        seed: of the run; what a model draws comes from (seed, step, micro-batch, rank).
        precision: of forward passes (autocast); weights and their updates are in full precision.
        micro_batch: samples of one process in one forward pass; larger batches are split. None: no limit.
        check_losses: look at every loss before it changes the weights, even if that means waiting for the device.
        skip_non_finite: leave an update out whose losses or gradients are not finite; otherwise that is an error.
    """

    seed: int
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    micro_batch: int | None = None
    check_losses: bool = False
    skip_non_finite: bool = False


class Step(Protocol):
    """How gradients become an update. Owns the optimizer; one call is one optimizer step.

    It is built with the task, or with what runs the task on many processes and is called like it (:class:`Together`).
    On many processes gradients become their mean, so a process weights the mean over its samples by
    ``len(samples) * world / row.seen(world)``, and what it returns likewise: the journal takes the mean over processes.

    ``after_backward`` is to be called once, when all gradients of the step are there and before they are used.
    The scalars returned stay on the device. The learning rate it used stands in the optimizer's first group.
    """

    optimizer: torch.optim.Optimizer

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Together(Protocol):
    """A task that learns on many processes: called like the task, with gradients that become the mean over processes.

    Attributes:
        module: the task itself.
        sharded: whether a process holds a part of each parameter only; then a forward pass takes all of them.
    """

    module: Task
    sharded: bool

    def __call__(self, batch: Batch, clock: Clock) -> Any: ...

    def no_sync(self) -> AbstractContextManager[Any]:
        """Forward and backward passes inside it only add up gradients; those of the next one outside are exchanged."""
        ...


class Stop(NamedTuple):
    """Why a run ends early. ``over``: there is nothing to go on with, so it counts as done (an early stop); otherwise
    it can be resumed (a signal, a time limit)."""

    reason: str
    over: bool = False


@dataclass
class Run:
    """What a hook may see and use: fourteen named things, and not the trainer.

    Attributes:
        task: the model being trained, as the user built it (not a wrapper).
        optimizer: its optimizer.
        loader: the training loader; None in an evaluation-only run.
        journal: takes numbers in; writes them out.
        clock: where the run stands. Inside ``before_step`` and ``after_backward`` the step is not yet counted.
        checkpoints: saves and finds checkpoints; None in an evaluation-only run.
        evaluate: runs one evaluation phase for each validation set whose name it is told to take, and returns the
            scores.
        scores: the newest scores by name (``val/top1``).
        folder: the run folder.
        stop: set to end the run after this step, saved; the first reason stays. On many processes that is a wish, until
            all have agreed on it at the end of the step or the evaluation; one process may set it alone.
        models: every model that is evaluated: ``task``, and an average of its weights if there is one.
        batches: some batches of this process on its device, read anew: of ``train`` or of the validation set with this
            name, that many over all processes. Empty in an evaluation-only run.
        began: when this start of the run began, in seconds of ``time.monotonic``; a rollback does not begin anew.
        offered: the scores that evaluations of this run give, and which way each is better; empty where nobody told.
    """

    task: Task
    optimizer: torch.optim.Optimizer | None
    loader: Loader | None
    journal: Journal
    clock: Clock
    checkpoints: Checkpoints | None
    evaluate: Callable[[Callable[[str], bool]], dict[str, float]]
    scores: dict[str, float]
    folder: Path
    stop: Stop | None = None
    models: Sequence[Task] = ()
    batches: Callable[[str, int], Iterable[Batch]] = lambda name, count: ()
    offered: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


class Phase(NamedTuple):
    """One training epoch (``kind`` "train") or one evaluation pass ("evaluate", with the ``name`` of the set)."""

    kind: str
    name: str


class Hook:
    """Watches a run at seven named moments. Override what you need::

        start                                  everything is built, a checkpoint is loaded if there is one
        for each phase:
            before_phase                       a training epoch or an evaluation pass begins
                for each batch of a training phase:
                    before_step
                    after_backward             gradients are there, not yet used
                    after_step                 the update is done and counted
            after_phase
        finish                                 always, with how it ended: "done", "stopped" or the exception

    Changes to a batch are data flow (transforms, mix), not events. What ``state_dict`` returns must be JSON
    and is saved under the hook's key in the config; what is large goes through ``tensors``.
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
        """Tensors to be saved in every checkpoint, in a file named after the hook's key."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`tensors` gave, as it was saved."""


class Writer(Protocol):
    """Takes a finished line of the journal somewhere: terminal, TensorBoard. Built with the run folder and the clock
    at its start (the first step of a new run, a later one after a resume)."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Preprocessing:
    """What the images were like that a model's weights were trained on.

    Attributes:
        mean, std: of the images in 0..1, one number a channel.
        size: height and width.
        interpolation: how they were resized: ``bicubic``, ``bilinear`` ...
        crop: side of the centre crop as a fraction of the resized image, in evaluation.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    interpolation: str
    crop: float


class Memory(nn.Module):
    """What a method keeps of earlier batches in its buffers; only hooks write it, and only what is finite.

    It is the same on every process, and saved with the model. It is no statistic and may be large: nobody averages it,
    and it stays as it is where a step is left out.
    """


def buffers_beside_memories(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers of a model by their names, without those of a :class:`Memory`."""
    for path, module in model.named_modules():
        if not isinstance(module, Memory):
            for name, buffer in module.named_buffers(recurse=False):
                yield (f"{path}.{name}" if path else name), buffer


class Level(NamedTuple):
    """What is known of feature maps: their channels, and the pixels of an image from one place to the next."""

    channels: int
    stride: int


class Tokens(NamedTuple):
    """What a vision transformer makes of images, behind its last norm.

    Attributes:
        first: the class token (B x T); of a transformer without one the mean of the patches.
        patches: B x N x T, row by row; of those that were kept, if not all were.
    """

    first: Tensor
    patches: Tensor


class Backbone(nn.Module):
    """Images (B x C x H x W) to one vector each (B x D). A head asks it for D, not a config.

    Attributes:
        out_channels: D.
        map_channels: M, of the feature maps before pooling; 0 when it has none to give.
        token_channels: T, of the tokens that ``offset`` is added to; 0 when it has none.
        patch_size: height and width of the patches that the tokens are of; None when it has none.
        preprocessing: what its weights were trained on; None when they were drawn.
        trained_classes: how many classes the classifier that came with its weights tells apart; 0 without such a one.
        clips: whether it takes clips (B x C x T x H x W, T frames) in the place of images, and gives a vector each.
    """

    clips: bool = False
    out_channels: int
    map_channels: int = 0
    token_channels: int = 0
    patch_size: tuple[int, int] | None = None
    preprocessing: Preprocessing | None = None
    trained_classes: int = 0

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to B x D.

        Args:
            images: B x C x H x W.
            offset: B x T, added to every token after the position embedding: what is known of an image beside its
                pixels, such as its camera.
        """
        raise NotImplementedError

    def maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to feature maps (B x M x h x w), which are what is pooled in :meth:`forward`.

        Raises:
            ValueError: this backbone has none to give.
        """
        raise ValueError(f"{type(self).__name__} gives no feature maps")

    def use_levels(self) -> list[Level]:
        """From now on :meth:`levels` is what is asked for: take off what only the pooled vector needs.

        Returns:
            what it gives there, from fine to coarse, strides of 4 and more.

        Raises:
            ValueError: this backbone has no maps of several sizes to give.
        """
        raise ValueError(f"{type(self).__name__} gives no feature maps of several sizes")

    def levels(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to feature maps (B x M x h x w, channels first) as :meth:`use_levels` told."""
        raise NotImplementedError

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Patches down and across of an image of this height and width.

        Raises:
            ValueError: this backbone sees no patches.
        """
        raise ValueError(f"{type(self).__name__} sees no patches; take a vision transformer")

    def tokens(self, images: Tensor, hidden: tuple[Tensor, Tensor] | None = None, kept: Tensor | None = None) -> Tokens:
        """B x C x H x W to tokens.

        Args:
            images: B x C x H x W.
            hidden: which patches are hidden (bool, B x N), and what stands in their place (T) before the position
                embedding is added (Bao et al. 2022, BEiT).
            kept: numbers of the patches that are seen at all (int64, B x M); the others are left out behind the
                position embedding (He et al. 2022, MAE).

        Raises:
            ValueError: this backbone has no tokens.
        """
        raise ValueError(f"{type(self).__name__} has no tokens; take a vision transformer")

    def freeze_stages(self, count: int) -> None:
        """From now on the stem and the first ``count - 1`` stages learn nothing, their norms neither (detectron2's
        FREEZE_AT: 1 is the stem, 2 with the first stage, which is its default).

        Raises:
            ValueError: it has fewer stages.
        """
        raise ValueError(f"{type(self).__name__} does not tell its stages")

    def make_head(self, classes: int) -> nn.Module:
        """A classifier of its vectors (B x D to B x K): a linear layer, unless the backbone has one of its own."""
        return nn.Linear(self.out_channels, classes)

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, from 0 (the stem) on; for layer-wise learning rates.

        Raises:
            ValueError: this backbone does not tell.
        """
        raise ValueError(f"{type(self).__name__} does not tell the depth of its layers")

    def checkpoint_activations(self) -> None:
        """From now on compute activations again in the backward pass instead of keeping them.

        Raises:
            ValueError: this backbone cannot.
        """
        raise ValueError(f"{type(self).__name__} cannot compute its activations again")


class Head(nn.Module):
    """A classifier: features (B x D) to logits (B x K)."""

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B x K)."""
        raise NotImplementedError

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits to be trained, from those of :meth:`forward`: a margin stands between the right class (int64, B) and
        the others. Here there is none."""
        return logits


class Neck(nn.Module):
    """Feature maps of a backbone to those that a detector looks at, all with the same channels.

    Attributes:
        out_levels: what it gives, from fine to coarse.
    """

    out_levels: tuple[Level, ...]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B x M x h x w) of the backbone, from fine to coarse, to those of ``out_levels``."""
        raise NotImplementedError


class Target(NamedTuple):
    """What is to be found in one image, in its pixels.

    Attributes:
        boxes: left, top, right, bottom (float32, N x 4), of positive width and height; N may be 0.
        labels: class numbers from 0 (int64, N).
        masks: uint8 of 0 and 1, N x H x W of the padded batch; None where they are not known.
        keypoints: x, y, visibility (float32, N x P x 3); visibility above 0 is trained. None where they are not known.
    """

    boxes: Tensor
    labels: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


class Detections(NamedTuple):
    """What was found in one image, in its pixels, best first.

    Attributes:
        boxes: D x 4, left, top, right, bottom.
        scores: D, from 0 to 1.
        labels: class numbers from 0 (int64, D).
        masks: D x S x S, see :data:`Predictions`; None where the detector gives none.
        keypoints: D x P x 3: x, y, score; None where the detector gives none.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


Sizes = Sequence[tuple[int, int]]
"""Height and width of each image of a padded batch."""


class Detector(nn.Module):
    """Feature maps of a backbone to things in their boxes. What it does never depends on ``self.training``, apart from
    layers such as dropout and batch norm.

    Attributes:
        size_multiple: padded images have sides that are multiples of this.
        most: D, how many things it finds in an image at most.
        masks: whether it tells the pixels of things.
        keypoints: whether it tells their points.
    """

    size_multiple: int = 32
    most: int = 100
    masks: bool = False
    keypoints: bool = False

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """What the methods below look at, made once for a batch of the backbone's maps (from fine to coarse)."""
        return list(maps)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Losses (their names contain "loss") and other numbers to log, all 0-d. Every parameter takes part in every
        step, also when no image has anything in it.

        Args:
            maps: see :meth:`pyramid`.
            shape: height and width of the padded batch.
            sizes: of the images within it.
            targets: one for each image.
        """
        raise NotImplementedError

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Things in each image: boxes, scores and labels, after suppression, at most ``most``. No masks, no keypoints:
        see :meth:`describe`."""
        raise NotImplementedError

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, found: Sequence[Detections]
    ) -> list[Detections]:
        """Adds masks and keypoints to what was found, where the detector knows such."""
        return list(found)


# --- parts as parameters --------------------------------------------------------------------------------------------

TaskPart = Annotated[Callable[[Facts], Task], Part("task")]
Schedules = Mapping[str, Schedule]
"""By the option of the optimizer's groups that they change: ``lr``, ``weight_decay``, ``momentum``."""

StepPart = Annotated[Callable[[Task | Together, torch.optim.Optimizer, Schedules, Arithmetic], Step], Part("step")]
ParallelPart = Annotated[Callable[[Sequence[Task], torch.device], Together], Part("parallel")]
"""Spreads models over processes, in place, and returns what trains the first of them."""

BackbonePart = Annotated[Callable[[int], Backbone], Part("backbone")]
PoolingPart = Annotated[Callable[[int], nn.Module], Part("pooling")]
"""Built with M: feature maps (B x M x h x w) to one vector each (B x M)."""

HeadPart = Annotated[Callable[[int, int], Head], Part("head")]
"""Built with the width of the features and the number of classes."""

NeckPart = Annotated[Callable[[Sequence[Level]], Neck], Part("neck")]
"""Built with what the backbone gives."""

DetectorPart = Annotated[Callable[[Sequence[Level], Facts], Detector], Part("detector")]
"""Built with what the backbone gives, and the training data's facts."""

LossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("loss")]
MetricLossPart = Annotated[Callable[[Tensor, Tensor], Tensor], Part("metric_loss")]
"""Of features (B x D) of the batch of all processes and their labels (B): how far alike are from unlike."""

EvaluatorPart = Annotated[Callable[[Facts], Evaluator], Part("evaluator")]
OptimizerPart = Annotated[Callable[[Iterable[Any]], torch.optim.Optimizer], Part("optimizer")]
SchedulePart = Annotated[Schedule, Part("schedule")]
SourcePart = Annotated[Source, Part("source")]
TransformPart = Annotated[Transform, Part("transform")]
MixPart = Annotated[Mix, Part("mix")]
SamplerPart = Annotated[Callable[[Source, int, int], Sampler], Part("sampler")]
"""Built with the source, the seed of the run and the size of a batch over all processes."""

ShapesPart = Annotated[Callable[[Course], Layout], Part("shapes")]
"""From what a run knows of itself to all its batches: how many samples of which size, epoch by epoch."""

HookPart = Annotated[Hook, Part("hook")]
WriterPart = Annotated[Callable[[Path, Clock], Writer], Part("writer")]
