"""A run of a sweep: check its config, train or resume it, or read its results."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from opabinia.config import Catalog, ConfigError, Problem, Resolved, catalog, check, compose, flatten
from opabinia.config.errors import listing, show
from opabinia.runtime.files import DiskError, FolderInUse
from opabinia.runtime.json_files import read_json
from opabinia.runtime.signals import Stopped


def check_configs(recipe: str, changes: Iterable[Sequence[str]]) -> list[Resolved]:
    """Resolve the complete config for each list of overrides; nothing is imported or built.

    Raises:
        ConfigError: with the errors of all configs, each once.
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


def check_same_config(folder: Path, recipe: str, overrides: Sequence[str]) -> None:
    """Check that a run folder, if it exists, has the same config, so that it can be resumed or its scores be used.

    Raises:
        ConfigError: the folder contains a run of another config.
    """
    if not (folder / "config.yaml").is_file():
        return
    saved, requested = check_configs(str(folder), [[]])[0].config, check_configs(recipe, [overrides])[0].config
    old, new = flatten(saved), flatten(requested)
    if requested["seed"] is None:
        old["seed"] = None
    different = [
        path for path in dict.fromkeys([*old, *new]) if (path in old) != (path in new) or old[path] != new[path]
    ]
    if different:
        values = [f"{path} {show(old.get(path))} in the folder, {show(new.get(path))} requested" for path in different]
        message = f"contains a run of another config ({listing(values, 3)}): choose another --name"
        raise ConfigError(Problem(str(folder), "", message))


def drawn_seed(folder: Path, recipe: str, overrides: Sequence[str]) -> int | None:
    """Return the random seed of the run in ``folder``; None if its recipe sets one or the folder does not exist.

    Raises:
        ConfigError: a config cannot be read.
    """
    if check_configs(recipe, [overrides])[0].config["seed"] is not None or not (folder / "config.yaml").is_file():
        return None
    seed: int | None = check_configs(str(folder), [[]])[0].config["seed"]
    return seed


# --- a run of the series ----------------------------------------------------------------------------------------------


def read_results(folder: Path) -> dict[str, float] | None:
    """Return the scores of a finished run, else None.

    Raises:
        ConfigError: the scores cannot be read.
    """
    results = folder / "results.json"
    if not results.is_file():
        return None
    return read_json(results, dict[str, float])


def train_or_resume(
    recipe: str, overrides: Sequence[str], *, out: Path, name: str, resolved: Resolved | None = None
) -> dict[str, float]:
    """Return the scores of a run; unless it is finished, train it or resume it from its last checkpoint.

    Args:
        recipe, overrides, out, name, resolved: see :func:`opabinia.training.launch.train`.

    Raises:
        ConfigError: the config is invalid.
        Stopped: a signal or a limit stopped the run, which has saved a checkpoint.
    """
    import torch

    from opabinia.training import launch

    folder = launch.run_folder_of(recipe, out, name)
    scores = read_results(folder)
    if scores is not None:
        return scores
    threads = torch.get_num_threads()
    started = (folder / "config.yaml").is_file()
    if started and (Path(recipe) / "config.yaml").is_file():
        recipe = str(folder)  # the recipe is a run folder: resume the copy, not the original
    try:
        return launch.train(
            recipe, overrides, out=out, name=name, resume="last" if started else None, resolved=resolved
        )[1]
    finally:
        torch.set_num_threads(threads)


def release_memory() -> None:
    """Free the memory and the compiled code of a run; torch limits the number of compiled variants."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # without a GPU in use it does nothing
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def run_trial(
    recipe: str, overrides: Sequence[str], *, out: Path, name: str, resolved: Resolved | None = None
) -> dict[str, float] | str:
    """Train a run; return its scores, or one line with the reason of a failure.

    Args:
        recipe, overrides, out, name, resolved: see :func:`opabinia.training.launch.train`.

    Raises:
        Stopped: see :func:`train_or_resume`.
        DiskError: the disk is full or not writable.
        FolderInUse: another process trains this run.
    """
    try:
        return train_or_resume(recipe, overrides, out=out, name=name, resolved=resolved)
    except (Stopped, DiskError, FolderInUse):
        raise
    except Exception as error:
        return _reason(error)
    finally:
        release_memory()


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        first, more = error.problems[0], len(error.problems) - 1
        # The overrides are displayed beside the reason.
        short = replace(first, where="") if first.where.startswith("command line: ") else first
        return f"{short}" + (f" (and {more} more)" if more else "")
    text = " ".join(str(error).split("\n\n")[0].split())
    if isinstance(getattr(error, "exit_status", None), int):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
