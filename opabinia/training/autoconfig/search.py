"""The search of ``--search N``: short runs over learning rate and image size, by successive halving.

A rung is a round of runs: each remaining candidate is trained from the start for the same time, and half of them go on
to the next rung, whose runs are twice as long (Jamieson and Talwalkar 2016). These are the values of the rules and the
best others, so that the longest runs compare the best one with the rules. Each run is a complete schedule, from its
warm-up to a learning rate of zero: the beginning of a longer run has a high learning rate, at which a score says little
about the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.text import flow
from opabinia.runtime.durations import format_seconds
from opabinia.runtime.log import log
from opabinia.runtime.quiet import quiet_terminal
from opabinia.runtime.signals import Stopped, StopSignal, stop_signals
from opabinia.training.autoconfig import rules
from opabinia.training.autoconfig.choices import Chosen, Datasets, choose
from opabinia.training.autoconfig.probe import resolve_chosen
from opabinia.training.autoconfig.situation import Machine, Situation, Speed, Tuning
from opabinia.training.learning_curve import shortened
from opabinia.training.sweep.record import Trial, choose_metric, metric_direction, metric_value, rank_trials
from opabinia.training.sweep.runs import run_trial

SHARE = 1 / 3
"""Share of the budget for the search."""

LEAST_STEPS = 20
"""Steps of a run of the first rung with the values of the rules."""

START_SECONDS = 10.0
"""Time until the first step of a run and after its last one, assumed."""

LR_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125)

SEARCHED = ("learning_rate", "capacity", "detection_size", "needs_tiles")
"""Rules whose values a search replaces."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The short runs of a search.

    Attributes:
        metric: the score that they were compared by.
        seconds: the time that all of them took.
        trials: all runs, one rung after the other.
    """

    metric: str
    seconds: float
    trials: tuple[Trial, ...]

    def lines(self) -> Iterator[str]:
        """Yield a line for each run."""
        for trial in self.trials:
            values = ", ".join(f"{key} {text}" for key, text in trial.changes.items())
            yield f"short run with {values}: {_outcome(trial, self.metric)}"


class Candidate(NamedTuple):
    """A recipe of a search.

    Attributes:
        name: of its runs.
        tuning: its values.
        chosen: its recipe for the rest of the budget.
    """

    name: str
    tuning: Tuning
    chosen: Chosen

    @property
    def values(self) -> dict[str, str]:
        """The searched values as text, by key."""
        return {choice.key: flow(choice.value) for choice in self.chosen.choices if choice.rule in SEARCHED}


# --- checks -----------------------------------------------------------------------------------------------------------


def check_search(count: int, machine: Machine) -> None:
    """Check what does not depend on the data.

    Raises:
        ConfigError: there are less than two runs, or they cannot be made in this process.
    """
    if count < 2:
        raise _error(f"at least 2 short runs are compared (found {count})")
    if not machine.here:
        raise _error("the short runs are made on this machine, and the plan is for another one: remove one of both")
    if machine.ranks > 1:
        message = "the short runs are made in one process: plan first (opabinia plan DATA --search N), then train the"
        raise _error(f"{message} recipe in {machine.ranks} processes")


def check_data(data: Datasets, situation: Situation) -> None:
    """Check that short runs have a score to be compared by.

    Raises:
        ConfigError: they have none.
    """
    if data.val is None:
        raise _error("there is no validation data to compare short runs by; plan without it")
    if situation.task == "selfsup":
        raise _error("runs without labels have no score to compare them by (a lower loss is no better backbone)")


def _error(message: str) -> ConfigError:
    return ConfigError(Problem("search", "", message))


# --- candidates and rungs ---------------------------------------------------------------------------------------------


def candidates(situation: Situation, data: Datasets, count: int, overrides: Sequence[str] = ()) -> list[Candidate]:
    """Return at most ``count`` recipes: that of the rules first, then those nearest to it.

    The learning rate is that of the rule times a power of two. The image size is that of the rules or about a quarter
    larger or smaller, with batch size and length by the rules for it; of tiny images it stays. Overrides of
    ``optimizer`` keep the learning rate, those of ``vars`` the image size.
    """
    given = {word.removeprefix("--").partition("=")[0].partition(".")[0].strip() for word in overrides}
    base = choose(situation, data)
    sizes = [base.size] if "vars" in given else [base.size, *_neighbors(base.size)]
    factors = LR_FACTORS[:1] if "optimizer" in given else LR_FACTORS
    # The number of steps away from the rules; of equal ones first those of the learning rate alone.
    pairs = [(abs(math.log2(factor)) + (size != base.size), size, factor) for size in sizes for factor in factors]
    found: dict[tuple[str, ...], Candidate] = {}
    for _, size, factor in sorted(pairs, key=lambda pair: pair[0]):
        tuning = Tuning(model=base.model, size=size, lr_factor=factor)
        candidate = Candidate(f"{size}px-lr-x{factor:g}", tuning, choose(replace(situation, tuning=tuning), data))
        if candidate.chosen.size == size:
            found.setdefault(tuple(candidate.values.values()), candidate)
    return list(found.values())[:count]


def _neighbors(size: int) -> list[int]:
    larger, smaller = (round(size * factor / 32) * 32 for factor in (1.25, 0.8))
    return [max(size + 32, larger), *([min(size - 32, smaller)] if size >= 96 else [])]


def rung_counts(count: int) -> list[int]:
    """Return the number of runs of each rung: 8, 4 and 2."""
    counts = [count]
    while counts[-1] > 2:
        counts.append(-(-counts[-1] // 2))
    return counts


def first_run_seconds(situation: Situation, tried: Sequence[Candidate]) -> float:
    """Return the training time of a run of the first rung, with which the search takes its share of the budget.

    Args:
        situation: with the rest of the budget.
        tried: the candidates.
    """
    counts = rung_counts(len(tried))
    first_runs = sum(math.ldexp(count, rung) for rung, count in enumerate(counts))  # of the same time as all
    return (search_seconds(situation) - _overhead(situation, tried) * sum(counts)) / first_runs


def search_seconds(situation: Situation) -> float:
    """Return the time for the search, given the situation with the rest of the budget."""
    return situation.budget * SHARE / (1 - SHARE)


def _overhead(situation: Situation, tried: Sequence[Candidate]) -> float:
    """Return the time of a run without its training steps."""
    evaluations = (_speed(situation, candidate).evaluate * candidate.chosen.evaluated for candidate in tried)
    return START_SECONDS + max(evaluations)


def _speed(situation: Situation, candidate: Candidate) -> Speed:
    chosen = candidate.chosen
    return rules.predicted_speed(situation, rules.NETWORKS[chosen.model], chosen.size)


def _step_seconds(situation: Situation, candidate: Candidate) -> float:
    return _speed(situation, candidate).train * candidate.chosen.batch


def _fits(situation: Situation, data: Datasets, count: int, overrides: Sequence[str]) -> bool:
    """Return whether the runs of the first rung have enough steps."""
    tried = candidates(situation, data, count, overrides)
    return first_run_seconds(situation, tried) >= LEAST_STEPS * _step_seconds(situation, tried[0])


def _check_time(situation: Situation, data: Datasets, count: int, overrides: Sequence[str]) -> None:
    """Check that the budget is long enough.

    Raises:
        ConfigError: it is not; what would be enough is named.
    """
    if _fits(situation, data, count, overrides):
        return
    enough = situation
    while not _fits(enough, data, count, overrides):
        enough = replace(enough, budget=enough.budget * 1.1)
    total, minutes = situation.budget / (1 - SHARE), math.ceil(enough.budget / (1 - SHARE) / 60)
    fewer = next((few for few in range(count - 1, 1, -1) if _fits(situation, data, few, overrides)), None)
    message = (
        f"a third of {format_seconds(round(total))} is too short for {count} runs of at least {LEAST_STEPS} steps each"
    )
    other = "" if fewer is None else f", or --search {fewer}"
    raise _error(f"{message}, of which half go on for twice as long: give --budget {minutes}m{other}")


# --- runs -------------------------------------------------------------------------------------------------------------


def search(situation: Situation, data: Datasets, overrides: Sequence[str], count: int) -> tuple[Search, Tuning]:
    """Train the candidates, and return the runs and the best values. The runs are deleted.

    Args:
        situation: with the budget that is left for the final run.
        data: the data.
        overrides: ``key=value``, changes to each recipe.
        count: number of candidates.

    Raises:
        ConfigError: the budget is too short, there are less candidates, or all runs fail.
        Stopped: a signal stopped it.
    """
    tried = candidates(situation, data, count, overrides)
    if len(tried) < count:
        raise _error(f"there are only {len(tried)} different learning rates and image sizes, not {count}")
    _check_time(situation, data, count, overrides)
    best = _raw_score(resolve_chosen(tried[0].chosen, overrides).config)
    started, seconds = time.monotonic(), first_run_seconds(situation, tried)
    left, trials = tried, list[Trial]()
    with stop_signals(StopSignal("stopping the search")) as stop:
        while not trials or (len(left) > 1 and _is_time_for(situation, left, seconds, time.monotonic() - started)):
            rung = []
            for candidate in left:
                rung.append(_short_run(candidate, situation, seconds, overrides))
                if stop.reason is not None:
                    raise Stopped(stop.reason, stop.exit_status)
            trials += rung
            metric, ranked = _ranked(rung, best)
            left = _next_rung(left, ranked, tried[0])
            seconds *= 2
    found = Search(metric=metric, seconds=round(time.monotonic() - started, 1), trials=tuple(trials))
    tuning = _best(tried, {trial.name: metric_value(trial, metric) for trial in ranked}, situation)
    log.info("search  %s (%s)", tuning.size_reason, format_seconds(found.seconds))
    return found, tuning


def _next_rung(left: Sequence[Candidate], ranked: Sequence[Trial], rule: Candidate) -> list[Candidate]:
    """Return half of the candidates: that of the rules, unless it has no score, and the best ones."""
    by_name = {candidate.name: candidate for candidate in left}
    best = sorted((by_name[trial.name] for trial in ranked), key=lambda candidate: candidate is not rule)
    return best[: -(-len(left) // 2)]


def _is_time_for(situation: Situation, left: Sequence[Candidate], seconds: float, used: float) -> bool:
    """Return whether another rung ends within one and a half times the time for the search."""
    needed = len(left) * (seconds + _overhead(situation, left))
    return used + needed <= 1.5 * search_seconds(situation)


def _short_run(candidate: Candidate, situation: Situation, seconds: float, overrides: Sequence[str]) -> Trial:
    """Train a candidate for some seconds.

    Raises:
        Stopped: a signal stopped it.
    """
    resolved = resolve_chosen(candidate.chosen, overrides)
    steps = max(1, int(seconds / _step_seconds(situation, candidate)))
    trial = Trial(candidate.name, {**candidate.values, "train.length": f"{steps}it"})
    with TemporaryDirectory(prefix="search-") as folder, quiet_terminal():
        config = _short_config(resolved.config, steps, 2 * seconds + START_SECONDS)
        changed: Resolved = replace(resolved, config=config)
        outcome = run_trial("search", [], out=Path(folder), name=candidate.name, resolved=changed)
    metric = None
    if isinstance(outcome, str):
        trial.failed = outcome
    else:
        trial.scores, metric = outcome, choose_metric(_raw_score(config), outcome)
    log.info("search  %s, %d steps: %s", candidate.name, steps, _outcome(trial, metric))
    return trial


def _short_config(config: dict[str, Any], steps: int, limit: float) -> dict[str, Any]:
    """Return the config of a run of this length, at most ``limit`` seconds, without the EMA of its weights: that of few
    steps is none, and all runs of a rung have the same scores."""
    short = shortened(config, steps)
    schedule = dict(config["schedule"] or {})
    if "warmup" in schedule:
        schedule["warmup"] = rules.warmup(steps).value
    hours = f"{math.ceil(limit / 3.6) / 1000}h"
    hooks = {**short["hooks"], "budget": {"name": "time_limit", "max_time": hours, "final": True}}
    checkpoint = {**short["checkpoint"], "best": _raw_score(config)}
    changes = {"seed": config["seed"] or 0, "ema": None, "schedule": schedule, "hooks": hooks, "checkpoint": checkpoint}
    return {**short, **changes}


def _raw_score(config: dict[str, Any]) -> str | None:
    """Return the main score that a config names, of the raw weights."""
    best: str | None = config["checkpoint"]["best"]
    return None if best is None else best.replace("_ema/", "/")


def _ranked(rung: Sequence[Trial], best: str | None) -> tuple[str, list[Trial]]:
    """Return the main score and the runs that have a value of it, the best first.

    Args:
        rung: all runs of the rung.
        best: the score that the recipe names; None: the first.

    Raises:
        ConfigError: none has one.
    """
    scores = next((trial.scores for trial in rung if trial.scores), None)
    metric = "" if scores is None else choose_metric(best, scores) or ""
    ranked = rank_trials(rung, metric, metric_direction(metric))
    scored = [trial for trial in ranked if metric_value(trial, metric) is not None]
    if not scored:
        raise _error(f"no short run has a score; the first: {rung[0].failed or 'it diverged'}")
    return metric, scored


def _outcome(trial: Trial, metric: str | None) -> str:
    value = metric_value(trial, metric)
    return trial.failed or "no score" if value is None else f"{metric} {value:.4f}"


def _best(tried: Sequence[Candidate], scores: Mapping[str, float | None], situation: Situation) -> Tuning:
    """Return the best values with the reasons for the recipe.

    Args:
        tried: all candidates.
        scores: scores of the last rung by name, the best first.
        situation: with the number of validation samples, on which the standard error of a score depends.
    """
    rule, name = tried[0], next(iter(scores))
    best, base = scores[name], scores.get(rule.name)
    assert best is not None
    lr = next(choice for choice in rule.chosen.choices if choice.rule == "learning_rate")
    if base is not None and abs(best - base) <= 0.5 / math.sqrt(situation.profile.val_samples):
        text = f"{base:.3g} in a short run; none of {len(tried)} was clearly better"
        kept = replace(rule.tuning, batch=rule.chosen.batch)
        return replace(kept, size_reason=text, lr_reason=f"{lr.reason}; {text}")
    winner = next(candidate for candidate in tried if candidate.name == name)
    text = f"the best of {len(tried)} short runs: {best:.3g}"
    lr_reason, size_reason = "", text
    compared = f"{text}; {'no score' if base is None else f'{base:.3g}'} with the rule's"
    if winner.tuning.lr_factor != rule.tuning.lr_factor:
        lr_reason = f"{compared} {lr.value}"
    if winner.tuning.size != rule.tuning.size:
        size_reason = f"{compared} {rule.tuning.size}"
    return replace(winner.tuning, batch=winner.chosen.batch, size_reason=size_reason, lr_reason=lr_reason)
