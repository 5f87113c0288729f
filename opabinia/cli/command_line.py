"""Rewriting of the command line before it is parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

RESUME_VALUES = ("last", "best", "auto")
"""Values of ``--resume`` beside the path of a checkpoint."""


def with_resume_value(arguments: list[str]) -> list[str]:
    """Give ``--resume`` the value "last" where it has none, so that the parser can always expect one. That of ``track``
    has no value."""
    result = []
    if arguments[:1] == ["track"]:
        return arguments
    for index, argument in enumerate(arguments):
        result.append(argument)
        if argument == "--resume" and not _names_checkpoint("".join(arguments[index + 1 : index + 2])):
            result.append("last")
    return result


def _names_checkpoint(word: str) -> bool:
    """Return whether the word after ``--resume`` is its value, not a recipe, run folder, override or option."""
    folder, name = os.path.split(os.path.normpath(word))
    if word in RESUME_VALUES or (word and os.path.isfile(os.path.join(word, "state.json"))):
        return True
    is_override = re.match(r"(--)?[\w.-]+=", word)  # such as init=runs/a/checkpoints/step-00000500
    is_run = os.path.isfile(os.path.join(word, "config.yaml"))
    looks_so = re.fullmatch(r"step-\d+", name) or os.path.basename(folder) == "checkpoints"
    return bool(looks_so and not is_override and not is_run)


def without_dashes(word: str) -> str:
    """Return ``--optimizer.lr=0.1`` as ``optimizer.lr=0.1``: a dotted path is an override, never an option."""
    return re.sub(r"^--(?=[A-Za-z_]\w*(\.\w+)+=)", "", word)


def override_of_option(option: str, words: Sequence[str]) -> str:
    """Return the override to write instead of an unknown option; "" if it is no synonym of a config key.

    Args:
        option: such as ``--lr``, or ``--optimizer.lr``.
        words: the command line, with the option's value behind it.

    Example: ``override_of_option("--epochs", ["train", "digits", "--epochs", "5"])`` is ``train.length=5ep``.
    """
    from opabinia.config.foreign_keys import translate

    attached = next((word for word in words if word.startswith(f"{option}=")), "")
    following = words[words.index(option) + 1 :][:1] if option in words else []
    key, value = option.lstrip("-"), attached.partition("=")[2] or "".join(following) or "VALUE"
    return f"{key}={value}" if "." in key else translate(key, value)
