"""A recipe that is converted from another system's config, with the origin of every value, and its YAML text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.config.text import dump_with_references
from opabinia.migration.foreign_config import NO_EQUIVALENT, ForeignConfig, UnconvertedKey
from opabinia.runtime.text import printable

SECTIONS = (
    *("vars", "init", "task", "distill", "data", "shapes", "optimizer", "param_groups", "schedule", "schedules"),
    *("train", "ema", "evaluate", "checkpoint", "hooks", "seed"),
)
"""The order of sections in a recipe."""


EFFECTS = (
    ("model", "loss", "head", "backbone", "kd", "distillation"),
    ("data", "input", "preprocess", "augment", "pipeline"),
    ("optim", "solver", "schedule", "lr"),
    ("test", "eval", "metric", "svm"),
)
"""Beginnings of sections of other systems' configs, those with the largest effect on results first."""


class Reference(str):
    """Text with a ``${...}`` reference of Opabinia. In all other texts ``${`` is escaped."""


Converter = Callable[[Any], Any]
"""Converts a value of the other system; raises ValueError with the allowed values."""

Table = Mapping[str, str | tuple[str, Converter]]
"""Source keys by recipe keys, each with a converter if the value changes."""


class Recipe:
    """A recipe under construction.

    Args:
        foreign: the config that is converted.
    """

    def __init__(self, foreign: ForeignConfig) -> None:
        self.foreign = foreign
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self._origins: dict[str, tuple[str, ...]] = {}
        self._skipped: list[UnconvertedKey] = []
        self._problems: list[Problem] = []

    def put(self, key: str, value: Any, *source_keys: str) -> None:
        """Set a key of the recipe.

        Args:
            key: dotted path in the recipe.
            value: its value.
            source_keys: keys of the other config that the value is computed from.
        """
        *sections, last = key.split(".")
        section = self.config
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
        if source_keys:
            self._origins[key] = source_keys

    def convert(self, source_key: str, key: str, converter: Converter = lambda value: value) -> None:
        """Set a key to a converted value. Errors are collected and raised together by :meth:`finish`."""
        try:
            self.put(key, converter(self.foreign(source_key)), source_key)
        except ValueError as error:
            self._problems += self.foreign.problem(source_key, str(error)).problems
        except ConfigError as error:
            self._problems += error.problems

    def convert_section(self, source_section: str, section: str, table: Table) -> None:
        """Set all keys of a section that are in the table."""
        for key, source in table.items():
            source_key, *converter = (source,) if isinstance(source, str) else source
            self.convert(f"{source_section}.{source_key}", f"{section}.{key}", *converter)

    def ratio(self, numerator: str, denominator: str) -> float:
        """Return the ratio of the numbers at two source keys, with six significant digits.

        Raises:
            ConfigError: the denominator is 0.
        """
        if not (divisor := self.foreign.number(denominator)):
            raise self.foreign.problem(denominator, "must not be 0")
        return float(f"{self.foreign.number(numerator) / divisor:.6g}")

    def variable(self, name: str, value: Any, *source_keys: str) -> Reference:
        """Add a variable that the user fills in; return the reference to it."""
        self.put(f"vars.{name}", value, *source_keys)
        return Reference(f"${{vars.{name}}}")

    def note(self, text: str) -> None:
        """Add a note for the user, unless it exists already."""
        if text not in self.notes:
            self.notes.append(text)

    def skip(self, source_key: str, why: str) -> None:
        """Report a key as not converted although it was read. Does nothing if the files do not set it."""
        value = self.foreign(source_key)
        if source_key in self.foreign:
            self.skip_part(source_key, value, why)

    def skip_part(self, source_key: str, part: Any, why: str) -> None:
        """Report a part of a value, such as an entry of a list, as not converted."""
        self._skipped.append(UnconvertedKey(source_key, part, self.foreign.where(source_key), why))

    def dropped(self) -> list[UnconvertedKey]:
        """Return the keys in the files whose absence may change results, those of the model first."""
        unknown = [key for key in self.foreign.unread() if key.why == NO_EQUIVALENT]
        return sorted([*self._skipped, *unknown], key=lambda key: _rank(key.path))

    def unconverted(self) -> list[UnconvertedKey]:
        """Return all keys in the files that are not converted: first :meth:`dropped`, then those without effect."""
        return [*self.dropped(), *(key for key in self.foreign.unread() if key.why != NO_EQUIVALENT)]

    def refuse(self, source_key: str, message: str, allowed: str = "") -> None:
        """Collect an error about a value, for :meth:`finish`."""
        self._problems += self.foreign.problem(source_key, message, allowed).problems

    def finish(self) -> None:
        """Complete the conversion.

        Raises:
            ConfigError: with all values that could not be converted.
        """
        if self._problems:
            raise ConfigError(dict.fromkeys(self._problems))

    def text(self) -> str:
        """Return YAML: notes and dropped keys, the recipe, the origins of its values, the keys that are not needed."""
        ordered = {name: self.config[name] for name in SECTIONS if name in self.config}
        origins = [f"  {key} = {self._origin(source_keys)}" for key, source_keys in self._origins.items()]
        dropped = [f"  {key}" for key in self.dropped()]
        headline = ["Dropped, the most important first:", *dropped] if dropped else []
        parts = [
            _comment([f"From {self.foreign.file}, a config of {self.foreign.system}.", *headline, *self.notes]),
            dump_with_references(_escape_references(ordered)).rstrip(),
            _comment(["Origins of the values:", *origins]),
        ]
        if unneeded := self.unconverted()[len(dropped) :]:
            parts.append(_comment(["Not needed:", *(f"  {key}" for key in unneeded)]))
        return "\n\n".join(parts) + "\n"

    def _origin(self, source_keys: tuple[str, ...]) -> str:
        return ", ".join(
            f"{key} {show(self.foreign.untyped(key), 100)} ({self.foreign.where(key)})" for key in source_keys
        )


def _rank(path: str) -> int:
    """Return the place of a key's section in :data:`EFFECTS`."""
    section = path.partition(".")[0].lower()
    return next((number for number, names in enumerate(EFFECTS) if section.startswith(names)), len(EFFECTS))


def _comment(lines: Sequence[str]) -> str:
    return "\n".join(f"# {printable(line)}" for line in lines)


def _escape_references(value: Any) -> Any:
    """Escape ``${`` in all texts except :class:`Reference`."""
    if isinstance(value, dict):
        return {key: _escape_references(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_references(item) for item in value]
    if isinstance(value, Reference):
        return str(value)
    return value.replace("${", "$${") if isinstance(value, str) else value


# --- converters -------------------------------------------------------------------------------------------------------


def lookup(choices: Mapping[Any, Any]) -> Converter:
    """Return a converter that looks values up in a mapping; its ValueError lists the supported ones."""

    def convert(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in choices:
            supported = ", ".join(show(choice) for choice in choices)
            raise ValueError(f"{show(value)} is not supported; supported: {supported}")
        return choices[value]

    return convert


def duration_in(unit: str) -> Callable[[Any], str]:
    """Return a converter of numbers to durations in epochs (``ep``) or steps (``it``)."""
    return lambda value: duration(value, unit)


def duration(value: Any, unit: str) -> str:
    """Format a duration: ``duration(90000, "it") == "90000it"``, ``duration(7.5, "ep") == "7.5ep"``.

    Raises:
        ValueError: the value is negative or too large, or a number of steps is not whole.
    """
    if not 0 <= value < 1e12:
        raise ValueError(f"{show(value)} is not a duration; expected 0 or more")
    number = round(float(value), 6)
    text = f"{number:.6f}".rstrip("0").rstrip(".")
    if unit == "it" and "." in text:
        raise ValueError(f"{show(value)} is not a number of steps; expected a whole number")
    return f"{text}{unit}"


def first_item(value: Any) -> Any:
    """Return the first item of a list.

    Raises:
        ValueError: the value is not a list or is empty.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{show(value)} has no first item; expected a list with at least one")
    return value[0]


def to_unit_range(values: Any) -> list[float]:
    """Scale pixel values from 0..255 to 0..1.

    Raises:
        ValueError: the value is not a list of numbers.
    """
    if not isinstance(values, list) or any(
        isinstance(value, bool) or not isinstance(value, int | float) for value in values
    ):
        raise ValueError(f"{show(values)}: expected a list of numbers")
    return [round(value / 255, 8) for value in values]


def convert_pixel_stats(recipe: Recipe, order_key: str, mean_key: str, std_key: str, weights: str) -> None:
    """Convert mean and standard deviation of pixels in 0..255, in BGR or RGB order, to RGB in 0..1.

    Args:
        recipe: the recipe whose ``task.mean`` and ``task.std`` are set.
        order_key: source key of the channel order.
        mean_key: source key of the means.
        std_key: source key of the standard deviations.
        weights: note for the user about weights that were trained on BGR images.

    Raises:
        ConfigError: the channel order is neither BGR nor RGB.
    """
    order = recipe.foreign(order_key)
    if order not in ("BGR", "RGB"):
        raise recipe.foreign.problem(order_key, f"{show(order)} is not supported", "supported: BGR, RGB")
    step = -1 if order == "BGR" else 1
    for source_key, key in ((mean_key, "task.mean"), (std_key, "task.std")):
        recipe.convert(source_key, key, lambda values: to_unit_range(values)[::step])
    if order == "BGR":
        recipe.note(f"images are RGB in Opabinia, so task.mean and task.std are reversed; {weights}")
