"""Video sources: folders, lists, folders of frames, views."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Source, Video
from opabinia.data.check import run_checks
from opabinia.data.decoding.video import VideoFile
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.data.sources import FrameFolders, VideoList, Videos, VideoViews
from opabinia.data.sources.moving_digits import MovingDigits
from opabinia.data.transforms.frame_sampling import Clip
from tests.data.sources.hostile import bounded
from tests.data.videos import make_frames, write, write_sound


def write_videos(root: Path, *names: str) -> None:
    """Write files whose content is not read."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


# --- folders ----------------------------------------------------------------------------------------------------------


def test_class_folders(tmp_path: Path) -> None:
    names = ("run/b.AVI", "run/deep/a.mp4", "run/note.txt", "run/.hidden.mp4", "jump/1.webm", "jump/2.Mov")
    write_videos(tmp_path, *names)
    source = Videos(root=tmp_path, flip_sensitive_classes=["run"])
    assert isinstance(source, Source)
    assert source.classes == ("jump", "run")
    assert [source.id(index) for index in range(4)] == ["jump/1.webm", "jump/2.Mov", "run/b.AVI", "run/deep/a.mp4"]
    assert source.info.labels.tolist() == [0, 0, 1, 1]
    sample = source[3]
    assert (sample["label"], sample["flip_changes_label"], sample["id"]) == (1, True, "run/deep/a.mp4")
    assert isinstance(sample["video"], VideoFile) and sample["video"].path == str(tmp_path / "run/deep/a.mp4")
    assert source[0]["flip_changes_label"] is False
    single_class = Videos(root=tmp_path, classes=["run"])
    assert len(single_class) == 2 and single_class.fingerprint() != source.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"jump has no video \(\.mp4"),
        (
            {"classes": ["run"], "flip_sensitive_classes": ["rum"]},
            "flip_sensitive_classes: the source has no class 'rum'; there is run",
        ),
        ({"root": Path("/gone")}, "there is no folder"),
    ],
)
def test_errors_in_folders_are_reported(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_videos(tmp_path, "run/a.mp4", "jump/note.txt")
    with pytest.raises(ValueError, match=message):
        Videos(**{"root": tmp_path, **options})


def test_videos_are_read(tmp_path: Path) -> None:
    write(tmp_path / "run" / "a.mp4", 12)
    video = Videos(root=tmp_path, channels=1)[0]["video"]
    assert video.read([0, 11]).shape == (2, 1, 48, 64)


# --- lists ------------------------------------------------------------------------------------------------------------


def video_list(tmp_path: Path, text: str, name: str = "list.txt", **keys: Any) -> VideoList:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return VideoList(file=tmp_path / name, **keys)


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("list.txt", "v/a b.mp4 2\nv/c.mp4 0\n", {}),
        ("list.csv", "v/a b.mp4,2\nv/c.mp4,0\n", {}),
        ("list.csv", "v/a b.mp4 2\nv/c.mp4 0\n", {}),  # SlowFast calls these csv
        ("list.txt", "v/a b.mp4;2\n\nv/c.mp4;0", {"separator": ";"}),
        ("list.csv", "label,path\n2,v/a b.mp4\n0,v/c.mp4\n", {}),
        ("list.tsv", "path\tx\tlabel\nv/a b.mp4\t1\t2\nv/c.mp4\t1\t0\n", {}),
        ("list.csv", "tag,video\n2,v/a b.mp4\n0,v/c.mp4\n", {"path": "video", "label": "tag"}),
    ],
)
def test_lists(name: str, text: str, keys: dict[str, Any], tmp_path: Path) -> None:
    write_videos(tmp_path, "v/a b.mp4", "v/c.mp4")
    source = video_list(tmp_path, text, name, **keys)
    assert isinstance(source, Source)
    assert [source.id(index) for index in range(2)] == ["v/a b.mp4", "v/c.mp4"]
    assert source.info.labels.tolist() == [2, 0]
    assert source.classes == ("0", "1", "2"), "a missing class does not change other labels"
    assert source[0]["video"].path == str(tmp_path / "v/a b.mp4")


def test_labels_by_name_and_by_number(tmp_path: Path) -> None:
    write_videos(tmp_path, "a.mp4", "b.mp4")
    assert video_list(tmp_path, "a.mp4 run\nb.mp4 jump").info.labels.tolist() == [1, 0]
    assert video_list(tmp_path, "a.mp4 run\nb.mp4 jump", classes=["run", "jump"]).info.labels.tolist() == [0, 1]
    (tmp_path / "names.txt").write_text("0 run fast\n1 jump\n")
    source = video_list(
        tmp_path, "a.mp4 1\nb.mp4 0", class_file=tmp_path / "names.txt", flip_sensitive_classes=["run fast"]
    )
    assert (source.info.labels.tolist(), source.classes) == ([1, 0], ("run fast", "jump"))
    assert [source[index]["flip_changes_label"] for index in range(2)] == [False, True]
    with pytest.raises(ValueError, match=r"line 2: label '2' is none of the 2 classes \(0 to 1\); does .* from 1"):
        video_list(tmp_path, "a.mp4 1\nb.mp4 2", classes=["run", "jump"])
    with pytest.raises(ValueError, match=r"line 1: label 'rum' is none of the 2 classes: run, jump"):
        video_list(tmp_path, "a.mp4 rum\nb.mp4 run", classes=["run", "jump"])
    with pytest.raises(ValueError, match="give one of them"):
        video_list(tmp_path, "a.mp4 1", classes=["run"], class_file=tmp_path / "names.txt")


def test_several_labels(tmp_path: Path) -> None:
    write_videos(tmp_path, "a.mp4", "b.mp4", "c.mp4")
    source = video_list(tmp_path, "a.mp4 0,2\nb.mp4\nc.mp4 1\n", multi_label=True, flip_sensitive_classes=["2"])
    assert source.info.multi_label
    assert source.info.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert torch.equal(source[0]["label"], torch.tensor([1.0, 0, 1]))
    assert [source[index]["flip_changes_label"] for index in range(3)] == [True, False, False]


def test_the_csv_of_kinetics(tmp_path: Path) -> None:
    text = (
        "label,youtube_id,time_start,time_end,split\n"
        '"riding, a bike",-abc,12,22,val\nabseiling,xyz_1,5.0,15.0,train\nabseiling,gone,0,10,train\n'
    )
    write_videos(tmp_path, "-abc_000012_000022.mp4", "abseiling/xyz_1_000005_000015.mp4")
    with pytest.raises(ValueError, match=r"1 of 3 are not in .*skip.*: gone_000000_000010\.mp4 \(line 4\)"):
        video_list(tmp_path, text, "k.csv")
    source = video_list(tmp_path, text, "k.csv", missing="skip")
    assert source.classes == ("abseiling", "riding, a bike")
    assert source.info.labels.tolist() == [1, 0]
    assert source.id(1) == "abseiling/xyz_1_000005_000015.mp4"
    assert len(video_list(tmp_path, text, "k.csv", missing="skip", split="val")) == 1
    with pytest.raises(ValueError, match="no videos of split 'test'"):
        video_list(tmp_path, text, "k.csv", split="test")


def test_segments_of_videos(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", 50, gop=10)  # 25 frames per second
    text = "path,start,end,label\na.mp4,0.4,1.2,run\na.mp4,1.0,1.6,jump\na.mp4,1.6,,run\na.mp4,,,jump\n"
    source = video_list(tmp_path, text, "parts.csv")
    assert [source.id(index) for index in range(4)] == ["a.mp4#t=0.4,1.2", "a.mp4#t=1,1.6", "a.mp4#t=1.6", "a.mp4"]
    assert source.info.labels.tolist() == [1, 0, 1, 0]
    all_frames = VideoFile(tmp_path / "a.mp4").read(range(50))
    for index, (first, stop) in enumerate([(10, 30), (25, 40), (40, 50), (0, 50)]):
        video = source[index]["video"]
        assert isinstance(video, Video)
        assert (video.frames, video.fps) == (stop - first, 25) and video.seconds == pytest.approx((stop - first) / 25)
        assert torch.equal(video.read(range(stop - first)), all_frames[first:stop])
    with pytest.raises(ValueError, match=r"has frames 0 to 19; there is no frame 20"):
        source[0]["video"].read([20])
    assert video_list(tmp_path, text.replace("0.4", "0.5"), "parts.csv").fingerprint() != source.fingerprint()


def test_segments_follow_the_timestamps_of_frames(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", 20, times=[40 * number + 1000 * (number > 9) for number in range(20)])
    source = video_list(tmp_path, "path,start,end,label\na.mkv,0.36,1.5,run\na.mkv,9,10,run\n", "parts.csv")
    assert torch.equal(source[0]["video"].read([0, 2]), VideoFile(tmp_path / "a.mkv").read([9, 11]))
    with pytest.raises(ValueError, match=r"a\.mkv has 1\.8\d seconds; none of its frames is after 9"):
        source[1]["video"].read([0])
    (finding,) = (finding for finding in run_checks({"train": source}).findings if finding.is_error)
    assert finding.count == 1 and "none of its frames is after 9" in str(finding.cases)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.mp4,2,1,run", "line 2: a part from 2 to 1 is empty"),
        ("a.mp4,x,1,run", "line 2: start and end must be seconds"),
        ("a.mp4,-1,1,run", "0 <= start < end"),
        ("a.mp4,nan,1,run", "start and end must be seconds"),
        ("a.mp4,0,1,run\na.mp4,0.0,1.0,jump", r"lists a\.mp4#t=0,1 twice: line 2 and line 3"),
    ],
)
def test_invalid_segments_are_reported(row: str, message: str, tmp_path: Path) -> None:
    write_videos(tmp_path, "a.mp4")
    with pytest.raises(ValueError, match=message):
        video_list(tmp_path, f"path,start,end,label\n{row}\n", "parts.csv")


def test_lists_of_mmaction2_with_several_labels(tmp_path: Path) -> None:
    write_videos(tmp_path, "v 1/a.mp4", "b.mp4")
    source = video_list(tmp_path, "v 1/a.mp4 1 3 5\nb.mp4 0\n", multi_label=True)
    assert source.info.labels.nonzero()[1].tolist() == [1, 3, 5, 0] and source.id(0) == "v 1/a.mp4"


def test_the_json_of_something_something(tmp_path: Path) -> None:
    write_videos(tmp_path, "7.webm", "9.mp4")
    (tmp_path / "labels.json").write_text('{"Holding something": "1", "Moving something up": "0"}')
    text = (
        '[{"id": "7", "label": "moving a cup up", "template": "Moving [something] up", "placeholders": ["a cup"]},'
        '{"id": "9", "template": "Holding [something]"}]'
    )
    source = video_list(tmp_path, text, "train.json", class_file=tmp_path / "labels.json")
    assert source.classes == ("Moving something up", "Holding something")
    assert (source.info.labels.tolist(), source.id(0), source.id(1)) == ([0, 1], "7.webm", "9.mp4")
    for broken, message in (
        ("{", "is not complete JSON"),
        ('[{"id": 3}]', "entry 0: expected an object with id and templ"),
    ):
        with pytest.raises(ValueError, match=message):
            video_list(tmp_path, broken, "train.json")
    (tmp_path / "labels.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="index of each class"):
        video_list(tmp_path, text, "train.json", class_file=tmp_path / "labels.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4 0\nb.mp4\n", r"list\.txt, line 2: 'b\.mp4' has no label"),
        ("a.mp4 0\na.mp4 1\n", r"lists a\.mp4 twice: line 1 and line 2"),
        ("a.mp4 0\n./a.mp4 1\n", r"lists \./a\.mp4 twice: line 1 and line 2"),
        ("b.mp4 3\na.mp4 20000000\n", r"list\.txt, line 2: label .*too many classes"),
        ("b.mp4 3\na.mp4 1000000000\n", r"list\.txt, line 2: label .*too many classes"),
        (f"b.mp4 3\na.mp4 {'9' * 5000}\n", r"list\.txt, line 2: label .*characters"),
        ("a.mp4 0\ngone.mp4 1\n", r"1 of 2 are not in .*: gone\.mp4 \(line 2\)"),
        ("\n\n", "is empty"),
    ],
)
def test_errors_in_lists_are_reported(text: str, message: str, tmp_path: Path) -> None:
    write_videos(tmp_path, "a.mp4", "b.mp4")
    with bounded(), pytest.raises(ValueError, match=message):
        video_list(tmp_path, text)


def test_unused_options_of_lists_are_refused(tmp_path: Path) -> None:
    write_videos(tmp_path, "a.mp4")
    with pytest.raises(ValueError, match=r"split: .* has no splits"):
        video_list(tmp_path, "a.mp4 0", split="val")
    with pytest.raises(ValueError, match="there is no file"):
        VideoList(file=tmp_path / "gone.txt")
    for time in ("", "inf", "nan", "1e300", "x"):
        text = f"label,youtube_id,time_start,time_end,split\nrun,x,{time},10,val\n"
        with pytest.raises(ValueError, match=r"k\.csv, line 2: time_start and time_end must be seconds"):
            video_list(tmp_path, text, "k.csv")


# --- folders of frames ------------------------------------------------------------------------------------------------


def write_frames(folder: Path, names: list[str]) -> Any:
    folder.mkdir(parents=True)
    images = make_frames(len(names))
    for name, frame in zip(names, images, strict=True):
        Image.fromarray(frame).save(folder / name)
    return images


def test_folders_of_frames(tmp_path: Path) -> None:
    first = write_frames(tmp_path / "v" / "one", [f"img_{number:05d}.png" for number in range(1, 12)])
    second = write_frames(tmp_path / "two three", ["1.png", "2.png", "10.png"])
    (tmp_path / "list.txt").write_text("v/one 11 1\ntwo three 0\n")
    source = FrameFolders(file=tmp_path / "list.txt", fps=12)
    assert isinstance(source, Source)
    assert source.info.labels.tolist() == [1, 0]
    video = source[0]["video"]
    assert isinstance(video, Video)
    assert (video.frames, video.fps, source[1]["id"]) == (11, 12, "two three")
    assert np.array_equal(video.read([10, 0]).permute(0, 2, 3, 1).numpy(), first[[10, 0]])
    assert np.array_equal(source[1]["video"].read([2]).permute(0, 2, 3, 1).numpy(), second[[2]]), (
        "frames are sorted by number"
    )
    (tmp_path / "list.csv").write_text("v/one;to the left\ntwo three; right\n")
    named = FrameFolders(file=tmp_path / "list.csv", separator=";")
    assert (named.classes, named.info.labels.tolist()) == (("right", "to the left"), [1, 0])
    with_pattern = FrameFolders(file=tmp_path / "list.txt", pattern="img_{:05d}.png")
    assert np.array_equal(with_pattern[0]["video"].read([3]).permute(0, 2, 3, 1).numpy(), first[[3]])


@pytest.mark.parametrize(
    ("text", "pattern", "message"),
    [
        ("one 5 1\n", None, "one has 2 images, its list says 5"),
        ("one 5 1\n", "img.png", r"pattern: 'img\.png' has no placeholder"),
        ("one 2 1\ngone 3 0\n", None, r"1 of 2 are not folders in .*: gone \(line 2\)"),
        ("one 2 1\ngone\n", None, "line 2: 'gone' is not a folder, number of frames"),
    ],
)
def test_errors_in_folders_of_frames_are_reported(tmp_path: Path, text: str, pattern: Any, message: str) -> None:
    write_frames(tmp_path / "one", ["1.png", "2.png"])
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        FrameFolders(file=tmp_path / "list.txt", pattern=pattern)[0]


def test_a_missing_frame_is_named(tmp_path: Path) -> None:
    write_frames(tmp_path / "one", ["1.png", "2.png"])
    (tmp_path / "list.txt").write_text("one 5 1\n")
    with pytest.raises(FileNotFoundError, match=r"5\.png"):
        FrameFolders(file=tmp_path / "list.txt", pattern="{}.png")[0]["video"].read([4])


# --- views ------------------------------------------------------------------------------------------------------------


def test_every_video_has_several_views() -> None:
    digits = MovingDigits(split="val")
    source = VideoViews(source=digits, clips=4, crops=3)
    assert isinstance(source, Source)
    assert len(source) == 12 * len(digits)
    assert source.info.labels.tolist() == np.repeat(digits.info.labels, 12).tolist()
    assert (source.classes, source.channels) == (digits.classes, 1)
    samples = [source[index] for index in range(12, 24)]
    assert {sample["id"] for sample in samples} == {digits.id(1), source.id(12)}
    assert [sample["view"] for sample in samples] == [((i, 4), (j, 3)) for i in range(4) for j in range(3)]
    assert source.fingerprint() != digits.fingerprint()
    assert source.batch(np.arange(2)) is None and not source.info.multi_label
    with pytest.raises(IndexError):
        source[len(source)]


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"no video " * 40, None], ids=["empty", "text", "sound"])
def test_a_broken_video_is_named(tmp_path: Path, content: bytes | None) -> None:
    write(tmp_path / "jump" / "0.mp4", 6)
    if content is None:
        write_sound(tmp_path / "jump" / "1.mp4")
    else:
        (tmp_path / "jump" / "1.mp4").write_bytes(content)
    reader = BatchReader(Videos(root=tmp_path), [Clip(frames=4, stride=2)], seed=1)
    problem = r"Clip: .*1\.mp4 (is empty|is not a video|is not a readable video|has no video stream)"
    with pytest.raises(DataError, match=problem):
        list(Loader(reader, evaluation_requests(2, 2, 0, 1)).iterate())
