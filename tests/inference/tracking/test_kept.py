"""Detections that are kept in a run folder."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opabinia.contracts import DataMismatch, Sample, Source
from opabinia.data.errors import DataError
from opabinia.data.sources.wrapper import select_samples
from opabinia.inference.tracking.kept import CAMERA, DETECTIONS, EMBEDDINGS, KeptVideos, VideoDetections
from opabinia.models.trackers.sequences import Frame
from tests.inference.tracking.squares import Seeing, SquareVideos

NAMES = {kind: f"{kind}-1" for kind in (DETECTIONS, EMBEDDINGS, CAMERA)}


def kept(folder: Path, models: Seeing, source: Source | None = None) -> KeptVideos:
    return KeptVideos(folder, source or SquareVideos(), models, NAMES)


def frames(videos: KeptVideos) -> list[Frame]:
    video = videos.detections("crossing")
    embeddings, annotated = videos.embeddings("crossing", video)
    assert np.array_equal(embeddings, annotated)
    return list(video.frames_to_track(embeddings, videos.camera("crossing", video)))


def test_what_is_kept_is_what_was_detected(tmp_path: Path) -> None:
    models = Seeing()
    made, source = frames(kept(tmp_path, models)), SquareVideos()
    assert (models.detected, models.embedded) == (22, 44)
    assert [frame.number for frame in made] == list(range(22)) and len(made[9].labels) == 1
    for frame in made:
        expected = models.detect(source[frame.number]["image"], frame.number).detections
        assert np.array_equal(frame.detections.boxes, expected.boxes)
        assert frame.detections.embeddings is not None and frame.detections.time == frame.number / 10
    models = Seeing()
    read = frames(kept(tmp_path, models))
    assert (models.detected, models.embedded) == (0, 0)
    for frame, again in zip(made, read, strict=True):
        assert (again.number, again.detections[3:]) == (frame.number, frame.detections[3:])
        assert all(np.array_equal(*pair) for pair in zip(again.detections[:3], frame.detections[:3], strict=True))


def test_annotated_objects_as_detections(tmp_path: Path) -> None:
    video = kept(tmp_path, Seeing()).detections("passing")
    roles = video.truth.roles.copy()
    roles[::3] = 1
    counted = video._replace(truth=video.truth._replace(roles=roles)).counted()
    assert len(counted.boxes) == 12 and counted.scores.tolist() == [1] * 12
    assert counted.frames.tolist() == np.repeat(range(6), 2).tolist()


def lengthen(path: Path) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{name: np.concatenate([array, array[:1]]) for name, array in arrays.items() if name != "numbers"})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [DETECTIONS, EMBEDDINGS, CAMERA])
@pytest.mark.parametrize("change", [lengthen, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_damaged_files_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, change: Callable[[Path], None]
) -> None:
    made = frames(kept(tmp_path, Seeing()))
    change(tmp_path / NAMES[kind] / "00000.npz")
    with caplog.at_level(logging.WARNING, "opabinia"):
        again = frames(kept(tmp_path, Seeing()))
    assert "is broken and made again" in caplog.text
    for frame, other in zip(made, again, strict=True):
        assert np.array_equal(frame.detections.boxes, other.detections.boxes)


def test_a_changed_byte_changes_nothing(tmp_path: Path) -> None:
    made = kept(tmp_path, Seeing()).detections("passing")
    (path,) = tmp_path.rglob("*.npz")
    content, models = path.read_bytes(), Seeing()
    for position in range(0, len(content), 101):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        read = kept(tmp_path, models).detections("passing")
        assert all(np.array_equal(column, read.arrays()[name]) for name, column in made.arrays().items())
    assert models.detected > 60


def test_frames_that_are_not_there(tmp_path: Path) -> None:
    source = select_samples(SquareVideos(), np.array([0, 1, 2, 4, 5, 22, 23]))
    with pytest.raises(DataMismatch, match=r"crossing: frame 2 is followed by frame 4: .* must not skip any"):
        kept(tmp_path, Seeing(), source).detections("crossing")
    assert not list(tmp_path.rglob("*.npz"))


def test_data_without_tracks_and_frames_that_cannot_be_read(tmp_path: Path) -> None:
    class Images(SquareVideos):
        def __init__(self) -> None:
            super().__init__()
            self.info = type(self.info)(classes=("square",), boxes=True)

    class Broken(SquareVideos):
        def __getitem__(self, index: int) -> Sample:
            raise OSError("broken.png: not an image")

    with pytest.raises(DataMismatch, match="Images has no videos with tracks; sources such as mot"):
        kept(tmp_path, Seeing(), Images()).detections("crossing")
    with pytest.raises(DataError, match=r"sample 0: broken\.png: not an image"):
        kept(tmp_path, Seeing(), Broken()).detections("crossing")


def test_arrays_that_do_not_fit() -> None:
    with pytest.raises(KeyError):
        VideoDetections.of_arrays({})
