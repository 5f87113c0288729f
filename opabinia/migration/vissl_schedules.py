"""VISSL's schedules of the learning rate as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration.recipe import Recipe, duration
from opabinia.migration.tables.vissl import LR


class Curve(NamedTuple):
    """A schedule of ours, and the value that it multiplies."""

    peak: float
    schedule: dict[str, Any]


def learning_rate(recipe: Recipe, scaled: bool) -> Curve:
    """The learning rate's."""
    foreign = recipe.foreign
    keys = ("name", "values", "milestones", "start_value", "end_value", "value")
    unit = by(foreign(f"{LR}.update_interval"))
    if foreign(f"{LR}.name") != "composite":
        section = {"name": foreign(f"{LR}.name")}
        section |= {key: foreign(f"{LR}.{key}") for key in _needed(section["name"])}
        curve = _curve(recipe, section)
        return curve._replace(schedule={**curve.schedule, "by": unit})
    parts = foreign(f"{LR}.schedulers")
    if len(parts) != 2 or any(not isinstance(part, dict) for part in parts) or parts[0].get("name") != "linear":
        raise foreign.problem(f"{LR}.schedulers", "a line and one more schedule are taken over, nothing else")
    usual = {key: foreign(f"{LR}.{key}") for key in keys if key != "name"}
    return _warm(recipe, {**usual, **parts[0]}, {**usual, **parts[1]}, scaled, unit)


def _needed(name: str) -> tuple[str, ...]:
    return {"multistep": ("values", "milestones"), "step": ("values",), "constant": ("value",)}.get(
        name, ("start_value", "end_value")
    )


def by(interval: Any) -> str:
    """What a schedule goes by, from ``update_interval``."""
    return "step" if interval == "step" else "epoch"


def _warm(recipe: Recipe, line: Mapping[str, Any], rest: Mapping[str, Any], scaled: bool, unit: str) -> Curve:
    """A line, which is the warm-up, and what comes behind it."""
    foreign = recipe.foreign
    shares, scaling = foreign(f"{LR}.lengths"), foreign(f"{LR}.interval_scaling")
    if len(shares) != 2 or not all(isinstance(one, float | int) and 0 < one < 1 for one in shares):
        raise foreign.problem(f"{LR}.lengths", f"{show(shares)}: two shares of the training are needed")
    nodes = foreign("DISTRIBUTED.NUM_NODES")
    if scaled and nodes == 1:
        recipe.note("VISSL leaves out the warm-up on one machine, so it is left out here")
        curve = _curve(recipe, rest)
        return curve._replace(schedule={**curve.schedule, "by": unit})
    fixed = scaling[1:2] != ["rescaled"]
    curve = _curve(recipe, rest, None if fixed else (shares[0], shares[1]))
    factor = ratio(1, nodes) if scaled else ratio(_of(recipe, line, "start_value"), curve.peak)
    if scaled:
        recipe.note("VISSL begins the warm-up with the learning rate of one machine, whatever start_value says")
    epochs = foreign.number("OPTIMIZER.num_epochs")
    if fixed and curve.schedule["name"] != "multi_step":
        steep = round(factor + (1 - factor) / shares[0], 6)
        rising = {"name": "linear", "start": factor, "end": steep}
        recipe.note(
            "schedule: the cosine is one of the whole training, of which the warm-up hides the first part, as in VISSL"
        )
        both = {"name": "composite", "schedules": [rising, curve.schedule], "shares": shares, "time": "whole"}
        return Curve(curve.peak, {**both, "by": unit})
    warmup = {"warmup": duration(shares[0] * epochs, "ep"), "warmup_factor": factor}
    rule = {"rule": "sliced"} if curve.schedule["name"] == "multi_step" else {}
    return Curve(curve.peak, {**curve.schedule, **warmup, **rule, "by": unit})


def _curve(recipe: Recipe, section: Mapping[str, Any], own: tuple[float, float] | None = None) -> Curve:
    """One schedule.

    Args:
        recipe: what it is for.
        section: its keys.
        own: the share of the training before it and its own, if it has a time of its own.
    """
    name = section.get("name")
    if name in ("cosine", "linear"):
        start, end = _of(recipe, section, "start_value"), _of(recipe, section, "end_value")
        return Curve(start, {"name": name, "end": ratio(end, start)})
    if name == "constant":
        return Curve(_of(recipe, section, "value"), {"name": "constant"})
    if name in ("multistep", "step"):
        return _stepped(recipe, section, own or (0.0, 1.0))
    known = "cosine, multistep, step, constant and linear are"
    raise recipe.foreign.problem(f"{LR}.name", f"{show(name)} is not taken over", known)


def _stepped(recipe: Recipe, section: Mapping[str, Any], own: tuple[float, float]) -> Curve:
    foreign = recipe.foreign
    epochs = foreign.number("OPTIMIZER.num_epochs")
    values = section.get("values") or []
    milestones = section.get("milestones") or []
    if section["name"] == "step":
        milestones = [epochs * number / len(values) for number in range(1, len(values))]
    numbers = [*values, *milestones]
    if len(values) != len(milestones) + 1 or any(not isinstance(one, int | float) for one in numbers) or not values[0]:
        message = f"{show(values)} and {show(milestones)}: numbers are needed, one value more than milestones"
        raise foreign.problem(f"{LR}.values", message)
    times = [duration(own[0] * epochs + own[1] * one, "ep") for one in milestones]
    gamma = ratio(values[1], values[0]) if len(values) > 1 else 1.0
    if any(abs(value - values[0] * gamma**power) > 1e-6 * values[0] for power, value in enumerate(values)):
        factors = [ratio(value, values[0]) for value in values]
        return Curve(values[0], {"name": "piecewise", "times": ["0ep", *times], "values": factors, "shape": "steps"})
    return Curve(values[0], {"name": "multi_step", "milestones": times, "gamma": gamma})


def _of(recipe: Recipe, section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise recipe.foreign.problem(f"{LR}.{key}", f"a number is needed, and there is {show(value)}")
    return value


def ratio(part: float, whole: float) -> float:
    """A number as a share of the one that a schedule begins with.

    Raises:
        ConfigError: that is 0.
    """
    if not whole:
        raise ConfigError(Problem("", LR, "a schedule that begins with 0 is not taken over"))
    return float(f"{part / whole:.6g}")
