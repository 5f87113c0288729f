"""Learning curve: the score of short runs on parts of the training data, and the gain of twice the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from opabinia.config import Resolved
from opabinia.config.datasets import subtasks
from opabinia.contracts import SINGLE, Source
from opabinia.data.sources.subset import nested_order, write_split
from opabinia.runtime.log import log
from opabinia.runtime.quiet import quiet_terminal
from opabinia.runtime.signals import Stopped
from opabinia.training.launch import train
from opabinia.training.run_folder import build_parts, resolve
from opabinia.training.streams import training_streams

FRACTIONS = (0.25, 0.5)
_START_SECONDS = 10.0
"""Time until the first step of a run, assumed."""


@dataclass(frozen=True)
class LearningCurve:
    """Scores of runs with the same number of steps on nested parts of the training data.

    Attributes:
        samples: number of training samples of each run, ascending.
        scores: of each run.
        steps: their length.
    """

    samples: Sequence[int]
    scores: Sequence[float]
    steps: int

    @property
    def gain(self) -> float:
        """Change of the score for twice the data: the slope of the regression line over log2 of the samples."""
        return float(np.polyfit(np.log2(self.samples), self.scores, 1)[0])

    def gain_uncertainty(self, uncertainty: float) -> float:
        """Return the half-width of the confidence interval of :attr:`gain`, given that of each score. It is that of
        independent validation sets; the same set for all makes it smaller."""
        doublings = np.log2(self.samples)
        return uncertainty / math.sqrt(float(((doublings - doublings.mean()) ** 2).sum()))


def learning_curve(
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    metric: str,
    seconds: float,
    fractions: Sequence[float] = FRACTIONS,
) -> LearningCurve | None:
    """Train on parts of the training data of a finished run; None if the time is too short, if the parts would be
    smaller than a batch, for a multi-task run, and if Ctrl-C stops it.

    If there is no time for as many steps as those of the run, the parts and all of the data are trained on with fewer,
    at least an epoch of all data. The runs are deleted.

    Args:
        folder: the run folder.
        lines: lines of its metrics log, oldest first.
        metric: the score to compare.
        seconds: maximum time of all runs together, as far as the run's own times predict it.
        fractions: parts of the data, ascending.

    Raises:
        ConfigError: the data cannot be opened.
    """
    resolved = resolve(folder)
    times = [line["time/step"] for line in lines if "time/step" in line]
    if subtasks(resolved.config) or not times:
        return None
    evaluation = max((line[key] for line in lines for key in line if key.startswith("time/val")), default=0.0)
    overhead, total = _START_SECONDS + evaluation, int(lines[-1]["step"])

    def affordable(runs: int) -> int:
        return int((seconds / runs - overhead) / median(times))

    steps, parts = total, list(fractions)
    if affordable(len(parts)) < total:
        parts = [*fractions, 1.0]
        steps = min(total, affordable(len(parts)))
    built = build_parts(resolved).keywords
    source = training_streams(built["task"], built["data"])[SINGLE].source
    batch = resolved.config["data"]["batch_size"]
    if not isinstance(batch, int) or steps * batch < len(source) or fractions[0] * len(source) < batch:
        return None
    try:
        sizes, scores = zip(*_train_on_parts(resolved, source, metric, parts, steps), strict=True)
    except Stopped:
        return None
    if parts[-1] != 1.0:
        sizes, scores = (*sizes, len(source)), (*scores, next(line[metric] for line in lines[::-1] if metric in line))
    return LearningCurve(sizes, scores, steps)


def _train_on_parts(
    resolved: Resolved, source: Source, metric: str, parts: Sequence[float], steps: int
) -> Iterator[tuple[int, float]]:
    """Yield the number of samples and the score of each run."""
    keys, order = np.array(list(source.split_keys()), dtype=object), nested_order(source)
    with TemporaryDirectory(prefix="learning-curve-") as temporary:
        for part in parts:
            kept = order[: round(part * len(order))]
            file = Path(temporary) / f"{part:g}.json"
            write_split(file, set(keys.tolist()) - set(keys[kept].tolist()))
            log.info("learning curve: %d steps on %d of %d samples", steps, len(kept), len(order))
            with quiet_terminal():
                changed = _shortened(resolved, file, steps)
                _, scores = train("learning_curve", out=Path(temporary), name=f"{part:g}", resolved=changed)
            yield len(kept), scores[metric]


def _shortened(resolved: Resolved, file: Path, steps: int) -> Resolved:
    """Return the config with the training samples that a split file leaves, this length and one evaluation."""
    config = resolved.config
    train_set = config["data"]["train"]
    source = {"name": "subset", "source": train_set["source"], "file": str(file), "split": "train", "identities": False}
    changed = {**shortened(config, steps), "data": {**config["data"], "train": {**train_set, "source": source}}}
    return replace(resolved, config=changed)


def shortened(config: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return a config with this length and one evaluation, at the end; its run is for its score only."""
    hooks = {key: hook for key, hook in (config["hooks"] or {}).items() if hook["name"] not in _NOT_NEEDED}
    return {
        **config,
        "hooks": hooks,
        "loggers": [],
        "train": {**config["train"], "length": f"{steps}it"},
        "evaluate": {**config["evaluate"], "every": "0ep"},
        "checkpoint": {**config["checkpoint"], "upload": None},
    }


_NOT_NEEDED = ("expected_scores", "early_stop")
