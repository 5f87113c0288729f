"""Adapt typed third-party classes to parts: their own signature, closed and restricted to YAML values."""

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
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union

from opabinia.config.types import Part, Unsupported, spec_of
from opabinia.config.validate import plain

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)


def adapt(
    cls: type[Any],
    runtime: Collection[str] = (),
    *,
    narrower: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Return a callable that creates a ``cls`` and has a closed, typed signature, so that it can be registered::

        register.optimizer(name="sgd")(adapt(torch.optim.SGD, runtime=("params",)))

    Types are restricted to YAML values: arms of a union that are tensors, modules, functions or dictionaries keyed by
    types are dropped; an enum becomes its values, a ``torch.dtype`` its name (both are converted back in the call);
    ``Number`` becomes ``int | float``, a sequence a list; a function, or a list of functions, becomes parts of
    the family ``transform``. A parameter without a type gets that of its default.

    Args:
        cls: the class.
        runtime: names of the parameters that are passed at run time; they become the first, positional-only parameters.
        narrower: types of parameters whose own types accept what cannot be meant, by name.

    Raises:
        TypeError: the type of a parameter has no YAML values, or ``runtime`` names a parameter that does not exist.
    """
    parameters = inspect.signature(cls).parameters
    if unknown := [name for name in runtime if name not in parameters]:
        raise TypeError(f"adapt({cls.__name__}): runtime names no parameter: {', '.join(unknown)}")
    try:
        hints = typing.get_type_hints(cls.__init__, include_extras=True)
    except NameError as error:
        raise TypeError(f"adapt({cls.__name__}): its types cannot be read: {error}") from None
    given = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, annotation=hints.get(name, Any)) for name in runtime
    ]
    adapted: list[inspect.Parameter] = []
    originals: dict[str, Mapping[Any, Any]] = {}
    for name, parameter in parameters.items():
        if name in runtime:
            continue
        narrow = _Narrow(f"adapt({cls.__name__}): parameter {name!r}")
        hint = narrower.get(name, hints.get(name, parameter.annotation))
        annotation, default = narrow(hint, parameter), _plain_default(parameter)
        originals[name] = narrow.originals
        adapted.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default))

    signature = inspect.Signature([*given, *adapted], return_annotation=cls)

    def create(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        # Literals are strings or numbers; only strings stand for another object.
        restored = {
            name: originals[name].get(value, value) if isinstance(value, str) and name in originals else value
            for name, value in arguments.items()
        }
        return cls(**restored)

    create.__signature__ = signature  # type: ignore[attr-defined]
    create.__name__, create.__qualname__, create.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    create.__doc__ = cls.__doc__ or f"{cls.__module__}.{cls.__qualname__}, which has no docstring."
    create.__adapts__ = cls  # type: ignore[attr-defined]
    return create


class _Narrow:
    """Restricts one parameter's annotation to YAML values. ``originals`` maps YAML values to the class's own values."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.originals: dict[Any, Any] = {}

    def __call__(self, annotation: Any, parameter: inspect.Parameter) -> Any:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{self.what} leaves the signature open; write a short wrapper function instead")
        if annotation is parameter.empty:
            annotation = type(parameter.default)  # that of `empty` is rejected below
        try:
            narrowed = self.narrow(annotation)
            if narrowed is None:
                raise Unsupported(f"no YAML value has the type {annotation}")
            spec_of(narrowed)
        except Unsupported as error:
            raise TypeError(f"{self.what}: {error}; name it in runtime=, or write a short wrapper function") from None
        return narrowed

    def narrow(self, annotation: Any) -> Any:
        """Return the annotation restricted to YAML values; None if there are none."""
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            return annotation
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin is abc.Callable or annotation in (abc.Callable, Callable):
            return Annotated[Callable[..., Any], Part("transform")]
        if origin in _LISTS or annotation in _LISTS:
            of = self.narrow(args[0]) if args else int | float
            return None if of is None else types.GenericAlias(list, of)
        if origin is tuple:
            items = [arg if arg is Ellipsis else self.narrow(arg) for arg in args]
            return None if None in items else types.GenericAlias(tuple, tuple(items))
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
        if any(inspect.isclass(arm) and issubclass(arm, Enum) for arm in arms):  # its values are a better schema
            arms = [arm for arm in arms if arm not in (str, int)]
        narrowed = [self.narrow(arm) for arm in arms]
        kept = [arm for arm in narrowed if arm is not None]
        values = [arm for arm in kept if not _is_part(arm) and arm is not type(None)]
        if values:  # a function beside plain values is not a transform, but an extension point for code
            kept = [arm for arm in kept if not _is_part(arm)]
        return reduce(or_, kept) if values or any(map(_is_part, kept)) else None

    def _enum(self, cls: type[Enum]) -> Any:
        values = [member.value for member in cls]
        written = values if all(isinstance(value, str) for value in values) else [member.name for member in cls]
        self.originals |= dict(zip(written, cls, strict=True))
        return Literal[tuple(written)]


def _is_part(annotation: Any) -> bool:
    return any(isinstance(item, Part) for item in getattr(annotation, "__metadata__", ()))


def _is_torch(annotation: Any, name: str) -> bool:
    """Whether a class is torch's ``name`` or inherits from it, without importing torch."""
    return inspect.isclass(annotation) and any(
        base.__name__ == name and base.__module__.split(".")[0] == "torch" for base in annotation.__mro__
    )


def _plain_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is parameter.empty or default is None:
        return default
    if _is_torch(type(default), "dtype"):
        return str(default).removeprefix("torch.")
    if isinstance(default, Enum):
        return default.value if isinstance(default.value, str) else default.name
    return plain(default)
