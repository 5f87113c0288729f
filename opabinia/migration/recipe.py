"""A config of ours that is made from a foreign one, with the origin of every value, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opabinia.config.errors import ConfigError, Problem, printable, show
from opabinia.config.text import dump_with_references
from opabinia.migration.foreign_config import Foreign, Left

SECTIONS = (
    *("vars", "init", "task", "distill", "data", "shapes", "optimizer", "groups", "schedule", "schedules"),
    *("train", "ema", "evaluate", "checkpoint", "hooks", "seed"),
)
"""The order of a recipe."""


class Reference(str):
    """A text with ``${...}`` in it that is one of ours. In all others it is text."""


Convert = Callable[[Any], Any]
"""What becomes of a foreign value; a ValueError tells what would be right."""

Table = Mapping[str, str | tuple[str, Convert]]
"""By keys of ours the foreign ones; with what becomes of the value, where it does not stay what it is."""


class Recipe:
    """A config of ours in the making.

    Args:
        foreign: the config that it is made from.
    """

    def __init__(self, foreign: Foreign) -> None:
        self.foreign = foreign
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self._origins: dict[str, tuple[str, ...]] = {}
        self._left: list[Left] = []
        self._problems: list[Problem] = []

    def put(self, ours: str, value: Any, *theirs: str) -> None:
        """Set a key.

        Args:
            ours: where, as a dotted path.
            value: what.
            theirs: the foreign keys that it comes from.
        """
        *sections, last = ours.split(".")
        section = self.config
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
        if theirs:
            self._origins[ours] = theirs

    def take(self, theirs: str, ours: str, convert: Convert = lambda value: value) -> None:
        """Set a key to what a foreign one becomes. What it cannot become is told with all other problems."""
        try:
            self.put(ours, convert(self.foreign(theirs)), theirs)
        except ValueError as error:
            self._problems += self.foreign.problem(theirs, str(error)).problems
        except ConfigError as error:
            self._problems += error.problems

    def take_all(self, theirs: str, ours: str, table: Table) -> None:
        """Set the keys of a section to what those of a foreign one become."""
        for key, source in table.items():
            foreign, *convert = (source,) if isinstance(source, str) else source
            self.take(f"{theirs}.{foreign}", f"{ours}.{key}", *convert)

    def share(self, part: str, whole: str) -> float:
        """One number as a share of another, both by their foreign keys.

        Raises:
            ConfigError: the other one is 0.
        """
        if not (divisor := self.foreign.number(whole)):
            raise self.foreign.problem(whole, "must not be 0")
        return float(f"{self.foreign.number(part) / divisor:.6g}")

    def variable(self, name: str, value: Any, *theirs: str) -> Reference:
        """A value that a person fills in, and what stands for it elsewhere."""
        self.put(f"vars.{name}", value, *theirs)
        return Reference(f"${{vars.{name}}}")

    def note(self, text: str) -> None:
        """Tell a person something, once."""
        if text not in self.notes:
            self.notes.append(text)

    def leave(self, theirs: str, why: str) -> None:
        """A key that is not taken over, though it was looked at; nothing if it is not written."""
        value = self.foreign(theirs)
        if theirs in self.foreign:
            self._left.append(Left(theirs, value, self.foreign.where(theirs), why))

    def leave_part(self, theirs: str, part: Any, why: str) -> None:
        """A part of a key that is not taken over, such as an entry of a list."""
        self._left.append(Left(theirs, part, self.foreign.where(theirs), why))

    def left(self) -> list[Left]:
        """All keys that are written and not taken over."""
        return [*self._left, *self.foreign.left()]

    def finish(self) -> None:
        """Nothing more will come.

        Raises:
            ConfigError: values could not be taken over.
        """
        if self._problems:
            raise ConfigError(dict.fromkeys(self._problems))

    def text(self) -> str:
        """YAML: what a person is to know, the recipe, where its values come from and what was left out."""
        ordered = {name: self.config[name] for name in SECTIONS if name in self.config}
        listed = [f"{ours} = {self._told(theirs)}" for ours, theirs in self._origins.items()]
        parts = [
            _comment([f"From {self.foreign.file}, a config of {self.foreign.system}.", *self.notes]),
            dump_with_references(_escaped(ordered)).rstrip(),
            _comment(["Where values come from:", *(f"  {one}" for one in listed)]),
        ]
        if left := self.left():
            parts.append(_comment(["Not taken over:", *(f"  {one}" for one in left)]))
        return "\n\n".join(parts) + "\n"

    def _told(self, theirs: tuple[str, ...]) -> str:
        return ", ".join(f"{one} {show(self.foreign(one), 100)} ({self.foreign.where(one)})" for one in theirs)


def _comment(lines: Sequence[str]) -> str:
    return "\n".join(f"# {printable(line)}" for line in lines)


def _escaped(value: Any) -> Any:
    """With every text that is no reference of ours as text, whatever stands in it."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    if isinstance(value, Reference):
        return str(value)
    return value.replace("${", "$${") if isinstance(value, str) else value


# --- what values become -----------------------------------------------------------------------------------------------


def one_of(choices: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """Another word for it; a ValueError lists what there is."""

    def convert(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in choices:
            known = ", ".join(show(choice) for choice in choices)
            raise ValueError(f"{show(value)} is not known here; known are: {known}")
        return choices[value]

    return convert


def lasting(unit: str) -> Callable[[Any], str]:
    """A number of ``ep`` or ``it`` as a duration."""
    return lambda value: duration(value, unit)


def duration(value: Any, unit: str) -> str:
    """``duration(90000, "it") == "90000it"``, ``duration(7.5, "ep") == "7.5ep"``.

    Raises:
        ValueError: it is no length.
    """
    if not 0 <= value < 1e12:
        raise ValueError(f"{show(value)} is no length; 0 or more is")
    number = round(float(value), 6)
    whole = f"{number:.6f}".rstrip("0").rstrip(".")
    if unit == "it" and "." in whole:
        raise ValueError(f"{show(value)} is no number of steps; a whole one is")
    return f"{whole}{unit}"


def first(value: Any) -> Any:
    """The first of a list.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{show(value)} has no first entry; a list with one is needed")
    return value[0]


def of_one(values: Any) -> list[float]:
    """Values of pixels in 0..255 as those of pixels in 0..1.

    Raises:
        ValueError: they are no numbers.
    """
    if not isinstance(values, list) or any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise ValueError(f"{show(values)}: a list of numbers is needed")
    return [round(one / 255, 8) for one in values]


def pixels(recipe: Recipe, order: str, mean: str, std: str, weights: str) -> None:
    """Mean and deviation of pixels in 0..255, in whichever order their colours are, as those of RGB in 0..1.

    Args:
        recipe: whose task gets them.
        order: the foreign key that says BGR or RGB.
        mean: that of the means.
        std: that of the deviations.
        weights: what becomes of weights that know BGR, for people.

    Raises:
        ConfigError: it is another order.
    """
    colours = recipe.foreign(order)
    if colours not in ("BGR", "RGB"):
        raise recipe.foreign.problem(order, f"{show(colours)} is not here", "BGR and RGB are")
    turn = -1 if colours == "BGR" else 1
    for theirs, ours in ((mean, "task.mean"), (std, "task.std")):
        recipe.take(theirs, ours, lambda values: of_one(values)[::turn])
    if colours == "BGR":
        recipe.note(f"pictures are RGB here, so task.mean and task.std are turned; {weights}")
