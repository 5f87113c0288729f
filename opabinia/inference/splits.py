"""The datasets of a run, by the names that commands take with ``--split``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.datasets import training_sets, validation_sets, with_sets
from opabinia.config.errors import listing, nearest
from opabinia.contracts import Source
from opabinia.training.run_folder import build_parts

ALL = "all"
TRAIN = "train"
AUTO = "auto"


def split_sources(resolved: Resolved) -> dict[str, Any]:
    """Return the source sections of a config by split: ``train``, or ``NAME/train`` of each stream of a multi-task run,
    and the prefixes of validation sets."""
    sets = {section["prefix"]: section["source"] for section in validation_sets(resolved.config)}
    training = {f"{name}/{TRAIN}" if name else TRAIN: train for name, train in training_sets(resolved.config).items()}
    return {**{split: train["source"] for split, train in training.items()}, **sets}


def task_of(resolved: Resolved, split: str) -> str:
    """Return the task of a multi-task run that a split is for; empty in a run of one task."""
    sets = {section["prefix"]: section["task"] for section in validation_sets(resolved.config)}
    if split in sets:
        return sets[split] or ""
    return split.removesuffix(f"/{TRAIN}") if split != TRAIN else ""


def sets_for(resolved: Resolved, tasks: Sequence[str]) -> list[str]:
    """Return the first validation set of each of these tasks of a multi-task run; without tasks the first of all."""
    sets = validation_sets(resolved.config)
    first = {section["task"]: section["prefix"] for section in reversed(sets)}
    return [first[name] for name in tasks if name in first] if tasks else [section["prefix"] for section in sets[:1]]


def resolve_split(resolved: Resolved, split: str) -> str:
    """Return the name of a split; ``auto`` is the first validation set, or ``train`` where there is none."""
    if split != AUTO:
        return split
    sets = validation_sets(resolved.config)
    return sets[0]["prefix"] if sets else next(iter(split_sources(resolved)))


def expand_splits(resolved: Resolved, splits: Sequence[str]) -> list[str]:
    """Return the named splits, each once; ``all`` stands for all of them, ``auto`` as in :func:`resolve_split`.

    Raises:
        ConfigError: there is no such split, or none is named.
    """
    known = list(split_sources(resolved))
    named = [known if split == ALL else [resolve_split(resolved, split)] for split in splits]
    names = list(dict.fromkeys(name for split in named for name in split))
    for name in names or [""]:
        _check_split(name, known)
    return names


def _check_split(name: str, known: Sequence[str]) -> None:
    if name not in known:
        message, allowed = f"there is no {name!r}", f"sets: {listing(known)}"
        raise ConfigError(Problem("command line", "--split", message, "", nearest(name, known), allowed))


def select_split(resolved: Resolved, split: str) -> Resolved:
    """Return the config with this dataset as its only one, read with validation transforms.

    Raises:
        ConfigError: there is no such split.
    """
    sources = split_sources(resolved)
    _check_split(split, list(sources))
    task = task_of(resolved, split)
    sets = validation_sets(resolved.config)
    similar = [section for section in sets if section["prefix"] == split] + [
        section for section in sets if (section["task"] or "") == task
    ]
    stream = {"source": sources[split], "transforms": (similar or sets or [{"transforms": []}])[0]["transforms"]}
    validation = {**stream, "prefix": split, "task": task or None, "every": None}
    return replace(resolved, config=with_sets(resolved.config, stream, [validation]))


def open_split(resolved: Resolved, split: str) -> Source:
    """Open the source of a split.

    Raises:
        ConfigError: there is no such split, or its data does not exist.
    """
    source: Source = build_parts(select_split(resolved, split)).keywords["data"].validation[0].source
    return source
