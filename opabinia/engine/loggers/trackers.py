"""The journal's lines in Weights & Biases and MLflow, under their own names. Extras; offline unless asked.

A tracker never ends a run: what it raises is told once, and it gets no further lines.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.runtime.files import write_atomic
from opabinia.runtime.log import log


class Tracker:
    """What trackers have in common. The first line begins: a run that is refused before leaves nothing in a tracker.

    A resumed run goes on in the same place: the tracker's own id of the run lies in the run folder, in ``<name>_id``.

    Attributes:
        name: as it is registered; also the package, and the extra that installs it.
        folder: the run folder.
    """

    name: str

    def __init__(self, folder: Path, clock: Clock) -> None:
        try:
            self.module = importlib.import_module(self.name)
        except ImportError as error:
            raise ValueError(
                f"writers: {self.name} needs a package that is not there ({error}); pip install 'opabinia[{self.name}]'"
            ) from error
        self.folder, self._resumed = folder, clock.step > 0
        self._state: Literal["waits", "writes", "off"] = "waits"

    def begin(self, known: str | None, title: str, config: Mapping[str, Any]) -> str:
        """Open the run with the id ``known``, or a new one; return its id.

        Args:
            known: the id; None for a new run.
            title: recipe and name.
            config: complete, as the run folder has it.
        """
        raise NotImplementedError

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Take one line's numbers."""
        raise NotImplementedError

    def end(self) -> None:
        """Finish the run."""
        raise NotImplementedError

    def write(self, line: Mapping[str, Any]) -> None:
        """Hand a line's numbers on."""
        if self._state == "off":
            return
        values = {k: v for k, v in line.items() if k not in ("step", "sample_ids") and v is not None}
        try:
            if self._state == "waits":
                self._begin()
            self.send(values, line["step"])
        except Exception as error:
            self._give_up(error)

    def _begin(self) -> None:
        place = self.folder / f"{self.name}_id"
        known = place.read_text(encoding="utf-8").strip() if self._resumed and place.exists() else None
        config = yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
        found = self.begin(known, "/".join(self.folder.resolve().parts[-3:]), config)
        write_atomic(place, f"{found}\n")
        self._state = "writes"

    def _give_up(self, error: Exception) -> None:
        said = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("%s takes no more numbers (metrics.jsonl has them all): %s", self.name, said)
        self._state = "off"

    def close(self) -> None:
        """Finish the run, if one has begun."""
        state, self._state = self._state, "off"
        if state == "writes":
            try:
                self.end()
            except Exception as error:
                self._give_up(error)


@register.writer(name="wandb")
class WeightsAndBiases(Tracker):
    """Weights & Biases (extra ``wandb``), in the folder ``wandb`` of the run; ``wandb sync`` uploads it.

    Args:
        project: where the run is listed.
        entity: whose project; null takes the account's own.
        mode: ``offline`` sends nothing; ``online`` sends everything while the run goes on, to the account that
            ``wandb login`` knows.
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

    def begin(self, known: str | None, title: str, config: Mapping[str, Any]) -> str:
        quiet = self.module.Settings(silent=True, console="off", disable_git=True)
        self._run = self.module.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=str(self.folder),
            name=title,
            id=known,
            resume="allow",
            config=config,
            settings=quiet,
        )
        # Its own counter cannot go back, as a resumed run does.
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def end(self) -> None:
        self._run.finish()


@register.writer(name="mlflow")
class MLflow(Tracker):
    """MLflow (extra ``mlflow``): in a database in the working folder, which ``mlflow ui`` of the whole package shows.

    Args:
        experiment: where the run is listed.
        uri: of the tracking server or database; null takes ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db``.
    """

    name = "mlflow"

    def __init__(self, folder: Path, clock: Clock, /, *, experiment: str = "opabinia", uri: str | None = None) -> None:
        super().__init__(folder, clock)
        self.experiment = experiment
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"

    def begin(self, known: str | None, title: str, config: Mapping[str, Any]) -> str:
        self._client = self.module.MlflowClient(tracking_uri=self.uri)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return known
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self._id = str(self._client.create_run(experiment, run_name=title).info.run_id)
        options = [self.module.entities.Param(key, str(value)[:_LONGEST]) for key, value in _leaves(config)]
        for first in range(0, len(options), _AT_ONCE):
            self._client.log_batch(self._id, params=options[first : first + _AT_ONCE])
        return self._id

    def send(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metric = self.module.entities.Metric
        self._client.log_batch(
            self._id, metrics=[metric(name, float(value), now, step) for name, value in values.items()]
        )

    def end(self) -> None:
        self._client.set_terminated(self._id)


_LONGEST, _AT_ONCE = 6000, 100
"""MLflow's limits: characters of a parameter, parameters in one call."""


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a config, and where they stand: ``data.train.transforms.0.size``."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        yield path, value
    for key, item in inside:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))
