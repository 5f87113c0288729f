"""What docstrings say: the first line, and the Google-style descriptions of parameters."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any


def documentation(target: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring's first line, and what its ``Args:`` says of each parameter."""
    written = target.__doc__ or ""
    if inspect.isclass(target) and written.startswith(f"{target.__name__}("):  # made by dataclass
        written = ""
    text = inspect.cleandoc(written)
    own = inspect.cleandoc(target.__init__.__doc__ or "") if inspect.isclass(target) else ""
    first = text.split("\n\n")[0].replace("\n", " ").strip()
    return first, {**described_arguments(own), **described_arguments(text)}


def described_arguments(text: str) -> dict[str, str]:
    """The descriptions in a Google-style ``Args:`` block, by parameter."""
    block = re.search(r"^(?:Args|Arguments|Attributes):[ \t]*\n((?:[ \t]+.*\n?|[ \t]*\n)+)", text, re.MULTILINE)
    if not block:
        return {}
    lines = textwrap.dedent(block[1]).splitlines()
    described: dict[str, str] = {}
    name = ""
    for line in lines:
        if start := re.match(r"(\w+)(?: *\([^)]*\))?: *(.*)", line):
            name, described[start[1]] = start[1], start[2]
        elif name and line.startswith((" ", "\t")):
            described[name] = f"{described[name]} {line.strip()}".strip()
    return described
