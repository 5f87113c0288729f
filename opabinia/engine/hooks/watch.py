"""Hooks that look after a run: time, loss spikes, profiles, the device's cache."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt

from opabinia.config import register
from opabinia.contracts import Batch, Count, Hook, Phase, Run
from opabinia.engine.hooks.periods import due
from opabinia.runtime.durations import Duration
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log
from opabinia.runtime.processes import is_rank_zero, rank


class Timer(Hook):
    """Tells at the end what the time went into."""

    def start(self, run: Run) -> None:
        """Start the watch."""
        self._began, self._first, self._evaluating, self._since = time.monotonic(), run.clock.step, 0.0, 0.0

    def before_phase(self, run: Run, phase: Phase) -> None:
        """An evaluation begins."""
        if phase.kind == "evaluate":
            self._since = time.monotonic()

    def after_phase(self, run: Run, phase: Phase) -> None:
        """An evaluation is over."""
        if phase.kind == "evaluate":
            self._evaluating += time.monotonic() - self._since

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Tell."""
        steps = run.clock.step - getattr(self, "_first", run.clock.step)
        if steps:
            total = time.monotonic() - self._began
            rest = (total - self._evaluating) / steps
            log.info("%d steps in %.1f s, %.1f s of it evaluation; %.4f s a step", steps, total, self._evaluating, rest)


@register.hook(name="loss_spike")
class LossSpike(Hook):
    """Warns when a line of the journal has a loss far above those before it.

    Args:
        factor: of the median of the lines before.
        window: how many lines it is the median of; the first ones are only gathered.
        metric: which loss.
    """

    def __init__(
        self,
        *,
        factor: Annotated[float, Gt(1)] = 3.0,
        window: Annotated[int, Ge(3)] = 20,
        metric: str = "train/loss",
    ) -> None:
        self.factor, self.metric = factor, metric
        self._past: deque[float] = deque(maxlen=window)
        self._seen: Mapping[str, Any] | None = None

    def after_step(self, run: Run) -> None:
        """Look at the newest line, once."""
        line = run.metrics_log.newest
        if line is self._seen or line is None or line.get(self.metric) is None:
            return
        self._seen, loss = line, line[self.metric]
        if len(self._past) >= 3 and loss > self.factor * median(self._past):
            usual = median(self._past)
            log.warning("%s is %.4g at step %d; before it was %.4g", self.metric, loss, line["step"], usual)
        self._past.append(loss)

    def state_dict(self) -> dict[str, Any]:
        """The losses in the window."""
        return {"past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""
        self._past = deque(state["past"], self._past.maxlen)


@register.hook(name="profile")
class Profile(Hook):
    """Writes a trace of some steps to ``profile/step-N.json`` in the run folder, for chrome://tracing or Perfetto.

    Args:
        first: steps before the trace begins, counted from this start, so that what is slow only once is over.
        steps: how many steps are traced.
    """

    def __init__(self, *, first: Annotated[int, Ge(0)] = 10, steps: Count = 3) -> None:
        self.first, self.steps = first, steps
        self._done = 0
        self._profiler: Any = None

    def before_step(self, run: Run, batch: Batch) -> None:
        """Begin when it is time."""
        if self._done == self.first:
            from torch.profiler import profile

            self._profiler = profile()
            self._profiler.start()

    def after_step(self, run: Run) -> None:
        """Write when it is over."""
        self._done += 1
        if self._profiler is not None and self._done == self.first + self.steps:
            self._write(run)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """A run that ends earlier has a shorter trace."""
        if self._profiler is not None:
            self._write(run)

    def _write(self, run: Run) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        name = f"step-{run.clock.step:08d}" + ("" if is_rank_zero() else f".rank{rank()}")
        path = run.folder / "profile" / f"{name}.json"
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(path))
        log.info("profile of %d steps: %s", self.steps, path)


@register.hook(name="empty_cache")
class EmptyCache(Hook):
    """Gives memory that torch keeps for later back to the device, against fragmentation. It costs time.

    Args:
        every: the period.
    """

    def __init__(self, *, every: Duration = Duration(1, "ep")) -> None:
        self.every = every

    def after_step(self, run: Run) -> None:
        """Empty it when it is time."""
        if not due(run.clock, self.every):
            return
        if torch.cuda.is_available():
            before = torch.cuda.memory_reserved()
            torch.cuda.empty_cache()
            freed = (before - torch.cuda.memory_reserved()) / 2**20
            log.info("step %d: gave %.0f MB back to the device", run.clock.step, freed)
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
            log.info("step %d: emptied the device's cache", run.clock.step)
