"""The value ``auto`` of ``data.batch_size``, ``data.augment_on`` and ``data.num_workers``, replaced before building."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.runtime.resources import cores

AUTO = "auto"


def asks_for_auto(config: Mapping[str, Any], key: str) -> bool:
    """Return whether ``data.<key>`` of a complete config is ``auto``."""
    return bool(config["data"].get(key) == AUTO)


def with_values(config: Mapping[str, Any], **values: int | str) -> dict[str, Any]:
    """Return a complete config with these values where ``data`` has ``auto``.

    Example: ``with_values(config, batch_size=64, num_workers=2, augment_on="device")``.
    """
    replaced = {key: value for key, value in values.items() if asks_for_auto(config, key)}
    return {**config, "data": {**config["data"], **replaced}}


def replace_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete config to build from, for a command that does not train.

    ``auto`` becomes as many workers as there are cores, since nothing but reading is waited for, and augmentation in
    the workers.

    Raises:
        ConfigError: ``data.batch_size`` is ``auto``, which only training can tune.
    """
    if asks_for_auto(config, "batch_size"):
        message = "auto is tuned by `opabinia train` on its machine; give a number here (data.batch_size=32)"
        raise ConfigError(Problem("", "data.batch_size", message))
    return with_values(config, num_workers=cores(), augment_on="workers")
