"""The page of a report, made from run folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opabinia.config.check import DEFAULT
from opabinia.config.paths import FOLDS_FILE, member_runs
from opabinia.runtime.files import write_atomic
from opabinia.visualization.report.blocks import Block, Chart, Gallery, Section, Table
from opabinia.visualization.report.charts import AXES, batch_charts, metric_sections
from opabinia.visualization.report.comparison import LETTERS, compared_runs, differences, total_cost
from opabinia.visualization.report.dataset_profile import profile_blocks
from opabinia.visualization.report.images import ByteBudget, checkpoint_step, galleries_of, read_index
from opabinia.visualization.report.run_data import RunData, as_subtask, name_of, read_run
from opabinia.visualization.report.tables import blocks_of
from opabinia.visualization.report.templating import template
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, number_of, read_json, texts_of

EVALUATION_KEYS = ("data", "samples", "checkpoint", "weights", "overrides")


@dataclass(frozen=True)
class Chapter:
    """The part of the page on one run.

    Attributes:
        letter: its name in charts and tables.
        run: content of its folder.
        about: task and progress.
        galleries: images of predictions.
        samples: images of the data.
        predicted_after: which checkpoint the predictions are of, ", after step 1,000".
        batches: charts of the batch shapes over time, and a note.
        evaluation: a section for each dataset.
        data: statistics of the data.
        config: rows of path, value and origin.
    """

    letter: str
    run: RunData
    about: str
    galleries: Sequence[Gallery]
    samples: Sequence[Gallery]
    predicted_after: str
    batches: tuple[Sequence[Chart], str]
    evaluation: Sequence[Section]
    data: Sequence[Block]
    config: Sequence[tuple[str, str, str]]


def write_report(
    folders: Sequence[Path], out: Path | None = None, *, compare: Mapping[str, Path] | None = None
) -> Path:
    """Write the report of one run, or of several in the same charts.

    Args:
        folders: folders of the runs; that of the folds of a cross-validation stands for all of their runs.
        out: the file; None: ``report.html`` in the folder of a single run, or in the common folder of several.
        compare: single-task runs beside which tasks of a multi-task run are shown, by task; None: those that its
            config names.

    Returns:
        The file.

    Raises:
        ConfigError: a folder holds no run, there are too many, or a task to compare with does not exist.
        DiskError: the file cannot be written.
    """
    out = out or default_path(folders)
    write_atomic(out, page_of(folders, compare))
    return out


def default_path(folders: Sequence[Path]) -> Path:
    """Return ``report.html`` in the single run folder, or in the common folder of several; relative if they are."""
    if len(folders) == 1:
        return folders[0] / "report.html"
    common = os.path.commonpath([folder.resolve().parent for folder in folders])
    return Path(common if any(folder.is_absolute() for folder in folders) else os.path.relpath(common)) / "report.html"


def page_of(folders: Sequence[Path], compare: Mapping[str, Path] | None = None) -> str:
    """Return the page as text; see :func:`write_report`."""
    members = [run for folder in folders for run in member_runs(folder)]
    singles = compared_runs(members, compare or {})
    single = [as_subtask(read_run(folder), name) for name, folder in singles.items()]
    runs, budget = [*map(read_run, members), *single], ByteBudget()
    chapters = [_chapter(letter, run, budget) for letter, run in zip(LETTERS, runs, strict=False)]
    charts: list[Chart] = []

    def number_of_chart(chart: Chart) -> int:
        """Return the index of a chart in the data of the page."""
        charts.append(chart)
        return len(charts) - 1

    def data() -> str:
        letters = [{"letter": chapter.letter, "name": chapter.run.name} for chapter in chapters]
        return _as_json({"runs": letters, **_chart_data(charts)})

    return template("page.html").render(
        title=" · ".join(run.name for run in runs[:3]) + (" ..." if len(runs) > 3 else ""),
        heading=name_of(folders[0]) if len(folders) == 1 else f"{len(runs)} runs",
        chapters=chapters,
        curves=metric_sections(runs),
        axes=AXES,
        default=DEFAULT,
        scores=[*_fold_tables(folders), *_score_tables(chapters), *_costs(chapters)],
        differences=_differences(chapters),
        opened=len(chapters) < 3 or _all_tasks_differ(chapters),
        number_of_chart=number_of_chart,
        data=data,
    )


def _chapter(letter: str, run: RunData, budget: ByteBudget) -> Chapter:
    index = read_index(run.folder, run.notes)
    evaluation = [
        Section(
            name + _after(tables.get("step")),
            [*blocks_of(tables, run.classes_of(name), run.notes, name), *_images_of(run, name, budget)],
        )
        for name, tables in run.details.items()
    ]
    run.notes += texts_of(index.get("missing"))
    galleries = galleries_of(run.folder, index, budget, run.notes)
    batches = dict_of(index.get("batches"))
    return Chapter(
        letter,
        run,
        _summary(run),
        [gallery for gallery in galleries if not gallery.of_data],
        [gallery for gallery in galleries if gallery.of_data],
        _after(checkpoint_step(index)),
        (batch_charts(batches.get("charts")), str(batches.get("note") or "")),
        [section for section in evaluation if section.blocks],
        _data_blocks(run, index),
        [(key, _value(value), run.origins.get(key, "")) for key, value in run.config.items()],
    )


def _images_of(run: RunData, dataset: str, budget: ByteBudget) -> list[Gallery]:
    """Return the images that an evaluation has left beside its tables."""
    folder = run.folder / "eval" / dataset
    return galleries_of(folder, read_index(folder, run.notes), budget, run.notes)


def _after(step: object) -> str:
    """Return which weights something is of: images are of the best checkpoint, tables of the newest evaluation."""
    number = number_of(step)
    return f", after step {number:,.0f}" if number else ""


def _data_blocks(run: RunData, index: dict[str, Any]) -> list[Block]:
    """Return a table of the training data's facts, for each stream of a multi-task run, and counts by class if there
    are some."""
    streams = {name: dict_of(facts) for name, facts in dict_of(run.dataset_info.get("streams")).items()}
    tables = [(f"Training data of {name}", _facts(facts)) for name, facts in streams.items()]
    tables = tables or [("Training data", _facts(run.dataset_info))]
    blocks: list[Block] = [Table(title, ("what", "value"), rows) for title, rows in tables if rows]
    blocks += profile_blocks(run.profile)
    for dataset in dicts_of(index.get("counts")):
        counts = {str(name): number_of(count) or 0 for name, count in dict_of(dataset.get("of_class")).items()}
        total = number_of(dataset.get("samples")) or sum(counts.values()) or 1
        shares = [(name, count, count / total) for name, count in counts.items()]
        columns = ("class", "samples", f"share of {total:,.0f} samples")
        title = f"{dataset.get('set')}: samples by class"
        blocks += [Table(title, columns, shares, frozenset({2}))] if shares else []
    return blocks


def _facts(dataset_info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows of what is known of training data."""
    omitted = ("classes", "category_ids", "frequencies", "keypoints", "label_shares", "image_counts", "streams")
    facts = ((key, value) for key, value in dataset_info.items() if value and key not in omitted)
    rows = [(key.replace("_", " "), _fact(value)) for key, value in facts]
    if classes := texts_of(dataset_info.get("classes")):
        rows.append(("classes", _fact(len(classes))))
    return rows


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _value(value)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _summary(run: RunData) -> str:
    """Return the task of a run, and its progress."""
    step, epoch, _, hours = run.metrics.last
    seconds = 3600 * hours
    units = (f"{seconds / length:,.3g} {unit}" for unit, length in (("h", 3600), ("min", 60)) if seconds >= 2 * length)
    progress = f"step {step:,.0f}, epoch {epoch:,.3g}, {next(units, f'{seconds:.0f} s')}" if step else ""
    return " · ".join(filter(None, (run.task, progress, "" if run.finished else "not finished")))


def _fold_tables(folders: Sequence[Path]) -> list[Table]:
    """Return the mean and deviation of each score of a cross-validation, and the score over all samples."""
    tables = []
    for folder in folders:
        record = dict_of(read_json(folder / FOLDS_FILE, [])) if (folder / FOLDS_FILE).is_file() else {}
        scores = {name: dict_of(summary) for name, summary in dict_of(record.get("scores")).items()}
        over_all = dict_of(record.get("out_of_fold"))
        rows = [
            (name, number_of(summary.get("mean")), number_of(summary.get("std")), number_of(over_all.get(name)))
            for name, summary in scores.items()
        ]
        title = f"{name_of(folder)}: over {record.get('folds')} folds, after the last step"
        columns = ("score", "mean", "standard deviation", "out-of-fold predictions of all samples")
        tables += [Table(title, columns, rows, max_rows=16)] if rows else []
    return tables


def _score_tables(chapters: Sequence[Chapter]) -> list[Table]:
    """Return a table of scores for each task, and one of the data of each evaluation."""
    by_task: dict[str, list[Chapter]] = {}
    for chapter in chapters:
        for task in chapter.run.subtasks or [chapter.run.task]:
            by_task.setdefault(task, []).append(chapter)
    prefixes = {chapter.letter: f"{chapter.letter}: " if len(chapters) > 1 else "" for chapter in chapters}
    tables = [_task_scores(task, group, prefixes, titled=len(by_task) > 1) for task, group in by_task.items()]
    tables = [table for table in tables if table.rows]
    rows = [(prefixes[chapter.letter], row) for chapter in chapters for row in chapter.run.evaluations]
    keys = [key for key in EVALUATION_KEYS if any(row.get(key) for _, row in rows)]
    data = [(prefix + row["scores"], *(row.get(key, "") for key in keys)) for prefix, row in rows]
    return [*tables, *[Table("Data of these scores", ("scores", *keys), data, max_rows=16)] * bool(tables and data)]


def _task_scores(task: str, group: Sequence[Chapter], prefixes: Mapping[str, str], *, titled: bool) -> Table:
    """Return the scores of a task: a row for each, a column for each run and each checkpoint that was evaluated
    separately, and one for the difference from the single-task run."""
    columns: list[tuple[str, dict[str, Any]]] = []
    for chapter in group:
        prefix, run = prefixes[chapter.letter], chapter.run
        columns.append((prefix + ("after the last step" if run.finished else "newest"), run.scores))
        columns += [(prefix + name, scores) for name, scores in run.evaluated_scores.items()]
    first, single = group[0], next((chapter for chapter in group if chapter.run.compared_with), None)
    if single is not None:
        columns.append((f"{first.letter} - {single.letter}", differences(first.run, single.run)))
    names = dict.fromkeys(name for _, scores in columns for name in scores)
    shown = [name for name in names if not first.run.subtasks or name.startswith(f"{task}/")]
    rows = [(name, *(scores.get(name) for _, scores in columns)) for name in shown]
    return Table(task if titled else "", ("score", *(title for title, _ in columns)), rows, max_rows=16)


def _costs(chapters: Sequence[Chapter]) -> list[Table]:
    """Return a table of the images and the time of a multi-task run and of the single-task runs beside it."""
    single = [chapter.run for chapter in chapters if chapter.run.compared_with]
    rows = [(f"{chapter.letter}: {chapter.run.name}", *total_cost([chapter.run])) for chapter in chapters]
    rows.append(("all single-task runs", *total_cost(single)))
    return [Table("Cost", ("run", "images trained on", "minutes"), rows)] if single else []


def _all_tasks_differ(chapters: Sequence[Chapter]) -> bool:
    return len({chapter.run.task for chapter in chapters}) == len(chapters)


def _differences(chapters: Sequence[Chapter]) -> Table | None:
    """Return the config values that are not the same in all runs; None if every run has a task of its own."""
    if _all_tasks_differ(chapters):
        return None
    configs = [{key: value for key, value, _ in chapter.config} for chapter in chapters]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = [(key, *(config.get(key) for config in configs)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("", ("key", *(chapter.letter for chapter in chapters)), rows, max_rows=25)


def _chart_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """Return charts whose lines refer to their x values by number, since many lines share them."""
    places: dict[str, int] = {}
    plain = [asdict(chart) for chart in charts]
    for chart in plain:
        for line in chart["lines"]:
            line["x"] = places.setdefault(_as_json(line["x"]), len(places))
    return {"charts": plain, "places": [json.loads(text) for text in places]}


def _as_json(value: Any) -> str:
    """Return JSON for a script element: no text in it can end that element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
