"""Tables for every system: defaults, reasons why keys are not converted, and equivalents of names.

Defaults and reasons are data, in a YAML file for each system, by the full name of a key.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _tables(system: str) -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(f"{system}.yaml").read_text(encoding="utf-8"))
    return tables


def read_tables(system: str, names: str) -> list[Any]:
    """Return tables of ``SYSTEM.yaml``, in the order of their ``names``, which are separated by spaces."""
    return [_tables(system)[name] for name in names.split()]
