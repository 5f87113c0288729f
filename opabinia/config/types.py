"""Type specs: JSON-serializable descriptions of the values that a parameter accepts, made from annotations.

A spec is a dictionary with a ``kind``; because it is JSON, a cached catalog needs no import of the parts:

    int, float          ge gt le lt multiple_of; float: finite (False lets inf and nan in)
    bool, null, any
    path                exists (True: it is read, so it must exist)
    str                 min max (length)
    literal             values
    enum                values, class ("module:qualname")
    duration            units
    list                of (spec), min max (length), tuple (True: passed to the callable as a tuple)
    tuple               of (one spec per item)
    dict                of (spec of the values; keys are text)
    union               of (specs)
    part                family, name (sections only)
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import annotated_types

from opabinia.runtime.durations import Duration, Units

Spec = dict[str, Any]

_SIMPLE: dict[Any, str] = {int: "int", float: "float", bool: "bool", str: "str", None: "null", type(None): "null"}
_NUMBERS = ("int", "float")
_SIZED = ("str", "list", "dict")
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")


@dataclass(frozen=True)
class Part:
    """Annotation of a parameter that is itself a part: ``Annotated[Callable[..., Tensor], Part("loss")]``.

    ``Part("section", "checkpoint")`` is a fixed group of keys, without a ``name`` key.
    """

    family: str
    name: str | None = None


@dataclass(frozen=True)
class MustExist:
    """Annotation of a path that is read: ``Annotated[Path, MustExist()]``. See ``config.paths.missing_paths``."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a part that configs may set.

    Attributes:
        name: the key in a config.
        spec: the type spec of its values (see above).
        required: whether it must be given.
        default: the signature's default as plain data.
        doc: its description in the docstring's ``Args:``.
    """

    name: str
    spec: Spec
    required: bool = True
    default: Any = None
    doc: str = ""


class Unsupported(TypeError):
    """An annotation without YAML values."""


def spec_of(annotation: Any, section_of: Callable[[Any], str | None] = lambda _: None) -> Spec:
    """Return the spec of an annotation.

    Args:
        annotation: a type, with ``Annotated`` metadata or not.
        section_of: returns the name of a class that is registered as a section.

    Raises:
        Unsupported: no YAML value has this type, or a constraint is unknown.
    """
    annotation = getattr(annotation, "__value__", annotation)  # `type X = ...`
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _annotated(args[0], args[1:], section_of)
    if origin in (Union, types.UnionType):
        return _union([spec_of(arg, section_of) for arg in args])
    if origin is Literal:
        return _literal(args)
    if origin in (list, Sequence) or annotation in (list, Sequence):
        if not args:
            raise Unsupported("a list needs the type of its items: list[int], list[str], ...")
        return {"kind": "list", "of": spec_of(args[0], section_of)}
    if origin is tuple or annotation is tuple:
        return _tuple(args, section_of)
    if origin in (dict, Mapping) or annotation in (dict, Mapping):
        return _dict(args, section_of)
    if _hashable(annotation) and annotation in _SIMPLE:
        return {"kind": _SIMPLE[annotation]}
    if annotation is Duration:
        return {"kind": "duration", "units": ["ep", "it"]}
    if annotation is Path:
        return {"kind": "path"}
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return _enum(annotation)
    if name := section_of(annotation):
        return {"kind": "part", "family": "section", "name": name}
    if annotation is Any:
        raise Unsupported("Any is not allowed, except in a dict[str, Any] of options")
    raise Unsupported(f"{_named(annotation)} cannot come from YAML")


def must_exist(spec: Spec) -> bool:
    """Return whether a parameter is a path that is read, or may be one. See :class:`MustExist`."""
    return bool(spec.get("exists") or any(arm.get("exists") for arm in spec.get("of", ()) if isinstance(arm, dict)))


def _annotated(base: Any, metadata: tuple[Any, ...], section_of: Callable[[Any], str | None]) -> Spec:
    part = next((item for item in metadata if isinstance(item, Part)), None)
    if part:
        spec = {"kind": "part", "family": part.family} | ({"name": part.name} if part.name else {})
    else:
        spec = spec_of(base, section_of)
    for item in metadata:
        spec = _constrain(spec, item)
    return spec


def _constrain(spec: Spec, item: Any) -> Spec:
    if isinstance(item, Part):
        return spec
    if isinstance(item, MustExist):
        return _narrow(spec, ("path",), {"exists": True}, item)
    if isinstance(item, Units):
        return _narrow(spec, ("duration",), {"units": list(item.allowed)}, item)
    if isinstance(item, annotated_types.MinLen):
        return _narrow(spec, _SIZED, {"min": item.min_length}, item)
    if isinstance(item, annotated_types.MaxLen):
        return _narrow(spec, _SIZED, {"max": item.max_length}, item)
    if isinstance(item, annotated_types.GroupedMetadata):
        for single in item:
            spec = _constrain(spec, single)
        return spec
    if isinstance(item, annotated_types.BaseMetadata):
        bounds = {bound: getattr(item, bound) for bound in _BOUNDS if getattr(item, bound, None) is not None}
        return _narrow(spec, _NUMBERS, bounds, item)
    if getattr(item, "allow_inf_nan", False):  # pydantic.AllowInfNan, not imported here
        return _narrow(spec, ("float",), {"finite": False}, item)
    return spec  # metadata that is not a constraint


def _narrow(spec: Spec, kinds: tuple[str, ...], bounds: Spec, item: Any) -> Spec:
    """Add ``bounds`` to every arm of one of ``kinds``."""
    if spec["kind"] in kinds and bounds:
        return {**spec, **bounds}
    if spec["kind"] == "union" and bounds and any(arm["kind"] in kinds for arm in spec["of"]):
        return _union([{**arm, **bounds} if arm["kind"] in kinds else arm for arm in spec["of"]])
    raise Unsupported(f"the constraint {item!r} does not apply to {describe(spec)}")


def _union(arms: list[Spec]) -> Spec:
    flat: list[Spec] = []
    for arm in arms:
        for single in arm["of"] if arm["kind"] == "union" else [arm]:
            if single not in flat:
                flat.append(single)
    return flat[0] if len(flat) == 1 else {"kind": "union", "of": flat}


def _literal(values: tuple[Any, ...]) -> Spec:
    for value in values:
        if isinstance(value, Enum) or not isinstance(value, str | int | bool | None):
            raise Unsupported(f"the literal {value!r} cannot come from YAML")
    return {"kind": "literal", "values": list(values)}


def _tuple(args: tuple[Any, ...], section_of: Callable[[Any], str | None]) -> Spec:
    if not args:
        raise Unsupported("a tuple needs the types of its items: tuple[int, int], tuple[float, ...], ...")
    if args[-1] is Ellipsis:
        return {"kind": "list", "of": spec_of(args[0], section_of), "tuple": True}
    return {"kind": "tuple", "of": [spec_of(arg, section_of) for arg in args]}


def _dict(args: tuple[Any, ...], section_of: Callable[[Any], str | None]) -> Spec:
    if not args or args[0] is not str:
        raise Unsupported("the keys of a dictionary must be text: dict[str, ...]")
    return {"kind": "dict", "of": {"kind": "any"} if args[1] is Any else spec_of(args[1], section_of)}


def _enum(cls: type[Enum]) -> Spec:
    values = [member.value for member in cls]
    if not all(isinstance(value, str | int) for value in values):
        raise Unsupported(f"{cls.__name__} has values that cannot come from YAML")
    return {"kind": "enum", "values": values, "class": f"{cls.__module__}:{cls.__qualname__}"}


def member_of(path: str, value: Any) -> Any:
    """Return the member of an enum spec's ``class``; the plain value if its module is not imported (a cached check)."""
    module, _, qualname = path.partition(":")
    cls: Any = sys.modules.get(module)
    for name in qualname.split("."):
        cls = getattr(cls, name, None)
    return cls(value) if cls else value


def parts_in(spec: Spec) -> list[Spec]:
    """Return the specs of all parts in a spec."""
    if spec["kind"] == "part":
        return [spec]
    inside = spec.get("of", [])
    return [part for inner in (inside if isinstance(inside, list) else [inside]) for part in parts_in(inner)]


def holds_part(spec: Spec) -> bool:
    """Return whether a value of this spec is, or may contain, a part."""
    return bool(parts_in(spec))


def describe(spec: Spec, many: bool = False) -> str:
    """Describe the values of a spec for users: "a number >= 0", "an integer or a list of integers"."""
    kind = spec["kind"]
    if kind == "union":
        return _describe_union(spec["of"], many)
    if kind in ("literal", "enum"):
        values = ", ".join("null" if value is None else _yaml(value) for value in spec["values"])
        return values if len(spec["values"]) == 1 else f"one of {values}"
    if kind == "duration":
        examples = {"ep": "12ep", "it": "5000it", "h": "1.5h"}
        text = "durations" if many else "a duration"
        return f"{text} such as {_either([examples[unit] for unit in spec['units']])}"
    if kind == "part":
        family = f"{spec['name']} section" if spec.get("name") else spec["family"]
        return _plural(family) if many else _article(family)
    if kind == "list":
        return f"{'lists' if many else 'a list'} of {describe(spec['of'], many=True)}{_length(spec)}"
    if kind == "tuple":
        return _describe_tuple(spec["of"], many)
    if kind == "dict":
        return f"{'mappings' if many else 'a mapping'} of names to {describe(spec['of'], many=True)}{_length(spec)}"
    return _describe_scalar(spec, many)


def _describe_scalar(spec: Spec, many: bool) -> str:
    singular, plural = {
        "int": ("an integer", "integers"),
        "float": ("a number", "numbers"),
        "bool": ("true or false", "true or false"),
        "str": ("text", "texts"),
        "path": ("a path", "paths"),
        "null": ("null", "null"),
        "any": ("any value", "any values"),
    }[spec["kind"]]
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = " and ".join(f"{symbol} {spec[bound]}" for bound, symbol in symbols.items() if bound in spec)
    multiple = f", a multiple of {spec['multiple_of']}" if "multiple_of" in spec else ""
    return (plural if many else singular) + (f" {bounds}" if bounds else "") + multiple + _length(spec)


def _describe_union(arms: list[Spec], many: bool) -> str:
    integer, number = {"kind": "int"}, {"kind": "float"}
    for narrow, wide in ((integer, number), ({"kind": "list", "of": integer}, {"kind": "list", "of": number})):
        if wide in arms:  # "an integer or a number" is just "a number"
            arms = [arm for arm in arms if arm != narrow]
    return _either([describe(arm, many) for arm in arms])


def _either(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]


def _describe_tuple(items: list[Spec], many: bool) -> str:
    texts = [describe(item) for item in items]
    if len(set(texts)) == 1:
        inside = f"{len(items)} {describe(items[0], many=len(items) > 1).removeprefix('an ').removeprefix('a ')}"
    else:
        inside = ", ".join(texts)
    return f"{'lists' if many else 'a list'} of {inside}"


def _length(spec: Spec) -> str:
    low, high = spec.get("min"), spec.get("max")
    if low is not None and high is not None:
        return f" (length {low})" if low == high else f" (length {low} to {high})"
    if low == 1:
        return " (not empty)"
    return f" (length >= {low})" if low is not None else f" (length <= {high})" if high is not None else ""


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _plural(word: str) -> str:
    return f"{word}es" if word.endswith(("ss", "x")) else word if word.endswith("s") else f"{word}s"


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _named(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation).replace("typing.", "")
