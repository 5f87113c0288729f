"""Remember the arguments that parts are built with, so that a run built in Python can be written as a config."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple

_ATTRIBUTE = "_built_with"


class BuiltWith(NamedTuple):
    """The call that built a part.

    Attributes:
        family, name: of the part in the register.
        args, kwargs: of the call.
    """

    family: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def built_with(part: Any) -> BuiltWith | None:
    """Return the call that built a part; None if it is no instance of a registered class or result of a function."""
    return None if inspect.isclass(part) else getattr(part, _ATTRIBUTE, None)


def remember_arguments(target: Callable[..., Any], family: str, name: str) -> Callable[..., Any]:
    """Return a callable that builds the same parts, with :func:`built_with`. A class is changed in place."""
    if not inspect.isclass(target):

        @wraps(target)
        def build(*args: Any, **kwargs: Any) -> Any:
            part = target(*args, **kwargs)
            _attach(part, BuiltWith(family, name, args, kwargs))
            return part

        return build

    construct = target.__init__
    if construct is not object.__init__:

        @wraps(construct)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            if type(self) is target:  # a subclass may take other arguments
                _attach(self, BuiltWith(family, name, args, kwargs))

        setattr(target, "__init__", __init__)  # noqa: B010 (mypy: a method)
    return target


def _attach(part: Any, call: BuiltWith) -> None:
    with suppress(AttributeError, TypeError):  # a class with slots
        object.__setattr__(part, _ATTRIBUTE, call)
