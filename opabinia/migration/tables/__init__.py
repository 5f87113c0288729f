"""Tables for every system: defaults, reasons why keys are not converted, and equivalents of names.

Defaults and reasons are data, in a YAML file for each system, by the full name of a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_tables(system: str, *names: str) -> list[dict[str, Any]]:
    """Return these tables of ``SYSTEM.yaml``, in the order of ``names``."""
    text = Path(__file__).with_name(f"{system}.yaml").read_text(encoding="utf-8")
    tables = yaml.safe_load(text)
    return [tables[name] for name in names]
