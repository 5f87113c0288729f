"""The rule behind a value of a planned recipe, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing, nearest
from opabinia.config.text import flow
from opabinia.data.profile import DatasetProfile
from opabinia.training.autoconfig.choices import Choice, choose
from opabinia.training.autoconfig.plan import VERSION, SavedPlan
from opabinia.training.autoconfig.rules import RULES
from opabinia.training.autoconfig.search import SEARCHED
from opabinia.training.autoconfig.situation import GIB, Machine, Situation

GPU = Machine(device="cuda", gpus=1, memory=24 * GIB, cores=8, name="a GPU", here=False)


def explain(saved: SavedPlan, key: str) -> str:
    """Return the value of a key, the rule behind it, and which changed facts would lead to another value.

    Args:
        saved: the plan.
        key: dotted path, such as ``optimizer.lr``.

    Raises:
        ConfigError: the plan does not set the key, or was made by other rules.
    """
    if saved.version != VERSION:
        message = f"was planned by rules {saved.version}, and these are rules {VERSION}; plan it again"
        raise ConfigError(Problem("command line", "--explain", message))
    choices = {choice.key: choice for choice in choose(saved.situation, saved.data).choices}
    if key not in choices:
        message, keys = f"the plan does not set {key}", list(choices)
        known = f"keys: {listing(keys)}"
        raise ConfigError(Problem("command line", "--explain", message, "", nearest(key, keys), known))
    choice = choices[key]
    lines = [f"{key}: {flow(choice.value)}"]
    if choice.reason:
        lines.append(f"reason: {choice.reason}")
    if choice.rule:
        lines += [f"rule: {RULES[choice.rule].text}", f"source: {RULES[choice.rule].source}"]
    lines += [f"with {change}: {flow(value)}" for change, value in _other_values(saved, choice)]
    if saved.search is not None and choice.rule in SEARCHED:
        lines += saved.search.lines()
    return "\n".join(lines)


def _other_values(saved: SavedPlan, choice: Choice) -> Iterator[tuple[str, Any]]:
    """Yield changes to the situation with the value of the key after each, where the rules' one differs."""

    def value_in(situation: Situation) -> Any:
        values = {other.key: other.value for other in choose(situation, saved.data).choices}
        return values.get(choice.key, "not set")

    rules_only = replace(saved.situation, tuning=None)
    value = value_in(rules_only)
    if value != choice.value:
        yield "no search", value
    for change, situation in _changes(rules_only):
        if value_in(situation) != value:
            yield change, value_in(situation)


def _changes(situation: Situation) -> Iterator[tuple[str, Situation]]:
    """Yield other situations with a description."""
    profile = situation.profile
    yield "half the budget", replace(situation, budget=situation.budget / 2)
    yield "four times the budget", replace(situation, budget=situation.budget * 4)
    yield "a quarter of the samples", replace(situation, profile=_scaled(profile, "samples", 0.25))
    yield "ten times the samples", replace(situation, profile=_scaled(profile, "samples", 10))
    for name, objects in (("short_sides", "images"), ("object_sides", "objects")):
        if getattr(profile, name) is not None:
            yield f"{objects} half as large", replace(situation, profile=_scaled(profile, name, 0.5))
            yield f"{objects} twice as large", replace(situation, profile=_scaled(profile, name, 2))
    if situation.weights:
        yield "no ImageNet weights", replace(situation, weights=())
    if not situation.machine.has_gpu:
        yield "a GPU", replace(situation, machine=GPU, speeds=())


def _scaled(profile: DatasetProfile, name: str, factor: float) -> DatasetProfile:
    value = getattr(profile, name)
    scaled = tuple(item * factor for item in value) if isinstance(value, tuple) else max(1, int(value * factor))
    changes: dict[str, Any] = {name: scaled}
    return replace(profile, **changes)
