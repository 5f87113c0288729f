"""From type specs to pydantic: the judge of values. pydantic is imported when the first value is judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from opabinia.config.types import Spec, holds_part, member_of
from opabinia.runtime.durations import Duration

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

    from opabinia.config.families import Parameter

Visit = Callable[[Spec, Any, tuple[Any, ...], str | None], Any]


@dataclass(frozen=True)
class Placed:
    """A part whose own section has been walked; what the judge accepts where a part belongs."""

    value: Any


def place_parts(spec: Spec, value: Any, path: tuple[Any, ...], visit: Visit, key: str | None = None) -> Any:
    """``value`` with every part in it replaced by ``Placed(visit(spec, value, path, key))``.

    Args:
        spec: what is accepted at ``path``.
        value: plain data; whatever does not fit is left for the judge to refuse.
        path: keys and positions that lead here.
        visit: walks one part's section.
        key: the key in a dictionary of parts: the part's name where none is written.
    """
    kind = spec["kind"]
    if kind == "union":
        arm = _arm(spec, value)
        return place_parts(arm, value, path, visit, key) if arm else value
    if kind == "part":
        return Placed(visit(spec, value, path, key)) if isinstance(value, str | dict) else value
    if not holds_part(spec):
        return value
    if kind == "dict" and isinstance(value, dict):
        # null takes an inherited entry away
        kept = {name: item for name, item in value.items() if item is not None or accepts(spec["of"], None)}
        return {name: place_parts(spec["of"], item, (*path, name), visit, name) for name, item in kept.items()}
    if kind in ("list", "tuple") and isinstance(value, list | tuple):
        specs = spec["of"] if kind == "tuple" else [spec["of"]] * len(value)
        placed = [place_parts(one, item, (*path, i), visit) for i, (one, item) in enumerate(zip(specs, value, strict=False))]
        return placed + list(value[len(specs) :])
    return value


def _arm(spec: Spec, value: Any) -> Spec | None:
    """The arm of a union that a value with parts in it belongs to."""
    plain_arms = [arm for arm in spec["of"] if not holds_part(arm)]
    if any(accepts(arm, value) for arm in plain_arms):
        return None
    wanted = {str: ("part",), dict: ("part", "dict"), list: ("list", "tuple"), tuple: ("list", "tuple")}
    kinds = wanted.get(type(value), ())
    arms = [arm for kind in kinds for arm in spec["of"] if arm["kind"] == kind and holds_part(arm)]
    return arms[0] if arms else None


def accepts(spec: Spec, value: Any) -> bool:
    """Whether plain data fits a spec (a part must be :class:`Placed`)."""
    from pydantic import ValidationError

    try:
        _adapter(json.dumps(spec)).validate_python(value)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=None)
def _adapter(spec: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(pydantic_type(json.loads(spec)), config=ConfigDict(strict=True))


def model_of(name: str, parameters: Iterable[Parameter]) -> type[BaseModel]:
    """The pydantic model of a signature: strict values, no other keys. Fields go by their alias."""
    from pydantic import ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        default = {} if parameter.required else {"default": parameter.default}
        field = Field(alias=parameter.name, description=parameter.doc or None, **default)
        fields[f"p{position}"] = (pydantic_type(parameter.spec), field)  # no clash with BaseModel's own names
    return create_model(name, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


def pydantic_type(spec: Spec) -> Any:
    """The annotation by which pydantic judges a spec, and turns plain data into what the callable takes."""
    from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

    match spec["kind"]:
        case "null":
            return None
        case "any":
            return Any
        case "bool":
            return bool
        case "int":
            return Annotated[int, Field(**_only(spec, "ge", "gt", "le", "lt", "multiple_of"))]
        case "float":
            bounds = _only(spec, "ge", "gt", "le", "lt", "multiple_of")
            return Annotated[float, Field(**bounds, allow_inf_nan=not spec.get("finite", True))]
        case "str":
            return Annotated[str, _lengths(spec)]
        case "path":
            return Annotated[str, Field(pattern=r"^[^\x00]+$"), AfterValidator(Path)]
        case "literal":
            return Literal[tuple(spec["values"])]
        case "enum":
            return Annotated[Literal[tuple(spec["values"])], AfterValidator(partial(member_of, spec["class"]))]
        case "duration":
            pattern = rf"^\d+(\.\d+)?\s*({'|'.join(spec['units'])})$"
            parse = partial(Duration.parse, allowed=tuple(spec["units"]))
            return Annotated[str, AfterValidator(parse), WithJsonSchema({"type": "string", "pattern": pattern})]
        case "list":
            of = pydantic_type(spec["of"])
            if spec.get("tuple"):
                return Annotated[tuple[of, ...], Field(strict=False), _lengths(spec)]
            return Annotated[list[of], _lengths(spec)]  # type: ignore[valid-type]
        case "tuple":
            return Annotated[tuple[tuple(map(pydantic_type, spec["of"]))], Field(strict=False)]  # type: ignore[misc]
        case "dict":
            return Annotated[dict[str, pydantic_type(spec["of"])], _lengths(spec)]  # type: ignore[misc]
        case "union":
            return reduce(lambda left, right: left | right, map(_arm_type, spec["of"]))
        case "part":
            reference = {"$ref": part_reference(spec)}
            return Annotated[Any, PlainValidator(_placed), WithJsonSchema(reference)]
    raise AssertionError(spec)


def _arm_type(spec: Spec) -> Any:
    from typing import Union

    return Union[pydantic_type(spec), None] if spec["kind"] == "null" else pydantic_type(spec)


def _placed(value: Any) -> Any:
    if not isinstance(value, Placed):
        raise ValueError("not a part")
    return value.value


def part_reference(spec: Spec) -> str:
    """Where the JSON Schema of a part's family, or of a fixed section, is defined."""
    return f"#/$defs/{spec['family']}.{spec['name']}" if spec.get("name") else f"#/$defs/{spec['family']}"


def _only(spec: Spec, *keys: str) -> dict[str, Any]:
    return {key: spec[key] for key in keys if key in spec}


def _lengths(spec: Spec) -> Any:
    from pydantic import Field

    return Field(min_length=spec.get("min"), max_length=spec.get("max"))


def blame(spec: Spec, location: Sequence[Any]) -> tuple[tuple[Any, ...], Spec]:
    """Where in a value the judge found a mistake, and what is accepted there; as deep as there is no doubt."""
    if not location:
        return (), spec
    kind, step = spec["kind"], location[0]
    if kind == "union":
        arms = [arm for arm in spec["of"] if arm["kind"] != "null"]
        return blame(arms[0], location) if len(arms) == 1 else ((), spec)
    inner: Spec | None = None
    if kind == "list" and isinstance(step, int) or kind == "dict":
        inner = spec["of"]
    elif kind == "tuple" and isinstance(step, int) and step < len(spec["of"]):
        inner = spec["of"][step]
    if inner is None:
        return (), spec
    path, spec = blame(inner, location[1:])
    return (step, *path), spec
