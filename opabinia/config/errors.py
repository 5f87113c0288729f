"""What is wrong with a config, told all at once: problems with their place, and suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One mistake in a config. ``str(problem)`` is one line.

    Attributes:
        where: file and line, or the override it comes from.
        path: dotted path of the key; may be empty.
        message: what is wrong.
        found: the value found, already fit to print (see :func:`show`).
        suggestion: the nearest valid choice.
        allowed: what would be valid there.
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
    """A config cannot be used. ``problems`` holds every mistake found; the text has one line for each."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def printable(text: str) -> str:
    """A text with line breaks and all else that cannot be printed on one line escaped."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def show(value: Any, limit: int = 60) -> str:
    """A value as it would stand in a config, on one line and at most ``limit`` characters long."""
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
    """The choice most like ``word``, or nothing. Upper and lower case, ``-`` and ``_`` count as the same."""
    folded: dict[str, str] = {}
    for choice in choices:
        folded.setdefault(_fold(choice), choice)
    matches = difflib.get_close_matches(_fold(word[:100]), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else ""


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def listing(names: Sequence[str], limit: int = 40) -> str:
    """Names with commas between them; only the first ``limit``."""
    text = ", ".join(names[:limit])
    return f"{text}, ... ({len(names)} in all)" if len(names) > limit else text
