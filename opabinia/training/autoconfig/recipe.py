"""A plan as a recipe: YAML with a comment for each value."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from opabinia.config.text import flow
from opabinia.training.autoconfig.choices import Choice, Chosen

WIDTH = 120


def recipe_text(chosen: Chosen, heading: Sequence[str]) -> str:
    """Return the recipe as YAML.

    Args:
        chosen: base and values.
        heading: sentences for the comment at the top, and indented commands, which stay on one line.
    """
    lines = [f"# {line}" for text in heading for line in _wrapped(text)]
    lines += ["", f"base: {chosen.base}", ""]
    lines += _section(_tree(chosen.choices), 0)
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return [text] if text.startswith("  ") else textwrap.wrap(text, WIDTH - 2) or [""]


def _tree(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the choices nested by their keys, each where its first part was first named."""
    root: dict[str, Any] = {}
    for choice in choices:
        *outer, last = choice.key.split(".")
        section = root
        for key in outer:
            section = section.setdefault(key, {})
        section[last] = choice
    return root


def _section(tree: dict[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for number, (key, item) in enumerate(tree.items()):
        if not depth and number:
            yield ""
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _section(item, depth + 1)
        else:
            yield from _entry(key, item, indent)


def _entry(key: str, choice: Choice, indent: str) -> Iterator[str]:
    """Yield the lines of a key: its reason behind it where there is room, above it otherwise."""
    is_list = isinstance(choice.value, list) and any(isinstance(item, dict) for item in choice.value)
    line = f"{indent}{key}:" + ("" if is_list else f" {flow(choice.value)}")
    reason = " ".join(choice.reason.split())
    if reason and len(line) + len(reason) + 4 > WIDTH:
        yield from (f"{indent}# {text}" for text in textwrap.wrap(reason, WIDTH - 2 - len(indent)))
        reason = ""
    yield f"{line}  # {reason}" if reason else line
    if is_list:
        yield from (f"{indent}  - {flow(item)}" for item in choice.value)
