"""Print a data report as tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from opabinia.data.check.checks import DataReport
from opabinia.data.check.statistics import DatasetStatistics, Range
from opabinia.runtime.text import printable

MAX_CASES = 5
"""Cases that are listed per finding."""

MAX_CLASSES = 40
"""Rows of a table of classes; JSON and the page have all."""


def print_report(report: DataReport, console: Console) -> None:
    """Print a table for each dataset, one of all findings, and the first cases of each."""
    for name, dataset in report.datasets.items():
        table = Table(printable(name), "count")
        for label, value in summary_rows(dataset).items():
            table.add_row(label, f"{value}")
        console.print(table)
        if dataset.per_class and dataset.identities is None:
            console.print(_class_table(dataset))
    if report.findings:
        table = Table("finding", "dataset", "count")
        for finding in report.findings:
            table.add_row(finding.title, _cell(", ".join(finding.datasets)), f"{finding.count}")
        console.print(table)
    for finding in report.findings:
        several = len(finding.datasets) > 1
        console.print(f"{finding.kind}:", markup=False)
        for case in finding.cases[:MAX_CASES]:
            samples = [f"{sample.dataset}: {sample}" if several else f"{sample}" for sample in case[:MAX_CASES]]
            more = f" and {len(case) - MAX_CASES} more" if len(case) > MAX_CASES else ""
            console.print(f"  {printable(' = '.join(samples))}{more}", markup=False, soft_wrap=True)
        if finding.count > MAX_CASES:
            console.print(f"  and {finding.count - min(MAX_CASES, len(finding.cases))} more")


def summary_rows(dataset: DatasetStatistics) -> dict[str, object]:
    """Return the statistics of a dataset by their labels."""
    noun = "video" if dataset.is_video else "image"
    rows: dict[str, object] = {f"{noun}s": dataset.samples}
    if dataset.read < dataset.samples:
        rows["read"] = dataset.read
    if (sizes := dataset.sizes) is not None:
        rows |= {f"smallest {noun}": _pixels(sizes.smallest), f"largest {noun}": _pixels(sizes.largest)}
    if (channels := dataset.channels) is not None:
        rows |= {"mean of the channels": list(channels.mean), "std of the channels": list(channels.std)}
    if (lengths := dataset.lengths) is not None:
        rows |= {"frames": _range(lengths.frames), "seconds": _range(lengths.seconds)}
        rows |= {"frames per second": _range(lengths.fps)}
    if (boxes := dataset.boxes) is not None:
        rows |= {"images without objects": boxes.empty_images, "objects": boxes.objects, "crowds": boxes.crowds}
        rows |= {"tiny objects (< 2 pixels)": boxes.tiny}
    if (maps := dataset.maps) is not None:
        share = maps.ignored / max(1, maps.ignored + sum(maps.pixels.values()))
        rows |= {"maps without a labeled pixel": maps.empty, "ignored pixels": f"{share:.1%}"}
    if (identities := dataset.identities) is not None:
        rows |= {"identities": identities.identities, "images per identity": _range(identities.images)}
        rows |= {"queries": identities.queries} if identities.queries is not None else {}
        rows |= {f"camera {camera}": count for camera, count in identities.per_camera.items()}
        rows |= {"identities seen by one camera only": identities.single_camera} if identities.per_camera else {}
        rows |= {f"view {view}": count for view, count in identities.per_view.items()}
    return rows


def class_rows(dataset: DatasetStatistics) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return names of columns and a row for each class or identity: its name, the number of images or videos that it is
    in and their share of all of them, and of annotated objects, or pixels of segmentation maps, the same.

    An image may be in several classes, so these shares do not add up to 1.
    """
    noun, samples = "videos" if dataset.is_video else "images", dataset.read if dataset.maps else dataset.samples
    columns = ["identity" if dataset.identities else "class", noun, f"share of {samples:,} {noun}"]
    counted = dataset.boxes.per_class if dataset.boxes else dataset.maps.pixels if dataset.maps else {}
    total, unit = sum(counted.values()), "pixels" if dataset.maps else "objects"
    columns += [unit, f"share of {total:,} {unit}"] if counted else []
    rows: list[tuple[Any, ...]] = []
    for name, count in dataset.per_class.items():
        counts = (count, samples), *([(counted[name], total)] if counted else [])
        rows.append((name, *(cell for number, total in counts for cell in (number, number / max(1, total)))))
    return columns, rows


def _class_table(dataset: DatasetStatistics) -> Table:
    columns, rows = class_rows(dataset)
    table = Table(*columns)
    for name, *counts in rows[:MAX_CLASSES]:
        cells = (f"{count:.3f}" if isinstance(count, float) else f"{count}" if count else "none" for count in counts)
        table.add_row(_cell(name), *cells)
    if (more := len(rows) - MAX_CLASSES) > 0:
        table.add_row(f"and {more} more classes", "")
    return table


def _cell(text: str) -> str:
    """Escape text for a table cell of rich, which takes brackets for styles."""
    return printable(text).replace("[", r"\[")


def _range(values: Range) -> str:
    minimum, median, maximum = values
    return f"{minimum:g}" if minimum == maximum else f"{minimum:.4g} to {maximum:.4g}, median {median:.4g}"


def _pixels(size: tuple[int, int]) -> str:
    """Return (height, width) as width x height."""
    return f"{size[1]} x {size[0]}"
