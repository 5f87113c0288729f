"""Short trials before a run: the largest batch that fits (``data.batch_size: auto``), where pictures are changed in
less time (``data.augment_on: auto``), and as few workers as keep up (``data.workers: auto``).

Each process tries alone, with a model that is thrown away afterwards, so that one that runs out of memory leaves no
other waiting; then all agree on the smallest batch, and on the most workers that one of them needs. Nothing of it
reaches the run but what was found: its weights and random numbers come from its seed, its samples from their
positions.
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Batch, Clock, Hook, Row, Run, Scalars, Step, Task
from opabinia.data import Data
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.engine.hooks.bottleneck import workers_needed
from opabinia.engine.loop.prefetch import Feeding
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import gather, single_process, world_size
from opabinia.runtime.resources import cores, memory_left, peak_memory, processes_here, reset_peak_memory
from opabinia.runtime.seeds import generators_kept
from opabinia.training.auto_values import asks_for_auto, with_values
from opabinia.training.loaders import make_sampler
from opabinia.training.session import Session

ON_CPU, ON_GPU = 0.7, 0.9
"""Shares of the free memory that a trial may fill; the rest is for workers, evaluations, checkpoints, fragments."""
LONGEST = 10.0
"""Seconds of the longest step that is tried."""
FINE = 64
"""The search ends when the next step would be smaller than one part in so many."""
COMPILED = 2.0
"""How many times as fast a compiled step is taken to be: trials compile nothing."""
_READ: tuple[int, ...] = (32, *range(33, 129), *range(31, 0, -1))
"""Samples of a batch that is read on trial: the first number that suits the sampler."""
_ASKED = 256
"""Sizes of batches that a sampler is asked about before a person is."""
_GB = 2**30


def autotune(config: Mapping[str, Any], build: Callable[[dict[str, Any]], Mapping[str, Any]]) -> dict[str, int | str]:
    """What belongs in the place of ``auto``: ``batch_size`` over all processes, ``augment_on``, ``workers`` of this
    one.

    To be called by all processes together; where nothing asks for it nothing is tried.

    Args:
        config: complete, and scaled for the number of processes there are.
        build: the parts of a config (``session.train``'s keywords).

    Raises:
        ConfigError: nothing fits, no size suits the sampler, or what is asked for cannot be tried.
    """
    wanted = [key for key in ("batch_size", "augment_on", "workers") if asks_for_auto(config, key)]
    if not wanted:
        return {}
    _refuse(config)
    reset_peak_memory()
    budget = min(gather(peak_memory() + ON_CPU * memory_left() / processes_here()))
    share = None if "batch_size" in wanted else -(-config["data"]["batch_size"] // world_size())
    begun = with_values(config, batch_size=_READ[0], workers=0)
    parts = build(with_values(begun, augment_on="workers"))
    everybody: Sequence[Tried] = gather(_tried(parts, share, budget))
    found: dict[str, int | str] = {}
    if "batch_size" in wanted:
        found["batch_size"] = size = _agreed_batch(parts["data"], everybody)
        share = -(-size // world_size())
    assert share is not None
    if "augment_on" in wanted:
        others: list[Tried] = gather(_tried(build(with_values(begun, augment_on="device")), share, budget))
        hands = cores() if "workers" in wanted else int(config["data"]["workers"])
        found["augment_on"], everybody = agreed_place(hands, everybody, others)
    if "workers" in wanted:
        found["workers"] = _agreed_workers(share, everybody)
    return found


def _refuse(config: Mapping[str, Any]) -> None:
    if asks_for_auto(config, "batch_size") and config["shapes"] is not None:
        message = "auto is one number, and with shapes batches of several sizes have to fit: say a number"
        raise ConfigError(Problem("", "data.batch_size", message))


# --- what all agree on ------------------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """What one process has found out.

    Attributes:
        samples: of its share of the batch; 0: not even the smallest fits.
        memory: bytes that it holds at most during a step with them.
        budget: bytes that it might have held.
        read: seconds that it takes to read and transform a sample.
        step: seconds that it takes to learn from one.
        more: why it has not tried more samples.
        finish: seconds that it takes to change one on the device.
    """

    samples: int
    memory: float
    budget: float
    read: float
    step: float
    more: str = ""
    finish: float = 0.0


def _agreed_batch(data: Data, everybody: Sequence[Tried]) -> int:
    """The largest batch over all processes that fits into each, and that the sampler takes; told in a line."""
    least, world = min(everybody, key=lambda one: one.samples), len(everybody)
    if not least.samples:
        message = f"auto: not even the smallest batch fits into {least.budget / _GB:.1f} GB"
        raise ConfigError(Problem("", "data.batch_size", f"{message}; try train.micro_batch or smaller images"))
    size = suited(data, least.samples * world, world)
    log.info(
        "data.batch_size: %d (auto: %s; %d samples take %.2f of the %.2f GB that a process may)",
        *(size, least.more, least.samples, least.memory / _GB, least.budget / _GB),
    )
    return size


def suited(data: Data, most: int, world: int) -> int:
    """The largest batch of at most ``most`` samples that the sampler takes: all samples if they are that few, else one
    that divides over the processes, and by 8 in each if there are enough.

    Raises:
        ConfigError: it takes none of those that were tried.
    """
    unit = world * 8 if most >= 16 * world else min(world, most)
    samples = len(data.train.source)
    sizes = list(range(min(most, samples) // unit * unit, 0, -unit))
    problem: Exception | None = None
    for size in ([samples, *sizes] if samples <= most else sizes)[:_ASKED]:
        try:
            sampler = make_sampler(replace(data, batch_size=size), 0)
            ConstantPlan(len(sampler), size, Duration(1, "ep"), data.drop_last)
        except (ValueError, ConfigError) as error:
            problem = error
        else:
            return size
    raise ConfigError(Problem("", "data.batch_size", f"auto: no batch of up to {most} suits: {problem}"))


def _agreed_workers(share: int, everybody: Sequence[Tried]) -> int:
    """As many as the process needs that needs most, but no more than there are cores for this one."""
    slowest = max(everybody, key=lambda one: one.read / (one.step + one.finish))
    learning = slowest.step + slowest.finish
    needed, most = workers_needed(slowest.read, learning), cores()
    log.info(
        "data.workers: %d (auto: reading a batch of %d takes %.2g s, learning from it %.2g s; %d would keep up, and "
        "each process has %d cores)",
        *(min(needed, most), share, slowest.read * share, learning * share, needed, most),
    )
    return min(needed, most)


def agreed_place(hands: int, workers: Sequence[Tried], device: Sequence[Tried]) -> tuple[str, Sequence[Tried]]:
    """Where the slowest process takes less time for a sample, if it is a tenth less on the device, and what all have
    tried with that; told in a line.

    Args:
        hands: workers of a process that read beside it; 0: it reads itself.
        workers, device: what each process has tried with either.
    """
    in_workers, on_device = (max(_seconds_each(one, hands) for one in tried) for tried in (workers, device))
    place, tried = ("device", device) if on_device < 0.9 * in_workers else ("workers", workers)
    log.info(
        "data.augment_on: %s (auto: a sample takes %.2g s if workers change it, %.2g s if the device does)",
        *(place, in_workers, on_device),
    )
    return place, tried


def _seconds_each(tried: Tried, hands: int) -> float:
    """What a process takes for a sample: to read it, to finish it on the device and to learn from it."""
    learning = tried.step + tried.finish
    return max(tried.read / hands, learning) if hands else tried.read + learning


# --- the trial of one process -----------------------------------------------------------------------------------------


def only_training(parts: Mapping[str, Any], **hooks: Hook) -> dict[str, Any]:
    """The parts of a run that trains with these hooks, too, and neither evaluates nor saves nor tells anything."""
    never = Duration(0, "ep")
    data: Data = parts["data"]
    return {
        **parts,
        "evaluate": replace(parts["evaluate"], every=never),
        "data": replace(data, val=[replace(one, every=None) for one in data.validation] or None),
        "checkpoint": replace(parts["checkpoint"], every=never, best=None),
        "hooks": {**(parts["hooks"] or {}), **hooks},
        "writers": [],
    }


def _tried(parts: Mapping[str, Any], share: int | None, host_budget: float) -> Tried:
    """Try it out, as if this were the only process; ``share``: samples of a step, None to find the most that fit."""
    train, data = parts["train"], parts["data"]
    size = _readable(data)
    trial = _Trial(share, len(make_sampler(replace(data, batch_size=size), 0)), host_budget)
    changed = {
        **only_training(parts, trial=trial),
        "init": None,
        "schedule": _standing,  # weights that stay as they are go wrong nowhere
        "train": replace(
            train,
            length=Duration(2, "it") if parts["shapes"] is None else train.length,
            step=partial(_Instead, train.step, trial),
            compile=False,
            log_samples=False,
            on_nonfinite="skip" if train.on_nonfinite == "skip" else "stop",
        ),
    }
    changed["data"] = replace(changed["data"], batch_size=size, workers=0)
    with single_process(), silence(), generators_kept(), tempfile.TemporaryDirectory() as folder:
        with suppress(_Over):
            train(Session(Path(folder)), **changed)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if trial.tried is None:
        raise ConfigError(Problem("", "train.length", "auto: two steps are too few to try anything; say numbers"))
    return trial.tried._replace(step=trial.tried.step / (COMPILED if train.compile else 1.0))


def _readable(data: Data) -> int:
    """Samples of a batch to be read on trial."""
    for size in _READ:
        with suppress(ValueError, ConfigError):
            make_sampler(replace(data, batch_size=size), 0)
            return size
    return suited(data, len(data.train.source), 1)


def _standing(clock: Clock) -> float:
    return 0.0


@contextmanager
def silence() -> Iterator[None]:
    """What a trial has to say the run says, too."""
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before


class _Over(Exception):
    """All is tried out."""


@dataclass
class _Trial(Hook):
    """Tries when the second batch has come: the first one pays for what is slow only once.

    Attributes:
        share: samples of a step; None: as many as fit.
        most: samples that there are.
        host_budget: bytes that a run on the CPU may hold.
    """

    share: int | None
    most: int
    host_budget: float
    tried: Tried | None = field(default=None, init=False)
    read: float = field(default=0.0, init=False)
    finishing: Callable[[], float] = field(default=lambda: 0.0, init=False)

    def before_step(self, run: Run, batch: Batch) -> None:
        """Note what reading it took, and how to find out what finishing it on the device takes."""
        if isinstance(run.loader, Feeding):
            samples, feeding = max(1, len(batch["id"])), run.loader
            self.read = feeding.seconds / samples
            self.finishing = lambda: feeding.finishing() / samples

    def measure(self, task: Task, attempt: Attempts) -> None:
        """Find the share, if that is asked for, and how long a step with it takes."""
        budget = attempt.budget(self.host_budget)
        # Norms of a single sample may have no variance. Twice, as the first time the optimizer gets its state.
        least = min(max(2, task.least), self.most)
        fit = [attempt(least), attempt(least)][1]
        more = ""
        if self.share is not None:
            fit = fit._replace(samples=self.share)
        elif fit.memory > budget:
            fit = fit._replace(samples=0)
        else:
            fit, more = largest(attempt, budget, fit, self.most)
        seconds = min(attempt(fit.samples).seconds for _ in range(3)) if fit.samples else 0.0
        each = seconds / max(1, fit.samples)
        self.tried = Tried(fit.samples, fit.memory, budget, self.read, each, more, self.finishing())


class _Instead:
    """Stands in for the step of a run: the first batch passes, with the second one the trial begins."""

    def __init__(self, make: Callable[..., Step], trial: _Trial, task: Task, *others: Any) -> None:
        self._step, self._trial, self._task = make(task, *others), trial, task
        self.optimizer = self._step.optimizer
        self._began = False

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars:
        if self._began:
            device = next(self._task.parameters()).device
            self._trial.measure(self._task, Attempts(self._step, batch, row, clock, device))
            raise _Over
        self._began = True
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# --- attempts ---------------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """A step with so many samples: bytes that were held at most (infinite: too many), and seconds."""

    samples: int
    memory: float
    seconds: float


class Attempts:
    """Steps of any size, made of the samples of one batch.

    Args:
        step: of a run that is alone.
        batch: on its device.
        row, clock: of that batch.
        device: where the model is.

    Example: ``Attempts(step, batch, row, clock, device)(64).memory``.
    """

    def __init__(self, step: Step, batch: Batch, row: Row, clock: Clock, device: torch.device) -> None:
        self._step, self._batch, self._row, self._clock, self._device = step, batch, row, clock, device

    def budget(self, host: float) -> float:
        """Bytes that the run may hold on its device, this much being free on the host."""
        if self._device.type != "cuda":
            return host
        free, _ = torch.cuda.mem_get_info(self._device)
        return ON_GPU * (free + torch.cuda.memory_reserved(self._device))

    def __call__(self, samples: int) -> Attempt:
        """Make a step."""
        self._forget_peak()
        began = time.perf_counter()
        if self._fits(samples):
            return Attempt(samples, self._peak(), time.perf_counter() - began)
        # Not before the error is gone: its traceback holds the tensors.
        gc.collect()
        return Attempt(samples, math.inf, 0.0)

    def _fits(self, samples: int) -> bool:
        try:
            row = replace(self._row, count=samples)
            self._step(repeated(self._batch, samples), row, self._clock, lambda: None)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return False
        return True

    def _forget_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            reset_peak_memory()

    def _peak(self) -> int:
        """Of a GPU what torch has reserved: what lies between tensors is taken, too."""
        return torch.cuda.max_memory_reserved(self._device) if self._device.type == "cuda" else peak_memory()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory, as torch, its allocator on the CPU and cuBLAS put it."""
    text = str(error)
    signs = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in text for sign in signs)


def repeated(batch: Batch, samples: int) -> Batch:
    """A batch of so many samples, those of ``batch`` in turn."""
    numbers = [number % len(batch["id"]) for number in range(samples)]
    return {key: _taken(value, numbers) for key, value in batch.items()}


def _taken(value: Any, numbers: list[int]) -> Any:
    if isinstance(value, Tensor):
        return value[torch.tensor(numbers, device=value.device)]
    if isinstance(value, tuple):
        return tuple(_taken(view, numbers) for view in value)
    return [value[number] for number in numbers]


def largest(
    attempt: Callable[[int], Attempt], budget: float, first: Attempt, most: int, longest: float = LONGEST
) -> tuple[Attempt, str]:
    """The largest attempt that stays within ``budget`` bytes, and why it is none larger.

    Sizes are doubled as long as what was seen so far says that the double will fit; then what is left is filled. So on
    the CPU, where too much memory stops the whole machine, nothing is tried that is expected not to fit.

    Args:
        attempt: tries a number of samples.
        budget: in bytes.
        first: an attempt that fits.
        most: samples that there are.
        longest: seconds; a step that would take longer is not tried.

    Example: with 2 + 3 n bytes for n samples and a budget of 100 it is 32, found with 1, 2, 4, 8, 16 and 32.
    """
    fits, failed = [first], None
    while True:
        last = fits[-1]
        size = _next_size(fits, most, failed, budget)
        if size <= last.samples:
            return last, "all samples there are" if last.samples >= most else "what fits"
        if last.seconds * size / last.samples > longest:
            return last, f"a step with it takes {last.seconds:.1f} s, and no longer one is tried"
        tried = attempt(size)
        if tried.memory <= budget:
            fits.append(tried)
        else:
            failed = size


def _next_size(fits: Sequence[Attempt], most: int, failed: int | None, budget: float) -> int:
    """Samples to be tried next, more than fit so far; as many as did if it is not worth it."""
    last = fits[-1].samples
    size = min(2 * last, most) if failed is None else (last + failed) // 2
    size = last + bisect_right(range(last + 1, size + 1), budget, key=_expected(fits))
    return size if size - last >= max(1, last // FINE) or size == most else last


def _expected(fits: Sequence[Attempt]) -> Callable[[int], float]:
    """Bytes that a number of samples is expected to take: by the parabola through the newest three attempts, or the
    line through two; memory that grows in another way is found out step by step."""
    (n0, p0), (n1, p1), (n2, p2) = [(one.samples, one.memory) for one in [fits[0], fits[0], *fits][-3:]]
    before = (p1 - p0) / (n1 - n0) if n1 > n0 else 0.0
    slope = max(0.0, (p2 - p1) / (n2 - n1)) if n2 > n1 else 0.0
    bend = max(0.0, (slope - before) / (n2 - n0)) if n1 > n0 else 0.0
    return lambda samples: p2 + slope * (samples - n2) + bend * (samples - n2) * (samples - n1)
