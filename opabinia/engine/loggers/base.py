"""Shared part of the loggers for experiment trackers (extras such as wandb): one module each, offline unless asked.

A tracker never ends a run: its first error is logged, and it receives no more lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from opabinia.contracts import Clock
from opabinia.runtime.files import write_atomic
from opabinia.runtime.log import log


class ExperimentLogger:
    """Base class of loggers for experiment trackers.

    The tracker's run is started with the first line: a run that is refused before that leaves nothing behind. A resumed
    run continues the tracker's run, whose id is in the run folder, in the file ``<name>_id``.

    Attributes:
        name: the registered name; also the name of the package, and of the extra that installs it.
        module: the package.
        folder: the run folder.
    """

    name: str

    def __init__(self, folder: Path, clock: Clock) -> None:
        try:
            self.module = importlib.import_module(self.name)
        except ImportError as error:
            raise ValueError(
                f"{self.name} needs a package that is not installed ({error}); pip install 'opabinia[{self.name}]'"
            ) from error
        self.folder, self._resumed = folder, clock.step > 0
        self._state: Literal["waiting", "started", "off"] = "waiting"

    def start_run(self, run_id: str | None, title: str, config: Mapping[str, Any]) -> str:
        """Continue the tracker's run ``run_id``, or start a new one; return its id.

        Args:
            run_id: None for a new run.
            title: recipe and name.
            config: the complete config.
        """
        raise NotImplementedError

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Log the values of one line."""
        raise NotImplementedError

    def end_run(self) -> None:
        """End the tracker's run."""
        raise NotImplementedError

    def write(self, line: Mapping[str, Any]) -> None:
        """Log a line; start the tracker's run with the first one."""
        if self._state == "off":
            return
        values = {k: v for k, v in line.items() if k not in ("step", "sample_ids") and v is not None}
        try:
            if self._state == "waiting":
                self._start()
            self.log_values(values, line["step"])
        except Exception as error:
            self._disable(error)

    def _start(self) -> None:
        id_file = self.folder / f"{self.name}_id"
        known = id_file.read_text(encoding="utf-8").strip() if self._resumed and id_file.exists() else None
        config = yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
        run_id = self.start_run(known, "/".join(self.folder.resolve().parts[-3:]), config)
        write_atomic(id_file, f"{run_id}\n")
        self._state = "started"

    def _disable(self, error: Exception) -> None:
        message = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("logger %s is disabled after an error (metrics.jsonl has all values): %s", self.name, message)
        self._state = "off"

    def close(self) -> None:
        """End the tracker's run, if it was started."""
        state, self._state = self._state, "off"
        if state == "started":
            try:
                self.end_run()
            except Exception as error:
                self._disable(error)
