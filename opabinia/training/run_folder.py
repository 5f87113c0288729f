"""From a run folder back to its config, its checkpoints and its model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved, build, check, compose, live_catalog
from opabinia.engine.checkpointing.checkpoint import (
    BadCheckpoint,
    Snapshot,
    listed,
    pointed,
    read_checkpoint,
    save_tensors,
)
from opabinia.runtime.files import disk_errors
from opabinia.training.auto_values import replace_auto

LAST = "last"


def resolve(recipe: str | Path, overrides: Sequence[str] = ()) -> Resolved:
    """The complete config of a recipe, file or run folder.

    Raises:
        ConfigError: with every mistake.
    """
    tree = compose(recipe, overrides)
    return check(tree, live_catalog(tree.plugins))


def holds_run(folder: Path) -> bool:
    """Whether a run has begun in ``folder``."""
    return (folder / "config.yaml").exists()


def _no_run(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {folder}"
    inside = sorted(str(path.parent) for path in folder.glob("*/config.yaml")) if folder.is_dir() else []
    return f"{folder} holds no run (no config.yaml in it)" + (f"; runs in it: {', '.join(inside)}" if inside else "")


def chosen_checkpoint(folder: Path, checkpoint: str) -> Path:
    """The checkpoint of a run that is named ``best`` (without one the last is taken), ``last``, or by its path.

    Raises:
        ConfigError: there is no run or no such checkpoint.
    """
    if not holds_run(folder):
        raise ConfigError(Problem("command line", "", _no_run(folder)))
    checkpoints = folder / "checkpoints"
    path: Path | None = checkpoints / checkpoint
    if checkpoint in ("best", LAST):
        path = pointed(checkpoints, checkpoint) or (pointed(checkpoints, LAST) if checkpoint == "best" else None)
    elif path is not None and not path.is_dir():
        path = Path(checkpoint)
    if path is None:
        raise ConfigError(Problem("command line", "--checkpoint", f"{folder} has no {checkpoint} checkpoint"))
    if not path.is_dir():
        known = ", ".join(["best", LAST, *(one.name for one in listed(checkpoints))])
        raise ConfigError(Problem("command line", "--checkpoint", f"there is no {checkpoint!r}; there are: {known}"))
    return path


def read_chosen(path: Path) -> Snapshot:
    """The checkpoint that a person named.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        return read_checkpoint(path)
    except BadCheckpoint as error:
        raise ConfigError(Problem("command line", "--checkpoint", str(error))) from error


def build_parts(resolved: Resolved) -> partial[dict[str, float]]:
    """The built config: a call with a session trains it, ``keywords`` are the parts.

    Raises:
        ConfigError: a part refuses what the config gives it.
    """
    config = replace_auto(resolved.config)
    return build(config, live_catalog(config.get("plugins") or ()), origins=resolved.origins)


def process_group_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the processes of a config become a group."""
    return {**(config["train"]["distributed"] or {}), "device": config["train"]["device"]}


def merge(folder: Path, out: Path, *, checkpoint: str = "best", weights: str = "model") -> None:
    """Write the weights of a run's checkpoint, sharded or not, to one safetensors file.

    Args:
        folder: the run folder.
        out: the file; it may not exist yet.
        checkpoint: ``best`` (without one the last), ``last``, or a checkpoint's name or path.
        weights: ``model``, or ``ema``, their average.

    Raises:
        ConfigError: there is no such run, checkpoint or average, it is damaged, or ``out`` is there already.
    """
    if out.exists():
        raise ConfigError(Problem("command line", "--out", f"{out} is there already"))
    path = chosen_checkpoint(folder, checkpoint)
    tensors = read_chosen(path).tensors
    if weights not in tensors:
        raise ConfigError(
            Problem("command line", "--weights", f"{path} has no {weights}; it has: {', '.join(tensors)}")
        )
    aside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_tensors(aside, tensors[weights])
            aside.replace(out)
        finally:
            aside.unlink(missing_ok=True)


def views_of(source: Mapping[str, Any]) -> tuple[int, int] | None:
    """In how many clips and crops a source's section says that films are seen; None: in one view of the transforms."""
    return (source["clips"], source["crops"]) if source["name"] == "views_of_films" else None


def validation_sets(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sections of a complete config that tell what to evaluate on."""
    val = config["data"]["val"]
    return val if isinstance(val, list) else [val] if val else []
