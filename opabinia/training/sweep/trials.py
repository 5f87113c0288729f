"""The points of a sweep: parsed from the command line, all of them, drawn, or chosen by what others have scored."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from opabinia.config import ConfigError, Problem
from opabinia.config.tree import BadScalar, scalar

MOST = 10_000
"""Points of a grid; beyond it somebody has mistyped, or should draw."""

Point = dict[str, str]
"""What a run changes: the text of the value by dotted key."""
Better = Literal["max", "min"]
How = Literal["grid", "random", "optuna"]


# --- the space ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """A key with a list of values."""

    key: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def ends(self) -> tuple[str, ...]:
        """Values that stand for all when a config is checked."""
        return self.values

    def at(self, number: int) -> str:
        """The value of that number, from 0."""
        return self.values[number]


@dataclass(frozen=True)
class Span:
    """A key with a range from ``low`` to ``high``, both included.

    Attributes:
        kind: "lin": any number, each as likely; "log": any number, each power of ten as likely; "int": whole numbers.
    """

    key: str
    kind: Literal["lin", "log", "int"]
    low: float
    high: float

    @property
    def size(self) -> int | None:
        """How many values there are; None: without number."""
        return int(self.high) - int(self.low) + 1 if self.kind == "int" else None

    @property
    def ends(self) -> tuple[str, ...]:
        """Values that stand for all when a config is checked."""
        return self.text(self.low), self.text(self.high)

    def at(self, number: int) -> str:
        """The whole number of that place, from 0."""
        return str(int(self.low) + number)

    def text(self, value: float) -> str:
        """A value in it as it stands in an override: six digits are more than a sweep can tell apart."""
        if self.kind == "int":
            return str(int(value))
        return repr(min(max(float(f"{value:.6g}"), float(self.low)), float(self.high)))

    def drawn(self, generator: random.Random) -> str:
        """One of its values."""
        if self.kind == "int":
            return str(generator.randint(int(self.low), int(self.high)))
        if self.kind == "lin":
            return self.text(generator.uniform(self.low, self.high))
        return self.text(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))


Axis = Choices | Span


@dataclass(frozen=True)
class Space:
    """What a sweep varies, and the overrides that all its runs share."""

    axes: tuple[Axis, ...]
    shared: tuple[str, ...] = ()

    @property
    def size(self) -> int | None:
        """The number of points; None: without number."""
        sizes = [axis.size for axis in self.axes]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def overrides(self, point: Mapping[str, str]) -> list[str]:
        """What the command line of a single run would hold."""
        return [*self.shared, *(f"{key}={text}" for key, text in point.items())]


def parse_space(words: Sequence[str]) -> Space:
    """The space of ``KEY=VALUE`` words: ``a=1,2`` are choices, ``b=log(1e-4..1e-1)`` a range, ``c=3`` is shared by all.

    Raises:
        ConfigError: with every mistake.
    """
    problems: list[Problem] = []
    axes: list[Axis] = []
    shared: list[str] = []
    seen: set[str] = set()
    for word in words:
        left, equals, right = word.partition("=")
        key = left.removeprefix("--").strip(" ")
        where = f"command line: {word}"
        if not equals or not key:
            problems.append(Problem(where, "", "is not KEY=VALUE, such as optimizer.lr=0.1,0.3"))
            continue
        if key in seen:
            problems.append(Problem(where, key, "is given twice"))
        seen.add(key)
        try:
            axis = _axis(key, right)
        except ValueError as error:
            problems.append(Problem(where, key, str(error)))
            continue
        if axis is None:
            shared.append(word)
        else:
            axes.append(axis)
    if not axes and not problems:
        message = "nothing varies: give a key several values (optimizer.lr=0.1,0.3) or a range (log(1e-4..1e-1))"
        problems.append(Problem("command line", "", message))
    if problems:
        raise ConfigError(problems)
    return Space(tuple(axes), tuple(shared))


def _axis(key: str, text: str) -> Axis | None:
    values = [value.strip() for value in split_choices(text)]
    if any(re.fullmatch(r"\w+\(.*\.\..*\)", value) for value in values):
        if len(values) > 1:
            raise ValueError("a range stands alone, without further choices")
        return _span(key, values[0])
    if len(values) == 1:
        return None
    if "" in values:
        raise ValueError("a choice is empty; null and '' are written out")
    meant = [_meaning(value) for value in values]
    for number, value in enumerate(values):
        if meant[number] in meant[:number]:
            raise ValueError(f"the choice {value} is there twice")
    return Choices(key, tuple(values))


def split_choices(text: str) -> list[str]:
    """``text`` at its commas, except those in brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _meaning(text: str) -> tuple[str, str]:
    """The same for two ways to write one value, such as 0.1 and 1e-1."""
    try:
        value = scalar(text)
    except BadScalar:
        value = text
    return type(value).__name__, repr(value)


def _span(key: str, text: str) -> Span:
    match = re.fullmatch(r"(log|lin|int)\((.+?)\.\.(.+)\)", text)
    if match is None:
        raise ValueError(f"{text} is no range: log(1e-4..1e-1), lin(0..0.5) or int(1..8)")
    kind: Any = match[1]
    low, high = _number(match[2], text), _number(match[3], text)
    if kind == "int" and not (isinstance(low, int) and isinstance(high, int)):
        raise ValueError(f"{text}: both ends are whole numbers")
    if kind == "log" and low <= 0:
        raise ValueError(f"{text}: both ends are above 0")
    if low >= high:
        raise ValueError(f"{text}: the first end is the smaller one")
    return Span(key, kind, low, high)


def _number(text: str, whole: str) -> float:
    try:
        value = scalar(text.strip())
    except BadScalar as error:
        raise ValueError(f"{whole}: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{whole}: {text.strip()!r} is no number")
    return value


# --- its points -----------------------------------------------------------------------------------------------------


def grid(space: Space) -> list[Point]:
    """Every combination; the last key changes fastest.

    Raises:
        ConfigError: there are ranges, or too many points.
    """
    ranges = [axis.key for axis in space.axes if isinstance(axis, Span)]
    if ranges:
        message = "a range has no grid: --random N or --optuna N draws from it"
        raise ConfigError(Problem("command line", key, message) for key in ranges)
    if space.size is not None and space.size > MOST:
        message = f"the grid has {space.size:,} points, more than {MOST:,}: --random N draws some of them"
        raise ConfigError(Problem("command line", "", message))
    keys = [axis.key for axis in space.axes]
    values = product(*(axis.values for axis in space.axes if isinstance(axis, Choices)))
    return [dict(zip(keys, one, strict=True)) for one in values]


def draw(space: Space, count: int, seed: int) -> list[Point]:
    """``count`` different points. More of them with the same seed begin with the same ones.

    Raises:
        ConfigError: there are not so many.
    """
    generator = random.Random(seed)
    if space.size is not None:
        refuse_too_many(space, count)
        return [_point_at(space, number) for number in _shuffled(space.size, count, generator)]
    points: dict[tuple[str, ...], Point] = {}
    for _ in range(100 * count):
        point = {
            axis.key: axis.drawn(generator) if isinstance(axis, Span) else generator.choice(axis.values)
            for axis in space.axes
        }
        points.setdefault(tuple(point.values()), point)
        if len(points) == count:
            return list(points.values())
    message = f"the ranges are so narrow that only {len(points)} different points were found, not {count}"
    raise ConfigError(Problem("command line", "--random", message))


def refuse_too_many(space: Space, count: int, option: str = "--random") -> None:
    """No space gives more points than it has.

    Raises:
        ConfigError: ``count`` is more.
    """
    if space.size is not None and count > space.size:
        message = f"there are only {space.size} different points, not {count}"
        raise ConfigError(Problem("command line", option, message))


def _shuffled(size: int, count: int, generator: random.Random) -> Iterable[int]:
    """The first ``count`` of a shuffled ``range(size)``, without the rest."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = generator.randrange(place, size)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def _point_at(space: Space, number: int) -> Point:
    point = {}
    for axis in reversed(space.axes):
        assert axis.size is not None
        number, place = divmod(number, axis.size)
        point[axis.key] = axis.at(place)
    return {axis.key: point[axis.key] for axis in space.axes}


def probes(space: Space) -> list[Point]:
    """Points that show every choice and both ends of every range, for a check before anything is drawn."""
    first = {axis.key: axis.ends[0] for axis in space.axes}
    return [first, *({**first, axis.key: text} for axis in space.axes for text in axis.ends[1:])]


def propose(space: Space, known: Sequence[tuple[Mapping[str, str], float | None]], seed: int, better: Better) -> Point:
    """The point that Optuna's TPE sampler takes next, one that is not known yet.

    It hangs on the arguments alone, so a sweep that was interrupted goes on as if it had not been.

    Args:
        space: of choices and ranges.
        known: points and what they scored; None: nothing.
        seed: of the sampler.
        better: which way is better.

    Raises:
        ConfigError: Optuna is not installed, or every point is known.
    """
    optuna = import_optuna()
    trial_state, distributions = optuna.trial.TrialState, {axis.key: _distribution(axis) for axis in space.axes}
    sampler = optuna.samplers.TPESampler(seed=random.Random(f"{seed}/{len(known)}").getrandbits(32))
    study = optuna.create_study(direction="maximize" if better == "max" else "minimize", sampler=sampler)
    for point, value in known:
        study.add_trial(
            optuna.trial.create_trial(
                params={axis.key: _as_parameter(axis, point[axis.key]) for axis in space.axes},
                distributions=distributions,
                value=value,
                state=trial_state.FAIL if value is None else trial_state.COMPLETE,
            )
        )
    scored = {tuple(point.values()): value for point, value in known}
    for _ in range(20):
        trial = study.ask(distributions)
        point = {
            axis.key: axis.text(trial.params[axis.key]) if isinstance(axis, Span) else str(trial.params[axis.key])
            for axis in space.axes
        }
        if tuple(point.values()) not in scored:
            return point
        value = scored[tuple(point.values())]
        study.tell(trial, value, state=trial_state.FAIL if value is None else trial_state.COMPLETE)
    return next(point for point in draw(space, len(known) + 1, seed) if tuple(point.values()) not in scored)


def _distribution(axis: Axis) -> Any:
    distributions = import_optuna().distributions
    if isinstance(axis, Choices):
        return distributions.CategoricalDistribution(axis.values)
    if axis.kind == "int":
        return distributions.IntDistribution(int(axis.low), int(axis.high))
    return distributions.FloatDistribution(float(axis.low), float(axis.high), log=axis.kind == "log")


def _as_parameter(axis: Axis, text: str) -> str | float:
    return text if isinstance(axis, Choices) else int(text) if axis.kind == "int" else float(text)


def import_optuna() -> Any:
    """Optuna, quiet.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        message = f"needs Optuna ({error}): pip install 'opabinia[sweep]'"
        raise ConfigError(Problem("command line", "--optuna", message)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
