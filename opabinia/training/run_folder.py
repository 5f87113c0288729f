"""Run folders: their config, their checkpoints, and the parts that the config builds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved, build, catalog, check, compose
from opabinia.engine.checkpointing.checkpoint import BadCheckpoint, Snapshot, read_checkpoint, save_tensors
from opabinia.engine.checkpointing.manager import list_checkpoints, read_pointer
from opabinia.runtime.files import disk_errors
from opabinia.training.auto_values import replace_auto

LAST = "last"


def resolve(recipe: str | Path, overrides: Sequence[str] = ()) -> Resolved:
    """Return the complete config of a packaged recipe, YAML file or run folder.

    Args:
        recipe: its name or path.
        overrides: ``key=value``.

    Raises:
        ConfigError: with every mistake in it.
    """
    tree = compose(recipe, overrides)
    return check(tree, catalog(tree.plugins))


def build_parts(resolved: Resolved) -> partial[Any]:
    """Build the parts of a config: ``keywords`` are the fields of :class:`opabinia.training.session.TrainingRun`.

    Raises:
        ConfigError: a part refuses its values.
    """
    config = replace_auto(resolved.config)
    return build(config, origins=resolved.origins)


def process_group_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the ranks of a complete config join a process group."""
    return {**(config["train"]["distributed"] or {}), "device": config["train"]["device"]}


def holds_run(folder: Path) -> bool:
    """Return whether a run has begun in ``folder``."""
    return (folder / "config.yaml").exists()


def chosen_checkpoint(folder: Path, checkpoint: str) -> Path:
    """Return the folder of a run's checkpoint.

    Args:
        folder: the run folder.
        checkpoint: ``best`` (``last`` where there is none), ``last``, a name such as ``step-00000500``, or a path.

    Raises:
        ConfigError: there is no such run or checkpoint.
    """
    if not holds_run(folder):
        raise ConfigError(Problem("command line", "", _why_no_run(folder)))
    checkpoints = folder / "checkpoints"
    path: Path | None = checkpoints / checkpoint
    if checkpoint in ("best", LAST):
        path = read_pointer(checkpoints, checkpoint) or (
            read_pointer(checkpoints, LAST) if checkpoint == "best" else None
        )
    elif path is not None and not path.is_dir():
        path = Path(checkpoint)
    if path is None:
        raise ConfigError(Problem("command line", "--checkpoint", f"{folder} has no {checkpoint} checkpoint"))
    if not path.is_dir():
        known = ", ".join(["best", LAST, *(saved.name for saved in list_checkpoints(checkpoints))])
        raise ConfigError(Problem("command line", "--checkpoint", f"there is no {checkpoint!r}; there are: {known}"))
    return path


def _why_no_run(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {folder}"
    runs = sorted(str(path.parent) for path in folder.glob("*/config.yaml")) if folder.is_dir() else []
    return f"{folder} holds no run (no config.yaml in it)" + (f"; runs in it: {', '.join(runs)}" if runs else "")


def read_chosen(path: Path) -> Snapshot:
    """Read the checkpoint that was named on the command line.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        return read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("command line", "--checkpoint", str(error))) from error


def merge(folder: Path, out: Path, *, checkpoint: str = "best", weights: str = "model") -> None:
    """Write the weights of a checkpoint, sharded or not, to one safetensors file.

    Args:
        folder: the run folder.
        out: the file; it must not exist yet.
        checkpoint: as in :func:`chosen_checkpoint`.
        weights: ``model``, or ``ema`` for their moving average.

    Raises:
        ConfigError: there is no such run, checkpoint or average, it is damaged, or ``out`` exists.
    """
    if out.exists():
        raise ConfigError(Problem("command line", "--out", f"{out} exists already"))
    path = chosen_checkpoint(folder, checkpoint)
    tensors = read_chosen(path).tensors
    if weights not in tensors:
        raise ConfigError(
            Problem("command line", "--weights", f"{path} has no {weights}; it has: {', '.join(tensors)}")
        )
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_tensors(temporary, tensors[weights])
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)


def views_of(source: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return in how many clips and crops a ``source`` section evaluates videos; None: in one view."""
    return (source["clips"], source["crops"]) if source["name"] == "video_views" else None


def validation_sets(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sections of a complete config that describe its validation sets."""
    val = config["data"]["val"]
    return val if isinstance(val, list) else [val] if val else []
