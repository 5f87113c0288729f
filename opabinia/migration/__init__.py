"""Configs of other systems as configs of ours. Nothing in a foreign file is run, and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from opabinia.config.errors import ConfigError, Problem
from opabinia.migration.recipe import Recipe

System = Literal["basecls", "detectron2", "fastreid", "paddlevideo", "vissl"]

OF_ONE_CARD: dict[str, int] = {"basecls": 8, "paddlevideo": 8}
"""Systems whose batch is that of a card, and how many there are, where nobody says so."""


def convert(system: System, file: Path, cards: int | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a foreign config.

    Args:
        system: whose it is.
        file: its file.
        cards: on how many it was trained; only for systems whose configs do not tell.
        overrides: changes, written as on that system's command line, with ``=``.

    Raises:
        ConfigError: it cannot be read or taken over.

    Example::

        recipe = convert("detectron2", Path("faster_rcnn_R_50_FPN_1x.yaml"))
        print(recipe.text())
    """
    module: Any = import_module(f"{__name__}.{system}")
    if system not in OF_ONE_CARD and cards is not None:
        raise ConfigError(Problem("command line", "--cards", f"configs of {system} tell the batch of all cards"))
    arguments = (cards or OF_ONE_CARD[system],) if system in OF_ONE_CARD else ()
    try:
        return module.convert(file, *arguments, overrides)  # type: ignore[no-any-return]
    except ValueError as error:  # of something that is made of several keys
        raise ConfigError(Problem(str(file), "", str(error))) from error
