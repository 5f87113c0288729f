"""Config errors: all problems at once, each with its place and suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from opabinia.runtime.text import printable


@dataclass(frozen=True)
class Problem:
    """One mistake in a config. ``str(problem)`` is one line.

    Attributes:
        where: file and line, or the override.
        path: dotted path of the key; may be empty.
        message: the mistake.
        found: the given value, formatted by :func:`show`.
        suggestion: the most similar valid choice.
        allowed: valid choices.
    """

    where: str
    path: str
    message: str
    found: str = ""
    suggestion: str = ""
    allowed: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.where, self.path, self.message) if part)
        if self.found:
            text += f" (found {self.found})"
        if self.suggestion:
            text += f"; did you mean {self.suggestion!r}?"
        if self.allowed:
            text += f" {self.allowed}" if self.suggestion else f"; {self.allowed}"
        return printable(text)


class ConfigError(Exception):
    """A config is invalid. ``problems`` holds every mistake; the text has one line for each. Of those with the same
    text, as in a dataset that two tasks read, one is kept."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        given = [problems] if isinstance(problems, Problem) else problems
        self.problems: tuple[Problem, ...] = tuple({str(problem): problem for problem in given}.values())
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def show(value: Any, limit: int = 60) -> str:
    """Format a value as in a config, on one line of at most ``limit`` characters."""
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{_word(key)}: {show(item, limit)}" for key, item in _first(value.items())) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(show(item, limit) for item in _first(value)) + "]"
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _first(items: Iterable[Any], count: int = 60) -> list[Any]:
    return [item for item, _ in zip(items, range(count), strict=False)]


def _word(key: Any) -> str:
    return key if isinstance(key, str) and key.isidentifier() else repr(key)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the choice most similar to ``word``, or "". Case, ``-`` and ``_`` do not matter."""
    folded: dict[str, str] = {}
    for choice in choices:
        folded.setdefault(_fold(choice), choice)
    matches = difflib.get_close_matches(_fold(word[:100]), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else ""


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def listing(names: Sequence[str], limit: int = 40) -> str:
    """Join the first ``limit`` names with commas."""
    text = ", ".join(names[:limit])
    return f"{text}, ... ({len(names)} in all)" if len(names) > limit else text
