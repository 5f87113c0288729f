"""From a folder of data to a trained predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opabinia.config import ConfigError, Problem
from opabinia.config.paths import check_not_overwritten, check_run_name, plan_file
from opabinia.inference.load import load
from opabinia.inference.predictor import Predictor
from opabinia.runtime.durations import parse_seconds
from opabinia.runtime.log import logging_to
from opabinia.training.autoconfig.plan import check_task, plan, save_profile
from opabinia.training.autoconfig.situation import device_of, this_machine
from opabinia.training.launch import run_folder_of, train


@dataclass(frozen=True)
class FittedRun:
    """A trained run.

    Attributes:
        folder: the run folder, for all commands.
        recipe: the planned recipe, with the reason of each value.
        scores: scores after the last step by name.
    """

    folder: Path
    recipe: Path
    scores: dict[str, float]

    @cached_property
    def predictor(self) -> Predictor:
        """The model of the best checkpoint."""
        return load(self.folder)


def fit(
    data: Path | str,
    *,
    budget: str = "1h",
    search: int | None = None,
    task: str | None = None,
    layout: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | str = Path("runs"),
    name: str = "default",
) -> FittedRun:
    """Train on a folder of data: recognize it, plan a recipe for it and this machine, and train that.

    The same as ``opabinia train DATA --budget 30m``.

    Args:
        data: a folder, annotation file or URL.
        budget: wall time of training with its evaluations, such as ``30m`` or ``8h``.
        search: number of short runs over learning rate and image size, in a third of the budget; the best values are
            taken. None: without them.
        task: the task, where the data allows several: ``classification``, ``reid`` ...
        layout: the layout, where the data has several.
        overrides: ``key=value``, changes to the planned recipe.
        out: the run folder is ``<out>/<name of data>/<name>``, the plan is beside it.
        name: name of the run.

    Raises:
        ConfigError: the data is not recognized or has several readings, an argument is wrong, or the run exists.
        Stopped: a signal ended the run early; ``opabinia train DATA --resume`` continues it. During the search nothing
            is kept.

    Example::

        run = opabinia.fit("path/to/data", budget="30m")
        run.scores["val_ema/top1"]
        run.predictor("new.jpg").readable["top"][0]
    """
    try:
        seconds = parse_seconds(budget)
    except ValueError as error:
        raise ConfigError(Problem("budget", "", str(error))) from None
    check_run_name(name)
    recipe = plan_file(str(data), Path(out), name)
    check_not_overwritten(run_folder_of(recipe, Path(out), name))
    machine = this_machine(device=device_of(overrides))
    with logging_to(None):
        plan(
            str(data), recipe,
            budget=seconds, machine=machine, task=check_task(task, "task"), layout=layout, overrides=overrides,
            search=search,
        )  # fmt: skip
    folder, scores = train(recipe, overrides, out=out, name=name)
    save_profile(recipe, folder)
    return FittedRun(folder, recipe, scores)
