"""The speed of a planned recipe on this machine, from a few steps and a few batches of evaluation."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from opabinia.config import Resolved
from opabinia.contracts import ParallelTask, Run, Step, Task
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.resources import cores
from opabinia.training.autoconfig.choices import Chosen
from opabinia.training.autoconfig.recipe import recipe_text
from opabinia.training.autoconfig.situation import Speed
from opabinia.training.autotune import autotune
from opabinia.training.device_times import seconds_of, synchronize
from opabinia.training.measurement import Measurement, MeasurementDone, RepeatableStep, run_measurement
from opabinia.training.run_folder import build_parts, resolve

WARM_UP = 3
"""Steps that are not measured: workers start, the allocator finds its sizes."""
MOST_STEPS, MOST_SECONDS = 40, 8.0
"""The measurement ends after these steps or seconds, whichever comes first, and not before two steps."""


def measure(chosen: Chosen, overrides: Sequence[str] = ()) -> Speed:
    """Train some steps of a recipe in a temporary folder, then predict some batches.

    Args:
        chosen: the recipe.
        overrides: ``key=value``, changes to it.

    Raises:
        ConfigError: the recipe does not fit the data.
    """
    resolved = resolve_chosen(chosen, overrides)
    build = partial(build_parts, resolved)
    parts = build(**autotune(resolved.config["data"], build)).keywords
    parts = {**parts, "hooks": {}, "ema": None}
    probe = _Probe(parts["train"].precision)
    threads = torch.get_num_threads()
    try:
        steps = Duration(WARM_UP + MOST_STEPS + 1, "it")
        run_measurement(parts, probe, log_every=10**9, num_threads=1, length=steps)
    finally:
        torch.set_num_threads(threads)
    return Speed(
        model=chosen.model, size=chosen.size, train=probe.train, evaluate=probe.evaluate, threads=probe.threads
    )


def resolve_chosen(chosen: Chosen, overrides: Sequence[str]) -> Resolved:
    """Return the complete config of a recipe that is not written yet.

    Raises:
        ConfigError: an override is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(recipe_text(chosen, []), encoding="utf-8")
        return resolve(recipe, overrides)


class _Probe(Measurement):
    """Measures seconds per sample.

    Args:
        precision: of forward passes.

    Attributes:
        train, evaluate, threads: see :class:`Speed`.
    """

    def __init__(self, precision: Literal["fp32", "bf16", "fp16"]) -> None:
        self._precision = precision
        self.train = self.evaluate = 0.0
        self.threads: int | None = None

    def make_step(self, make: Callable[..., Step], task: Task | ParallelTask, *others: Any) -> Step:
        self._step = RepeatableStep(make(task, *others))
        return self._step

    def after_step(self, run: Run) -> None:
        """Begin after the warm-up; end after enough steps.

        Raises:
            MeasurementDone: everything is measured.
        """
        device = next(run.task.parameters()).device
        measured = run.clock.step - WARM_UP
        if measured == 0:
            if device.type == "cpu":
                self.threads = self._faster_threads(device)
            synchronize(device)
            self._started, self._first_samples = time.perf_counter(), run.clock.samples
        elif measured >= 2:
            seconds = time.perf_counter() - self._started
            if seconds > MOST_SECONDS or measured >= MOST_STEPS:
                synchronize(device)
                self.train = (time.perf_counter() - self._started) / (run.clock.samples - self._first_samples)
                self.evaluate = self._evaluation(run.task, device)
                raise MeasurementDone

    def _faster_threads(self, device: torch.device) -> int:
        """Set and return the faster number of threads: one, where others use the cores, too, or all cores.

        They take turns for some rounds: at first the processes that read data work, too, to fill their queues.
        """
        if cores() == 1:
            return 1
        best = dict.fromkeys((1, cores()), math.inf)
        started = time.perf_counter()
        for round_ in range(5):
            if round_ >= 2 and time.perf_counter() - started > MOST_SECONDS:
                break
            for threads in best:
                torch.set_num_threads(threads)
                best[threads] = min(best[threads], seconds_of(self._step.repeat, device))
        torch.set_num_threads(min(best, key=best.__getitem__))
        return torch.get_num_threads()

    def _evaluation(self, task: Task, device: torch.device) -> float:
        """Return the seconds per sample of predictions for the last batch, the better of two."""
        batch, *_ = self._step.last
        if "image" not in batch and "video" not in batch:
            return self.train / 3  # a batch of views
        task.eval()
        with torch.no_grad(), autocast(device, self._precision), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"task\.tiles: ")  # a crop for training is a single tile
            seconds = min(seconds_of(partial(task.predict, batch), device) for _ in range(2))
        task.train()
        return seconds / len(batch["id"])
