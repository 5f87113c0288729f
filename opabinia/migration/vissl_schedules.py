"""Conversion of VISSL's learning rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opabinia.config.errors import ConfigError, Problem, show
from opabinia.migration.recipe import Recipe, duration
from opabinia.migration.tables.vissl import LR


class Curve(NamedTuple):
    """A schedule and the peak value that it multiplies."""

    peak: float
    schedule: dict[str, Any]


def learning_rate(recipe: Recipe, scaled: bool) -> Curve:
    """Convert the learning rate schedule."""
    foreign = recipe.foreign
    keys = ("name", "values", "milestones", "start_value", "end_value", "value")
    unit = interval(foreign(f"{LR}.update_interval"))
    if foreign(f"{LR}.name") != "composite":
        section = {"name": foreign(f"{LR}.name")}
        section |= {key: foreign(f"{LR}.{key}") for key in _required_keys(section["name"])}
        curve = _curve(recipe, section)
        return curve._replace(schedule={**curve.schedule, "interval": unit})
    parts = foreign(f"{LR}.schedulers")
    if len(parts) != 2 or any(not isinstance(part, dict) for part in parts) or parts[0].get("name") != "linear":
        raise foreign.problem(f"{LR}.schedulers", "only a linear schedule followed by one other is supported")
    defaults = {key: foreign(f"{LR}.{key}") for key in keys if key != "name"}
    return _with_warmup(recipe, {**defaults, **parts[0]}, {**defaults, **parts[1]}, scaled, unit)


def _required_keys(name: str) -> tuple[str, ...]:
    return {
        "multistep": ("values", "milestones"),
        "step": ("values",),
        "constant": ("value",),
        "cosine_warm_restart": ("start_value", "end_value", *_RESTART_KEYS),
    }.get(name, ("start_value", "end_value"))


_RESTART_KEYS = ("restart_interval_length", "wave_type", "is_adaptive", "lr_multiplier")


def interval(update_interval: Any) -> str:
    """Return a schedule's ``interval`` for VISSL's ``update_interval``."""
    return "step" if update_interval == "step" else "epoch"


def _with_warmup(
    recipe: Recipe, warmup_section: Mapping[str, Any], main_section: Mapping[str, Any], scaled: bool, unit: str
) -> Curve:
    """Convert a linear warm-up followed by another schedule."""
    foreign = recipe.foreign
    shares, scaling = foreign(f"{LR}.lengths"), foreign(f"{LR}.interval_scaling")
    if len(shares) != 2 or not all(isinstance(share, float | int) and 0 < share < 1 for share in shares):
        raise foreign.problem(f"{LR}.lengths", f"{show(shares)}: expected two fractions of the training")
    nodes = foreign("DISTRIBUTED.NUM_NODES")
    if scaled and nodes == 1:
        recipe.note("VISSL skips the warm-up on a single machine, so the recipe has none")
        curve = _curve(recipe, main_section)
        return curve._replace(schedule={**curve.schedule, "interval": unit})
    fixed = scaling[1:2] != ["rescaled"]
    curve = _curve(recipe, main_section, None if fixed else (shares[0], shares[1]))
    factor = ratio(1, nodes) if scaled else ratio(_number(recipe, warmup_section, "start_value"), curve.peak)
    if scaled:
        recipe.note("VISSL starts the warm-up at the learning rate of one machine, whatever start_value is")
    epochs = foreign.number("OPTIMIZER.num_epochs")
    if fixed and curve.schedule["name"] != "multi_step":
        end = round(factor + (1 - factor) / shares[0], 6)
        rising = {"name": "linear", "start": factor, "end": end}
        recipe.note(
            "schedule: the cosine spans the whole training, and the warm-up replaces its first part, as in VISSL"
        )
        combined = {"name": "composite", "schedules": [rising, curve.schedule], "shares": shares, "time": "whole"}
        return Curve(curve.peak, {**combined, "interval": unit})
    warmup = {"warmup": duration(shares[0] * epochs, "ep"), "warmup_factor": factor}
    rule = {"warmup_rule": "sliced"} if curve.schedule["name"] == "multi_step" else {}
    return Curve(curve.peak, {**curve.schedule, **warmup, **rule, "interval": unit})


def _curve(recipe: Recipe, section: Mapping[str, Any], span: tuple[float, float] | None = None) -> Curve:
    """Convert a single schedule.

    Args:
        recipe: the recipe.
        section: the schedule's keys.
        span: start and length of the schedule as fractions of the training; None: the whole training.
    """
    name = section.get("name")
    if name in ("cosine", "linear"):
        start, end = _number(recipe, section, "start_value"), _number(recipe, section, "end_value")
        return Curve(start, {"name": name, "end": ratio(end, start)})
    if name == "constant":
        return Curve(_number(recipe, section, "value"), {"name": "constant"})
    if name == "cosine_warm_restart":
        return _restarts(recipe, section, span or (0.0, 1.0))
    if name in ("multistep", "step"):
        return _stepped(recipe, section, span or (0.0, 1.0))
    supported = "supported: cosine, cosine_warm_restart, multistep, step, constant, linear"
    raise recipe.foreign.problem(f"{LR}.name", f"{show(name)} is not supported", supported)


def _restarts(recipe: Recipe, section: Mapping[str, Any], span: tuple[float, float]) -> Curve:
    """Convert a cosine with warm restarts after every fraction of the schedule."""
    start, end = _number(recipe, section, "start_value"), _number(recipe, section, "end_value")
    cycle = (
        _number(recipe, section, "restart_interval_length") * span[1] * recipe.foreign.number("OPTIMIZER.num_epochs")
    )
    schedule = {"name": "cosine_restarts", "cycle": duration(cycle, "ep"), "end": ratio(end, start)}
    schedule["wave_type"] = section.get("wave_type") or "half"
    if section.get("is_adaptive"):
        schedule["peaks"] = "cosine"
    elif multiplier := section.get("lr_multiplier"):
        schedule["cycle_decay"] = multiplier
    return Curve(start, schedule)


def _stepped(recipe: Recipe, section: Mapping[str, Any], span: tuple[float, float]) -> Curve:
    foreign = recipe.foreign
    epochs = foreign.number("OPTIMIZER.num_epochs")
    values = section.get("values") or []
    milestones = section.get("milestones") or []
    if section["name"] == "step":
        milestones = [epochs * number / len(values) for number in range(1, len(values))]
    numbers = [*values, *milestones]
    if (
        len(values) != len(milestones) + 1
        or any(not isinstance(number, int | float) for number in numbers)
        or not values[0]
    ):
        message = f"{show(values)} and {show(milestones)}: expected numbers, one value more than milestones"
        raise foreign.problem(f"{LR}.values", message)
    times = [duration(span[0] * epochs + span[1] * milestone, "ep") for milestone in milestones]
    gamma = ratio(values[1], values[0]) if len(values) > 1 else 1.0
    if any(abs(value - values[0] * gamma**power) > 1e-6 * values[0] for power, value in enumerate(values)):
        factors = [ratio(value, values[0]) for value in values]
        return Curve(
            values[0], {"name": "piecewise", "times": ["0ep", *times], "values": factors, "interpolation": "steps"}
        )
    return Curve(values[0], {"name": "multi_step", "milestones": times, "gamma": gamma})


def _number(recipe: Recipe, section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise recipe.foreign.problem(f"{LR}.{key}", f"expected a number, got {show(value)}")
    return value


def ratio(value: float, first: float) -> float:
    """Return the ratio of a value to a schedule's first value, with six significant digits.

    Raises:
        ConfigError: the first value is 0.
    """
    if not first:
        raise ConfigError(Problem("", LR, "a schedule that starts at 0 is not supported"))
    return float(f"{value / first:.6g}")
