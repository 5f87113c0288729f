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


def split_sources(resolved: Resolved) -> dict[str, Any]:
    """Return the source sections of a config by split: ``train`` and the prefixes of validation sets."""
    sets = {section["prefix"]: section["source"] for section in validation_sets(resolved.config)}
    return {"train": resolved.config["data"]["train"]["source"], **sets}


def expand_splits(resolved: Resolved, splits: Sequence[str]) -> list[str]:
    """Return the named splits, each once; ``all`` stands for all of them.

    Raises:
        ConfigError: there is no such split, or none is named.
    """
    known = list(split_sources(resolved))
    names = list(dict.fromkeys(name for split in splits for name in (known if split == ALL else [split])))
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
    val = {**stream, "prefix": split, "every": None}
    data = {**resolved.config["data"], "train": stream, "val": val, "sampler": None}
    return replace(resolved, config={**resolved.config, "data": data})


def open_split(resolved: Resolved, split: str) -> Source:
    """Open the source of a split.

    Raises:
        ConfigError: there is no such split, or its data does not exist.
    """
    source: Source = build_parts(select_split(resolved, split)).keywords["data"].validation[0].source
    return source
