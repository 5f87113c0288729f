"""The hook that profiles some steps."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge

from opabinia.config import register
from opabinia.contracts import Batch, Count, Hook, Run
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log
from opabinia.runtime.processes import is_rank_zero, rank
from opabinia.runtime.text import plural


@register.hook(name="profiler")
class Profiler(Hook):
    """Writes a trace of some steps to ``profile/step-N.json`` in the run folder, for Perfetto or chrome://tracing.

    Args:
        skip_first: steps before the trace, counted from the start of the process: the first ones are slow (workers
            start, modules are compiled).
        steps: number of traced steps.
    """

    def __init__(self, *, skip_first: Annotated[int, Ge(0)] = 10, steps: Count = 3) -> None:
        self.skip_first, self.steps = skip_first, steps
        self._done = 0
        self._profiler: Any = None

    def before_step(self, run: Run, batch: Batch) -> None:
        """Start the trace when it is time."""
        if self._done == self.skip_first:
            from torch.profiler import profile

            self._profiler = profile()
            self._profiler.start()

    def after_step(self, run: Run) -> None:
        """Write the trace when it is complete."""
        self._done += 1
        if self._done == self.skip_first + self.steps:
            self._write(run)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Write a shorter trace if the run ends earlier."""
        self._write(run)

    def _write(self, run: Run) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        name = f"step-{run.clock.step:08d}" + ("" if is_rank_zero() else f".rank{rank()}")
        path = run.folder / "profile" / f"{name}.json"
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(path))
        log.info("profile of %s: %s", plural(self.steps, "step"), path)
