"""The logger for MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.engine.loggers.base import ExperimentLogger

_MAX_PARAM_LENGTH, _MAX_PARAMS_PER_CALL = 6000, 100
"""MLflow's limits."""


@register.logger(name="mlflow")
class MLflow(ExperimentLogger):
    """MLflow (extra ``mlflow``): in a database in the working folder, which ``mlflow ui`` of the whole package shows.

    Args:
        experiment: the experiment that lists the run.
        tracking_uri: address of the tracking server or database; null uses ``MLFLOW_TRACKING_URI``, else
            ``sqlite:///mlflow.db``.
    """

    name = "mlflow"

    def __init__(
        self, folder: Path, clock: Clock, /, *, experiment: str = "opabinia", tracking_uri: str | None = None
    ) -> None:
        super().__init__(folder, clock)
        self.experiment = experiment
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"

    def start_run(self, run_id: str | None, title: str, config: Mapping[str, Any]) -> str:
        self._client = self.module.MlflowClient(tracking_uri=self.tracking_uri)
        if run_id is not None:
            self._id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        existing = self._client.get_experiment_by_name(self.experiment)
        experiment = existing.experiment_id if existing else self._client.create_experiment(self.experiment)
        self._id = str(self._client.create_run(experiment, run_name=title).info.run_id)
        params = [self.module.entities.Param(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in _leaves(config)]
        for start in range(0, len(params), _MAX_PARAMS_PER_CALL):
            self._client.log_batch(self._id, params=params[start : start + _MAX_PARAMS_PER_CALL])
        return self._id

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        milliseconds = int(time.time() * 1000)
        metric = self.module.entities.Metric
        metrics = [metric(name, float(value), milliseconds, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end_run(self) -> None:
        self._client.set_terminated(self._id)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of a config with their paths: ``data.train.transforms.0.size``."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(item, f"{path}.{key}" if path else str(key))
