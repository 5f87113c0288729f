"""Names of runs. Importing this does not import torch."""

from __future__ import annotations

import re

from opabinia.config import ConfigError, Problem


def check_run_name(name: str) -> None:
    """Check the name of a run, which is the name of its folder.

    Raises:
        ConfigError: it is not valid for a folder.
    """
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        message = f"{name!r} is not valid for a run: use letters, digits, '_', '-' and '.'"
        raise ConfigError(Problem("command line", "--name", message))
