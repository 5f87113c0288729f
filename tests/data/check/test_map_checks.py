"""Checks of segmentation maps."""

from io import StringIO
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from opabinia.contracts import DrawOptions
from opabinia.data.check import findings as kinds
from opabinia.data.check import run_checks
from opabinia.data.check.page import render_page
from opabinia.data.check.terminal import print_report
from opabinia.data.sources import ObjectMaps, annotation_errors, labelme, segmentation_folder
from opabinia.visualization.segmentation import PALETTE, draw_map
from tests.data.sources.test_annotation_tools import SHAPES, write_labelme
from tests.data.sources.test_segmentation import save, write_pair


def test_segmentation_maps_are_checked(tmp_path: Path) -> None:
    values = np.zeros((9, 12), dtype=np.uint8)
    values[:3] = 2
    for name in "abcd":
        write_pair(tmp_path, values + ord(name) % 2, name=name)  # a and c have the values 1 and 3
    write_pair(tmp_path, np.full((9, 12), 255, dtype=np.uint8), name="e")
    write_pair(tmp_path, values, name="f")
    save(tmp_path / "labels/f.png", values[:5])
    for name in ("new/g.png", "h.PNG"):
        save(tmp_path / "labels" / name, values)
    source = segmentation_folder(root=tmp_path, classes=["x", "y", "z", "none"], broken="drop")
    report = run_checks({"train": source})
    findings = {finding.kind: finding for finding in report.findings if not finding.kind.startswith("rep")}
    assert findings.keys() == {annotation_errors.WRONG_SIZE, annotation_errors.UNUSED_MAP, kinds.EMPTY_MAP}
    unused = findings[annotation_errors.UNUSED_MAP]
    assert unused.count == 2 and str(unused.cases[1][0]) == "labels/new/g.png: not used" and not unused.is_error
    assert str(findings[kinds.EMPTY_MAP].cases[0][0]) == "images/e.jpg: 108 pixels are ignored"
    dataset = report.datasets["train"]
    assert dataset.maps is not None and dataset.maps.pixels == {"x": 144, "y": 144, "z": 72, "none": 72}
    assert dataset.per_class == {"x": 2, "y": 2, "z": 2, "none": 2}
    assert (dataset.maps.empty, dataset.maps.ignored) == (1, 108)
    source = segmentation_folder(root=tmp_path, classes=["x", "y", "z"], broken="drop")
    report = run_checks({"train": source})
    findings = {finding.kind: finding for finding in report.findings}
    assert findings[kinds.BAD_MAP].count == 2 and findings[kinds.BAD_MAP].is_error
    assert "labels/a.png: no class has the value 3 (row 0, column 0, and 35 more" in str(
        findings[kinds.BAD_MAP].cases[0][0]
    )
    assert str(findings[kinds.NO_SAMPLES].cases[0][0]) == "y"
    console = Console(file=StringIO(), width=120)
    print_report(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "maps without a labeled pixel" in text and "share of 216 pixels" in text and "33.3%" in text
    assert "images/e.jpg" in render_page(report, "maps")


def test_errors_of_objects_converted_to_maps(tmp_path: Path) -> None:
    write_labelme(tmp_path, [*SHAPES, {"label": "car", "points": [[1, 1], [20, 1], [1, 3]]}])
    report = run_checks({"train": ObjectMaps(source=labelme(root=tmp_path, masks=True, broken="clip"))})
    kinds_of_errors = {finding.kind for finding in report.findings if finding.is_error}
    assert kinds_of_errors == {annotation_errors.CUT_BOX, annotation_errors.CUT_SEGMENTATION}
    assert report.datasets["train"].maps is not None


def test_drawn_maps() -> None:
    image = torch.full((1, 2, 3), 100, dtype=torch.uint8)
    labels, colors = torch.tensor([[0, 1, 255]] * 2, dtype=torch.uint8), [(0, 0, 0), (200, 100, 50)]
    drawn = draw_map(image, labels, colors=colors, options=DrawOptions(side=6))
    assert drawn.size == (6, 4)
    assert [drawn.getpixel((x, 0)) for x in (0, 2, 4)] == [(50, 50, 50), (150, 100, 75), (100, 100, 100)]
    assert len(set(PALETTE)) == len(PALETTE) == 255
    gray_image_map = draw_map(image.float() / 255, np.full((2, 3), 254), options=DrawOptions(side=2))
    named = draw_map(image, labels, ["no", "yes", "absent"], colors, DrawOptions(side=6))
    swatches = named.crop((0, 4, named.width, named.height)).getcolors(10**4) or []
    assert named.height > 4 and {(0, 0, 0), (200, 100, 50)} <= {color for _, color in swatches}
    assert gray_image_map.getpixel((0, 0)) == tuple(50 + value // 2 for value in PALETTE[254])
