"""Validation of values against type specs, with pydantic, which is imported when the first value is validated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from opabinia.config.types import Parameter, Spec, holds_part, member_of
from opabinia.runtime.durations import Duration

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

PART = "part"
"""Key in the JSON Schema of a model: the spec of the part at this place."""

Visit = Callable[[Spec, Any, tuple[Any, ...], str | None], Any]


@dataclass(frozen=True)
class Placed:
    """A part whose own section has been visited; the model accepts it in place of a part."""

    value: Any


def place_parts(spec: Spec, value: Any, path: tuple[Any, ...], visit: Visit, key: str | None = None) -> Any:
    """Return ``value`` with every part in it replaced by ``Placed(visit(spec, value, path, key))``.

    Args:
        spec: type spec at ``path``.
        value: plain data; values that do not fit are kept, for validation to reject.
        path: keys and positions that lead here.
        visit: processes one part's section.
        key: the key in a dictionary of parts: the part's name if it has none.
    """
    kind = spec["kind"]
    if kind == "union":
        arm = _arm(spec, value)
        return place_parts(arm, value, path, visit, key) if arm else value
    if kind == "part":
        fits = isinstance(value, dict) or (isinstance(value, str) and not spec.get("name"))
        return Placed(visit(spec, value, path, key)) if fits else value
    if not holds_part(spec):
        return value
    if kind == "dict" and isinstance(value, dict):
        # null removes an inherited entry
        kept = {name: item for name, item in value.items() if item is not None or accepts(spec["of"], None)}
        return {name: place_parts(spec["of"], item, (*path, name), visit, name) for name, item in kept.items()}
    if kind in ("list", "tuple") and isinstance(value, list | tuple):
        specs = spec["of"] if kind == "tuple" else [spec["of"]] * len(value)
        pairs = enumerate(zip(specs, value, strict=False))
        placed = [place_parts(item_spec, item, (*path, i), visit) for i, (item_spec, item) in pairs]
        return placed + list(value[len(specs) :])
    return value


def _arm(spec: Spec, value: Any) -> Spec | None:
    """The arm of a union that fits a value with parts in it."""
    plain_arms = [arm for arm in spec["of"] if not holds_part(arm)]
    if any(accepts(arm, value) for arm in plain_arms):
        return None
    lists = ("list", "tuple")
    wanted: dict[type, tuple[str, ...]] = {str: ("part",), dict: ("part", "dict"), list: lists, tuple: lists}
    kinds = wanted.get(type(value), ())
    arms = [arm for kind in kinds for arm in spec["of"] if arm["kind"] == kind and holds_part(arm)]
    return arms[0] if arms else None


def accepts(spec: Spec, value: Any) -> bool:
    """Return whether plain data fits a spec (a part must be :class:`Placed`)."""
    from pydantic import ValidationError

    try:
        convert(spec, value)
    except ValidationError:
        return False
    return True


def convert(spec: Spec, value: Any) -> Any:
    """Convert plain data to the value that the callable takes.

    Raises:
        pydantic.ValidationError: the value does not fit.
    """
    return _adapter(json.dumps(spec)).validate_python(value)


@cache
def _adapter(spec: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(pydantic_type(json.loads(spec)), config=ConfigDict(strict=True))


def plain(value: Any) -> Any:
    """Return a value as plain YAML data: tuples become lists; paths, durations and enum members their written form."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path | Duration) else value


class Signature:
    """The parameters of a callable as a pydantic model: strict values, no other keys.

    Attributes:
        model: its fields are p0, p1 ..., since a parameter's own name, the alias, could clash with BaseModel's.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        from pydantic import ConfigDict, Field, create_model

        self._fields = {parameter.name: f"p{position}" for position, parameter in enumerate(parameters)}
        fields: dict[str, Any] = {}
        for parameter in parameters:
            default = {} if parameter.required else {"default": parameter.default}
            field = Field(alias=parameter.name, description=parameter.doc or None, **default)
            fields[self._fields[parameter.name]] = (pydantic_type(parameter.spec), field)
        self.model: type[BaseModel] = create_model(name, __config__=ConfigDict(strict=True, extra="forbid"), **fields)

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the callable takes them, in the signature's order.

        Raises:
            pydantic.ValidationError: a value does not fit, or a key is unknown or missing.
        """
        model = self.model.model_validate(given)
        return {name: getattr(model, field) for name, field in self._fields.items() if name in given}


def pydantic_type(spec: Spec) -> Any:
    """Return the annotation with which pydantic validates a spec and converts plain data."""
    from pydantic import PlainValidator, WithJsonSchema

    match spec["kind"]:
        case "list":
            item: Any = pydantic_type(spec["of"])
            if spec.get("tuple"):
                return Annotated[tuple[item, ...], _field(strict=False), _lengths(spec)]
            return Annotated[list[item], _lengths(spec)]
        case "tuple":
            items: Any = tuple(map(pydantic_type, spec["of"]))
            return Annotated[tuple[items], _field(strict=False)]
        case "dict":
            value: Any = pydantic_type(spec["of"])
            return Annotated[dict[str, value], _lengths(spec)]
        case "union":
            return Union[tuple(map(pydantic_type, spec["of"]))]  # noqa: UP007 (arms are known at run time only)
        case "part":
            return Annotated[Any, PlainValidator(_placed), WithJsonSchema({PART: spec})]
    return _scalar_type(spec)


def _scalar_type(spec: Spec) -> Any:
    from pydantic import AfterValidator, WithJsonSchema

    bounds = {key: spec[key] for key in ("ge", "gt", "le", "lt", "multiple_of") if key in spec}
    match spec["kind"]:
        case "null":
            return None
        case "any":
            return Any
        case "bool":
            return bool
        case "int":
            return Annotated[int, _field(**bounds)]
        case "float":
            return Annotated[float, _field(**bounds, allow_inf_nan=not spec.get("finite", True))]
        case "str":
            return Annotated[str, _lengths(spec)]
        case "path":
            return Annotated[str, _field(pattern=r"^[^\x00]+$"), AfterValidator(_path)]
        case "literal":
            return Literal[tuple(spec["values"])]
        case "enum":
            return Annotated[Literal[tuple(spec["values"])], AfterValidator(partial(member_of, spec["class"]))]
        case "duration":
            pattern = rf"^\d+(\.\d+)?\s*({'|'.join(spec['units'])})$"
            parse = partial(Duration.parse, allowed=tuple(spec["units"]))
            return Annotated[str, AfterValidator(parse), WithJsonSchema({"type": "string", "pattern": pattern})]
    raise AssertionError(spec)


def _path(text: str) -> Path:  # pydantic cannot read the signature of Path itself
    return Path(text)


def _placed(value: Any) -> Any:
    if not isinstance(value, Placed):
        raise ValueError("not a part")
    return value.value


def _field(**constraints: Any) -> Any:
    from pydantic import Field

    return Field(**constraints)


def _lengths(spec: Spec) -> Any:
    return _field(min_length=spec.get("min"), max_length=spec.get("max"))


def blame(spec: Spec, location: Sequence[Any]) -> tuple[tuple[Any, ...], Spec]:
    """Return the place of a validation error in a value and the spec there; only as deep as it is unambiguous."""
    if not location:
        return (), spec
    kind, step = spec["kind"], location[0]
    if kind == "union":
        arms = [arm for arm in spec["of"] if arm["kind"] != "null"]
        return blame(arms[0], location) if len(arms) == 1 else ((), spec)
    inner: Spec | None = None
    if (kind == "list" and isinstance(step, int)) or kind == "dict":
        inner = spec["of"]
    elif kind == "tuple" and isinstance(step, int) and step < len(spec["of"]):
        inner = spec["of"][step]
    if inner is None:
        return (), spec
    path, spec = blame(inner, location[1:])
    return (step, *path), spec
