"""One run of a series: checked before any is begun, gone on with, or taken as it is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from opabinia.config import Catalog, ConfigError, Problem, Resolved, catalog, check, compose, flatten
from opabinia.config.errors import listing, show
from opabinia.runtime.files import DiskError, InUse
from opabinia.runtime.signals import Stopped
from opabinia.training.sweep.record import read_json


def check_all(recipe: str, changes: Iterable[Sequence[str]]) -> list[Resolved]:
    """The complete config for each list of overrides; nothing is imported or built.

    Raises:
        ConfigError: with every mistake in any of them, each once.
    """
    catalogs: dict[tuple[str, ...], Catalog] = {}
    resolved: list[Resolved] = []
    problems: dict[str, Problem] = {}
    for overrides in changes:
        tree = compose(recipe, overrides)
        if tree.plugins not in catalogs:
            catalogs[tree.plugins] = catalog(tree.plugins)
        try:
            resolved.append(check(tree, catalogs[tree.plugins]))
        except ConfigError as error:
            problems.update({str(problem): problem for problem in error.problems})
    if problems:
        raise ConfigError(problems.values())
    return resolved


def refuse_other_config(folder: Path, recipe: str, overrides: Sequence[str]) -> None:
    """A folder with a run of another config is neither gone on with nor are its scores taken.

    Raises:
        ConfigError: ``folder`` holds one.
    """
    if not (folder / "config.yaml").is_file():
        return
    saved, wanted = check_all(str(folder), [[]])[0].config, check_all(recipe, [overrides])[0].config
    old, new = flatten(saved), flatten(wanted)
    if wanted["seed"] is None:
        old["seed"] = None
    differ = [path for path in dict.fromkeys([*old, *new]) if (path in old) != (path in new) or old[path] != new[path]]
    if differ:
        values = [f"{path} {show(old.get(path))} there, {show(new.get(path))} here" for path in differ]
        message = f"holds a run of another config ({listing(values, 3)}): --name begins another"
        raise ConfigError(Problem(str(folder), "", message))


def seed_of(folder: Path, recipe: str, overrides: Sequence[str]) -> int | None:
    """The seed that the run in ``folder`` has drawn; None when its recipe says one, or the folder is gone.

    Raises:
        ConfigError: a config cannot be read.
    """
    if check_all(recipe, [overrides])[0].config["seed"] is not None or not (folder / "config.yaml").is_file():
        return None
    drawn: int | None = check_all(str(folder), [[]])[0].config["seed"]
    return drawn


# --- a run of the series --------------------------------------------------------------------------------------------


def results_of(folder: Path) -> dict[str, float] | None:
    """The scores of a finished run, else None.

    Raises:
        ConfigError: they cannot be read.
    """
    results = folder / "results.json"
    if not results.is_file():
        return None
    scores = read_json(results)
    return {str(name): float(value) for name, value in scores.items()}


def train_or_go_on(recipe: str, overrides: Sequence[str], *, out: Path, name: str) -> dict[str, float]:
    """The scores of a run: taken from its folder if it is finished; else it is trained, from its last checkpoint on.

    Raises:
        ConfigError: the config is wrong.
        Stopped: a signal or a limit ended it early; it has saved.
    """
    import torch

    from opabinia.training import launch

    folder = launch.run_folder_of(recipe, out, name)
    scores = results_of(folder)
    if scores is not None:
        return scores
    threads = torch.get_num_threads()
    begun = (folder / "config.yaml").is_file()
    if begun and (Path(recipe) / "config.yaml").is_file():
        recipe = str(folder)  # to resume a run folder is to resume that very run
    try:
        return launch.train(recipe, overrides, out=out, name=name, resume="last" if begun else None)[1]
    finally:
        torch.set_num_threads(threads)


def clean_up() -> None:
    """Give back what a run leaves in the process: memory, and compiled code, of which there may be only so much."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # without a GPU in use it does nothing
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def try_run(recipe: str, overrides: Sequence[str], *, out: Path, name: str) -> dict[str, float] | str:
    """Scores, or one line about why there are none.

    Raises:
        Stopped: see :func:`train_or_go_on`.
        DiskError: nothing can be written.
        InUse: another process trains this run.
    """
    try:
        return train_or_go_on(recipe, overrides, out=out, name=name)
    except (Stopped, DiskError, InUse):
        raise
    except Exception as error:
        return _reason(error)
    finally:
        clean_up()


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        first, more = error.problems[0], len(error.problems) - 1
        # The changes of the run stand beside its reason.
        short = replace(first, where="") if first.where.startswith("command line: ") else first
        return f"{short}" + (f" (and {more} more)" if more else "")
    text = " ".join(str(error).split("\n\n")[0].split())
    if isinstance(getattr(error, "exit_status", None), int):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
