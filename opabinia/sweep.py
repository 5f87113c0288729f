"""Several runs of one recipe: the points of a sweep, what came of them, repeats with other seeds. Imports no torch."""

from __future__ import annotations

import gc
import json
import math
import random
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from opabinia.config import Catalog, ConfigError, Problem, Resolved, catalog, check, compose, flatten
from opabinia.config.errors import listing, nearest, show
from opabinia.config.tree import BadScalar, scalar
from opabinia.runtime.files import DiskError, InUse, told, write_aside
from opabinia.runtime.signals import Stopped

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


# --- checks before the first run ------------------------------------------------------------------------------------


def check_all(recipe: str, changes: Iterable[Sequence[str]]) -> list[Resolved]:
    """The complete config for each list of overrides; nothing is imported or built.

    Raises:
        ConfigError: with every mistake in any of them, each once.
    """
    catalogs: dict[tuple[str, ...], Catalog] = {}
    resolved: list[Resolved] = []
    problems: dict[str, Problem] = {}
    for overrides in changes:
        tree = compose(recipe, overrides)
        if tree.plugins not in catalogs:
            catalogs[tree.plugins] = catalog(tree.plugins)
        try:
            resolved.append(check(tree, catalogs[tree.plugins]))
        except ConfigError as error:
            problems.update({str(problem): problem for problem in error.problems})
    if problems:
        raise ConfigError(problems.values())
    return resolved


def refuse_other_config(folder: Path, recipe: str, overrides: Sequence[str]) -> None:
    """A folder with a run of another config is neither gone on with nor are its scores taken.

    Raises:
        ConfigError: ``folder`` holds one.
    """
    if not (folder / "config.yaml").is_file():
        return
    saved, wanted = check_all(str(folder), [[]])[0].config, check_all(recipe, [overrides])[0].config
    old, new = flatten(saved), flatten(wanted)
    if wanted["seed"] is None:
        old["seed"] = None
    differ = [path for path in dict.fromkeys([*old, *new]) if (path in old) != (path in new) or old[path] != new[path]]
    if differ:
        values = [f"{path} {show(old.get(path))} there, {show(new.get(path))} here" for path in differ]
        message = f"holds a run of another config ({listing(values, 3)}): --name begins another series"
        raise ConfigError(Problem(str(folder), "", message))


def seed_of(folder: Path, recipe: str, overrides: Sequence[str]) -> int | None:
    """The seed that the run in ``folder`` has drawn; None when its recipe says one, or the folder is gone.

    Raises:
        ConfigError: a config cannot be read.
    """
    if check_all(recipe, [overrides])[0].config["seed"] is not None or not (folder / "config.yaml").is_file():
        return None
    drawn: int | None = check_all(str(folder), [[]])[0].config["seed"]
    return drawn


# --- a run of the series --------------------------------------------------------------------------------------------


def results_of(folder: Path) -> dict[str, float] | None:
    """The scores of a finished run, else None.

    Raises:
        ConfigError: they cannot be read.
    """
    results = folder / "results.json"
    if not results.is_file():
        return None
    scores = _read_json(results)
    return {str(name): float(value) for name, value in scores.items()}


def train_or_go_on(recipe: str, overrides: Sequence[str], *, out: Path, name: str) -> dict[str, float]:
    """The scores of a run: taken from its folder if it is finished; else it is trained, from its last checkpoint on.

    Raises:
        ConfigError: the config is wrong.
        Stopped: a signal or a limit ended it early; it has saved.
    """
    import torch

    from opabinia import launch

    folder = launch.run_folder(recipe, out, name)
    scores = results_of(folder)
    if scores is not None:
        return scores
    threads = torch.get_num_threads()
    begun = (folder / "config.yaml").is_file()
    if begun and (Path(recipe) / "config.yaml").is_file():
        recipe = str(folder)  # to resume a run folder is to resume that very run
    try:
        return launch.train(recipe, overrides, out=out, name=name, resume="last" if begun else None)[1]
    finally:
        torch.set_num_threads(threads)


def clean_up() -> None:
    """Give back what a run leaves in the process: memory, and compiled code, of which there may be only so much."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # without a GPU in use it does nothing
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def try_run(recipe: str, overrides: Sequence[str], *, out: Path, name: str) -> dict[str, float] | str:
    """Scores, or one line about why there are none.

    Raises:
        Stopped: see :func:`train_or_go_on`.
        DiskError: nothing can be written.
        InUse: another process trains this run.
    """
    try:
        return train_or_go_on(recipe, overrides, out=out, name=name)
    except (Stopped, DiskError, InUse):
        raise
    except Exception as error:
        return _reason(error)
    finally:
        clean_up()


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        first, more = error.problems[0], len(error.problems) - 1
        # The changes of the run stand beside its reason.
        short = replace(first, where="") if first.where.startswith("command line: ") else first
        return f"{short}" + (f" (and {more} more)" if more else "")
    text = " ".join(str(error).split("\n\n")[0].split())
    if isinstance(getattr(error, "exit_status", None), int):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


# --- what came of it ------------------------------------------------------------------------------------------------


@dataclass
class Tried:
    """A run of a sweep.

    Attributes:
        name: of its folder.
        changes: its point.
        scores: what it reached.
        failed: why it reached nothing.
    """

    name: str
    changes: Point
    scores: dict[str, float] | None = None
    failed: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.scores is not None or self.failed is not None


@dataclass
class Record:
    """A sweep as it is kept in ``<out>/<recipe>/<name>.json``.

    Attributes:
        recipe: as given.
        space: the words that tell the space, as given.
        how: the points are chosen.
        seed: of that choice; None for a grid.
        runs: in the order of their numbers.
    """

    recipe: str
    space: list[str]
    how: How
    seed: int | None
    runs: list[Tried] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it aside, then rename it into place.

        Raises:
            DiskError: nothing was changed.
        """
        with told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, json.dumps(asdict(self), indent=1) + "\n")

    def take_over(self, path: Path) -> None:
        """The runs of an earlier command for the same sweep, which is at ``path`` if there was one.

        Raises:
            ConfigError: it is the record of another sweep, or none at all.
        """
        if not path.exists():
            return
        saved = _read_json(path)
        for key in ("recipe", "space", "how", "seed"):
            if saved.get(key) != getattr(self, key):
                there, here = _said(saved.get(key)), _said(getattr(self, key))
                message = f"is a sweep with another {key} ({there} there, {here} here): --name begins another"
                raise ConfigError(Problem(str(path), "", message))
        try:
            self.runs = [Tried(**one) for one in saved["runs"]]
        except (KeyError, TypeError) as error:
            raise ConfigError(Problem(str(path), "", "is not the record of a sweep")) from error


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(Problem(str(path), "", f"cannot be read: {error}")) from error
    if not isinstance(content, dict):
        raise ConfigError(Problem(str(path), "", f"cannot be read: it holds no object but {show(content)}"))
    return content


def better_way(metric: str) -> Better:
    """Which way a score is better, told by its name: losses and errors down, all else up."""
    return "min" if re.search(r"(loss|error|err|ece|nll|mae|mse|rmse|fid|perplexity)$", metric.lower()) else "max"


def chosen_metric(metric: str | None, scores: Mapping[str, float], option: str = "--metric") -> str | None:
    """The score to compare by; without one the first. None: there are no scores.

    Raises:
        ConfigError: there is no score of that name.
    """
    if metric is None or metric in scores:
        return metric or next(iter(scores), None)
    message = f"the runs give no score {metric!r}"
    known = f"scores: {listing(list(scores)) or 'none'}"
    raise ConfigError(Problem("command line", option, message, "", nearest(metric, scores), known))


def ranked(runs: Iterable[Tried], metric: str | None, better: Better) -> list[Tried]:
    """The best first; then what has no number, then what failed."""

    def place(run: Tried) -> tuple[int, float]:
        value = value_of(run, metric)
        if value is None:
            return (2 if run.scores is None else 1), 0.0
        return 0, -value if better == "max" else value

    return sorted(runs, key=place)


def value_of(run: Tried, metric: str | None) -> float | None:
    """What a run scored; None: no number."""
    value = (run.scores or {}).get(metric) if metric else None
    return value if value is not None and math.isfinite(value) else None


# --- repeats --------------------------------------------------------------------------------------------------------


def parse_seeds(text: str) -> list[int]:
    """``0,1,2``.

    Raises:
        ConfigError: naming what is no seed, or there twice.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not re.fullmatch(r"[0-9]{1,19}", word) or int(word) >= 2**63:
            message = f"{word!r} is no seed: whole numbers from 0 with commas between them, such as 0,1,2"
            raise ConfigError(Problem("command line", "--seeds", message))
    seeds = [int(word) for word in words]
    twice = [seed for number, seed in enumerate(seeds) if seed in seeds[:number]]
    if twice:
        raise ConfigError(Problem("command line", "--seeds", f"{twice[0]} is there twice"))
    return seeds


@dataclass(frozen=True)
class Summary:
    """One score over several runs.

    Attributes:
        values: by seed; a run without that score is missing.
        mean: of the values.
        std: the sample's standard deviation (n - 1); None for a single value.
    """

    values: dict[int, float]
    mean: float
    std: float | None


def summarise(scores: Mapping[int, Mapping[str, float]]) -> dict[str, Summary]:
    """Each score over all seeds.

    Args:
        scores: by seed.
    """
    names = dict.fromkeys(name for one in scores.values() for name in one)
    found = {name: {seed: one[name] for seed, one in scores.items() if name in one} for name in names}
    return {name: Summary(values, *_mean_and_std(list(values.values()))) for name, values in found.items()}


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values), math.nan if len(values) > 1 else None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def write_seeds(
    path: Path, recipe: str, overrides: Sequence[str], scores: Mapping[int, Mapping[str, float]]
) -> dict[str, Summary]:
    """Write the summary of a series to ``path`` and return it.

    Raises:
        DiskError: nothing was changed.
    """
    summary = summarise(scores)
    content = {
        "recipe": recipe,
        "overrides": list(overrides),
        "seeds": list(scores),
        "scores": {name: asdict(one) for name, one in summary.items()},
    }
    write_aside(path, json.dumps(content, indent=1) + "\n")
    return summary
