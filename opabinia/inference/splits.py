"""The datasets of a run, by the names that commands take with ``--split``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.errors import listing, nearest
from opabinia.contracts import Source
from opabinia.training.run_folder import build_parts, validation_sets

ALL = "all"
AUTO = "auto"


def split_sources(resolved: Resolved) -> dict[str, Any]:
    """Return the source sections of a config by split: ``train`` and the prefixes of validation sets."""
    sets = {section["prefix"]: section["source"] for section in validation_sets(resolved.config)}
    return {"train": resolved.config["data"]["train"]["source"], **sets}


def resolve_split(resolved: Resolved, split: str) -> str:
    """Return the name of a split; ``auto`` is the first validation set, or ``train`` where there is none."""
    return list(split_sources(resolved))[:2][-1] if split == AUTO else split


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
    sets = {section["prefix"]: section for section in validation_sets(resolved.config)}
    first: Mapping[str, Any] = next(iter(sets.values()), {"transforms": []})
    stream = {"source": sources[split], "transforms": sets.get(split, first)["transforms"]}
    changes = {"train": stream, "val": {**stream, "prefix": split, "every": None}, "sampler": None}
    return replace(resolved, config={**resolved.config, "data": {**resolved.config["data"], **changes}})


def open_split(resolved: Resolved, split: str) -> Source:
    """Open the source of a split.

    Raises:
        ConfigError: there is no such split, or its data does not exist.
    """
    source: Source = build_parts(select_split(resolved, split)).keywords["data"].validation[0].source
    return source
