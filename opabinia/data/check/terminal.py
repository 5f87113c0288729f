"""What the data doctor found, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from opabinia.data.check.checks import DataReport
from opabinia.data.check.counts import Holding
from opabinia.data.check.findings import Finding

SHOWN = 5
"""Cases of a finding."""

MOST_CLASSES = 40
"""Rows of a table of classes; JSON and the page have all."""


def show(found: DataReport, console: Console) -> None:
    """A table for each data set, one of all findings, and the first cases of each."""
    for name, holding in found.sets.items():
        table = Table(_printable(name), "count")
        for what, count in counts_of(holding).items():
            table.add_row(what, f"{count}")
        console.print(table)
        if holding.of_class and holding.people is None:
            console.print(_classes(holding))
    if found.findings:
        console.print(_findings(found))
    for finding in found.findings:
        _show_cases(finding, console)


def counts_of(holding: Holding) -> dict[str, object]:
    """What a data set holds, in words."""
    what = "films" if holding.films else "pictures"
    counts: dict[str, object] = {what: holding.samples}
    if holding.read < holding.samples:
        counts["of them looked at"] = holding.read
    if holding.sizes is not None:
        one = what[:-1]
        counts |= {f"smallest {one}": pixels(holding.sizes.smallest), f"largest {one}": pixels(holding.sizes.largest)}
    if (lengths := holding.lengths) is not None:
        counts |= {"frames": spread(lengths.frames), "seconds": spread(lengths.seconds)}
        counts |= {"frames a second": spread(lengths.fps)}
    if (boxes := holding.boxes) is not None:
        counts |= {"of them without things": boxes.empty, "things": boxes.things, "crowds": boxes.crowds}
        counts |= {"tiny things (< 2 pixels)": boxes.tiny}
    if (people := holding.people) is not None:
        counts |= {"identities": people.identities, "pictures of an identity": spread(people.pictures)}
        counts |= {"queries": people.queries} if people.queries is not None else {}
        counts |= {f"camera {camera}": count for camera, count in people.of_camera.items()}
        counts |= {"identities seen by one camera only": people.one_camera} if people.of_camera else {}
        counts |= {f"view {view}": count for view, count in people.of_view.items()}
    return counts


def _classes(holding: Holding) -> Table:
    """A row for each class; such as nothing is of say so."""
    boxes = holding.boxes
    table = Table("class", "films" if holding.films else "pictures", *(["things"] if boxes else []))
    for name, count in list(holding.of_class.items())[:MOST_CLASSES]:
        things = [f"{boxes.of_class[name]}"] if boxes else []
        table.add_row(_cell(name), f"{count}" if count else "none", *things)
    if (more := len(holding.of_class) - MOST_CLASSES) > 0:
        table.add_row(f"and {more} more classes", "")
    return table


def _findings(found: DataReport) -> Table:
    table = Table("found", "in", "count")
    for one in found.findings:
        table.add_row(f"wrong: {one.kind}" if one.wrong else one.kind, _cell(", ".join(one.sets)), f"{one.count}")
    return table


def _show_cases(finding: Finding, console: Console) -> None:
    several = len(finding.sets) > 1
    console.print(f"{finding.kind}:", markup=False)
    for case in finding.cases[:SHOWN]:
        members = [f"{one.set}: {one}" if several else f"{one}" for one in case[:SHOWN]]
        more = f" and {len(case) - SHOWN} more" if len(case) > SHOWN else ""
        console.print(f"  {_printable(' = '.join(members))}{more}", markup=False, soft_wrap=True)
    if finding.count > SHOWN:
        console.print(f"  and {finding.count - min(SHOWN, len(finding.cases))} more")


def _printable(text: str) -> str:
    """Names come from other people's disks: what would steer the terminal, or is no character, is shown as its code."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def _cell(text: str) -> str:
    """As it stands in a table of rich, which takes brackets for styles."""
    return _printable(text).replace("[", r"\[")


def spread(values: tuple[float, float, float]) -> str:
    """The least, the median and the largest of some numbers."""
    least, middle, most = values
    return f"{least:g}" if least == most else f"{least:.4g} to {most:.4g}, half of them up to {middle:.4g}"


def pixels(size: tuple[int, int]) -> str:
    """Height and width, as people say it."""
    return f"{size[1]} x {size[0]}"


def bars(counts: Mapping[str, int]) -> list[tuple[str, int, float]]:
    """Rows of name, count and share."""
    total = max(1, sum(counts.values()))
    return [(name, count, count / total) for name, count in counts.items()]
