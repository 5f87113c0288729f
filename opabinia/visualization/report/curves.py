"""Charts of what was measured during runs: one for each value, with a line for each run and data set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from opabinia.visualization.report.blocks import Chart, Line, Section
from opabinia.visualization.report.metrics import MOST_POINTS, Point, is_score, thinned
from opabinia.visualization.report.run_data import RunData
from opabinia.visualization.report.untrusted_json import dicts_of, number_of

AXES = ("step", "epoch", "samples", "hours")
"""What may go across, in the order of :class:`Point`'s places."""

SCORES, LOSSES, SPEED, OTHERS = "Scores", "Losses and schedules", "Speed and memory", "Others"
GROUPS = (SCORES, LOSSES, SPEED, OTHERS)

MOST_CHARTS = 60
"""Of a group: a detector on a thousand classes may log a score for each."""

TRAIN = "train"


class Kind(NamedTuple):
    """Where a value is drawn.

    Attributes:
        group: of charts.
        title: of the chart.
        of: the data set, or nothing.
    """

    group: str
    title: str
    of: str


def kind_of(name: str) -> Kind:
    """Where the value of this name in metrics.jsonl is drawn."""
    of, _, rest = name.partition("/")
    if not rest:
        if "loss" in name:
            return Kind(LOSSES, name, "")
        if name == "grad_norm":
            return Kind(LOSSES, "gradient norm", "")
        return Kind(SPEED if name.endswith("per_s") else LOSSES, _PLAIN.get(name, name), "")
    if of in ("time", "memory"):
        return Kind(SPEED, _PLAIN.get(name, f"seconds of the evaluation on {rest}"), "")
    if "loss" in rest:
        return Kind(LOSSES, rest, of)
    if of == TRAIN and "/" in rest:
        return Kind(OTHERS, rest, TRAIN)
    return Kind(SCORES, rest, of)


_PLAIN = {
    "lr": "learning rate",
    "samples_per_s": "samples per second",
    "time/step": "seconds a step",
    "time/data": "seconds of a step that waited for data",
    "time/read": "seconds to read a batch",
    "memory/host_mb": "memory of the host, MB",
    "memory/device_mb": "memory of the device, MB",
}


def sections_of(runs: Sequence[RunData]) -> list[Section]:
    """Charts by group. Those of scores that training gives too, but no evaluation, are among the others."""
    scored = {kind_of(name).title for run in runs for name in run.metrics_log.lines if is_score(name)}
    found: dict[tuple[str, str], list[tuple[int, str, list[Point]]]] = {}
    for number, run in enumerate(runs):
        for name, points in run.metrics_log.lines.items():
            group, title, of = kind_of(name)
            if group == SCORES and title not in scored:
                group = OTHERS
            found.setdefault((group, title), []).append((number, of, points))
    order = {title: place for place, title in enumerate(_headlines(runs))}
    sections = []
    for group in GROUPS:
        titles = [title for one, title in found if one == group and not (group == SCORES and _alone(found[one, title]))]
        titles.sort(key=lambda title: order.get(title, len(order)))
        if titles:
            charts = [_chart(title, found[group, title]) for title in titles[:MOST_CHARTS]]
            sections.append(Section(group, charts))
    return sections


def batches_of(told: Any) -> list[Chart]:
    """Charts of the shapes of batches over a run, as :mod:`opabinia.inference.report_images` has written them."""
    charts = []
    for one in dicts_of(told):
        lines = [found for places in _list(one.get("lines")) if (found := _points_of(places))]
        named = [f"batch {number} of {len(lines)}" if len(lines) > 1 else "" for number in range(1, len(lines) + 1)]
        title = str(one.get("title") or "")
        if lines:
            drawn = [
                Line(name or title, [y for _, y in places], [x for x, _ in places], style=style)
                for style, (name, places) in enumerate(zip(named, lines, strict=True))
            ]
            charts.append(Chart(title, drawn, "epochs"))
    return charts


def _points_of(places: Any) -> list[tuple[float, float]]:
    """Pairs of finite numbers, from left to right."""
    pairs = [one for one in _list(places)[:MOST_POINTS] if isinstance(one, list) and len(one) == 2]
    numbers = [(number_of(x), number_of(y)) for x, y in pairs]
    return sorted(((x, y) for x, y in numbers if x is not None and y is not None), key=lambda one: one[0])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _headlines(runs: Sequence[RunData]) -> list[str]:
    """Titles as evaluations tell scores: first the first one of each run; a loss before its parts."""
    scores = ([kind_of(name).title for name in run.metrics_log.lines if is_score(name)] for run in runs)
    in_turn = [title for titles in zip_longest(*scores) for title in titles if title is not None]
    return list(dict.fromkeys(["loss", "gradient norm", _PLAIN["lr"], *in_turn, *_PLAIN.values()]))


def _alone(lines: Sequence[tuple[int, str, list[Point]]]) -> bool:
    """Whether no line has a second point: the table of scores says as much."""
    return all(len(points) == 1 for _, _, points in lines)


def _chart(title: str, lines: Sequence[tuple[int, str, list[Point]]]) -> Chart:
    sets = sorted({of for _, of, _ in lines}, key=lambda of: of == TRAIN)
    return Chart(
        title,
        [
            Line(of or title, [_short(point.value) for point in points], _places(points), run, sets.index(of))
            for run, of, whole in lines
            for points in [thinned(whole)]
        ],
    )


def _places(points: Sequence[Point]) -> dict[str, list[float]]:
    return {axis: [_rounded(point.at[number]) for point in points] for number, axis in enumerate(AXES)}


def _rounded(value: float) -> float:
    """With as many digits as a picture can show; whole numbers stay whole."""
    return int(value) if value == int(value) else float(f"{value:.7g}")


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
