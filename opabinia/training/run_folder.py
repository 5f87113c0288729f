"""Run folders: their config, their checkpoints, and the parts that the config builds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved, build, catalog, check, compose
from opabinia.config.paths import check_run_folder, member_runs
from opabinia.config.paths import folder_for as folder_for
from opabinia.config.paths import holds_run as holds_run
from opabinia.engine.checkpointing.checkpoint import BadCheckpoint, Snapshot, read_checkpoint, save_tensors
from opabinia.engine.checkpointing.manager import list_checkpoints, read_pointer
from opabinia.models.weights.download import HUB, hub_folder
from opabinia.runtime.files import disk_errors, temporary_file, temporary_folder
from opabinia.runtime.resources import cores
from opabinia.runtime.storage import StorageError, is_url

LAST = "last"
AUTO = "auto"
"""Value of ``data.batch_size``, ``data.augment_on`` and ``data.num_workers`` that is replaced before building."""


def resolve(recipe: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Resolved:
    """Return the complete config of a packaged recipe, YAML file or run folder.

    Args:
        recipe: its name or path, or a config as plain data.
        overrides: ``key=value``.

    Raises:
        ConfigError: with every mistake in it.
    """
    tree = compose(recipe, overrides)
    return check(tree, catalog(tree.plugins))


def with_values(config: Mapping[str, Any], **values: int | str) -> dict[str, Any]:
    """Return a complete config with these values where ``data`` has ``auto``.

    Example: ``with_values(config, batch_size=64, num_workers=2, augment_on="device")``.
    """
    replaced = {key: value for key, value in values.items() if config["data"].get(key) == AUTO}
    return {**config, "data": {**config["data"], **replaced}}


def replace_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete config to build from, for a command that does not train.

    ``auto`` becomes as many workers as there are cores, since nothing but reading is waited for, and augmentation in
    the workers.

    Raises:
        ConfigError: ``data.batch_size`` is ``auto``, which only training can tune.
    """
    if config["data"].get("batch_size") == AUTO:
        message = "auto is tuned by `opabinia train` on its machine; give a number here (data.batch_size=32)"
        raise ConfigError(Problem("", "data.batch_size", message))
    return with_values(config, num_workers=cores(), augment_on="workers")


def build_parts(resolved: Resolved, **values: int | str) -> partial[Any]:
    """Build the parts of a config: ``keywords`` are the fields of :class:`opabinia.training.session.TrainingRun`, with
    the validation sets of all tasks in ``data``.

    Args:
        resolved: the config.
        values: values of keys that are ``auto``; see :func:`with_values`.

    Raises:
        ConfigError: a part refuses its values.
    """
    from opabinia.training.streams import with_task_data  # imports torch

    config = replace_auto(with_values(resolved.config, **values))
    parts = build(config, origins=resolved.origins)
    return partial(parts, data=with_task_data(parts.keywords["task"], parts.keywords["data"]))


def process_group_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the ranks of a complete config join a process group."""
    return {**(config["train"]["distributed"] or {}), "device": config["train"]["device"]}


def downloaded_run(name: str) -> Path:
    """Return the local folder of ``hf:OWNER/NAME``, a model that was exported to the Hugging Face Hub, or of a run in
    remote storage (``s3://bucket/runs/a``). Nothing is trained there; that of a model is not written to.

    Raises:
        ConfigError: it cannot be downloaded, there is no such model or run, or its config imports plug-ins: a download
            must not choose the code that runs.
    """
    try:
        if is_url(name):
            from opabinia.training.remote_runs import fetch_run  # for few runs

            folder = fetch_run(name)
        else:
            folder = hub_folder(name.removeprefix(HUB))
    except (ValueError, StorageError) as error:
        raise ConfigError(Problem("command line", "", str(error))) from error
    if plugins := compose(folder / "config.yaml").plugins:
        message = f"{name} imports modules of this machine; if you know them, load a copy of {folder}"
        raise ConfigError(Problem("config.yaml", "plugins", message, found=", ".join(plugins)))
    return folder


def copy_downloaded_run(name: str) -> Path:
    """Return a folder of a downloaded run where commands may write results: that of a run in remote storage, or
    ``runs/OWNER/NAME-<revision>``, a copy of ``hf:OWNER/NAME``.

    Raises:
        ConfigError: see :func:`downloaded_run`.
    """
    downloaded = downloaded_run(name)
    if is_url(name):
        return downloaded
    folder = Path("runs") / f"{name.removeprefix(HUB).partition('@')[0]}-{downloaded.name[:7]}"
    if not holds_run(folder):
        with disk_errors(folder), temporary_folder(folder) as temporary:
            shutil.copytree(downloaded, temporary, dirs_exist_ok=True)
    return folder


def chosen_checkpoint(folder: Path, checkpoint: str) -> Path:
    """Return the folder of a run's checkpoint.

    Args:
        folder: the run folder; one that was exported for the Hugging Face Hub is its own only checkpoint.
        checkpoint: ``best`` (``last`` where there is none), ``last``, a name such as ``step-00000500``, or a path.

    Raises:
        ConfigError: there is no such run or checkpoint, or it cannot be fetched from remote storage.
    """
    check_run_folder(folder)
    if len(runs := member_runs(folder)) > 1:
        message = f"{folder} is an ensemble of {len(runs)} runs, and this takes one of them, such as {runs[0]}"
        raise ConfigError(Problem("command line", "", message))
    checkpoints = folder / "checkpoints"
    path: Path | None
    if checkpoint in ("best", LAST) and (folder / "state.json").is_file():
        path = folder
    elif checkpoint in ("best", LAST):
        path = read_pointer(checkpoints, checkpoint) or (
            read_pointer(checkpoints, LAST) if checkpoint == "best" else None
        )
    else:
        from opabinia.training.remote_runs import fetch_checkpoint  # for few runs

        try:
            fetch_checkpoint(folder, checkpoint)
        except StorageError as error:
            raise ConfigError(Problem("command line", "--checkpoint", str(error))) from error
        path = checkpoints / checkpoint if (checkpoints / checkpoint).is_dir() else Path(checkpoint)
    if path is None:
        raise ConfigError(Problem("command line", "--checkpoint", f"{folder} has no {checkpoint} checkpoint"))
    if not path.is_dir():
        known = ", ".join(["best", LAST, *(saved.name for saved in list_checkpoints(checkpoints))])
        raise ConfigError(Problem("command line", "--checkpoint", f"there is no {checkpoint!r}; there are: {known}"))
    return path


def read_chosen(path: Path) -> Snapshot:
    """Read the checkpoint that was named on the command line; tensors that were exported under the names of another
    library (``names`` of the state) get their own.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        snapshot = read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("command line", "--checkpoint", str(error))) from error
    names, files = snapshot.state.get("names"), snapshot.tensors
    if not names:
        return snapshot
    renamed = {name: files["model"][exported] for name, exported in names.items()}
    return replace(snapshot, tensors={"model": {**files.get("rest", {}), **renamed}})


def merge(folder: Path, out: Path, *, checkpoint: str = "best", weights: str = "raw") -> None:
    """Write the weights of a checkpoint, sharded or not, to one safetensors file.

    Args:
        folder: the run folder.
        out: the file; it must not exist yet.
        checkpoint: as in :func:`chosen_checkpoint`.
        weights: ``raw`` (or ``model``), or ``ema`` for their moving average.

    Raises:
        ConfigError: there is no such run, checkpoint or average, it is damaged, or ``out`` exists.
    """
    if out.exists():
        raise ConfigError(Problem("command line", "--out", f"{out} exists already"))
    path = chosen_checkpoint(folder, checkpoint)
    tensors, name = read_chosen(path).tensors, "model" if weights == "raw" else weights
    if name not in tensors:
        message = f"{path} has no {weights}; it has: {', '.join(tensors)}"
        raise ConfigError(Problem("command line", "--weights", message))
    with temporary_file(out) as temporary:
        save_tensors(temporary, tensors[name])


def views_of(source: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return in how many clips and crops a ``source`` section evaluates videos; None: in one view."""
    return (source["clips"], source["crops"]) if source["name"] == "video_views" else None
