"""A training run small enough to be repeated hundreds of times in a test: ten steps of a linear model."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from opabinia.contracts import (
    Batch,
    Clock,
    DatasetInfo,
    Evaluator,
    GlobalBatch,
    Hook,
    Logger,
    Phase,
    Predictions,
    Run,
    Source,
    SourceInfo,
    StepOptions,
    Task,
)
from opabinia.data.sampling.batches import ConstantPlan, evaluation_batches
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.engine.hooks.evaluate import Evaluate
from opabinia.engine.hooks.log_metrics import LogMetrics, LogSamples
from opabinia.engine.hooks.order import order_hooks
from opabinia.engine.hooks.save_best import SaveBest
from opabinia.engine.hooks.save_checkpoint import SaveCheckpoint
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop.evaluate import ValidationSet
from opabinia.engine.loop.step import StandardStep
from opabinia.engine.loop.trainer import Trainer
from opabinia.evaluation.classification.topk import TopK
from opabinia.runtime.durations import Duration

RUN = {"seed": 5, "global_batch_size": 8, "facts": {"samples": 40}, "world_size": 1, "threads": 1, "versions": {}}
"""The values that a run adds to the state of its trainer."""


def run_state(step: int) -> dict[str, Any]:
    """Return the state of a checkpoint without scores, hooks or pending metrics."""
    counters = dict.fromkeys(("samples", "epoch", "total_steps"), step)
    empty: dict[str, Any] = {name: {} for name in ("scores", "hooks", "optimizer", "train_step")}
    journal = {"offset": 0, "pending": []}
    return {**RUN, "step": step, **counters, **empty, "journal": journal, "due": None, "optimizer_kind": "SGD"}


CPU = torch.device("cpu")
FACTS = DatasetInfo(samples=8, channels=1, classes=("a", "b", "c"))
EVENTS = ("start", "before_phase", "before_step", "after_backward", "after_step", "after_phase", "finish")

Event = tuple[str, str, str | None, int]
"""Event, key of the hook, kind of the phase if the event has one, optimizer steps done."""


def constant(clock: Clock) -> float:
    return 1.0


def falling(clock: Clock) -> float:
    """Return another factor at every step, so that a wrong learning rate after a resume is detected."""
    return 1 / (1 + clock.step)


class Line(Task):
    """A linear classifier of 4-vectors, with dropout, whose random numbers must not depend on earlier steps."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.layer(self.dropout(batch["image"]))
        return {"loss": cross_entropy(logits, batch["label"]), "largest": logits.max()}

    def predict(self, batch: Batch) -> Predictions:
        return {"logits": self.layer(batch["image"])}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return [TopK((1, 2))]


def sample_batch(global_batch: GlobalBatch, seed: int = 0) -> Batch:
    """Return the batch of a row; a pure function, as for every loader."""
    generator = torch.Generator().manual_seed(1000 * seed + 100 * global_batch.epoch + global_batch.first)
    label = torch.randint(3, (global_batch.count,), generator=generator)
    image = torch.randn(global_batch.count, 4, generator=generator) + label[:, None]
    return {
        "image": image,
        "label": label,
        "id": [f"{global_batch.epoch}/{global_batch.first + at}" for at in range(global_batch.count)],
    }


class Rows:
    """A loader of synthetic batches."""

    num_skipped, seconds = 0, 0.0

    def __init__(self, rows: Callable[[int], Iterable[GlobalBatch]], seed: int = 0) -> None:
        self.rows, self.seed, self.closed = rows, seed, 0

    def iterate(self, start: int = 0) -> Iterator[tuple[GlobalBatch, Batch]]:
        for global_batch in self.rows(start):
            yield global_batch, sample_batch(global_batch, self.seed)

    def close(self) -> None:
        self.closed += 1


def validation(name: str = "val", samples: int = 7, seed: int = 1) -> ValidationSet:
    rows = list(evaluation_batches(samples, 3, 0, 1))
    return ValidationSet(name, Rows(lambda start: rows[start:], seed), FACTS)


class LineCollector:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.closed = 0

    def write(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)

    def close(self) -> None:
        self.closed += 1


class Vectors(Source):
    """Vectors around the center of their class: with ``spread`` 0 a linear model is right about half of the time."""

    info = SourceInfo(channels=1, classes=FACTS.classes)

    def __init__(self, samples: int, spread: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(samples)
        self.labels = torch.randint(3, (samples,), generator=generator).tolist()
        self.images = torch.randn(samples, 4, generator=generator) + spread * torch.tensor(self.labels)[:, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": self.labels[index], "id": str(index)}


def make_run(task: Task | None = None, **fields: Any) -> Any:
    """Return a run with the fields that most hooks and evaluations read."""
    defaults: dict[str, Any] = {"optimizer": None, "metrics_log": None, "checkpoints": None, "folder": Path()}
    defaults |= {"clock": Clock(total_steps=10, steps_per_epoch=5), "loader": object(), "evaluate": None, "scores": {}}
    return Run(task=task or Line(), **{**defaults, **fields})


class RecordedHook(Hook):
    """Records every event and forwards it to a hook."""

    def __init__(self, key: str, hook: Hook, events: list[Event]) -> None:
        self.key, self.hook, self.events = key, hook, events

    def _pass(self, moment: str, run: Run, *values: Any) -> None:
        kind = values[0].kind if values and isinstance(values[0], Phase) else None
        self.events.append((moment, self.key, kind, run.clock.step))
        getattr(self.hook, moment)(run, *values)

    def start(self, run: Run) -> None:
        self._pass("start", run)

    def before_phase(self, run: Run, phase: Phase) -> None:
        self._pass("before_phase", run, phase)

    def before_step(self, run: Run, batch: Batch) -> None:
        self._pass("before_step", run, batch)

    def after_backward(self, run: Run) -> None:
        self._pass("after_backward", run)

    def after_step(self, run: Run) -> None:
        self._pass("after_step", run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        self._pass("after_phase", run, phase)

    def finish(self, run: Run, how: str | BaseException) -> None:
        self._pass("finish", run, how)

    def state_dict(self) -> dict[str, Any]:
        return self.hook.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hook.load_state_dict(state)


@dataclass
class Setup:
    """The arguments of a training run that tests vary."""

    folder: Path
    length: str = "2.5ep"
    evaluate: str = "3it"
    save: str = "4it"
    log_every: int = 3
    log_samples: bool = False
    keep: int = 2
    best: bool = True
    user: Mapping[str, Hook] = field(default_factory=dict)
    sets: tuple[ValidationSet, ...] = field(default_factory=lambda: (validation(),))
    loggers: Sequence[Logger] = ()
    clip_norm: float | None = 1.0
    interrupted: Callable[[], str | None] = lambda: None
    schedule: Callable[[Clock], float] = falling
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    task: Callable[[], Task] = Line
    events: list[Event] = field(default_factory=list)

    def trainer(self, *, resume: bool = False) -> Trainer:
        (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        plan = ConstantPlan(FACTS.samples, 2, Duration.parse(self.length))
        torch.manual_seed(7)
        task = self.task()
        optimizer = self.optimizer(list(task.parameters()), lr=0.05)
        built_in = {
            "metrics_log": LogSamples() if self.log_samples else LogMetrics(self.log_every),
            "save": SaveCheckpoint(Duration.parse(self.save)),
            "evaluate": Evaluate(Duration.parse(self.evaluate)),
            "save_best": SaveBest("val/top1", "max") if self.best else None,
        }
        hooks = order_hooks(built_in, {}, self.user)
        loader = Rows(lambda start: (plan.global_batch(step) for step in range(start, plan.total_steps)))
        metrics_log = MetricsLogger(self.folder / "metrics.jsonl", self.loggers)
        trainer = Trainer(
            Run(task, metrics_log, self.folder, loader=loader, start_time=time.monotonic()),
            step=StandardStep(task, optimizer, {"lr": self.schedule}, StepOptions(5), clip_norm=self.clip_norm),
            plan=plan,
            validation=self.sets,
            hooks={key: RecordedHook(key, hook, self.events) for key, hook in hooks.items()},
            keep=self.keep,
            metadata=RUN,
            interrupted=self.interrupted,
        )
        latest = load_latest_checkpoint(self.folder / "checkpoints") if resume else None
        if latest:
            trainer.restore(latest[1])
        return trainer


def lines(folder: Path) -> list[dict[str, Any]]:
    """Read the metrics log without values that depend on the machine."""
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "samples_per_s" and not k.startswith(("time/", "memory/"))}
        for line in parsed
    ]


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer._run.task.state_dict().items()}


def same_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
