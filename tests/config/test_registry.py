"""No ``from __future__ import annotations`` here: these signatures hold types themselves; toys.py holds strings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from annotated_types import Ge

from opabinia.config import Part
from opabinia.config.docstrings import described_arguments
from opabinia.config.registry import FAMILIES, Entry, Register
from opabinia.runtime.durations import Duration
from tests.config import toys

if TYPE_CHECKING:
    from fractions import Fraction

LossPart = Annotated[Callable[..., float], Part("loss")]


@pytest.fixture
def register() -> Register:
    return Register()


def test_a_signature_becomes_an_entry(register: Register) -> None:
    @register.loss
    def cross_entropy(logits: float, targets: float, /, *, smoothing: Annotated[float, Ge(0)] = 0) -> float:
        """Mean cross entropy.

        More of it.

        Args:
            logits: (B, K).
            smoothing (float, optional): spread
                evenly.

        Raises:
            ValueError: never.
        """
        return logits - targets

    entry = register.entries["loss"]["cross_entropy"]
    assert cross_entropy(3, 1) == 2
    assert (entry.target, entry.runtime, entry.doc) == (cross_entropy, ("logits", "targets"), "Mean cross entropy.")
    (parameter,) = entry.parameters
    assert (parameter.name, parameter.required, parameter.default) == ("smoothing", False, 0.0)
    assert parameter.spec == {"kind": "float", "ge": 0}
    assert parameter.doc == "spread evenly."


def test_names(register: Register) -> None:
    @register.transform
    class RandomCrop:
        """A class."""

    @register.evaluator
    class COCOEvaluator:
        """Another."""

    @register.loss(name="xent")
    def cross_entropy(logits: float, /) -> float:
        """A function."""
        return logits

    assert list(register.entries["transform"]) == ["random_crop"]
    assert list(register.entries["evaluator"]) == ["coco_evaluator"]
    assert list(register.entries["loss"]) == ["xent"]
    assert "section" in FAMILIES and "command" in FAMILIES


def test_an_entry_survives_json(register: Register) -> None:
    for entries in toys.register.entries.values():
        for entry in entries.values():
            restored = Entry.from_json(json.loads(json.dumps(entry.to_json())))
            assert restored.to_json() == entry.to_json()
            assert (
                restored.target is None
                and restored.parameters == entry.parameters
                and restored.runtime == entry.runtime
            )


def test_defaults_that_are_parts(register: Register) -> None:
    parameters = toys.register.entries["task"]["classification"].by_name
    assert parameters["loss"].default == {"name": "cross_entropy"}

    @register.logger
    class Terminal:
        """Prints."""

    @register.command
    def train(*, loggers: list[Annotated[Any, Part("logger")]] = [Terminal]) -> None:  # noqa: B006
        """Trains."""

    assert register.entries["command"]["train"].by_name["loggers"].default == [{"name": "terminal"}]


def test_a_section_is_identified_by_its_class() -> None:
    spec = toys.register.entries["command"]["train"].by_name["train"].spec
    assert spec == {"kind": "part", "family": "section", "name": "training"}


def test_a_dataclass_may_inherit_fields_from_another_module(register: Register) -> None:
    @register.transform
    @dataclass(frozen=True)
    class Crop(toys.Crop):
        """A crop that inherits annotations which are strings in the toys' module."""

        padding: int = 0

    names = [parameter.name for parameter in register.entries["transform"]["crop"].parameters]
    assert names == ["size", "mode", "padding"]


def test_only_the_same_callable_may_be_registered_again(register: Register) -> None:
    for _ in range(2):  # as when a module is reloaded

        @register.loss
        def focal(logits: float, /) -> float:
            """Focal."""
            return logits

    def other(logits: float, /) -> float:
        """Other."""
        return logits

    with pytest.raises(TypeError, match=r"register.loss: .*other: the name 'focal' is taken by .*focal"):
        register.loss(name="focal")(other)


def open_keywords(**options: int) -> None:
    """Open."""


def open_arguments(*sizes: int) -> None:
    """Open."""


def untyped(lr=0.1) -> None:  # type: ignore[no-untyped-def]
    """Untyped."""


def untyped_at_run_time(x, /) -> None:  # type: ignore[no-untyped-def]
    """Untyped."""


def undocumented(lr: float) -> None:
    pass


@dataclass
class Undocumented:
    lr: float


def object_parameter(model: object) -> None:
    """Has a parameter that YAML cannot represent."""


def bad_default(lr: float = "fast") -> None:  # type: ignore[assignment]
    """A default that does not fit."""


def out_of_range(lr: Annotated[float, Ge(0)] = -1.0) -> None:
    """A default out of range."""


def object_default(options: dict[str, Any] = {"a": max}) -> None:  # noqa: B006
    """A default that YAML cannot represent."""


def unregistered_default(loss: LossPart = max) -> None:
    """A default that is not registered."""


def text_default(loss: LossPart = "focal") -> None:  # type: ignore[assignment]
    """A default that is a name."""


def unknown_family(loss: Annotated[Any, Part("lose")]) -> None:
    """A family that does not exist."""


def nameless_section(data: Annotated[Any, Part("section")]) -> None:
    """A section without its name."""


def fixed_part(loss: Annotated[Any, Part("loss", "focal")]) -> None:
    """A part fixed by name."""


def only_for_checkers(x: "Fraction") -> None:
    """A type that is imported for type checkers only."""


def named(name: str) -> None:
    """A parameter that clashes with the part's name."""


def lengthy(length: Duration = Duration(1, "h")) -> None:
    """A default in units that the parameter does not take."""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lengthy, "'1h', is not a duration such as 12ep or 5000it"),
        (
            open_keywords,
            r"\*\*options leaves the signature open; name every parameter, or .* `options: dict\[str, Any\]`",
        ),
        (open_arguments, r"\*sizes leaves the signature open"),
        (untyped, "parameter 'lr' has no type; annotate it"),
        (untyped_at_run_time, "parameter 'x' has no type"),
        (undocumented, "has no docstring"),
        (Undocumented, "has no docstring"),
        (
            object_parameter,
            r"'model': object cannot come from YAML. Make it positional-only .* or annotate it with a part",
        ),
        (bad_default, "default of parameter 'lr', 'fast', is not a number"),
        (out_of_range, "default of parameter 'lr', -1.0, is not a number >= 0"),
        (object_default, "default of parameter 'options' holds a value that cannot be written"),
        (
            unregistered_default,
            "default of parameter 'loss', builtins.max, is not a registered loss; register it first",
        ),
        (text_default, "default of parameter 'loss' must be a registered callable"),
        (unknown_family, "no family 'lose'; nearest: 'loss'"),
        (nameless_section, "a section, and nothing else, is fixed by name"),
        (fixed_part, "a section, and nothing else, is fixed by name"),
        (only_for_checkers, "type of parameter 'x' cannot be read .*TYPE_CHECKING"),
        (named, "cannot be called 'name'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_invalid_signatures_are_rejected(register: Register, target: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as error:
        register.head(target)
    assert str(error.value).startswith("register.head: ")
    assert target.__qualname__ in str(error.value)
    assert not register.entries["head"]


def test_renaming(register: Register) -> None:
    def loss(*, smoothing: float = 0.0) -> None:
        """Loss."""

    register.loss(renamed={"eps": "smoothing"})(loss)
    assert register.entries["loss"]["loss"].renamed == {"eps": "smoothing"}
    with pytest.raises(TypeError, match="there is no parameter 'smothing'"):
        register.loss(renamed={"eps": "smothing"})(loss)
    with pytest.raises(TypeError, match="'smoothing' is still a parameter"):
        register.loss(renamed={"smoothing": "smoothing"})(loss)


def test_a_name_must_be_writable(register: Register) -> None:
    def loss() -> None:
        """Loss."""

    with pytest.raises(TypeError, match="not a name that a config could use"):
        register.loss(name="a b")(loss)
    with pytest.raises(TypeError, match="not a name that a config could use"):
        register.loss(lambda: 3)

    def train(*, vars: int) -> None:
        """Trains."""

    with pytest.raises(TypeError, match="cannot be called 'vars'"):
        register.command(train)


def test_arguments_in_docstrings() -> None:
    text = (
        "First.\n\nArgs:\n    a: one.\n    b (int): two\n        lines: here.\n\n    c: three.\n\nReturns:\n    d: no."
    )
    assert described_arguments(text) == {"a": "one.", "b": "two lines: here.", "c": "three."}
    assert described_arguments("Nothing.") == {}
