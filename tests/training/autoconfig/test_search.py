"""The search of short runs: candidates, rungs, what it costs, and which one wins."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.data.layouts.layout import TASK_NAMES, TaskName
from opabinia.runtime.json_files import parse_json
from opabinia.runtime.signals import Stopped
from opabinia.training.autoconfig import search as module
from opabinia.training.autoconfig.choices import choose
from opabinia.training.autoconfig.explain import explain
from opabinia.training.autoconfig.plan import VERSION, SavedPlan
from opabinia.training.autoconfig.search import (
    LEAST_STEPS,
    SHARE,
    candidates,
    check_data,
    check_search,
    first_run_seconds,
    rung_counts,
    search,
)
from opabinia.training.autoconfig.situation import Situation
from tests.training.autoconfig.situations import CPU, DATA, GPU, situation

LONG = situation(budget=36_000.0)


def names(situation: Situation, count: int, *overrides: str) -> list[str]:
    return [candidate.name for candidate in candidates(situation, DATA, count, overrides)]


def test_candidates_are_those_nearest_to_the_rules() -> None:
    eight = ["x1", "x2", "x0.5", "x1", "x1", "x4", "x0.25", "x2"]
    assert [name.partition("-lr-")[2] for name in names(LONG, 8)] == eight
    assert [name.partition("px")[0] for name in names(LONG, 5)] == ["224", "224", "224", "288", "192"]
    assert names(LONG, 5) == names(LONG, 8)[:5]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_candidates_change_learning_rate_and_size_only(task: TaskName) -> None:
    facts = replace(LONG, profile=situation(task).profile)
    rule, *others = candidates(facts, DATA, 8)
    assert rule.chosen == choose(facts, DATA)
    assert len({tuple(candidate.values.values()) for candidate in others}) == 7
    for candidate in others:
        assert candidate.chosen.model == rule.chosen.model and len(candidate.values) == 2


@pytest.mark.parametrize(
    "facts, overrides, expected",
    [
        ({"short_sides": (28.0,) * 5}, (), {"28"}),
        ({}, ("vars.size=100",), {"224"}),
        ({}, ("--optimizer.lr=0.1",), {"224", "288", "192"}),
    ],
)
def test_sizes_that_cannot_be_searched(facts: dict[str, Any], overrides: Sequence[str], expected: set[str]) -> None:
    found = names(situation(budget=36_000.0, **facts), 30, *overrides)
    assert {name.partition("px")[0] for name in found} == expected
    assert len(found) == (3 if "--optimizer.lr=0.1" in overrides else 7)


def test_rungs_take_a_third_of_the_budget() -> None:
    assert [rung_counts(count) for count in (2, 3, 5, 8)] == [[2], [3, 2], [5, 3, 2], [8, 4, 2]]
    rest = replace(LONG, budget=(1 - SHARE) * 3600)
    tried = candidates(rest, DATA, 8)
    seconds = first_run_seconds(rest, tried)
    training = sum(count * seconds * 2**rung for rung, count in enumerate(rung_counts(8)))
    assert 900 < training < 1200


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: check_search(1, CPU), "at least 2 short runs are compared"),
        (lambda: check_search(4, GPU), "the plan is for another one"),
        (lambda: check_search(4, replace(GPU, gpus=2, here=True)), "made in one process"),
        (lambda: check_data(replace(DATA, val=None), LONG), "no validation data"),
        (lambda: check_data(DATA, situation("selfsup")), "no score to compare"),
        (lambda: search(LONG, DATA, ["vars.size=64", "optimizer.lr=0.1"], 2), "only 1 different learning rates"),
        (lambda: search(situation(budget=60.0), DATA, [], 8), "a third of 1:30 is too short for 8 runs"),
    ],
)
def test_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_what_would_be_enough_is_enough() -> None:
    short = situation(budget=400.0)
    with pytest.raises(ConfigError, match=r"give --budget (\d+)m, or --search (\d)") as error:
        search(short, DATA, [], 8)
    text = str(error.value)
    budget, few = (
        int(text.partition(before)[2].partition(after)[0])
        for before, after in (("--budget ", "m"), ("--search ", "\n"))
    )
    module._check_time(replace(short, budget=60 * budget * (1 - SHARE)), DATA, 8, [])
    module._check_time(short, DATA, few, [])


class Runs:
    """Short runs with scores by a function of candidate and number of steps, in place of training."""

    def __init__(self, score: Callable[[str, int], float | str]) -> None:
        self.score, self.trials = score, list[tuple[str, int]]()

    def __call__(self, recipe: str, overrides: Sequence[str], *, name: str, resolved: Any, **options: Any) -> Any:
        config = resolved.config
        assert config["ema"] is None and config["evaluate"]["every"] == "0ep" and config["seed"] is not None
        assert config["hooks"].keys() == {"budget"}
        steps = int(config["train"]["length"].removesuffix("it"))
        self.trials.append((name, steps))
        outcome = self.score(name, steps)
        return outcome if isinstance(outcome, str) else {"val/top1": outcome}


def run(monkeypatch: pytest.MonkeyPatch, score: Callable[[str, int], float | str]) -> tuple[Any, Any, Runs]:
    runs = Runs(score)
    monkeypatch.setattr(module, "run_trial", runs)
    found, tuning = search(LONG, DATA, [], 4)
    return found, tuning, runs


def test_the_rules_and_the_best_others_are_trained_for_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"224px-lr-x1": 0.5, "224px-lr-x2": 0.6, "224px-lr-x0.5": 0.55, "288px-lr-x1": 0.4}
    found, tuning, runs = run(monkeypatch, lambda name, steps: scores[name])
    assert [name for name, _ in runs.trials] == [*scores, "224px-lr-x1", "224px-lr-x2"]
    first, second = runs.trials[0][1], runs.trials[-1][1]
    assert first >= LEAST_STEPS and 2 * first <= second <= 2 * first + 1
    assert len(found.trials) == 6 and found.metric == "val/top1"
    assert (tuning.size, tuning.lr_factor, tuning.batch) == (224, 2.0, choose(LONG, DATA).batch)
    values = {choice.key: choice for choice in choose(replace(LONG, tuning=tuning), DATA).choices}
    rule = {choice.key: choice.value for choice in choose(LONG, DATA).choices}
    assert values["optimizer.lr"].value == 2 * rule["optimizer.lr"]
    reason = f"the best of 4 short runs: 0.6; 0.5 with the rule's {rule['optimizer.lr']}"
    assert values["optimizer.lr"].reason == reason
    assert values["vars.size"].value == rule["vars.size"]
    saved = SavedPlan(
        version=VERSION, opabinia="0.1.0", situation=replace(LONG, tuning=tuning), data=DATA, search=found
    )
    assert parse_json(json.dumps(asdict(saved)), SavedPlan, "mine.plan.json") == saved
    explained = explain(saved, "optimizer.lr")
    assert f"with no search: {rule['optimizer.lr']}\n" in explained
    assert explained.count("short run with optimizer.lr") + explained.count("short run with vars.size") == 6
    assert "short run" not in explain(saved, "data.batch_size")


@pytest.mark.parametrize("rule_score", [0.5, "NonFiniteError: the loss is nan"])
def test_the_size_may_win_and_the_rule_may_diverge(monkeypatch: pytest.MonkeyPatch, rule_score: float | str) -> None:
    _, tuning, _ = run(monkeypatch, lambda name, steps: 0.9 if "288px" in name else rule_score)
    values = {choice.key: choice for choice in choose(replace(LONG, tuning=tuning), DATA).choices}
    assert values["vars.size"].value == 288
    shown = "0.5" if isinstance(rule_score, float) else "no score"
    assert values["vars.size"].reason == f"the best of 4 short runs: 0.9; {shown} with the rule's 224"
    assert "fine-tuning" in values["optimizer.lr"].reason


def test_differences_within_the_standard_error_keep_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tuning, _ = run(monkeypatch, lambda name, steps: 0.5 if "lr-x1" in name else 0.52)
    assert (tuning.size, tuning.lr_factor) == (224, 1.0)
    assert tuning.lr_reason.endswith("; 0.5 in a short run; none of 4 was clearly better")


def test_all_runs_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no short run has a score; the first: out of memory"):
        run(monkeypatch, lambda name, steps: "out of memory")


def test_a_signal_between_runs_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, steps: int) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0.5

    with pytest.raises(Stopped) as stopped:
        run(monkeypatch, interrupt)
    assert stopped.value.exit_status == 143
