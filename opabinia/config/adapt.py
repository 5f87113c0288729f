"""Typed third-party classes as parts: their own signature, closed and narrowed to what YAML can say."""

from __future__ import annotations

import inspect
import numbers
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union

from opabinia.config.types import Part, Unsupported, plain, spec_of

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)


def adapt(cls: type[Any], runtime: Collection[str] = (), *, family: str = "transform") -> Callable[..., Any]:
    """A plain callable that makes a ``cls`` and has a closed, typed signature, ready to be registered::

        register.optimizer(name="sgd")(adapt(torch.optim.SGD, runtime=("params",)))

    What YAML cannot say is narrowed: arms of a union that are tensors, modules, functions or dictionaries keyed by
    types are dropped; an enum becomes its values, a ``torch.dtype`` its name (both are converted back when called);
    ``Number`` becomes ``int | float``, a sequence a list; a function, or a list of them, becomes parts of ``family``. A
    parameter without a type takes that of its default.

    Args:
        cls: the class.
        runtime: names of the parameters that are given at run time; they come first and are positional-only.
        family: the family of the parts that function parameters take.

    Raises:
        TypeError: a parameter has no type that YAML could have, or ``runtime`` names none of the parameters.
    """
    parameters = inspect.signature(cls).parameters
    if unknown := [name for name in runtime if name not in parameters]:
        raise TypeError(f"adapt({cls.__name__}): runtime names no parameter: {', '.join(unknown)}")
    hints = _hints(cls)
    given = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, annotation=hints.get(name, Any)) for name in runtime
    ]
    chosen: list[inspect.Parameter] = []
    restore: dict[str, Mapping[Any, Any]] = {}
    for name, parameter in parameters.items():
        if name in runtime:
            continue
        narrow = _Narrow(f"adapt({cls.__name__}): parameter {name!r}", family)
        annotation, default = narrow(hints.get(name, parameter.annotation), parameter), _plain_default(parameter)
        restore[name] = narrow.originals
        chosen.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default))

    signature = inspect.Signature([*given, *chosen], return_annotation=cls)

    def make(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return cls(**{name: _restored(value, restore.get(name, {})) for name, value in arguments.items()})

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__name__, make.__qualname__, make.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    make.__doc__ = cls.__doc__ or f"{cls.__module__}.{cls.__qualname__}, which has no description of its own."
    make.__adapts__ = cls  # type: ignore[attr-defined]
    return make


class _Narrow:
    """Narrows one parameter's annotation. ``originals`` maps what stands in YAML to what the class wants."""

    def __init__(self, what: str, family: str) -> None:
        self.what = what
        self.family = family
        self.originals: dict[Any, Any] = {}

    def __call__(self, annotation: Any, parameter: inspect.Parameter) -> Any:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{self.what} leaves the signature open; write a short function around the class instead")
        if annotation is parameter.empty:
            annotation = type(parameter.default)  # of `empty` itself: refused below
        try:
            narrowed = self.narrow(annotation)
            if narrowed is None:
                raise Unsupported(f"no value of type {annotation} can come from YAML")
            spec_of(narrowed)
        except Unsupported as error:
            raise TypeError(
                f"{self.what}: {error}; name it in runtime=, or write a short function around the class"
            ) from None
        return narrowed

    def narrow(self, annotation: Any) -> Any:
        """The annotation as YAML can say it; None where it cannot."""
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            return annotation
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin is abc.Callable or annotation in (abc.Callable, Callable):
            return Annotated[Callable[..., Any], Part(self.family)]
        if origin in _LISTS or annotation in _LISTS:
            of = self.narrow(args[0]) if args else int | float
            return None if of is None else types.GenericAlias(list, of)
        if origin is tuple:
            places = [arg if arg is Ellipsis else self.narrow(arg) for arg in args]
            return None if None in places else types.GenericAlias(tuple, tuple(places))
        if annotation is numbers.Number:
            return int | float
        if _is_torch(annotation, "dtype"):
            torch = sys.modules["torch"]
            self.originals |= {name: getattr(torch, name) for name in DTYPES}
            return Literal[DTYPES]
        if inspect.isclass(annotation) and issubclass(annotation, Enum):
            return self._enum(annotation)
        if _is_torch(annotation, "Tensor") or _is_torch(annotation, "Module"):
            return None
        if origin in (dict, abc.Mapping) and args[0] is not str:
            return None
        return annotation

    def _union(self, arms: Sequence[Any]) -> Any:
        if any(inspect.isclass(arm) and issubclass(arm, Enum) for arm in arms):  # its values are the better schema
            arms = [arm for arm in arms if arm not in (str, int)]
        narrowed = [self.narrow(arm) for arm in arms]
        kept = [arm for arm in narrowed if arm is not None]
        alone = [arm for arm in kept if not _is_part(arm) and arm is not type(None)]
        if alone:  # a function beside plain values is no transform, but a hook for programmers
            kept = [arm for arm in kept if not _is_part(arm)]
        return reduce(or_, kept) if alone or any(map(_is_part, kept)) else None

    def _enum(self, cls: type[Enum]) -> Any:
        values = [member.value for member in cls]
        written = values if all(isinstance(value, str) for value in values) else [member.name for member in cls]
        self.originals |= dict(zip(written, cls, strict=True))
        return Literal[tuple(written)]


def _is_part(annotation: Any) -> bool:
    return any(isinstance(item, Part) for item in getattr(annotation, "__metadata__", ()))


def _is_torch(annotation: Any, name: str) -> bool:
    """Whether a class is, or comes from, torch's ``name``; torch is not imported for it."""
    return inspect.isclass(annotation) and any(
        base.__name__ == name and base.__module__.split(".")[0] == "torch" for base in annotation.__mro__
    )


def _hints(cls: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__, include_extras=True)
    except NameError as error:
        raise TypeError(f"adapt({cls.__name__}): its types cannot be read: {error}") from None


def _plain_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is parameter.empty or default is None:
        return default
    if _is_torch(type(default), "dtype"):
        return str(default).removeprefix("torch.")
    if isinstance(default, Enum):
        return default.value if isinstance(default.value, str) else default.name
    return plain(default)


def _restored(value: Any, originals: Mapping[Any, Any]) -> Any:
    return originals.get(value, value) if isinstance(value, str) else value
