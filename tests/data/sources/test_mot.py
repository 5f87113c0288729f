"""Videos with tracks in the layout of MOTChallenge: frames, crops, ground truth, and damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts.tracking import Role, TrackGroundTruth
from opabinia.data.sources import mot
from opabinia.data.sources.concat import Concat
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.evaluation.tracking.frames import join_frames
from opabinia.evaluation.tracking.scores import evaluate_tracks
from opabinia.models.trackers.sequences import Frame, FrameDetections, track_sequence
from opabinia.models.trackers.sort import byte_track

WIDTH, HEIGHT, FRAMES = 64, 48, 25
INFO = f"""[Sequence]
name=a
imDir=img1
frameRate=30
seqLength={FRAMES}
imWidth={WIDTH}
imHeight={HEIGHT}
imExt=.png
"""


def rows() -> list[str]:
    """Track 1 walks to the right; 2 is hidden from frame 5 to 15; 3 does not count; 4 is a reflection."""
    lines = []
    for frame in range(1, FRAMES + 1):
        lines += [
            f"{frame},1,{frame},1,20,30,1,1,1",
            f"{frame},2,41,11,20,30,1,1,{0.1 if 5 <= frame <= 15 else 0.9}",
            f"{frame},3,1,1,10,10,0,1,1",
            f"{frame},4,31,31,10,10,0,12,1",
        ]
    return lines


def write_sequence(folder: Path, lines: list[str] | None = None, info: str | None = INFO) -> Path:
    (folder / "gt").mkdir(parents=True)
    (folder / "img1").mkdir()
    for frame in range(1, FRAMES + 1):
        Image.fromarray(np.full((HEIGHT, WIDTH, 3), frame * 10, np.uint8)).save(folder / "img1" / f"{frame:06d}.png")
    (folder / "gt" / "gt.txt").write_text("\n".join(rows() if lines is None else lines) + "\n", encoding="utf-8")
    if info is not None:
        (folder / "seqinfo.ini").write_text(info, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mot")
    write_sequence(root / "a")
    write_sequence(root / "b", info=None)
    (root / "notes").mkdir()
    return root


def tracks_of(source: AnnotatedImages) -> dict[str, TrackGroundTruth]:
    return join_frames(source.ground_truth(index).track for index in range(len(source)))


# --- three views ------------------------------------------------------------------------------------------------------


def test_frames_for_detection(root: Path) -> None:
    source = mot(root=root, exclude=["b"])
    assert (len(source), source.classes, source.id(0)) == (FRAMES, ("pedestrian",), "a/img1/000001.png")
    sample = source[4]
    assert sample["image"].shape == (3, HEIGHT, WIDTH)
    assert sample["boxes"].tolist() == [[4, 0, 24, 30], [40, 10, 60, 40]]
    assert sample["ground_truth"].crowd.tolist() == [False, False, True], "the reflection need not be found"
    assert mot(root=root, exclude=["b"], min_visibility=0.5)[4]["boxes"].tolist() == [[4, 0, 24, 30]]
    assert len(mot(root=root, every=10)) == 6
    assert mot(root=root, sequences=["a"], first_pixel=0)[0]["boxes"].tolist()[0] == [1, 1, 21, 31]


def test_ground_truth_of_tracks(root: Path) -> None:
    truths = tracks_of(mot(root=root))
    assert list(truths) == ["a", "b"]
    truth = truths["a"]
    roles = {int(track): Role(role) for track, role in zip(truth.ids, truth.roles, strict=True)}
    assert roles == {1: Role.COUNTED, 2: Role.COUNTED, 3: Role.EXCLUDED, 4: Role.DISTRACTOR}
    assert truth.labels[truth.roles != Role.COUNTED].max() == -1 and truth.boxes[0].tolist() == [0, 0, 20, 30]


def test_frames_of_tracks(root: Path) -> None:
    source = mot(root=root, every=10)
    frames = [source.ground_truth(index).track for index in range(len(source))]
    assert [(frame.sequence, frame.frame, frame.time) for frame in frames if frame] == [
        *(("a", 1, 0), ("a", 11, 10 / 30), ("a", 21, 20 / 30)),
        *(("b", 1, None), ("b", 11, None), ("b", 21, None)),
    ], "the frame rate of b is unknown"
    assert np.unique(tracks_of(source)["a"].frames).tolist() == [1, 11, 21]
    both = Concat(sources=[source, mot(root=root, sequences=["a"])])
    assert both.info.sequences is not None
    assert (
        both.info.sequences[[0, -1]].tolist()
        == ["0/a", "1/a"]
        == [both[i]["ground_truth"].track.sequence for i in (0, 30)]
    )


def test_the_frame_rate_is_part_of_the_data(tmp_path: Path) -> None:
    """Tracks depend on the times of the frames: detections that were kept for others are not used."""
    fingerprints = set()
    for rate in ("30", "29.97"):
        write_sequence(tmp_path / rate / "a", info=INFO.replace("frameRate=30", f"frameRate={rate}"))
        source = mot(root=tmp_path / rate)
        fingerprints.add(source.fingerprint())
    assert len(fingerprints) == 2 and source.ground_truth(1).track.time == 1 / 29.97


def test_tracks_of_other_classes(root: Path) -> None:
    source = mot(root=root, classes=["car", "pedestrian"], sequences=["a"])
    relabeled = source.relabeled(("person", "vehicle"), np.array([1, 0]))
    assert np.unique(tracks_of(source)["a"].labels).tolist() == [-1, 1]
    assert np.unique(tracks_of(relabeled)["a"].labels).tolist() == [-1, 0]
    selected = relabeled.select(np.array([3]))
    assert selected.ground_truth(0).track == relabeled.ground_truth(3).track
    assert relabeled.fingerprint() != source.fingerprint()


def test_perfect_detections_are_tracked_and_evaluated(root: Path) -> None:
    truths = tracks_of(mot(root=root))
    tracks = {}
    for name, truth in truths.items():
        frames = []
        for number in range(1, FRAMES + 1):
            boxes = truth.boxes[(truth.frames == number) & (truth.roles != Role.EXCLUDED)]
            frames.append(Frame(number, FrameDetections(boxes, np.ones(len(boxes))), np.zeros(len(boxes), np.int64)))
        tracks[name] = track_sequence(byte_track, frames)
    scores = evaluate_tracks(truths, tracks, ["pedestrian"])["class_averaged"]
    assert (scores["FP"], scores["IDSW"], scores["FN"]) == (0, 0, 4), "the first frame of each track is not reported"


@pytest.mark.parametrize(
    ("line", "labels", "expected"),
    [
        pytest.param("1,1,1,1,20,30,1,-1,-1,-1", None, ("pedestrian",), id="MOT15: no classes, ten columns"),
        pytest.param("1,1,1,1,20,30,1", None, ("pedestrian",), id="seven columns"),
        pytest.param("1,1,1,1,20,30,1,2,1", "cat\ndog\n", ("cat", "dog"), id="CVAT: labels.txt"),
    ],
)
def test_dialects(tmp_path: Path, line: str, labels: str | None, expected: tuple[str, ...]) -> None:
    folder = write_sequence(tmp_path / "a", [line], None)
    if labels:
        (folder / "gt" / "labels.txt").write_text(labels, encoding="utf-8")
    source = mot(root=tmp_path)
    assert source.classes == expected
    assert source[0]["labels"].tolist() == [len(expected) - 1] and len(source) == FRAMES


def test_names_of_classes_that_differ_from_those_of_the_file(tmp_path: Path) -> None:
    write_sequence(tmp_path / "a", ["1,1,1,1,20,30,1,1,1"])
    assert mot(root=tmp_path, names=["dancer"]).classes == ("dancer",)
    assert mot(root=tmp_path, classes=["car", "pedestrian"])[0]["labels"].tolist() == [1]


# --- damaged sequences ------------------------------------------------------------------------------------------------


def line(text: str) -> Callable[[Path], None]:
    """Replace the third line of gt.txt."""

    def damage(folder: Path) -> None:
        lines = rows()
        lines[2] = text
        (folder / "gt" / "gt.txt").write_text("\n".join(lines), encoding="utf-8")

    return damage


def content(name: str, text: str | bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return damage


def entry(key: str, value: str) -> Callable[[Path], None]:
    """Replace an entry of seqinfo.ini."""
    lines = [f"{key}={value}" if row.startswith(f"{key}=") else row for row in INFO.splitlines()]
    return content("seqinfo.ini", "\n".join(lines))


def renamed(old: str, new: str | None) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / old).unlink() if new is None else (folder / old).rename(folder / new)

    return damage


def emptied(folder: Path) -> None:
    for file in (folder / "img1").iterdir():
        file.unlink()


LINES = {
    "1,1,1,1,20": "line 3: 5 columns in place of 9",
    "1,1,1,1,20,30": "line 3: 6 columns in place of 9",
    "1,3,1,1,10,10,0,1,1,0,0": "line 3: 11 columns in place of 9",
    "1 3 1 1 10 10 0 1 1": "line 3: 1 column in place of 9",
    "1;3;1;1;10;10;0;1;1": "line 3: 1 column in place of 9",
    "x,3,1,1,10,10,0,1,1": "line 3: 'x' is not a number",
    "1,,1,1,10,10,0,1,1": "line 3: '' is not a number",
    "1,3,1,1,1o,10,0,1,1": "line 3: '1o' is not a number",
    "1,3,nan,1,10,10,0,1,1": "line 3: 'nan' is not a number of at most",
    "1,3,1,inf,10,10,0,1,1": "line 3: 'inf' is not a number of at most",
    "1,3,1,-inf,10,10,0,1,1": "line 3: '-inf' is not a number of at most",
    "1,3,1e30,1,10,10,0,1,1": "line 3: '1e30' is not a number of at most",
    "1,99999999999,1,1,10,10,0,1,1": "line 3: '99999999999' is not a number of at most",
    "1.5,3,1,1,10,10,0,1,1": "line 3: frame and track are not whole numbers",
    "1,3.5,1,1,10,10,0,1,1": "line 3: frame and track are not whole numbers",
    "0,3,1,1,10,10,0,1,1": "line 3: there is no image of the frame; there are 1 to 25",
    "26,3,1,1,10,10,0,1,1": "line 3: there is no image of the frame; there are 1 to 25",
    "-1,3,1,1,10,10,0,1,1": "line 3: there is no image of the frame",
    "1,-3,1,1,10,10,0,1,1": "line 3: the track is negative",
    "1,3,1,1,0,10,0,1,1": "line 3: the box has no area",
    "1,3,1,1,10,0,0,1,1": "line 3: the box has no area",
    "1,3,1,1,-10,10,0,1,1": "line 3: the box has no area",
    "1,3,1,1,10,-10,0,1,1": "line 3: the box has no area",
    "1,3,1,1,10,10,2,1,1": "line 3: the mark whether the box counts is neither 0 nor 1",
    "1,3,1,1,10,10,-1,1,1": "line 3: the mark whether the box counts is neither 0 nor 1",
    "1,3,1,1,10,10,0.7,1,1": "line 3: the mark whether the box counts is neither 0 nor 1",
    "1,3,1,1,10,10,0,0,1": "line 3: the class is neither -1 nor 1 to 13",
    "1,3,1,1,10,10,0,14,1": "line 3: the class is neither -1 nor 1 to 13",
    "1,3,1,1,10,10,0,1.5,1": "line 3: the class is neither -1 nor 1 to 13",
    "1,3,1,1,10,10,0,-2,1": "line 3: the class is neither -1 nor 1 to 13",
    "1,3,1,1,10,10,0,1,1.5": "line 3: the visibility is neither -1 nor from 0 to 1",
    "1,3,1,1,10,10,0,1,-0.5": "line 3: the visibility is neither -1 nor from 0 to 1",
    "1,2,1,1,10,10,0,1,1": "line 3: the track has two boxes in the frame",
}
FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gt.txt is empty": (content("gt/gt.txt", ""), "gt.txt is empty"),
    "gt.txt has blank lines only": (content("gt/gt.txt", "\n\n \n"), "gt.txt is empty"),
    "gt.txt is binary": (content("gt/gt.txt", b"\xff\xfe\x00"), "gt.txt is not UTF-8: invalid start byte at byte 0"),
    "gt.txt has a header": (content("gt/gt.txt", "frame,id,x,y,w,h,c\n"), "line 1: 'frame' is not a number"),
    "gt.txt is missing": (renamed("gt/gt.txt", None), "none of its folders has a gt/gt.txt"),
    "gt is called otherwise": (renamed("gt", "labels"), "none of its folders has a gt/gt.txt"),
    "no frames": (emptied, "img1 has no images"),
    "img1 is called otherwise": (renamed("img1", "frames"), "img1 is missing: the folder of the frames"),
    "a frame is missing": (renamed("img1/000025.png", None), "seqLength is 25, there are 24 images"),
    "a frame without a number": (renamed("img1/000025.png", "img1/last.png"), "last.png: the name of a frame needs"),
    "two frames of a number": (
        renamed("img1/000025.png", "img1/1.png"),
        "two frames with the number 1: 000001.png and 1.png",
    ),
    "another number": (renamed("img1/000025.png", "img1/000099.png"), "line 97: there is no image of the frame"),
    "seqinfo.ini is no INI": (content("seqinfo.ini", "seqLength 25"), "seqinfo.ini is not an INI file"),
    "seqinfo.ini without a section": (content("seqinfo.ini", "[Other]\na=1\n"), "has no section \\[Sequence\\]"),
    "seqinfo.ini is empty": (content("seqinfo.ini", ""), "has no section \\[Sequence\\]"),
    "seqinfo.ini is binary": (content("seqinfo.ini", b"\xff\x00"), "seqinfo.ini is not UTF-8"),
    "a key is given twice": (content("seqinfo.ini", INFO + "imWidth=3\n"), "seqinfo.ini is not an INI file"),
    "seqLength is wrong": (entry("seqLength", "30"), "seqLength is 30, there are 25 images"),
    "seqLength is text": (entry("seqLength", "many"), "seqinfo.ini: seqLength: 'many' is not an integer"),
    "frameRate is 0": (entry("frameRate", "0"), "seqinfo.ini: frameRate: 0 is not above 0"),
    "frameRate is text": (entry("frameRate", "fast"), "seqinfo.ini: frameRate: 'fast' is not a number"),
    "imWidth is negative": (entry("imWidth", "-64"), "seqinfo.ini: imWidth: -64 is not an integer, 1 to"),
    "imHeight is huge": (entry("imHeight", "16777216"), "imWidth x imHeight: 64 x 16777216 is not a size in pixels"),
    "imDir is missing": (entry("imDir", "images"), "images is missing: the folder of the frames"),
    "imDir leads out": (entry("imDir", "../b/img1"), "imDir '../b/img1' leads out of the folder"),
    "labels.txt is empty": (content("gt/labels.txt", ""), "the class is neither -1 nor 1 to 0"),
    "labels.txt has an empty line": (content("gt/labels.txt", "a\n\nb\n"), "labels.txt, line 2: '' is not a name"),
    "labels.txt has a name twice": (content("gt/labels.txt", "a\na\n"), "line 2: two classes are called 'a'"),
    "labels.txt is too short": (content("gt/labels.txt", "a\nb\n"), "line 4: the class is neither -1 nor 1 to 2"),
    "labels.txt is binary": (content("gt/labels.txt", b"\xff"), "labels.txt is not UTF-8"),
}
CASES = {text: (line(text), message) for text, message in LINES.items()} | FILES


def test_there_are_sixty_damaged_sequences() -> None:
    assert len(CASES) >= 60


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sequence(tmp_path_factory.mktemp("intact") / "a")


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_sequence_has_one_clear_error(name: str, intact: Path, tmp_path: Path) -> None:
    damage, message = CASES[name]
    folder = tmp_path / "a"
    for file in sorted(intact.rglob("*")):
        target = folder / file.relative_to(intact)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".png":  # links are quick, and no damage writes into an image
            target.hardlink_to(file)
        elif file.is_file():
            target.write_bytes(file.read_bytes())
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        mot(root=tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_frame_that_is_no_image(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path / "a", info=None)
    (folder / "img1" / "000002.png").write_text("text", encoding="utf-8")
    with pytest.raises(ValueError, match=r"000002\.png"):
        mot(root=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": ["c"]}, "sequences: .* has no sequence 'c'; it has a, b"),
        ({"exclude": ["c"]}, "exclude: .* has no sequence 'c'; it has a, b"),
        ({"sequences": []}, "sequences: none is named; .* has a, b"),
        ({"sequences": ["a"], "exclude": ["a"]}, "no sequence is left of 2 sequences"),
        ({"classes": ["cat"]}, "classes: .* has no class 'cat'; it has pedestrian, person on vehicle"),
        ({"classes": ["car", "car"]}, "classes: 'car' is given twice"),
        ({"classes": []}, "classes: at least one is needed"),
        ({"distractors": ["cat"]}, "distractors: .* has no class 'cat'"),
        ({"classes": ["car"], "distractors": ["car"]}, "distractors: car is one of the classes"),
    ],
)
def test_names_that_do_not_exist(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mot(root=root, **options)
