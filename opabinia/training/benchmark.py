"""The throughput of a recipe on this machine, its bottleneck, and its distance from the device's peak.

Nothing is kept: a run in a temporary folder trains some steps to warm up and some that are measured, then repeats one
batch (the throughput without data loading), then reads without training (the throughput of data loading).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Batch, Clock, GlobalBatch, ParallelTask, Run, Scalars, Step, Task
from opabinia.engine.hooks.bottleneck import StepTimes, describe_bottleneck
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import logging_to
from opabinia.runtime.process_group import process_group
from opabinia.runtime.processes import all_gather, from_rank_zero, world_size
from opabinia.runtime.resources import cores, peak_memory
from opabinia.tasks.multitask import Multitask
from opabinia.training.autotune import autotune
from opabinia.training.device_times import Mark, mark, seconds_of, synchronize
from opabinia.training.measurement import Measurement, MeasurementDone, RepeatableStep, run_measurement
from opabinia.training.run_folder import build_parts, process_group_options, resolve
from opabinia.training.task_times import time_tasks
from opabinia.training.world_size_scaling import auto_scale

WARM_UP = 5
"""Steps before the measured ones: workers start, modules are compiled, the allocator finds its sizes."""
REPEATS = 10
"""Training steps with one batch."""
MAX_READING_SECONDS = 10.0
"""Time of reading without training, at most."""


def benchmark(recipe: str, overrides: Sequence[str] = (), *, steps: int = 30) -> dict[str, Any]:
    """Measure a recipe. All processes of a run must call it; all get the result of rank 0.

    Args:
        recipe: a packaged recipe, a YAML file or a run folder.
        overrides: ``key=value``.
        steps: number of measured steps.

    Returns:
        JSON values, in seconds, samples and bytes:

        - ``samples_per_s``: ``median`` of the steps and its quartiles (``low``, ``high``);
        - ``step``: means of ``seconds``, of them ``data`` (waiting), ``host`` (until all work is launched),
          ``forward``, ``backward``, ``update``, and ``other`` (hooks, copies to the device);
        - ``read``: time that reading a batch takes in the process that reads it;
        - ``loader_samples_per_s``, ``model_samples_per_s``: of reading alone, and of training on one batch;
        - ``memory``: peak of rank 0 on the ``host``, and of its tensors on the ``device``;
        - ``flops``: of one process's step (matrix products and convolutions, forward and backward); ``peak_flops``: per
          second, of a large matrix product in the same precision; ``floor``: their quotient, in seconds;
          ``share_of_peak``: what a step without data loading reaches of the peak;
        - ``waits_for``: ``data``, ``host`` or ``device``; ``advice``: what would help;
        - ``streams``: of a multi-task run in one process, by stream: ``read``, and see
          :func:`opabinia.training.task_times.time_tasks`.

    Raises:
        ConfigError: the recipe is invalid, or has fewer steps.
    """
    resolved = resolve(recipe, overrides)
    with process_group(**process_group_options(resolved.config)), logging_to(None):
        config, _ = auto_scale(resolved.config, world_size())
        build = partial(build_parts, replace(resolved, config=config))
        parts = build(**autotune(config["data"], build)).keywords
        measurement = _Measurement(steps, parts)
        run_measurement(parts, measurement, [lambda folder, clock: measurement.lines], **measurement.changes())
        if measurement.results:
            return from_rank_zero(lambda: measurement.report(recipe))
        message = f"the run has fewer than the {WARM_UP + steps + 1} steps that are needed; --steps takes fewer"
        raise ConfigError(Problem("", "train.length", message))


class _Measurement(Measurement):
    """Measures a run from within.

    Args:
        steps: number of measured steps, after the warm-up.
        parts: parts of the run.

    Attributes:
        lines: lines of the metrics log.
        results: empty until everything is measured.
    """

    def __init__(self, steps: int, parts: Mapping[str, Any]) -> None:
        self._steps, self._parts = steps, parts
        self._workers = int(parts["data"].num_workers)
        # Batches that are read without training. The first one of each worker does not count.
        self._num_reads = 4 * max(1, self._workers) + 8
        self.lines = _LineCollector()
        self._timed_step: _TimedStep | None = None
        self.results: dict[str, Any] = {}

    def changes(self) -> dict[str, Any]:
        """Return the values of the section ``train`` that differ from those of the recipe."""
        steps = {"log_every": 10**9}  # lines are flushed in after_step
        if self._parts["shapes"] is not None:
            return steps
        return {**steps, "length": Duration(WARM_UP + self._steps + self._num_reads, "it")}

    def make_step(self, make: Callable[..., Step], task: Task | ParallelTask, *others: Any) -> Step:
        self._timed_step = _TimedStep(make(task, *others), task if isinstance(task, Task) else task.module)
        return self._timed_step

    def after_step(self, run: Run) -> None:
        """Begin to measure after the warm-up; end after the measured steps.

        Raises:
            MeasurementDone: everything is measured.
        """
        assert self._timed_step is not None
        if run.clock.step == WARM_UP:
            run.metrics_log.flush(run.clock)
            self._timed_step.reset()
        elif run.clock.step == WARM_UP + self._steps:
            run.metrics_log.flush(run.clock)
            self._measure(run, self._timed_step)
            raise MeasurementDone

    def _measure(self, run: Run, timed: _TimedStep) -> None:
        cuda, device = timed.device.type == "cuda", timed.device
        times = timed.mean_times()
        memory = {"host": peak_memory(), "device": torch.cuda.max_memory_allocated(device) if cuda else 0}
        samples = timed.last[1].count
        low, median, high = np.quantile([count / seconds for count, seconds in timed.step_times()], (0.25, 0.5, 0.75))
        self._repeated, self._launched = timed.time_repeats(REPEATS)
        streams: dict[str, Any] = {}
        if isinstance(run.task, Multitask) and world_size() == 1:
            batch = {**timed.last[0], "streams": timed.streams}
            streams = time_tasks(run.task, batch, run.clock, self._parts["train"], REPEATS)
            streams = {name: {"read": mean(timed.reading[name]), **times} for name, times in streams.items()}
        self.results = {
            "batch_size": samples,
            "samples_per_s": {"median": float(median), "low": float(low), "high": float(high)},
            "step": times,
            "model_samples_per_s": samples / self._repeated,
            "memory": memory,
            "flops": timed.flops(),
            "streams": streams,
            "loader_samples_per_s": sum(all_gather(self._read_only(run))),
            "device": torch.cuda.get_device_name(device) if cuda else device.type,
            "peak_flops": matmul_flops(device, self._parts["train"].precision),
        }

    def _read_only(self, run: Run) -> float:
        """Return the throughput of reading alone, in samples per second of this process."""
        assert run.loader is not None
        first_counted, samples, started, now = max(1, self._workers), 0, 0.0, 0.0
        for number, (_, batch) in enumerate(run.loader.iterate(run.clock.step)):
            now = time.perf_counter()
            if number < first_counted:
                started = now
            else:
                samples += len(batch["id"])
            if number > self._num_reads - 4 or (samples and now - started > MAX_READING_SECONDS):
                break
        run.loader.close()  # its workers would disturb the next measurement
        return samples / (now - started) if samples else 0.0

    def report(self, recipe: str) -> dict[str, Any]:
        """Return the result of :func:`benchmark`."""
        data, training, results = self._parts["data"], self._parts["train"], dict(self.results)
        step = {**self.lines.means(WARM_UP), **results.pop("step")}
        read = step.pop("read")
        step["other"] = max(0.0, step["seconds"] - step["data"] - step["forward"] - step["backward"] - step["update"])
        queued_share = None if results["device"] == "cpu" else 1 - min(1.0, self._launched / self._repeated)
        times = StepTimes(step["seconds"], step["data"], read, self._workers, cores(), queued_share)
        floor = results["flops"] / results["peak_flops"]
        return {
            "recipe": recipe,
            "processes": world_size(),
            "threads": torch.get_num_threads(),
            "precision": training.precision,
            "compile": training.compile,
            "workers": self._workers,
            "cores": cores(),
            "steps": self._steps,
            **results,
            "step": step,
            "read": read,
            "floor": floor,
            "share_of_peak": floor / self._repeated,
            "waits_for": times.waits_for,
            "advice": describe_bottleneck(
                times, data.faster_options(queued_share is not None), training.faster_options()
            ),
        }


class _LineCollector:
    """A logger that keeps the lines of training steps."""

    def __init__(self) -> None:
        self._lines: list[Mapping[str, Any]] = []

    def write(self, line: Mapping[str, Any]) -> None:
        """Keep a line of training steps."""
        if "time/step" in line:
            self._lines.append(line)

    def close(self) -> None: ...

    def means(self, start: int) -> dict[str, float]:
        """Return the mean seconds per step after step ``start``, of the slowest process: in all, waiting for data, and
        reading."""
        lines = [line for line in self._lines if line["step"] >= start]
        steps = [after["step"] - before["step"] for before, after in pairwise(lines)]
        names = {"seconds": "time/step", "data": "time/data", "read": "time/read"}
        return {
            key: sum(line[name] * count for line, count in zip(lines[1:], steps, strict=True)) / sum(steps)
            for key, name in names.items()
        }


# --- the step ---------------------------------------------------------------------------------------------------------


class _TimedStep(RepeatableStep):
    """A step that records when its parts start and end, on the host and on a GPU, without waiting for it.

    Args:
        step: the step.
        task: the model, whose forward passes are timed.

    Attributes:
        streams: the last batch of each stream of a multi-task run.
        reading: the seconds that reading each of its batches took.
    """

    def __init__(self, step: Step, task: Task) -> None:
        super().__init__(step)
        self.streams: dict[str, Batch] = {}
        self.reading: defaultdict[str, list[float]] = defaultdict(list)
        self.device = next(task.parameters()).device
        self._steps: list[tuple[int, list[Mark]]] = []
        self._marks: list[Mark] = []
        task.register_forward_pre_hook(lambda module, args: self._mark("forward"))
        task.register_forward_hook(lambda module, args, output: self._mark("forward_end"))

    def __call__(
        self, batch: Batch, global_batch: GlobalBatch, clock: Clock, after_backward: Callable[[], None]
    ) -> Scalars:
        def mark_update() -> None:
            self._mark("update")
            after_backward()

        self._marks = []
        self._mark("begin")
        scalars = super().__call__(batch, global_batch, clock, mark_update)
        self._mark("end")
        self._steps.append((global_batch.count, self._marks))
        self.streams |= batch.get("streams", {})
        for name, seconds in batch.get("seconds", {}).items():
            self.reading[name].append(seconds)
        return scalars

    def _mark(self, name: str) -> None:
        self._marks.append(mark(self.device, name))

    def reset(self) -> None:
        """Discard the steps so far."""
        synchronize(self.device)
        self._steps.clear()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def mean_times(self) -> dict[str, float]:
        """Return the mean seconds of the parts of a step: all of it on the host, the others on its device."""
        synchronize(self.device)
        totals = dict.fromkeys(("host", "forward", "backward", "update"), 0.0)
        for _, marks in self._steps:
            at = {mark.name: mark for mark in marks}
            starts = [mark for mark in marks if mark.name == "forward"]
            ends = [mark for mark in marks if mark.name == "forward_end"]
            forward = sum(start.seconds_to(end) for start, end in zip(starts, ends, strict=True))
            totals["host"] += at["end"].time - at["begin"].time
            totals["forward"] += forward
            totals["backward"] += at["begin"].seconds_to(at["update"]) - forward
            totals["update"] += at["update"].seconds_to(at["end"])
        return {name: seconds / len(self._steps) for name, seconds in totals.items()}

    def step_times(self) -> list[tuple[int, float]]:
        """Return the samples of each step after the first, and the seconds since the end of the step before."""
        ends = [(count, marks[-1]) for count, marks in self._steps]
        return [(count, before.seconds_to(end)) for (_, before), (count, end) in pairwise(ends)]

    def time_repeats(self, times: int) -> tuple[float, float]:
        """Repeat the last batch; return the seconds per step, in all and until the host has launched it."""
        synchronize(self.device)
        started = time.perf_counter()
        for _ in range(times):
            self.repeat()
        launched = time.perf_counter()
        synchronize(self.device)
        return (time.perf_counter() - started) / times, (launched - started) / times

    def flops(self) -> int:
        """Count the floating point operations of a step with the last batch: matrix products and convolutions."""
        with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
            self.repeat()
        return int(counter.get_total_flops())


# --- the device -------------------------------------------------------------------------------------------------------


def matmul_flops(device: torch.device, precision: str) -> float:
    """Measure the FLOP/s of a large matrix product on this device in this precision: the best of some rounds, with
    torch's present settings for threads and TensorFloat-32."""
    size = 1024 if device.type == "cpu" else 8192
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))

    def multiply() -> None:
        for _ in range(4):
            a @ b

    with torch.no_grad(), autocast(device, precision):
        a @ b
        end, best = time.perf_counter() + 0.5, float("inf")
        while best == float("inf") or time.perf_counter() < end:
            best = min(best, seconds_of(multiply, device) / 4)
    return 2 * size**3 / best
