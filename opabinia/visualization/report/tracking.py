"""An evaluation of tracks (``tracking`` in ``eval/<set>/details.json``) as blocks of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opabinia.visualization.report.blocks import Block, Chart, Line, Table, Timeline, TimelineRow
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, finite, list_of, number_of

COLUMNS = ("HOTA", "DetA", "AssA", "LocA", "IDF1", "MOTA", "IDSW")
"""Scores of the tables; ``scores.json`` has all."""
SHARES = frozenset({1, 2, 3})
"""Columns with bars: HOTA, DetA and AssA, behind the first one with the names."""

MAX_ROWS, MAX_SEQUENCES, MAX_EVENTS = 2000, 60, 1000


def tracking_blocks(value: Any, classes: Sequence[str]) -> list[Block]:
    """Return the compared rows, HOTA over its thresholds, tables of classes and of sequences, and the identity
    switches on a timeline."""
    table = dict_of(value)
    about = str(table.get("tables_of") or "")
    means = {"all boxes together": table.get("detection_averaged"), "mean of the classes": table.get("class_averaged")}
    per_class = [(str(row["class"]), *_scores(row)) for row in dicts_of(table.get("per_class"))]
    per_class += [(name, *_scores(row)) for name, row in means.items() if isinstance(row, dict)]
    sequences = [(str(row["sequence"]), *_scores(row)) for row in dicts_of(table.get("per_sequence"))]
    sequences.sort(key=lambda row: row[1 + COLUMNS.index("AssA")] or 0.0)
    blocks: list[Block] = [
        _table("Tracks", "", [(str(row["row"]), *_scores(row)) for row in dicts_of(table["rows"])], _ROWS_NOTE),
        *_curves(table, about),
        _table("By class", about, per_class),
        _table("By sequence, worst association first", about, sequences),
        *_timeline(table, about),
    ]
    return [block for block in blocks if not isinstance(block, Table) or block.rows]


_ROWS_NOTE = (
    "Mean over classes. Ground-truth boxes as detections show what association alone reaches; the other rows have the "
    "detections of the model."
)


def _scores(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    return tuple(number_of(row.get(name)) for name in COLUMNS)


def _table(title: str, about: str, rows: Sequence[Sequence[Any]], note: str = "") -> Table:
    title = f"{title} ({about})" if about else title
    return Table(title, ("", *COLUMNS), rows[:MAX_ROWS], SHARES, note)


def _curves(table: Mapping[str, Any], about: str) -> list[Block]:
    rows = list(dicts_of(table.get("per_threshold")))
    x = [finite(row["IoU"]) for row in rows]
    lines = [
        Line(name, [number_of(row.get(name)) for row in rows], x, style=style) for style, name in enumerate(COLUMNS[:3])
    ]
    return [Chart(f"HOTA and its parts over the IoU of a match ({about})", lines, "IoU", (0.0, 1.0))] if rows else []


def _timeline(table: Mapping[str, Any], about: str) -> list[Block]:
    rows = []
    for row in dicts_of(table.get("switches")):
        frames = [int(finite(frame)) for frame in list_of(row["frames"])[:MAX_EVENTS]]
        rows.append(TimelineRow(str(row["sequence"]), int(finite(row["first"])), int(finite(row["last"])), frames))
    rows.sort(key=lambda row: -len(row.frames))
    note = f"The {MAX_SEQUENCES} sequences with most of them." if len(rows) > MAX_SEQUENCES else ""
    title = f"Identity switches ({about})"
    return [Timeline(title, "identity switch", rows[:MAX_SEQUENCES], note)] if rows else []
