"""Trial parameters of a sweep: the search space on the command line, grid search, random search, and Optuna."""

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

MAX_GRID_SIZE = 10_000
"""Most trials of a grid search; a larger grid is a mistake or needs random search."""

TrialParams = dict[str, str]
"""The overrides of a trial: values as text by dotted key."""
Better = Literal["max", "min"]
SearchMethod = Literal["grid", "random", "optuna"]


# --- search space -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """A key with a list of values."""

    key: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def ends(self) -> tuple[str, ...]:
        """Values for which the config is checked before the first trial."""
        return self.values

    def at(self, index: int) -> str:
        """Return the value at an index."""
        return self.values[index]

    def text(self, value: str) -> str:
        """Format a value for an override."""
        return value

    def sample(self, generator: random.Random) -> str:
        """Draw a value."""
        return generator.choice(self.values)


@dataclass(frozen=True)
class Range:
    """A key with a range from ``low`` to ``high``, both included.

    Attributes:
        kind: "lin": uniform; "log": log-uniform; "int": uniform over whole numbers.
    """

    key: str
    kind: Literal["lin", "log", "int"]
    low: float
    high: float

    @property
    def size(self) -> int | None:
        """Number of values; None for real numbers."""
        return int(self.high) - int(self.low) + 1 if self.kind == "int" else None

    @property
    def ends(self) -> tuple[str, ...]:
        """Values for which the config is checked before the first trial."""
        return self.text(self.low), self.text(self.high)

    def at(self, index: int) -> str:
        """Return the whole number at an index."""
        return str(int(self.low) + index)

    def text(self, value: float) -> str:
        """Format a value for an override, with six significant digits."""
        if self.kind == "int":
            return str(int(value))
        return repr(min(max(float(f"{value:.6g}"), float(self.low)), float(self.high)))

    def sample(self, generator: random.Random) -> str:
        """Draw a value."""
        if self.kind == "int":
            return str(generator.randint(int(self.low), int(self.high)))
        if self.kind == "lin":
            return self.text(generator.uniform(self.low, self.high))
        return self.text(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))


Axis = Choices | Range


@dataclass(frozen=True)
class SearchSpace:
    """The keys that a sweep varies, and the overrides that all its runs share."""

    axes: tuple[Axis, ...]
    shared: tuple[str, ...] = ()

    @property
    def size(self) -> int | None:
        """Number of different trials; None if a key has real numbers."""
        sizes = [axis.size for axis in self.axes]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def overrides(self, params: Mapping[str, str]) -> list[str]:
        """Return the overrides of a trial, as on the command line of a single run."""
        return [*self.shared, *(f"{key}={text}" for key, text in params.items())]


def parse_space(words: Sequence[str]) -> SearchSpace:
    """Parse ``KEY=VALUE`` words: ``a=1,2`` gives choices, ``b=log(1e-4..1e-1)`` a range, ``c=3`` applies to all runs.

    Raises:
        ConfigError: with all invalid words.
    """
    problems: list[Problem] = []
    axes: list[Axis] = []
    shared: list[str] = []
    seen: set[str] = set()
    for word in words:
        name, equals, text = word.partition("=")
        key = name.removeprefix("--").strip(" ")
        where = f"command line: {word}"
        if not equals or not key:
            problems.append(Problem(where, "", "is not KEY=VALUE, such as optimizer.lr=0.1,0.3"))
            continue
        if key in seen:
            problems.append(Problem(where, key, "is given twice"))
        seen.add(key)
        try:
            axis = _parse_axis(key, text)
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
    return SearchSpace(tuple(axes), tuple(shared))


def _parse_axis(key: str, text: str) -> Axis | None:
    values = [value.strip() for value in split_choices(text)]
    if any(re.fullmatch(r"\w+\(.*\.\..*\)", value) for value in values):
        if len(values) > 1:
            raise ValueError("a range cannot be combined with other choices")
        return _parse_range(key, values[0])
    if len(values) == 1:
        return None
    if "" in values:
        raise ValueError("a choice is empty; write null or ''")
    parsed = [_canonical(value) for value in values]
    for index, value in enumerate(values):
        if parsed[index] in parsed[:index]:
            raise ValueError(f"the choice {value} occurs twice")
    return Choices(key, tuple(values))


def split_choices(text: str) -> list[str]:
    """Split a text at its commas, except those in brackets, braces and quotes."""
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


def _canonical(text: str) -> tuple[str, str]:
    """Return a key that is equal for different spellings of a value, such as 0.1 and 1e-1."""
    try:
        value = scalar(text)
    except BadScalar:
        value = text
    return type(value).__name__, repr(value)


def _parse_range(key: str, text: str) -> Range:
    match = re.fullmatch(r"(log|lin|int)\((.+?)\.\.(.+)\)", text)
    if match is None:
        raise ValueError(f"{text} is not a range: use log(1e-4..1e-1), lin(0..0.5) or int(1..8)")
    kind: Any = match[1]
    low, high = _parse_number(match[2], text), _parse_number(match[3], text)
    if kind == "int" and not (isinstance(low, int) and isinstance(high, int)):
        raise ValueError(f"{text}: both ends must be whole numbers")
    if kind == "log" and low <= 0:
        raise ValueError(f"{text}: both ends must be above 0")
    if low >= high:
        raise ValueError(f"{text}: the first end must be less than the second")
    return Range(key, kind, low, high)


def _parse_number(text: str, range_text: str) -> float:
    try:
        value = scalar(text.strip())
    except BadScalar as error:
        raise ValueError(f"{range_text}: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{range_text}: {text.strip()!r} is not a number")
    return value


# --- search methods ---------------------------------------------------------------------------------------------------


def grid_trials(space: SearchSpace) -> list[TrialParams]:
    """Return every combination; the last key changes fastest.

    Raises:
        ConfigError: the space has ranges or too many combinations.
    """
    ranges = [axis.key for axis in space.axes if isinstance(axis, Range)]
    if ranges:
        message = "a range cannot be used in a grid: use --random N or --optuna N"
        raise ConfigError(Problem("command line", key, message) for key in ranges)
    if space.size is not None and space.size > MAX_GRID_SIZE:
        message = f"the grid has {space.size:,} trials, more than {MAX_GRID_SIZE:,}: use --random N"
        raise ConfigError(Problem("command line", "", message))
    keys = [axis.key for axis in space.axes]
    values = product(*(axis.values for axis in space.axes if isinstance(axis, Choices)))
    return [dict(zip(keys, combination, strict=True)) for combination in values]


def random_trials(space: SearchSpace, count: int, seed: int) -> list[TrialParams]:
    """Draw ``count`` different trials; a larger count with the same seed begins with the same ones.

    Raises:
        ConfigError: the space has fewer different trials.
    """
    generator = random.Random(seed)
    if space.size is not None:
        check_count(space, count)
        return [_trial_at(space, index) for index in _sample_indices(space.size, count, generator)]
    trials: dict[tuple[str, ...], TrialParams] = {}
    for _ in range(100 * count):
        params = {axis.key: axis.sample(generator) for axis in space.axes}
        trials.setdefault(tuple(params.values()), params)
        if len(trials) == count:
            return list(trials.values())
    message = f"the ranges are so narrow that they give only {len(trials)} different trials, not {count}"
    raise ConfigError(Problem("command line", "--random", message))


def check_count(space: SearchSpace, count: int, option: str = "--random") -> None:
    """Check that the space has at least ``count`` different trials.

    Raises:
        ConfigError: it has fewer.
    """
    if space.size is not None and count > space.size:
        message = f"there are only {space.size} different trials, not {count}"
        raise ConfigError(Problem("command line", option, message))


def _sample_indices(size: int, count: int, generator: random.Random) -> Iterable[int]:
    """Yield the first ``count`` items of a shuffled ``range(size)`` in O(count) memory (Fisher-Yates)."""
    swapped: dict[int, int] = {}
    for index in range(count):
        other = generator.randrange(index, size)
        yield swapped.get(other, other)
        swapped[other] = swapped.get(index, index)


def _trial_at(space: SearchSpace, index: int) -> TrialParams:
    """Return the trial at an index of the grid."""
    params = {}
    for axis in reversed(space.axes):
        assert axis.size is not None
        index, position = divmod(index, axis.size)
        params[axis.key] = axis.at(position)
    return {axis.key: params[axis.key] for axis in space.axes}


def boundary_trials(space: SearchSpace) -> list[TrialParams]:
    """Return trials that contain every choice and both ends of every range, to check their configs in advance."""
    first = {axis.key: axis.ends[0] for axis in space.axes}
    return [first, *({**first, axis.key: text} for axis in space.axes for text in axis.ends[1:])]


def suggest(
    space: SearchSpace, known: Sequence[tuple[Mapping[str, str], float | None]], seed: int, better: Better
) -> TrialParams:
    """Return a new trial suggested by Optuna's TPE sampler.

    The result depends only on the arguments, so an interrupted sweep resumes as if it had not been interrupted.

    Args:
        space: the search space.
        known: previous trials and their metric values; None for a trial without one.
        seed: seed of the sampler.
        better: direction of the metric.

    Raises:
        ConfigError: Optuna is not installed, or all trials are known.
    """
    optuna = import_optuna()
    trial_state, distributions = optuna.trial.TrialState, {axis.key: _distribution(axis) for axis in space.axes}
    sampler = optuna.samplers.TPESampler(seed=random.Random(f"{seed}/{len(known)}").getrandbits(32))
    study = optuna.create_study(direction="maximize" if better == "max" else "minimize", sampler=sampler)
    for params, value in known:
        study.add_trial(
            optuna.trial.create_trial(
                params={axis.key: _to_optuna(axis, params[axis.key]) for axis in space.axes},
                distributions=distributions,
                value=value,
                state=trial_state.FAIL if value is None else trial_state.COMPLETE,
            )
        )
    scored = {tuple(params.values()): value for params, value in known}
    for _ in range(20):
        trial = study.ask(distributions)
        params = {axis.key: axis.text(trial.params[axis.key]) for axis in space.axes}
        if tuple(params.values()) not in scored:
            return params
        value = scored[tuple(params.values())]
        study.tell(trial, value, state=trial_state.FAIL if value is None else trial_state.COMPLETE)
    candidates = random_trials(space, len(known) + 1, seed)
    return next(params for params in candidates if tuple(params.values()) not in scored)


def _distribution(axis: Axis) -> Any:
    distributions = import_optuna().distributions
    if isinstance(axis, Choices):
        return distributions.CategoricalDistribution(axis.values)
    if axis.kind == "int":
        return distributions.IntDistribution(int(axis.low), int(axis.high))
    return distributions.FloatDistribution(float(axis.low), float(axis.high), log=axis.kind == "log")


def _to_optuna(axis: Axis, text: str) -> str | float:
    return text if isinstance(axis, Choices) else int(text) if axis.kind == "int" else float(text)


def import_optuna() -> Any:
    """Import Optuna and silence its logging.

    Raises:
        ConfigError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        message = f"needs Optuna ({error}): pip install 'opabinia[sweep]'"
        raise ConfigError(Problem("command line", "--optuna", message)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
