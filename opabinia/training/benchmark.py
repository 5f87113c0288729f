"""How fast a recipe trains on this machine, what it waits for, and how far it is from what the device can do.

Nothing is kept: the run is one in a temporary folder that trains some steps to warm up, some that are measured, then
one batch again and again (how fast it would be if data were there at once), then reads without training (how fast data
would be there).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Batch, Clock, Hook, ParallelTask, Row, Run, Scalars, Step, Task
from opabinia.engine.hooks.bottleneck import Pace, describe_bottleneck
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import logging_to
from opabinia.runtime.process_group import joined_process_group
from opabinia.runtime.processes import from_rank_zero, gather, world_size
from opabinia.runtime.resources import cores, peak_memory
from opabinia.training.auto_values import with_values
from opabinia.training.autotune import autotune, only_training, silence
from opabinia.training.run_folder import build_parts, process_group_options, resolve
from opabinia.training.session import Session, train
from opabinia.training.world_size_scaling import auto_scale

WARM_UP = 5
"""Steps before those that are measured: workers start, modules are compiled, the allocator finds its sizes."""
AGAIN = 10
"""How often one batch is trained again."""
READING = 10.0
"""Seconds of reading without training, at most."""
_GB = 2**30


def benchmark(recipe: str, overrides: Sequence[str] = (), *, steps: int = 30) -> dict[str, Any]:
    """Measure a recipe; all processes of a run call it together, and the first one's answer is that of all.

    Args:
        recipe: a packaged recipe, a YAML file or a run folder.
        overrides: ``key=value``.
        steps: how many are measured.

    Returns:
        Plain numbers, in seconds, samples and bytes:

        - ``samples_per_s``: ``median`` of the steps, and the middle half of them (``low``, ``high``);
        - ``step``: means of ``seconds``, of them ``data`` (waiting), ``host`` (until the device has been given all),
          ``forward``, ``backward``, ``update``, and ``other`` (hooks, copies to the device);
        - ``read``: seconds that a batch takes in the process that reads it;
        - ``loader_samples_per_s``, ``model_samples_per_s``: reading alone, and one batch again and again;
        - ``memory``: most bytes of the first process on the ``host``, and of its tensors on the ``device``;
        - ``flops``: of a process's step, matrix products and convolutions, forward and backward; ``peak_flops``: per
          second, of a large matrix product in the same precision; ``floor``: the one by the other, in seconds;
          ``share_of_peak``: what the step with its batch at hand reaches of it;
        - ``waits_for``: ``data``, ``host`` or ``device``; ``advice``: what would change that.

    Raises:
        ConfigError: the recipe is wrong, or has fewer steps.
    """
    resolved = resolve(recipe, overrides)
    with (
        joined_process_group(**process_group_options(resolved.config)),
        logging_to(None),
        tempfile.TemporaryDirectory() as folder,
    ):
        config, _ = auto_scale(resolved.config, world_size())
        found = autotune(config, lambda numbered: build_parts(replace(resolved, config=numbered)).keywords)
        parts = build_parts(replace(resolved, config=with_values(config, **found))).keywords
        measuring = _Measuring(steps, parts)
        with silence(), suppress(_Measured):
            train(Session(Path(folder)), **measuring.parts())
        if measuring.done:
            return from_rank_zero(lambda: measuring.told(recipe))
        message = f"the run has fewer than the {WARM_UP + steps + 1} steps that are needed; --steps takes fewer"
        raise ConfigError(Problem("", "train.length", message))


class _Measured(Exception):
    """All is measured."""


class _Measuring(Hook):
    """Measures a run from within.

    Args:
        steps: how many are measured, behind those to warm up.
        parts: of the run.
    """

    def __init__(self, steps: int, parts: Mapping[str, Any]) -> None:
        self._steps, self._given = steps, parts
        self._workers = int(parts["data"].workers)
        self._lines = _Lines()
        self._watch: _Watch | None = None
        self._found: dict[str, Any] = {}

    def parts(self) -> dict[str, Any]:
        """The parts of the run, to be measured."""
        train = self._given["train"]
        length = Duration(WARM_UP + self._steps + self._to_read, "it")
        changed = replace(
            train,
            length=length if self._given["shapes"] is None else train.length,
            step=partial(self._watched, train.step),
            log_every=10**9,  # lines are asked for below
            log_samples=False,
        )
        only = only_training(self._given, bench=self)
        return {**only, "train": changed, "writers": [lambda folder, clock: self._lines]}

    @property
    def done(self) -> bool:
        """Whether all is measured."""
        return bool(self._found)

    @property
    def _to_read(self) -> int:
        """Batches that are read without training; the first ones of all workers come late."""
        return 4 * max(1, self._workers) + 8

    def _watched(self, make: Callable[..., Step], task: Task | ParallelTask, *others: Any) -> Step:
        self._watch = _Watch(make(task, *others), task if isinstance(task, Task) else task.module)
        return self._watch

    def after_step(self, run: Run) -> None:
        """Begin to measure, or end it.

        Raises:
            _Measured: all is measured.
        """
        if run.clock.step == WARM_UP:
            run.metrics_log.flush(run.clock)
            assert self._watch is not None
            self._watch.forget()
        elif run.clock.step == WARM_UP + self._steps:
            run.metrics_log.flush(run.clock)
            self._measure(run)
            raise _Measured

    def _measure(self, run: Run) -> None:
        watch = self._watch
        assert watch is not None and run.loader is not None
        times = watch.times()
        memory = {"host": peak_memory(), "device": _device_memory(watch.device)}
        row = watch.last[1]
        again, host = watch.again(AGAIN)
        self._found = {
            "batch_size": row.count,
            "samples_per_s": _spread([count / seconds for count, seconds in watch.paces()]),
            "step": times,
            "model_samples_per_s": row.count / again,
            "memory": memory,
            "flops": watch.flops(),
            "again": again,
            "host_alone": host,
            "loader_samples_per_s": sum(gather(self._reading(run))),
            "device": _device_name(watch.device),
            "peak_flops": matmul_flops(watch.device, self._given["train"].precision),
        }

    def _reading(self, run: Run) -> float:
        """Samples of this process a second, of reading alone."""
        assert run.loader is not None
        late, samples, began, now = max(1, self._workers), 0, 0.0, 0.0
        for number, (_, batch) in enumerate(run.loader.iterate(run.clock.step)):
            now = time.perf_counter()
            if number < late:
                began = now
            else:
                samples += len(batch["id"])
            if number > self._to_read - 4 or (samples and now - began > READING):
                break
        run.loader.close()  # what workers still read would disturb what is measured next
        return samples / (now - began) if samples else 0.0

    def told(self, recipe: str) -> dict[str, Any]:
        """What :func:`benchmark` returns."""
        data, train, found = self._given["data"], self._given["train"], dict(self._found)
        again, host = found.pop("again"), found.pop("host_alone")
        step = {**self._lines.means(WARM_UP), **found.pop("step")}
        read = step.pop("read")
        step["other"] = max(0.0, step["seconds"] - step["data"] - step["forward"] - step["backward"] - step["update"])
        behind = None if found["device"] == "cpu" else 1 - min(1.0, host / again)
        pace = Pace(step["seconds"], step["data"], read, self._workers, cores(), behind)
        floor = found["flops"] / found["peak_flops"]
        return {
            "recipe": recipe,
            "processes": world_size(),
            "threads": torch.get_num_threads(),
            "precision": train.precision,
            "compile": train.compile,
            "workers": self._workers,
            "cores": cores(),
            "steps": self._steps,
            **found,
            "step": step,
            "read": read,
            "floor": floor,
            "share_of_peak": floor / again,
            "waits_for": pace.waits_for,
            "advice": describe_bottleneck(pace, data.cheaper(behind is not None), train.faster()),
        }


class _Lines:
    """A writer that keeps the journal's lines."""

    def __init__(self) -> None:
        self._lines: list[Mapping[str, Any]] = []

    def write(self, line: Mapping[str, Any]) -> None:
        """Keep it, if it is one of training."""
        if "time/step" in line:
            self._lines.append(line)

    def close(self) -> None: ...

    def means(self, first: int) -> dict[str, float]:
        """Seconds of a step behind step ``first``, of the slowest process: all of it, waiting for data, and reading."""
        lines = [line for line in self._lines if line["step"] >= first]
        steps = [after["step"] - before["step"] for before, after in pairwise(lines)]
        names = {"seconds": "time/step", "data": "time/data", "read": "time/read"}
        return {
            key: sum(line[name] * count for line, count in zip(lines[1:], steps, strict=True)) / sum(steps)
            for key, name in names.items()
        }


# --- the step ---------------------------------------------------------------------------------------------------------

_Moment = tuple[str, float, "torch.cuda.Event | None"]
"""What begins or ends, when the host said so, and when the device came to it."""


class _Watch:
    """A step that notes when its parts begin and end, on the host and on a GPU; nobody waits for that.

    Args:
        step: does the work.
        task: the model whose forward passes are noted.
    """

    def __init__(self, step: Step, task: Task) -> None:
        self._step, self.optimizer = step, step.optimizer
        self.device = next(task.parameters()).device
        self._steps: list[tuple[int, list[_Moment]]] = []
        self._moments: list[_Moment] = []
        self.last: tuple[Batch, Row, Clock] = ({}, Row(0, 0, 0, 0), Clock())
        task.register_forward_pre_hook(lambda module, args: self._mark("forward"))
        task.register_forward_hook(lambda module, args, output: self._mark("forwarded"))

    def __call__(self, batch: Batch, row: Row, clock: Clock, after_backward: Callable[[], None]) -> Scalars:
        self._moments = []
        self._mark("begin")
        scalars = self._step(batch, row, clock, partial(self._backwarded, after_backward))
        self._mark("end")
        self._steps.append((row.count, self._moments))
        self.last = batch, row, clock
        return scalars

    def _backwarded(self, after_backward: Callable[[], None]) -> None:
        self._mark("update")
        after_backward()

    def _mark(self, name: str) -> None:
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        self._moments.append((name, time.perf_counter(), event))

    def state_dict(self) -> dict[str, Any]:
        return self._step.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step.load_state_dict(state)

    def forget(self) -> None:
        """Begin anew."""
        self._wait()
        self._steps.clear()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def times(self) -> dict[str, float]:
        """Mean seconds of the parts of a step: on the host all of it, on its device ``forward`` and so on."""
        self._wait()
        found = dict.fromkeys(("host", "forward", "backward", "update"), 0.0)
        for _, moments in self._steps:
            at = {name: moment for moment in moments for name in (moment[0],)}
            pairs = zip(*([one for one in moments if one[0] == name] for name in ("forward", "forwarded")), strict=True)
            forward = sum(_between(*pair) for pair in pairs)
            found["host"] += at["end"][1] - at["begin"][1]
            found["forward"] += forward
            found["backward"] += _between(at["begin"], at["update"]) - forward
            found["update"] += _between(at["update"], at["end"])
        return {name: seconds / len(self._steps) for name, seconds in found.items()}

    def paces(self) -> list[tuple[int, float]]:
        """Samples of a step, and seconds from the end of the step before to its own."""
        ends = [moments[-1] for _, moments in self._steps]
        counts = [count for count, _ in self._steps[1:]]
        return [(count, _between(*pair)) for count, pair in zip(counts, pairwise(ends), strict=True)]

    def again(self, times: int) -> tuple[float, float]:
        """Seconds of a step with the last batch, in all and until the host has given it to the device."""
        self._wait()
        began = time.perf_counter()
        for _ in range(times):
            self._step(*self.last, lambda: None)
        given = time.perf_counter()
        self._wait()
        return (time.perf_counter() - began) / times, (given - began) / times

    def flops(self) -> int:
        """Floating point operations of a step with the last batch: matrix products and convolutions."""
        with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
            self._step(*self.last, lambda: None)
        return int(counter.get_total_flops())


def _between(first: _Moment, second: _Moment) -> float:
    if first[2] is not None and second[2] is not None:
        return float(first[2].elapsed_time(second[2])) / 1000
    return second[1] - first[1]


# --- the machine ------------------------------------------------------------------------------------------------------


def matmul_flops(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """Floating point operations a second of a large matrix product on this device, in this precision: the best of some
    rounds, with what torch has been told of threads and TensorFloat-32."""
    size = 1024 if device.type == "cpu" else 8192
    made = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=made).to(device) for _ in range(2))
    with torch.no_grad(), autocast(device, precision):
        a @ b
        end, best = time.perf_counter() + seconds, float("inf")
        while best == float("inf") or time.perf_counter() < end:
            best = min(best, _timed(device, lambda: a @ b))
    return 2 * size**3 / best


def _timed(device: torch.device, work: Callable[[], object], times: int = 4) -> float:
    """Seconds of each of some rounds of ``work``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / times


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _device_memory(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "low": low, "high": high}
