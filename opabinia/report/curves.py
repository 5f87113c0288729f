"""Charts of what was measured during runs: one for each value, with a line for each run and data set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from opabinia.report.blocks import Chart, Line, Section
from opabinia.report.folder import RunData
from opabinia.report.journal import Point, is_score, thinned

AXES = ("step", "epoch", "samples", "hours")
"""What may go across, in the order of :class:`Point`'s places."""

SCORES, LOSSES, SCHEDULE, SPEED, OTHERS = "Scores", "Losses", "Schedules", "Speed and memory", "Others"
GROUPS = (SCORES, LOSSES, SCHEDULE, SPEED, OTHERS)

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
        return Kind(SPEED if name.endswith("per_s") else SCHEDULE, _PLAIN.get(name, name), "")
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
    scored = {kind_of(name).title for run in runs for name in run.journal.lines if is_score(name)}
    found: dict[tuple[str, str], list[tuple[int, str, list[Point]]]] = {}
    for number, run in enumerate(runs):
        for name, points in run.journal.lines.items():
            group, title, of = kind_of(name)
            if group == SCORES and title not in scored:
                group = OTHERS
            found.setdefault((group, title), []).append((number, of, points))
    order = {title: place for place, title in enumerate(_headlines(runs))}
    sections = []
    for group in GROUPS:
        titles = sorted((title for one, title in found if one == group), key=lambda title: order.get(title, len(order)))
        if titles:
            charts = [_chart(title, found[group, title]) for title in titles[:MOST_CHARTS]]
            sections.append(Section(group, charts))
    return sections


def _headlines(runs: Sequence[RunData]) -> list[str]:
    """Titles in the order in which evaluations tell scores: first the first one of each run; losses before parts."""
    scores = ([kind_of(name).title for name in run.journal.lines if is_score(name)] for run in runs)
    in_turn = [title for titles in zip_longest(*scores) for title in titles if title is not None]
    return list(dict.fromkeys(["loss", *in_turn, "gradient norm", *_PLAIN.values()]))


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
