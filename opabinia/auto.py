"""``auto`` in a config, and the numbers that stand in its place before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.runtime.limits import cores

AUTO = "auto"


def asks(config: Mapping[str, Any], key: str) -> bool:
    """Whether ``data.<key>`` of a complete config is ``auto``."""
    return bool(config["data"].get(key) == AUTO)


def with_numbers(config: Mapping[str, Any], **numbers: int) -> dict[str, Any]:
    """A complete config with these numbers where ``data`` has ``auto``.

    Example: ``with_numbers(config, batch_size=64, workers=2)``.
    """
    found = {key: number for key, number in numbers.items() if asks(config, key)}
    return {**config, "data": {**config["data"], **found}}


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A complete config to build from: as many workers as cores where ``auto`` stands, since whoever does not train
    waits for nothing but reading.

    Raises:
        ConfigError: ``data.batch_size`` is ``auto``, which only training finds out.
    """
    if asks(config, "batch_size"):
        message = "auto is found out by `opabinia train` on its machine; say a number here (data.batch_size=32)"
        raise ConfigError(Problem("", "data.batch_size", message))
    return with_numbers(config, workers=cores())
