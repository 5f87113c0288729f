"""Checks before anything heavy is imported: of paths of the command line, of a config's parameters annotated with
:class:`opabinia.config.types.MustExist`, and of values of a run that are compared with each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from opabinia.config.catalog import Catalog
from opabinia.config.catalog import catalog as catalog_of
from opabinia.config.check import Resolved, check
from opabinia.config.compose import compose, packaged_names
from opabinia.config.datasets import validation_sets
from opabinia.config.errors import ConfigError, Problem, listing, nearest
from opabinia.config.references import dotted
from opabinia.config.registry import Entry
from opabinia.config.types import Spec, must_exist
from opabinia.config.validate import fit
from opabinia.runtime.files import describe_missing, split_folder
from opabinia.runtime.storage import is_url

FOLDS_FILE, ENSEMBLE_FILE = "folds.json", "ensemble.json"
"""Records of ``opabinia train --folds``, in the folder of the folds, and of ``opabinia ensemble``. Their ``runs``
are relative to their folder."""


def check_run_name(name: str) -> None:
    """Check the name of a run, which is the name of its folder.

    Raises:
        ConfigError: it is not valid for a folder.
    """
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        message = f"{name!r} is not valid for a run: use letters, digits, '_', '-' and '.'"
        raise ConfigError(Problem("command line", "--name", message))


def folder_for(recipe: str | Path, out: Path, name: str) -> Path:
    """Return ``<out>/<recipe>/<name>``; a YAML file is named without its suffix, and for a run folder it is
    the folder ``name`` beside it."""
    path = Path(recipe)
    if holds_run(path):
        return path.parent / name
    return out / (path.stem if path.suffix in (".yaml", ".yml") else path) / name


def holds_run(folder: Path) -> bool:
    """Return whether a run has begun in ``folder``."""
    return (folder / "config.yaml").exists()


def holds_data(recipe: str) -> bool:
    """Return whether the first argument of a command is data rather than a recipe or a run: a folder, a URL, an
    annotation file, or YOLO's YAML file."""
    path = Path(os.path.expanduser(recipe))
    # os.path answers for names that are too long, too.
    if recipe in packaged_names() or os.path.exists(path / "config.yaml"):
        return False
    if path.suffix in (".yaml", ".yml") and os.path.isfile(path):
        text = path.read_text(encoding="utf-8", errors="replace")[:100_000]
        return bool(re.search(r"^(names|nc)\s*:", text, re.MULTILINE))
    return is_url(recipe) or os.path.exists(path)


def data_name(data: str) -> str:
    """Return a name for data from its path or URL, as of a recipe."""
    path = Path(data.rstrip("/")).expanduser().absolute()
    name = re.sub(r"[^\w.-]+", "_", path.name if path.is_dir() else path.stem).strip("._")
    return name or "data"


def plan_file(data: str, out: Path, name: str) -> Path:
    """Return the recipe that is planned for data and a run of this name; its run folder is beside its folder."""
    title = data_name(data)
    return out / title / f"{name}.plan" / f"{title}.yaml"


def facts_file(recipe: Path) -> Path:
    """Return the file beside a planned recipe with the facts behind it; for other recipes it does not exist."""
    return recipe.with_suffix(".plan.json")


def member_runs(folder: Path) -> list[Path]:
    """Return the folders of the runs of an ensemble, such as the folds of a cross-validation; that of a run alone.

    Raises:
        ConfigError: some of them do not exist (yet).
        InvalidFile: the record is damaged.
    """
    record = _record_of_runs(folder)
    if record is None:
        return [folder]
    from opabinia.runtime.json_files import read_json

    runs = [Path(os.path.normpath(folder / run)) for run in read_json(record, _Members)["runs"]]
    missing = [str(run) for run in runs if not holds_run(run)]
    if missing or not runs:
        again = ": repeat the command that trains the folds" if record.name == FOLDS_FILE else ""
        raise ConfigError(Problem(str(record), "", f"there is no run {listing(missing, 2)}{again}"))
    return runs


def _record_of_runs(folder: Path) -> Path | None:
    return next((folder / name for name in (FOLDS_FILE, ENSEMBLE_FILE) if (folder / name).is_file()), None)


class _Members(TypedDict):
    runs: list[str]


def check_not_overwritten(folder: Path) -> None:
    """Check that a new run would overwrite nothing in its folder.

    Raises:
        ConfigError: there is a checkpoint, or metrics.
    """
    metrics = folder / "metrics.jsonl"
    saved = any(re.fullmatch(r"step-\d{8,18}", path.name) for path in (folder / "checkpoints").glob("step-*"))
    if saved or (metrics.is_file() and metrics.stat().st_size > 0):
        message = f"{folder} holds a run, which is never overwritten: --resume continues it, --name begins another"
        raise ConfigError(Problem("command line", "", message))


def check_resumable(folder: Path, url: str | None = None) -> None:
    """Check that there is a run folder to resume; ``url``: where there is none either.

    Raises:
        ConfigError: there is none; the runs beside it are named.
    """
    if _record_of_runs(folder) is not None:
        message = f"{folder} is an ensemble of runs: resume one of them, or repeat the command that trains its folds"
        raise ConfigError(Problem("command line", "--resume", message))
    if folder.is_dir():
        return
    runs = sorted(path.parent.name for path in folder.parent.glob("*/config.yaml"))
    known = f"runs in {folder.parent}: {listing(runs)}" if runs else ""
    places = str(folder) if url is None else f"{folder} or {url}"
    message = f"there is no run {places} to resume; --resume auto resumes or begins it, as a job script needs"
    raise ConfigError(Problem("command line", "--resume", message, "", nearest(folder.name, runs), known))


def check_run_folder(folder: Path) -> None:
    """Check that a run has begun in ``folder``.

    Raises:
        ConfigError: it has not; runs in its subfolders are named, or those next to a folder that does not exist.
    """
    if holds_run(folder):
        return
    exists = folder.exists()
    runs = {path.parent.name: str(path.parent) for path in (folder if exists else folder.parent).glob("*/config.yaml")}
    known = f"runs in {'it' if exists else folder.parent}: {listing(sorted(runs.values()))}" if runs else ""
    if exists:
        raise ConfigError(Problem("command line", "", f"{folder} holds no run (no config.yaml in it)", allowed=known))
    message, suggestion = f"there is no folder {folder}", runs.get(nearest(folder.name, runs), "")
    raise ConfigError(Problem("command line", "", message, "", suggestion, known or describe_missing(folder)))


def check_input_paths(paths: Iterable[Path]) -> None:
    """Check that files and folders of the command line exist.

    Raises:
        ConfigError: some do not; all of them are named.
    """
    missing = [path for path in paths if not path.expanduser().exists()]
    if missing:
        raise ConfigError(Problem("command line", "", f"there is no file or folder {path}") for path in missing)


def check_run_data(folder: Path, overrides: Sequence[str], keys: Sequence[str]) -> None:
    """Check that a run has begun in ``folder``, and that the paths in some sections of its config exist.

    Args:
        folder: the run folder.
        overrides: ``key=value``.
        keys: the sections, such as ``data.val``.

    Raises:
        ConfigError: there is no run, its config is wrong, or paths are missing.
    """
    check_run_folder(folder)
    tree = compose(folder, overrides)
    parts = catalog_of(tree.plugins)
    check_paths(check(tree, parts), parts, keys)


def check_paths(resolved: Resolved, catalog: Catalog, keys: Sequence[str] = ("",)) -> None:
    """Check that the paths in some sections of a complete config exist, by default in all.

    Args:
        resolved: the config.
        catalog: of all parts.
        keys: of the sections, such as ``data.val``, also of the tasks of a multi-task run.

    Raises:
        ConfigError: some do not; all of them are named.
    """
    within = re.compile(rf"(task\.tasks\.[^.]+\.)?({'|'.join(keys)})")
    if missing := [problem for problem in missing_paths(resolved, catalog) if keys and within.match(problem.path)]:
        raise ConfigError(missing)


def missing_paths(resolved: Resolved, catalog: Catalog) -> list[Problem]:
    """Return a problem for each path of a complete config that must exist and does not. No part is imported."""
    problems: list[Problem] = []

    def walk(entry: Entry | None, values: Mapping[str, Any], path: tuple[Any, ...]) -> None:
        for parameter in entry.parameters if entry else ():
            value, place = values.get(parameter.name), (*path, parameter.name)
            if must_exist(parameter.spec) and isinstance(value, str) and not is_url(value):
                problems.extend(_missing(Path(value), dotted(place), resolved.origins.get(dotted(place), "")))
            fit(parameter.spec, value, place, lambda *mismatch: None, visit)

    def visit(spec: Spec, value: Any, path: tuple[Any, ...], key: str | None) -> None:
        values = {"name": value} if isinstance(value, str) else value
        family, name = ("section", spec["name"]) if spec.get("name") else (spec["family"], str(values.get("name", key)))
        walk(catalog.get(family, name), values, path)

    walk(catalog.get("command", "train"), resolved.config, ())
    return problems


def _missing(path: Path, key: str, origin: str) -> Iterator[Problem]:
    if not split_folder(path).exists():
        names = " or ".join(dict.fromkeys(re.findall(r"\$\{(vars\.[\w.]+)\}", origin)))
        message = f"there is no {path}; {describe_missing(path)}"
        yield Problem(origin, key, message, allowed=f"set {names}" if names else "")


def check_run(resolved: Resolved) -> None:
    """Check that the scores of ``checkpoint.best`` are those of validation sets.

    Raises:
        ConfigError: with every mistake.
    """
    found = _best(resolved.config)
    if problems := [Problem(resolved.origins.get(path, ""), path, *texts) for path, *texts in found]:
        raise ConfigError(problems)


def _best(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The path and the texts of each problem."""
    from opabinia.runtime.weighted_scores import score_weights

    path, metric = "checkpoint.best", config["checkpoint"]["best"]
    prefixes = [val_set["prefix"] for val_set in validation_sets({key: config[key] for key in ("task", "data")})]
    prefixes += [f"{prefix}_ema" for prefix in prefixes if config["ema"]]
    try:
        names = score_weights(metric) if metric is not None else {}
    except ValueError as error:
        yield path, str(error)
        return
    for name in names:
        if not name.startswith(tuple(f"{prefix}/" for prefix in prefixes)):
            prefix, _, score = name.rpartition("/")
            guess = nearest(prefix, prefixes)
            known = f"validation sets: {listing(prefixes) or 'none'}"
            yield path, f"no evaluation computes the score {name!r}", "", guess and f"{guess}/{score}", known
