"""Conversion of other systems' configs to recipes. Their files are parsed, not executed; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from opabinia.config.errors import ConfigError, Problem
from opabinia.migration.recipe import Recipe

System = Literal[
    "basecls", "detectron2", "fastreid", "mmaction", "mmdetection", "mmpretrain", "paddlevideo", "pyslowfast", "vissl"
]

DEFAULT_GPUS: dict[str, int | None] = {
    "basecls": 8,
    "mmaction": None,
    "mmdetection": None,
    "mmpretrain": None,
    "paddlevideo": 8,
}
"""Systems whose configs give the batch size per GPU, with the number of GPUs that is assumed by default; None: follows
from the config."""


def convert(system: System, file: Path, gpus: int | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Convert the config of another system to a recipe.

    Args:
        system: the system that the config belongs to.
        file: the config file.
        gpus: number of GPUs of the original training; only for systems in :data:`DEFAULT_GPUS`.
        overrides: changes to the config, as on that system's command line, written with ``=``.

    Raises:
        ConfigError: the config cannot be read or converted.

    Example::

        recipe = convert("detectron2", Path("faster_rcnn_R_50_FPN_1x.yaml"))
        print(recipe.text())
    """
    module: Any = import_module(f"{__name__}.{system}")
    if system not in DEFAULT_GPUS and gpus is not None:
        raise ConfigError(Problem("command line", "--gpus", f"configs of {system} contain the total batch size"))
    arguments = (gpus or DEFAULT_GPUS[system],) if system in DEFAULT_GPUS else ()
    try:
        return module.convert(file, *arguments, overrides)  # type: ignore[no-any-return]
    except ValueError as error:  # in a value that is computed from several keys
        raise ConfigError(Problem(str(file), "", str(error))) from error
