"""The data check: its counts and its findings."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from opabinia.contracts import DrawOptions, Source, SourceInfo
from opabinia.data.check import DataReport, run_checks
from opabinia.data.check import findings as kinds
from opabinia.data.check.findings import Finding
from opabinia.data.check.page import render_page
from opabinia.data.check.terminal import print_report
from opabinia.data.sources import (
    ImageFolder,
    ObjectMaps,
    Videos,
    VideoViews,
    annotation_errors,
    coco,
    labelme,
    market1501,
    mot,
    segmentation_folder,
)
from opabinia.data.sources.annotation_errors import MAX_REPORTED
from opabinia.visualization.segmentation import PALETTE, draw_map
from scripts import small_data
from tests.data.check.images import drawn, save
from tests.data.sources.test_annotation_tools import SHAPES, write_labelme
from tests.data.sources.test_segmentation import save as save_map
from tests.data.sources.test_segmentation import write_pair
from tests.data.videos import write, write_sound


@pytest.fixture
def root(tmp_path: Path) -> Path:
    small_data.coco(tmp_path)
    return tmp_path


def edit(root: Path, index: int, **values: Any) -> None:
    content = json.loads((root / "annotations.json").read_text())
    content["annotations"][index].update(values)
    (root / "annotations.json").write_text(json.dumps(content))


def read(root: Path, **keys: Any) -> Any:
    return coco(root=root, file=root / "annotations.json", broken="drop", **keys)


def check(source: Source, **keys: Any) -> DataReport:
    return run_checks({"train": source}, **keys)


def errors(report: DataReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.is_error]


def cases_by_kind(report: DataReport) -> Mapping[str, list[list[str]]]:
    """Return the names of each case, by kind of finding."""
    return {
        finding.kind: [[f"{member.dataset}:{member.id}" for member in case] for case in finding.cases]
        for finding in report.findings
    }


# --- objects ----------------------------------------------------------------------------------------------------------


def test_objects_are_counted(root: Path) -> None:
    outline = [[63, 5, 64, 5, 64, 15, 63, 15]]
    edit(root, 0, bbox=[63, 5, 1.5, 10], segmentation=outline)  # half a pixel of it is outside
    report = check(read(root, classes=["bar", "block"], masks=True))
    dataset = report.datasets["train"]
    assert (dataset.samples, dataset.read, dataset.per_class, errors(report)) == (4, 4, {"bar": 2, "block": 3}, [])
    assert dataset.boxes is not None and dataset.sizes is not None
    assert (dataset.boxes.objects, dataset.boxes.per_class, dataset.boxes.crowds) == (5, {"bar": 2, "block": 3}, 1)
    assert (dataset.boxes.empty_images, dataset.boxes.tiny, sum(dataset.boxes.sides.values())) == (1, 1, 5)
    assert dataset.sizes.smallest == dataset.sizes.largest == (48, 64)
    assert dataset.sizes.sides == {"32 to 63": 4} and dataset.sizes.aspects == {"5:4 to 3:2": 4}
    tiny, empty = report.findings
    member = tiny.cases[0][0]
    assert (tiny.kind, member.annotation, member.box) == (kinds.TINY_BOX, "annotation 100", (63, 5, 64.5, 15))
    assert (empty.kind, empty.count) == (kinds.EMPTY, 1)


def test_images_that_cannot_be_read_or_have_another_size(root: Path) -> None:
    source = read(root)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(root / "3.png").rotate(90, expand=True).save(root / "3.png", exif=exif)  # the displayed size counts
    Image.new("RGB", (48, 64)).save(root / "1.png")
    (root / "2.png").write_bytes(b"no picture")
    size, unreadable = sorted(errors(check(source)), key=lambda finding: finding.cases[0][0].id)
    assert (size.kind, size.count) == ("images of another size than annotated", 1)
    assert size.cases[0][0].id == "1.png" and "48 x 64 pixels" in size.cases[0][0].value
    assert (unreadable.kind, unreadable.cases[0][0].id) == ("images that cannot be read", "2.png")


def test_errors_of_objects_are_reported(root: Path) -> None:
    edit(root, 0, bbox=[60, 5, 20, 4])
    (error,) = errors(check(read(root)))
    (member,) = error.cases[0]
    assert error.kind == "boxes that extend beyond the image" and member.box == (60, 5, 80, 9)
    assert (member.id, member.annotation) == ("1.png", "annotation 100")
    edit(root, 0, bbox=[6, 5, 20, 4], segmentation={"size": [48, 64], "counts": "zzz"})
    (error,) = errors(check(read(root, masks=True)))
    assert error.count == 1 and (error.cases[0][0].id, error.cases[0][0].annotation) == ("1.png", "annotation 100")
    content = json.loads((root / "annotations.json").read_text())
    first = content["annotations"][0] | {"bbox": [1, 1, -1, 1]}
    content["annotations"] += [first | {"id": 900 + number} for number in range(MAX_REPORTED + 5)]
    (root / "annotations.json").write_text(json.dumps(content))
    (error,) = errors(check(read(root)))
    assert error.count == MAX_REPORTED + 5 and len(error.cases) == MAX_REPORTED, "all are counted"


# --- images -----------------------------------------------------------------------------------------------------------


def test_broken_images_are_reported(tmp_path: Path) -> None:
    valid = save(tmp_path / "a" / "whole.jpg", 1)
    (tmp_path / "a" / "cut.jpg").write_bytes(valid.read_bytes()[:1200])
    (tmp_path / "a" / "text.png").write_text("this is no picture")
    Image.new("RGB", (1, 1), (9, 9, 9)).save(tmp_path / "a" / "one pixel.png")
    save(tmp_path / "b" / "empty.png", 2).write_bytes(b"")
    report = check(ImageFolder(root=tmp_path))
    assert cases_by_kind(report) == {
        kinds.TRUNCATED: [["train:a/cut.jpg"]],
        "images that cannot be read": [["train:a/text.png"], ["train:b/empty.png"]],
        kinds.SMALL_IMAGE: [["train:a/one pixel.png"]],
    }
    assert report.error_count == 3 and report.datasets["train"].per_class == {"a": 4, "b": 1}
    assert report.datasets["train"].sizes.smallest == (1, 1)  # type: ignore[union-attr]


def test_the_same_image_in_training_and_validation(tmp_path: Path) -> None:
    """As an identical file, as the same pixels rotated by EXIF, and as a recompressed image."""
    for number in range(4):
        save(tmp_path / "train" / "a" / f"{number}.png", number)
    val = tmp_path / "val" / "a"
    save(val / "file.png", 0)
    exif = Image.Exif()
    exif[0x0112] = 3
    drawn(1).rotate(180).save(val / "turned.png", exif=exif)
    save(val / "compressed.jpg", 2, quality=40)
    save(val / "another.png", 77)
    sources = {name: ImageFolder(root=tmp_path / name) for name in ("train", "val")}
    expected = {
        f"{kinds.LEAKED}: {kinds.SAME_FILE}": [["train:a/0.png", "val:a/file.png"]],
        f"{kinds.LEAKED}: {kinds.SAME_PIXELS}": [["train:a/1.png", "val:a/turned.png"]],
        f"{kinds.LEAKED}: {kinds.NEAR_DUPLICATE}": [["train:a/2.png", "val:a/compressed.jpg"]],
    }
    report = run_checks(sources)
    assert cases_by_kind(report) == expected and report.error_count == 3
    assert run_checks(sources, workers=2).to_json() == report.to_json(), "with any number of workers"


def test_repeats_in_a_dataset_are_no_errors_unless_labels_differ(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", 1)
    save(tmp_path / "cat" / "again.png", 1)
    save(tmp_path / "cat" / "small.jpg", 1, size=(96, 72))
    save(tmp_path / "dog" / "2.png", 2)
    duplicates = check(ImageFolder(root=tmp_path))
    assert duplicates.error_count == 0 and cases_by_kind(duplicates) == {
        "repeated in a dataset: identical file": [["train:cat/1.png", "train:cat/again.png"]],
        "repeated in a dataset: nearly identical": [["train:cat/1.png", "train:cat/small.jpg"]],
    }
    save(tmp_path / "dog" / "1.png", 1)
    report = check(ImageFolder(root=tmp_path))
    assert cases_by_kind(report)[kinds.OTHER_LABEL] == [["train:cat/1.png", "train:cat/again.png", "train:dog/1.png"]]
    assert [member.value for member in report.findings[0].cases[0]] == ["cat", "cat", "dog"] and report.error_count == 1
    for name in ("cat/small.jpg", "cat/again.png", "dog/1.png"):
        (tmp_path / name).unlink()
    save(tmp_path / "dog" / "1.jpg", 1, quality=50)
    report = check(ImageFolder(root=tmp_path))
    assert cases_by_kind(report) == {kinds.NEAR_OTHER_LABEL: [["train:cat/1.png", "train:dog/1.jpg"]]}, "once"
    assert report.error_count == 0, "nearly the same image under another label is a note"


def test_a_random_part_of_each_dataset_can_be_read(tmp_path: Path) -> None:
    for number in range(12):
        save(tmp_path / "ab"[number % 2] / f"{number}.png", number)
    sources = {name: ImageFolder(root=tmp_path) for name in ("train", "val")}
    ids = []
    for seed in (0, 0, 1):
        report = run_checks(sources, limit=5, seed=seed)
        dataset = report.datasets["train"]
        assert (dataset.samples, dataset.read, dataset.per_class) == (12, 5, {"a": 6, "b": 6})
        ids.append(cases_by_kind(report)[f"{kinds.LEAKED}: {kinds.SAME_FILE}"])
    assert ids[0] == ids[1] != ids[2] and len(ids[0]) == 5


# --- identities -------------------------------------------------------------------------------------------------------


def test_identities(tmp_path: Path) -> None:
    small_data.market1501(tmp_path)
    sources = {"train": market1501(root=tmp_path, cameras=2), "val": market1501(root=tmp_path, split="test", cameras=2)}
    report = run_checks(sources)
    identities = report.datasets["train"].identities
    assert identities is not None
    assert (identities.identities, identities.images, identities.queries) == (8, (4, 4, 4), None)
    assert identities.per_camera == {"0": 16, "1": 16} and identities.single_camera == 0 and report.error_count == 0
    assert report.datasets["val"].identities.queries == 4  # type: ignore[union-attr]

    query_image = next((tmp_path / "query").glob("0010_c1*"))
    (tmp_path / "bounding_box_test" / "0010_c2s1_000099_00.png").write_bytes(query_image.read_bytes())
    training_image = next((tmp_path / "bounding_box_train").glob("0003_c1*"))
    (tmp_path / "bounding_box_test" / "0003_c2s1_000001_00.png").write_bytes(training_image.read_bytes())
    sources["val"] = market1501(root=tmp_path, split="test", cameras=2)
    report = run_checks(sources)
    copies = [f"val:bounding_box_test/{name}.png" for name in ("0003_c2s1_000001_00", "0010_c2s1_000099_00")]
    first = min(path.name for path in training_image.parent.glob("0003_*"))
    assert cases_by_kind(report) == {
        f"{kinds.LEAKED}: {kinds.SAME_FILE}": [[f"train:bounding_box_train/{training_image.name}", copies[0]]],
        f"{kinds.IN_GALLERY}: {kinds.SAME_FILE}": [[f"val:query/{query_image.name}", copies[1]]],
        kinds.SAME_IDENTITY: [[f"train:bounding_box_train/{first}", copies[0]]],
    }
    tasks = run_checks({"people/train": sources["train"], "people/val": sources["val"]})
    assert list(cases_by_kind(tasks)) == list(cases_by_kind(report)), "the same findings for a task of a multi-task run"


# --- videos with tracks -----------------------------------------------------------------------------------------------


def test_videos_in_training_and_validation_and_gaps_in_tracks(tmp_path: Path) -> None:
    rows = [(frame, 1) for frame in range(1, 41)] + [(1, 2), (40, 2)]
    lines = [f"{frame},{track},1,1,20,30,1,1,1" for frame, track in rows]
    for name in ("a", "b"):
        (tmp_path / name / "gt").mkdir(parents=True)
        (tmp_path / name / "gt" / "gt.txt").write_text("\n".join(lines), encoding="utf-8")
        for frame in range(1, 41):
            save(tmp_path / name / "img1" / f"{frame:06d}.png", 100 * ord(name) + frame)
    sources = {"train": mot(root=tmp_path, sequences=["a"]), "val": mot(root=tmp_path, sequences=["b"])}
    found = cases_by_kind(run_checks(sources))
    assert kinds.SAME_VIDEO not in found
    assert found[kinds.TRACK_GAP] == [["train:a/img1/000040.png"], ["val:b/img1/000040.png"]]
    sources["val"] = mot(root=tmp_path, every=7)
    found = cases_by_kind(run_checks(sources))
    assert found[kinds.SAME_VIDEO] == [["train:a/img1/000001.png", "val:a/img1/000001.png"]]
    assert found[kinds.TRACK_GAP] == [["train:a/img1/000040.png"]], "validation has the first, the 8th ... frame"


# --- videos -----------------------------------------------------------------------------------------------------------


def test_videos(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "jump" / f"{number}.mp4", 5 + 10 * number, size=(32, 32 + 8 * number))
    write(tmp_path / "run" / "uneven.mp4", 4, size=(24, 24), times=[0, 100, 200, 300])
    valid_report = check(Videos(root=tmp_path))
    dataset = valid_report.datasets["train"]
    assert (dataset.samples, dataset.per_class, valid_report.findings) == (4, {"jump": 3, "run": 1}, [])
    assert dataset.is_video and dataset.lengths is not None and dataset.boxes is None and dataset.sizes is not None
    assert (dataset.sizes.smallest, dataset.sizes.largest) == ((24, 24), (32, 48))
    assert dataset.lengths.frames == (4, 10, 25) and dataset.lengths.fps == (10, 25, 25)
    assert dataset.lengths.seconds == pytest.approx((0.2, 0.5, 1.0))

    (tmp_path / "run" / "empty.mp4").touch()
    write_sound(tmp_path / "run" / "sound.mp4")
    truncated = write(tmp_path / "run" / "cut.mkv", 40, size=(32, 32), gop=5)
    truncated.write_bytes(truncated.read_bytes()[: truncated.stat().st_size // 2])
    copy = write(tmp_path / "val" / "jump" / "again.mp4", 15, size=(32, 40))
    assert copy.read_bytes() == (tmp_path / "jump" / "1.mp4").read_bytes()
    train = VideoViews(source=Videos(root=tmp_path, classes=["jump", "run"]), clips=2, crops=3)
    report = run_checks({"train": train, "val": Videos(root=tmp_path / "val")})
    assert report.datasets["train"].samples == 7 and report.datasets["train"].per_class == {"jump": 3, "run": 4}, (
        "videos are counted, not views"
    )
    damaged, unreadable, leaked = report.findings
    assert unreadable.kind == "videos that cannot be read" and unreadable.count == 2
    assert str(unreadable.cases[0][0]) == f"run/empty.mp4: {tmp_path / 'run' / 'empty.mp4'} is empty: it has 0 bytes"
    assert damaged.kind == "damaged videos" and damaged.cases[0][0].value.startswith("is cut off; the first")
    assert cases_by_kind(report)[leaked.kind] == [["train:jump/1.mp4", "val:jump/again.mp4"]]
    assert leaked.kind == f"{kinds.LEAKED}: {kinds.SAME_PIXELS}"


# --- segmentation maps ------------------------------------------------------------------------------------------------


def test_segmentation_maps_are_checked(tmp_path: Path) -> None:
    values = np.zeros((9, 12), dtype=np.uint8)
    values[:3] = 2
    for name in "abcd":
        write_pair(tmp_path, values + ord(name) % 2, name=name)  # a and c have the values 1 and 3
    write_pair(tmp_path, np.full((9, 12), 255, dtype=np.uint8), name="e")
    write_pair(tmp_path, values, name="f")
    save_map(tmp_path / "labels/f.png", values[:5])
    for name in ("new/g.png", "h.PNG"):
        save_map(tmp_path / "labels" / name, values)
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
    blended = draw_map(image, labels, colors=colors, options=DrawOptions(side=6))
    assert blended.size == (6, 4)
    assert [blended.getpixel((x, 0)) for x in (0, 2, 4)] == [(50, 50, 50), (150, 100, 75), (100, 100, 100)]
    assert len(set(PALETTE)) == len(PALETTE) == 255
    gray_image_map = draw_map(image.float() / 255, np.full((2, 3), 254), options=DrawOptions(side=2))
    named = draw_map(image, labels, ["no", "yes", "absent"], colors, DrawOptions(side=6))
    swatches = named.crop((0, 4, named.width, named.height)).getcolors(10**4) or []
    assert named.height > 4 and {(0, 0, 0), (200, 100, 50)} <= {color for _, color in swatches}
    assert gray_image_map.getpixel((0, 0)) == tuple(50 + value // 2 for value in PALETTE[254])


# --- processes --------------------------------------------------------------------------------------------------------


class _Interrupting(Source):
    """Images; reading image 20 raises SIGINT, or ends its process."""

    info = SourceInfo(channels=1)

    def __init__(self, *, crash: bool = False) -> None:
        self._crash = crash

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if index == 20 and self._crash:
            os._exit(1)
        if index == 20:
            signal.raise_signal(signal.SIGINT)
        return {"image": torch.full((1, 9, 9), index, dtype=torch.uint8), "id": f"{index}.png"}


def test_ctrl_c_reports_the_findings_so_far() -> None:
    assert threading.current_thread() is threading.main_thread()
    report = check(_Interrupting())
    assert report.stopped and report.datasets["train"].read == 20 and report.datasets["train"].samples == 60


def test_a_killed_process_is_reported() -> None:
    with pytest.raises(Exception, match=r"was killed.* sample (0|8|16) or one of the") as error:
        check(_Interrupting(crash=True), workers=2)
    assert getattr(error.value, "exit_status", None) == 2
