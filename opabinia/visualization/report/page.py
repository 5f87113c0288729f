"""From run folders to the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opabinia.config.check import DEFAULT
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.version import __version__
from opabinia.visualization.report.blocks import Block, Chart, Gallery, Section, Table
from opabinia.visualization.report.curves import AXES, batches_of, sections_of
from opabinia.visualization.report.images import Room, galleries_of, read_index
from opabinia.visualization.report.run_data import NoRun, RunData, read_run, refuse_missing
from opabinia.visualization.report.tables import blocks_of
from opabinia.visualization.report.templating import template, text_of
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, number_of, texts_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

MOST_RUNS = len(LETTERS)


@dataclass(frozen=True)
class Chapter:
    """What the page tells of one run.

    Attributes:
        letter: by which charts and tables call it.
        run: what its folder tells.
        about: its task, and how far it came.
        galleries: pictures of what its model makes of data.
        samples: pictures of the data.
        batches: charts of their shapes over time, and what there is to say of them.
        evaluation: a section for each data set.
        data: what its data holds.
        config: rows of path, value and origin.
    """

    letter: str
    run: RunData
    about: str
    galleries: Sequence[Gallery]
    samples: Sequence[Gallery]
    batches: tuple[Sequence[Chart], str]
    evaluation: Sequence[Section]
    data: Sequence[Block]
    config: Sequence[tuple[str, str, str]]


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of one run or of several over each other.

    Args:
        folders: of the runs.
        out: the file; ``report.html`` in the folder of a single run, or beside several, when not given.

    Returns:
        The file.

    Raises:
        NoRun: a folder holds no run, or there are more than :data:`MOST_RUNS`.
        DiskError: the file cannot be written.
    """
    out = out or default_place(folders)
    content = page_of(folders)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)
    return out


def default_place(folders: Sequence[Path]) -> Path:
    """``report.html`` in the one run folder, or where several part."""
    if len(folders) == 1:
        return folders[0] / "report.html"
    parts = [folder.resolve().parents for folder in folders]
    common = next((one for one in parts[0] if all(one in others for others in parts)), Path.cwd())
    return common / "report.html"


def page_of(folders: Sequence[Path]) -> str:
    """The page as text: see :func:`write_report`."""
    check_run_folders(folders)
    room = Room()
    chapters = [_chapter(letter, read_run(one), room) for letter, one in zip(LETTERS, folders, strict=False)]
    runs = [chapter.run for chapter in chapters]
    charts: list[Chart] = []
    text: str = template("page.html").render(
        title=" · ".join(run.name for run in runs[:3]) + (" ..." if len(runs) > 3 else ""),
        heading=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        version=__version__,
        chapters=chapters,
        curves=sections_of(runs),
        axes=AXES,
        default=DEFAULT,
        scores=scores_of(chapters),
        differences=differences(chapters),
        opened=len(chapters) < 3 or _all_apart(chapters),
        number_of_chart=lambda chart: _numbered(charts, chart),
        data=lambda: _as_json({"runs": [_about(one) for one in chapters], **_plain(charts)}),
        style=text_of("style.css"),
        script=text_of("script.js"),
        shell=text_of("page.js"),
    )
    return text


def check_run_folders(folders: Sequence[Path]) -> None:
    """Tell at once what would only come out later.

    Raises:
        NoRun: a folder holds no run, or there are none, or too many.
    """
    if not 0 < len(folders) <= MOST_RUNS:
        raise NoRun(f"{len(folders)} runs; a report is of one to {MOST_RUNS}")
    for folder in folders:
        refuse_missing(folder)


def _chapter(letter: str, run: RunData, room: Room) -> Chapter:
    index = read_index(run.folder, run.notes)
    classes = texts_of(run.dataset_info.get("classes"))
    evaluation = [Section(name, blocks_of(found, classes, run.notes, name)) for name, found in run.details.items()]
    run.notes += texts_of(index.get("missing"))
    galleries = galleries_of(run.folder, index, room, run.notes)
    batches = dict_of(index.get("batches"))
    return Chapter(
        letter,
        run,
        about(run),
        [one for one in galleries if not one.of_data],
        [one for one in galleries if one.of_data],
        (batches_of(batches.get("charts")), str(batches.get("note") or "")),
        [section for section in evaluation if section.blocks],
        data_of(run, index),
        [(key, _value(value), run.origins.get(key, "")) for key, value in run.config.items()],
    )


def data_of(run: RunData, index: dict[str, Any]) -> list[Block]:
    """What is known of the data: facts of the training set, and counts by class where they were taken."""
    shown = {key: value for key, value in run.dataset_info.items() if value not in (None, False, 0, [], "")}
    dataset_info = [(key.replace("_", " "), _fact(value)) for key, value in shown.items() if key not in _LONG]
    dataset_info += [("classes", _fact(len(classes)))] if (classes := texts_of(run.dataset_info.get("classes"))) else []
    blocks: list[Block] = [Table("Training data", ("what", "value"), dataset_info)] if dataset_info else []
    for one in dicts_of(index.get("counts")):
        counts = {str(name): number_of(n) or 0 for name, n in dict_of(one.get("of_class")).items()}
        total = sum(counts.values()) or 1
        rows = [(name, n, n / total) for name, n in counts.items()]
        columns = ("class", "samples", "share")
        blocks += [Table(f"{one.get('set')}: samples by class", columns, rows, frozenset({2}))] if rows else []
    return blocks


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _value(value)


_LONG = ("classes", "category_ids", "frequencies", "keypoints")


def about(run: RunData) -> str:
    """The task of a run, and how far it came."""
    step, epoch, _, hours = run.metrics_log.last
    far = f"step {step:,.0f}, epoch {epoch:,.3g}, {_time(hours)}" if step else ""
    return " · ".join(filter(None, (run.task, far, "" if run.finished else "not finished")))


def _time(hours: float) -> str:
    for unit, seconds in (("h", 3600), ("min", 60)):
        if 3600 * hours >= 2 * seconds:
            return f"{3600 * hours / seconds:,.3g} {unit}"
    return f"{3600 * hours:.0f} s"


def scores_of(chapters: Sequence[Chapter]) -> list[Table]:
    """A table for each task: a row for each score, a column for each run, and another for the checkpoint that was
    evaluated by itself."""
    by_task: dict[str, list[Chapter]] = {}
    for one in chapters:
        by_task.setdefault(one.run.task, []).append(one)
    tables = [_scores(task if len(by_task) > 1 else "", some, len(chapters) > 1) for task, some in by_task.items()]
    return [table for table in tables if table.rows]


def _scores(title: str, chapters: Sequence[Chapter], several: bool) -> Table:
    columns: list[tuple[str, dict[str, Any]]] = []
    for one in chapters:
        prefix = f"{one.letter}: " if several else ""
        columns.append((prefix + ("after the last step" if one.run.finished else "newest"), one.run.scores))
        if one.run.of_best:
            columns.append((f"{prefix}of {one.run.of_best.get('checkpoint', '')}", one.run.of_best))
    names = list(dict.fromkeys(name for _, values in columns for name in values if name != "checkpoint"))
    rows = [(name, *(values.get(name) for _, values in columns)) for name in names]
    return Table(title, ("score", *(title for title, _ in columns)), rows, most=16)


def _all_apart(chapters: Sequence[Chapter]) -> bool:
    return len({one.run.task for one in chapters}) == len(chapters)


def differences(chapters: Sequence[Chapter]) -> Table | None:
    """The values of the configs that are not the same in all runs; None where every run has a task of its own."""
    if _all_apart(chapters):
        return None
    values = [{key: value for key, value, _ in one.config} for one in chapters]
    keys = list(dict.fromkeys(key for one in values for key in one))
    rows = [(key, *(one.get(key) for one in values)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("", ("key", *(one.letter for one in chapters)), rows, most=25)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- charts ---------------------------------------------------------------------------------------------------------


def _numbered(charts: list[Chart], chart: Chart) -> int:
    """The place of a chart in the page's data."""
    charts.append(chart)
    return len(charts) - 1


def _about(chapter: Chapter) -> dict[str, str]:
    return {"letter": chapter.letter, "name": chapter.run.name}


def _plain(charts: Sequence[Chart]) -> dict[str, Any]:
    """Charts whose lines name their places by number: many lines have the same."""
    places: dict[str, int] = {}
    found = []
    for chart in charts:
        one = asdict(chart)
        for line in one["lines"]:
            line["x"] = places.setdefault(_as_json(line["x"]), len(places))
        found.append(one)
    return {"charts": found, "places": [json.loads(text) for text in places]}


def _as_json(value: Any) -> str:
    """JSON that may stand in a script element: no text in it can end that element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
