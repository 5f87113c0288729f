"""The logger for Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.engine.loggers.base import ExperimentLogger


@register.logger(name="wandb")
class WeightsAndBiases(ExperimentLogger):
    """Weights & Biases (extra ``wandb``), in the folder ``wandb`` of the run; ``wandb sync`` uploads it.

    Args:
        project: the project that lists the run.
        entity: owner of the project; null is the account's own.
        mode: ``offline`` sends nothing; ``online`` uploads during the run, to the account of ``wandb login``.
    """

    name = "wandb"

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        /,
        *,
        project: str = "opabinia",
        entity: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        super().__init__(folder, clock)
        self.project, self.entity, self.mode = project, entity, mode

    def start_run(self, run_id: str | None, title: str, config: Mapping[str, Any]) -> str:
        self._run = self.module.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=str(self.folder),
            name=title,
            id=run_id,
            resume="allow",
            config=config,
            settings=self.module.Settings(silent=True, console="off", disable_git=True),
        )
        # wandb's own step counter cannot go back, which a resumed run does.
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def end_run(self) -> None:
        self._run.finish()
