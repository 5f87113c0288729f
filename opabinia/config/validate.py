"""Validation of plain data against type specs, with conversion to the values that parts take."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from opabinia.config.types import Spec, holds_part, member_of
from opabinia.runtime.durations import Duration

Place = tuple[Any, ...]
"""Keys and positions that lead to a value."""

Report = Callable[[Place, Spec, Any], None]
"""Called with the place of a value that does not fit, the spec of what was expected there, and the value."""

Visit = Callable[[Spec, Any, Place, str | None], Any]
"""Processes the section of one part: its spec, the section or name, the place, and the key in a dictionary of parts,
which is the part's name if it has none."""

_KINDS_WITH_PARTS: dict[type, tuple[str, ...]] = {
    str: ("part",),
    dict: ("part", "dict"),
    list: ("list", "tuple"),
    tuple: ("list", "tuple"),
}


def fit(
    spec: Spec, value: Any, place: Place, report: Report, visit: Visit | None = None, key: str | None = None
) -> Any:
    """Convert plain data to the value that a callable takes. Values are never cast: ``"3"`` is no integer.

    Args:
        spec: type spec at ``place``.
        value: plain data.
        place: where it is.
        report: called for each value that does not fit, which becomes None.
        visit: returns what stands for a part; without it no part fits.
        key: the key of the value in a dictionary.
    """
    kind = spec["kind"]
    if kind == "union":
        if (arm := _arm(spec, value)) is not None:

            def report_union(inside: Place, expected: Spec, found: Any) -> None:
                report(inside, spec if inside == place else expected, found)

            return fit(arm, value, place, report_union, visit, key)
    elif kind == "part":
        if visit is not None and (isinstance(value, dict) or (isinstance(value, str) and not spec.get("name"))):
            return visit(spec, value, place, key)
    elif kind == "dict":
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            of = spec["of"]
            removes = holds_part(of) and not accepts(of, None)  # null removes an inherited part
            kept = {name: item for name, item in value.items() if item is not None or not removes}
            if _has_length(spec, kept):
                return {name: fit(of, item, (*place, name), report, visit, name) for name, item in kept.items()}
    elif kind in ("list", "tuple"):
        is_tuple = kind == "tuple" or bool(spec.get("tuple"))
        if isinstance(value, (list, tuple) if is_tuple else list) and _has_length(spec, value):
            specs = spec["of"] if kind == "tuple" else [spec["of"]] * len(value)
            pairs = enumerate(zip(specs, value, strict=True))
            items = [fit(of, item, (*place, index), report, visit) for index, (of, item) in pairs]
            return tuple(items) if is_tuple else items
    else:
        try:
            return _scalar(spec, value)
        except ValueError:
            pass
    report(place, spec, value)
    return None


def accepts(spec: Spec, value: Any) -> bool:
    """Return whether plain data without parts fits a spec."""
    mismatches: list[Any] = []
    fit(spec, value, (), lambda *mismatch: mismatches.append(mismatch))
    return not mismatches


def plain(value: Any) -> Any:
    """Return a value as plain YAML data: tuples become lists; paths, durations and enum members their written form."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path | Duration) else value


def _arm(spec: Spec, value: Any) -> Spec | None:
    """The arm of a union that a value is for: the one that it fits, with parts in it the one of its type, or the only
    one but null."""
    arms = sorted(spec["of"], key=lambda arm: bool(arm["kind"] == "float"))  # an integer stays one if it may
    fitting = [arm for arm in arms if not holds_part(arm) and accepts(arm, value)]
    kinds = _KINDS_WITH_PARTS.get(type(value), ())
    fitting += [arm for kind in kinds for arm in arms if arm["kind"] == kind and holds_part(arm)]
    others = [arm for arm in arms if arm["kind"] != "null"]
    return fitting[0] if fitting else others[0] if len(others) == 1 else None


def _scalar(spec: Spec, value: Any) -> Any:
    """Return the value of a scalar.

    Raises:
        ValueError: it does not fit.
    """
    kind = spec["kind"]
    if kind == "duration":
        return Duration.parse(value if isinstance(value, str) else "", allowed=tuple(spec["units"]))
    if not _FITS[kind](spec, value):
        raise ValueError(value)
    if kind == "enum":
        return member_of(spec["class"], value)
    return {"float": float, "path": Path}.get(kind, lambda value: value)(value)


def _is_choice(spec: Spec, value: Any) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in spec["values"])  # 1 is not true


def _is_within(spec: Spec, value: Any) -> bool:
    """Return whether a value is a number, finite if it must be, and within the bounds."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (not spec.get("finite", True) or math.isfinite(value))
        and ("ge" not in spec or value >= spec["ge"])
        and ("gt" not in spec or value > spec["gt"])
        and ("le" not in spec or value <= spec["le"])
        and ("lt" not in spec or value < spec["lt"])
        and ("multiple_of" not in spec or value % spec["multiple_of"] == 0)
    )


def _has_length(spec: Spec, value: Any) -> bool:
    if spec["kind"] == "tuple":
        return len(value) == len(spec["of"])
    return bool(spec.get("min", 0) <= len(value) <= spec.get("max", len(value)))


_FITS: dict[str, Callable[[Spec, Any], bool]] = {
    "any": lambda spec, value: True,
    "null": lambda spec, value: value is None,
    "bool": lambda spec, value: isinstance(value, bool),
    "int": lambda spec, value: isinstance(value, int) and _is_within(spec, value),
    "float": _is_within,
    "str": lambda spec, value: isinstance(value, str) and _has_length(spec, value),
    "path": lambda spec, value: isinstance(value, str) and value != "" and "\0" not in value,
    "literal": _is_choice,
    "enum": _is_choice,
}
"""Whether a value fits the spec of a scalar, by kind."""
