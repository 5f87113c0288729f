"""Charts of the metrics of runs: one for each metric, with a line for each run and dataset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from opabinia.visualization.report.blocks import Chart, Line, Section
from opabinia.visualization.report.metrics import MAX_POINTS, Point, is_score, thinned
from opabinia.visualization.report.run_data import RunData
from opabinia.visualization.report.untrusted_json import dicts_of, list_of, number_of

AXES = ("step", "epoch", "samples", "hours")
"""The x-axes, in the order of :attr:`Point.at`."""

SCORES, LOSSES, SPEED, OTHERS = "Scores", "Losses and schedules", "Speed and memory", "Others"

MAX_CHARTS = 60
"""Per group: a detector with a thousand classes may log a score for each."""

TRAIN = "train"


class ChartKey(NamedTuple):
    """Where a metric is drawn.

    Attributes:
        group: group of charts.
        title: title of the chart.
        dataset: may be empty.
    """

    group: str
    title: str
    dataset: str


def chart_of(name: str, tasks: Collection[str] = ()) -> ChartKey:
    """Return where a metric in metrics.jsonl is drawn.

    Args:
        name: name of the metric.
        tasks: tasks of a multi-task run; each has a group of its own for ``boxes/val/AP`` and ``train/boxes/loss``.
    """
    first, _, rest = name.partition("/")
    inner, _, value = rest.partition("/")
    if value and (first in tasks or (first == TRAIN and inner in tasks)):
        return ChartKey(inner, value, TRAIN) if first == TRAIN else ChartKey(first, value, inner)
    if not rest:
        if name == "grad_norm":
            return ChartKey(LOSSES, "gradient norm", "")
        return ChartKey(SPEED if name.endswith("per_s") and "loss" not in name else LOSSES, _TITLES.get(name, name), "")
    if first in ("time", "memory"):
        return ChartKey(SPEED, _TITLES.get(name, f"seconds of the evaluation on {rest}"), "")
    if "loss" in rest:
        return ChartKey(LOSSES, rest, first)
    return ChartKey(OTHERS if first == TRAIN and "/" in rest else SCORES, rest, first)


_TITLES = {
    "lr": "learning rate",
    "samples_per_s": "samples per second",
    "time/step": "seconds per step",
    "time/data": "seconds per step waiting for data",
    "time/read": "seconds to read a batch",
    "memory/host_mb": "memory of the host, MB",
    "memory/device_mb": "memory of the device, MB",
}

_Lines = list[tuple[int, str, list[Point]]]
"""Run, dataset and points of each line of a chart."""


def metric_sections(runs: Sequence[RunData]) -> list[Section]:
    """Return charts by group. Training scores that no evaluation computes are among the others."""
    evaluated = {chart_of(name, run.subtasks).title for run in runs for name in run.metrics.lines if is_score(name)}
    groups: dict[str, dict[str, _Lines]] = {SCORES: {}}
    for number, run in enumerate(runs):
        for name, points in run.metrics.lines.items():
            group, title, dataset = chart_of(name, run.subtasks)
            if group == SCORES and title not in evaluated:
                group = OTHERS
            groups.setdefault(group, {}).setdefault(title, []).append((number, dataset, points))
    order = {title: position for position, title in enumerate(_title_order(runs))}
    sections = []
    last = (LOSSES, SPEED, OTHERS)
    for group in [*(group for group in groups if group not in last), *last]:
        charts = groups.get(group, {})
        if group not in last:  # those that were measured once are in the table only
            charts = {title: lines for title, lines in charts.items() if any(len(points) > 1 for _, _, points in lines)}
        if titles := sorted(charts, key=lambda title: order.get(title, len(order))):
            sections.append(Section(group, [_chart(title, charts[title]) for title in titles[:MAX_CHARTS]]))
    return sections


def _title_order(runs: Sequence[RunData]) -> list[str]:
    """Return titles in the order of evaluations: first scores of runs, then second ones; a loss before its parts."""
    scores = ([chart_of(name, run.subtasks).title for name in run.metrics.lines if is_score(name)] for run in runs)
    in_turn = [title for titles in zip_longest(*scores) for title in titles if title is not None]
    return list(dict.fromkeys(["loss", "gradient norm", _TITLES["lr"], *in_turn, *_TITLES.values()]))


def _chart(title: str, lines: _Lines) -> Chart:
    datasets = sorted({dataset for _, dataset, _ in lines}, key=lambda dataset: dataset == TRAIN)
    drawn = []
    for run, dataset, points in lines:
        kept = thinned(points)
        y = [None if point.value is None else float(f"{point.value:.6g}") for point in kept]
        x = {axis: [_rounded(point.at[index]) for point in kept] for index, axis in enumerate(AXES)}
        drawn.append(Line(dataset or title, y, x, run, datasets.index(dataset)))
    return Chart(title, drawn)


def _rounded(value: float) -> float:
    """Round to as many digits as an image can show; integers stay integers."""
    return int(value) if value == int(value) else float(f"{value:.7g}")


def batch_charts(content: Any) -> list[Chart]:
    """Return charts of the batch shapes over a run, as written by :mod:`opabinia.inference.report_images`."""
    charts = []
    for chart in dicts_of(content):
        title = str(chart.get("title") or "")
        lines = [points for pairs in list_of(chart.get("lines")) if (points := _points_of(pairs))]
        drawn = [
            Line(
                f"batch {style + 1} of {len(lines)}" if len(lines) > 1 else title,
                [y for _, y in points],
                [x for x, _ in points],
                style=style,
            )
            for style, points in enumerate(lines)
        ]
        charts += [Chart(title, drawn, "epochs")] if drawn else []
    return charts


def _points_of(pairs: Any) -> list[tuple[float, float]]:
    """Return pairs of finite numbers, from left to right."""
    valid = [pair for pair in list_of(pairs)[:MAX_POINTS] if isinstance(pair, list) and len(pair) == 2]
    numbers = [(number_of(x), number_of(y)) for x, y in valid]
    return sorted(((x, y) for x, y in numbers if x is not None and y is not None), key=lambda point: point[0])
