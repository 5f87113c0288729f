"""Checks of a run's complete config that compare several of its values, without importing torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opabinia.config.check import Resolved
from opabinia.config.errors import ConfigError, Problem, listing, nearest
from opabinia.runtime.shares import remaining_share
from opabinia.runtime.weighted_scores import score_weights


def check_run(resolved: Resolved) -> None:
    """Check that the shares of streams fit, and that scores of ``checkpoint.best`` are those of validation sets.

    Raises:
        ConfigError: with every mistake.
    """
    found = [*_shares(resolved.config["data"]["train"]["source"]), *_best(resolved.config)]
    if problems := [Problem(resolved.origins.get(path, ""), path, *texts) for path, *texts in found]:
        raise ConfigError(problems)


def _shares(source: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The path and the texts of a problem."""
    try:
        if source["name"] == "mixture":
            remaining_share({name: stream["share"] for name, stream in source["streams"].items()})
    except ValueError as error:
        key, _, message = str(error).partition(": ")
        yield f"data.train.source.{key}", message


def _best(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The path and the texts of each problem."""
    path, metric, val = "checkpoint.best", config["checkpoint"]["best"], config["data"]["val"]
    prefixes = [val_set["prefix"] for val_set in (val if isinstance(val, list) else [val] if val else ())]
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
