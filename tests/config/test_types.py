from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MaxLen, MinLen, MultipleOf, Predicate
from pydantic import AllowInfNan

from opabinia.config.types import Part, Unsupported, describe, spec_of
from opabinia.config.validate import accepts, fit, plain
from opabinia.runtime.durations import Duration, Units
from tests.config.toys import Mode

LOSS = Annotated[Callable[..., Any], Part("loss")]
NAN = float("nan")

CASES: list[tuple[Any, str, list[Any], list[Any]]] = [
    # annotation, description, valid values, invalid values
    (int, "an integer", [0, -3, 10**60], [True, 1.0, "3", None, [1]]),
    (float, "a number", [0, 1.5, -2], [True, "1", None, NAN, float("inf")]),
    (bool, "true or false", [True, False], [0, 1, "true", None]),
    (str, "text", ["", "12"], [1, None, True]),
    (None, "null", [None], [0, "", False]),
    (Path, "a path", ["a/b", "."], ["", 3, None, "a\0b"]),
    (Annotated[float, AllowInfNan()], "a number", [float("inf"), 1.0], ["inf"]),
    (Annotated[float, Ge(0), Lt(1)], "a number >= 0 and < 1", [0, 0.99], [-0.1, 1]),
    (Annotated[float, Interval(gt=0, le=2)], "a number > 0 and <= 2", [2, 0.1], [0, 2.1]),
    (Annotated[int, Gt(1), Le(3)], "an integer > 1 and <= 3", [2, 3], [1, 4]),
    (Annotated[int, MultipleOf(32)], "an integer, a multiple of 32", [64], [65]),
    (Annotated[int | None, Ge(1)], "an integer >= 1 or null", [1, None], [0]),
    (Annotated[str, MinLen(1)], "text (not empty)", ["a"], [""]),
    (Annotated[list[int], Len(2, 2)], "a list of integers (length 2)", [[1, 2]], [[1], [1, 2, 3]]),
    (Annotated[list[int], MaxLen(2)], "a list of integers (length <= 2)", [[], [1, 2]], [[1, 2, 3]]),
    (Literal["a", 1, True, None], "one of 'a', 1, true, null", ["a", 1, True, None], ["b", 2, False]),
    (Literal["only"], "'only'", ["only"], ["other"]),
    (Mode, "one of 'nearest', 'bilinear'", ["nearest"], ["NEAREST", 0]),
    (int | list[int], "an integer or a list of integers", [3, [3, 4]], ["3", [3.5], None]),
    (int | float | list[int] | list[float], "a number or a list of numbers", [1, [1, 2.5]], [["a"]]),
    (Union[int, float, str], "a number or text", [1, 1.5, "x"], [None, []]),  # noqa: UP007
    (Optional[bool], "true or false or null", [None, True], [0]),  # noqa: UP045
    (list[str], "a list of texts", [[], ["a"]], ["a", [1], {}]),
    (Sequence[int], "a list of integers", [[1]], [1]),
    (tuple[int, ...], "a list of integers", [[], [1, 2]], [["a"], 1]),
    (tuple[float, float], "a list of 2 numbers", [[0, 1.5]], [[1], [1, 2, 3], ["a", 1]]),
    (tuple[str, int], "a list of text, an integer", [["a", 1]], [[1, "a"]]),
    (dict[str, float], "a mapping of names to numbers", [{}, {"a": 1}], [{"a": "b"}, [], {1: 2}]),
    (Mapping[str, Any], "a mapping of names to any values", [{"a": [None, {}]}], [3]),
    (Duration, "a duration such as 12ep or 5000it", ["12ep", "0.5 ep"], ["1h", "12", 12, "1.5it", "-1ep", None]),
    (Annotated[Duration, Units("ep", "h")], "a duration such as 12ep or 1.5h", ["1.5h"], ["3it"]),
    (Annotated[Duration | None, Units("it")], "a duration such as 5000it or null", [None, "3it"], ["3ep"]),
    (LOSS, "a loss", [], ["focal", {"name": "focal"}, 3]),
    (list[LOSS] | None, "a list of losses or null", [None, []], [3]),
    (Annotated[Any, Part("optimizer")], "an optimizer", [], []),
    (Annotated[Any, Part("section", "ema")], "an ema section", [], []),
]


@pytest.mark.parametrize(("annotation", "description", "valid", "invalid"), CASES, ids=[case[1] for case in CASES])
def test_annotations_become_specs(annotation: Any, description: str, valid: list[Any], invalid: list[Any]) -> None:
    spec = spec_of(annotation)
    assert json.loads(json.dumps(spec)) == spec
    assert describe(spec) == description
    assert [value for value in valid if not accepts(spec, value)] == []
    assert [value for value in invalid if accepts(spec, value)] == []


class Objects(Enum):
    A = (1, 2)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Any, "Any is not allowed"),
        (Unknown, "Unknown cannot come from YAML"),
        (Callable[[int], int], "cannot come from YAML"),
        (list, "needs the type"),
        (tuple, "needs the type"),
        (dict, "keys of a dictionary must be text"),
        (dict[int, str], "keys of a dictionary must be text"),
        (list[Any], "Any is not allowed"),
        (set[int], "cannot come from YAML"),
        (bytes, "bytes cannot come from YAML"),
        (Literal[b"x"], "literal b'x'"),
        (Literal[Mode.NEAREST], "literal"),
        (Objects, "values that cannot come"),
        (Annotated[str, Ge(0)], "does not apply to text"),
        (Annotated[int, Predicate(bool)], "does not apply to an integer"),
        (Annotated[int, Units("ep")], "does not apply to an integer"),
        (Annotated[int, MinLen(3)], "does not apply to an integer"),
        ("int", "cannot come from YAML"),
    ],
    ids=str,
)
def test_other_annotations_are_rejected(annotation: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message.replace("(", r"\(")):
        spec_of(annotation)


def convert(spec: dict[str, Any], value: Any) -> Any:
    return fit(spec, value, (), lambda *mismatch: pytest.fail(str(mismatch)))


def test_values_are_converted_to_the_annotated_types() -> None:
    assert convert(spec_of(tuple[int, ...]), [1, 2]) == (1, 2)
    assert convert(spec_of(tuple[float, float]), [1, 2]) == (1.0, 2.0)
    assert type(convert(spec_of(float), 1)) is float
    assert type(convert(spec_of(int | float), 1)) is type(convert(spec_of(float | int), 1)) is int
    assert convert(spec_of(Path), "a") == Path("a")
    assert convert(spec_of(Duration), "12 ep") == Duration(12, "ep")
    assert convert(spec_of(dict[str, tuple[Duration, ...]]), {"a": ["3it"]}) == {"a": (Duration(3, "it"),)}
    assert convert(spec_of(Mode), "bilinear") is Mode.BILINEAR


def test_an_enum_stays_plain_if_its_module_is_not_imported() -> None:
    spec = {"kind": "enum", "values": ["a"], "class": "an_unimported_module:Enum"}
    assert convert(spec, "a") == "a"
    assert not accepts(spec, "b")


def test_plain_data() -> None:
    value = {"a": (Path("x/y"), Duration(12, "ep")), "b": Mode.NEAREST, "c": [1.5, None, True]}
    assert plain(value) == {"a": ["x/y", "12ep"], "b": "nearest", "c": [1.5, None, True]}


def test_text_in_annotated_is_not_a_constraint() -> None:
    assert spec_of(Annotated[int, "pixels"]) == {"kind": "int"}
