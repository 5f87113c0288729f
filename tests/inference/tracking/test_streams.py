"""Videos, folders of frames and sequences to track."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.config import ConfigError
from opabinia.inference.tracking.streams import find_streams
from tests.data.videos import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streams")
    write(root / "all" / "clip.mp4", 4)
    images = {
        "all/street-10/img1": [3, 5, 4],
        "all/street-9/img1": [1, 2],
        "frames": [1, 10, 2],
        "empty": [],
    }
    for name, numbers in images.items():
        (root / name).mkdir(parents=True)
        for number in numbers:
            Image.fromarray(np.full((8, 12), 10 * number, np.uint8)).save(root / name / f"{number}.png")
    (root / "all" / "street-9" / "seqinfo.ini").write_text("[Sequence]\nframeRate=10\n")
    (root / "all" / "notes.txt").touch()
    return root


def shown(folder: Path, *paths: str, rate: float | None = None) -> dict[str, list[tuple[int, float, int]]]:
    """Return number, time and first pixel of each frame, by the name of the stream; with the first number of MOT."""
    streams = find_streams([str(folder / path) for path in paths], rate)
    return {
        f"{stream.name} {stream.first}": [
            (frame.number, round(frame.seconds, 3), int(frame.image[0, 0, 0])) for frame in stream.read(1)
        ]
        for stream in streams
    }


def test_frames_are_in_natural_order(folder: Path) -> None:
    assert shown(folder, "frames", rate=5) == {"frames 1": [(0, 0, 10), (1, 0.2, 20), (2, 0.4, 100)]}


def test_frames_of_sequences_have_their_numbers(folder: Path) -> None:
    nine = [(0, 0, 10), (1, 0.1, 20)]
    for path in ("all/street-9", "all/street-9/img1"):
        assert shown(folder, path) == {"street-9 1": nine}
    ten = {"street-10 3": [(0, 0, 30), (1, 0.033, 40), (2, 0.067, 50)]}
    assert shown(folder, "all/street-10") == ten


def test_folders_of_sequences_and_videos(folder: Path) -> None:
    streams = find_streams([str(folder / "all"), str(folder / "all" / "clip.mp4"), "rtsp://me:secret@host/a.b?c"])
    assert [stream.name for stream in streams] == ["clip", "street-9", "street-10", "clip-2", "a"]
    assert [stream.is_live for stream in streams] == [False] * 4 + [True]
    assert streams[-1].path == "rtsp://host/a.b"
    assert [frame.seconds for frame in streams[0].read(3)] == pytest.approx([0, 0.04, 0.08, 0.12])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("empty", "has no frames, no video files and no sequences"),
        ("frames/1.png", "is no video; give a folder of frames"),
    ],
)
def test_mistakes(path: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        find_streams([str(folder / path)])
