"""``auto`` in a config, and what stands in its place before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.runtime.resources import cores

AUTO = "auto"


def asks_for_auto(config: Mapping[str, Any], key: str) -> bool:
    """Whether ``data.<key>`` of a complete config is ``auto``."""
    return bool(config["data"].get(key) == AUTO)


def with_values(config: Mapping[str, Any], **values: int | str) -> dict[str, Any]:
    """A complete config with these values where ``data`` has ``auto``.

    Example: ``with_values(config, batch_size=64, workers=2, augment_on="device")``.
    """
    found = {key: value for key, value in values.items() if asks_for_auto(config, key)}
    return {**config, "data": {**config["data"], **found}}


def replace_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """A complete config to build from: where ``auto`` stands, as many workers as cores, since whoever does not train
    waits for nothing but reading, and pictures changed by them.

    Raises:
        ConfigError: ``data.batch_size`` is ``auto``, which only training finds out.
    """
    if asks_for_auto(config, "batch_size"):
        message = "auto is found out by `opabinia train` on its machine; say a number here (data.batch_size=32)"
        raise ConfigError(Problem("", "data.batch_size", message))
    return with_values(config, workers=cores(), augment_on="workers")
