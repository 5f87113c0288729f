"""Videos packed into JPEGs: the same samples and clips."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, Sample, Source, SourceInfo
from opabinia.data.decoding import pack as packing
from opabinia.data.decoding.image_sequences import VideoInMemory
from opabinia.data.decoding.pack import pack
from opabinia.data.sources import Digits, PackedVideos, VideoList, Videos, VideoViews
from opabinia.data.transforms.frame_sampling import Clip
from tests.data.videos import write


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write five videos of different lengths, and one with a variable frame rate."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(5):
        write(root / ("jump", "run")[number % 2] / f"{number}.mp4", 9 + 5 * number)
    write(root / "run" / "uneven.mp4", 12, times=np.cumsum(np.arange(12) * 9 + 20).tolist())
    return root


@pytest.fixture(autouse=True)
def two_videos_per_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VIDEOS_PER_SHARD", 2)


class RecordingVideo:
    """A video that records the requested frames."""

    def __init__(self, video: Any) -> None:
        self._video, self.requested = video, [video.path][:0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._video, name)

    def read(self, indices: Sequence[int], short_side: int | None = None) -> Tensor:
        self.requested = list(indices)
        result: Tensor = self._video.read(indices, short_side)
        return result


def test_samples_and_clips_are_the_same(root: Path, tmp_path: Path) -> None:
    original = Videos(root=root, flip_sensitive_classes=["run"])
    summary = pack(original, tmp_path / "packed", quality=95, workers=2)
    packed = PackedVideos(root=tmp_path / "packed")
    assert isinstance(packed, Source)
    frames = sum(original[index]["video"].frames for index in range(6))
    assert (summary.videos, summary.frames, summary.skipped) == (6, frames, 0)
    assert packed.fingerprint() == original.fingerprint() and packed.classes == original.classes
    clip = Clip(frames=4, stride=(1, 3), fps=20.0)
    for index in range(6):
        samples = original[index], packed[index]
        for key in ("id", "label", "flip_changes_label"):
            assert samples[0][key] == samples[1][key]
        videos = [RecordingVideo(sample["video"]) for sample in samples]
        for name in ("frames", "fps", "seconds", "size"):
            assert getattr(videos[0], name) == getattr(videos[1], name)
        for seed in range(2):
            clips = []
            for video, sample in zip(videos, samples, strict=True):
                torch.manual_seed(seed)
                clips.append(clip({**sample, "video": video})["image"].float())
            assert videos[0].requested == videos[1].requested
            assert (clips[0] - clips[1]).abs().mean() < 8, "except for the noise that JPEG loses"


def test_frames_are_jpegs_of_the_requested_size(root: Path, tmp_path: Path) -> None:
    pack(VideoViews(source=Videos(root=root), clips=3, crops=3), tmp_path / "packed", size=24)
    packed = PackedVideos(root=tmp_path / "packed", channels=1)
    assert len(packed) == 6 and packed[0]["video"].size == (24, 32), "videos, not views"
    assert packed[5]["video"].read([3, 0, 3]).shape == (3, 1, 24, 32)
    assert packed[5]["video"].read([1], short_side=12).shape == (1, 1, 12, 16)
    with tarfile.open(tmp_path / "packed" / "00002.tar") as tar:
        names = tar.getnames()
        image = tar.extractfile("00000005/000011.jpg")
        assert image is not None and image.read(2) == b"\xff\xd8"
    frames = packed[4]["video"].frames
    assert names[: frames + 1] == [f"00000004/{number:06d}.jpg" for number in range(frames)] + ["00000004.npy"]


class Gradients(Source):
    """Gray videos in memory; class b must not be flipped."""

    info = SourceInfo(channels=1, classes=("a", "b"))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Sample:
        rows, columns = torch.meshgrid(torch.arange(16), torch.arange(24), indexing="ij")
        frames = [(8 * rows + 4 * columns + 9 * number + index).to(torch.uint8) for number in range(5 + index)]
        video = VideoInMemory(torch.stack(frames)[:, None] // 2, fps=7.0 + index)
        return {"video": video, "label": index % 2, "flip_changes_label": index % 2 == 1, "id": f"video {index}"}


def test_gray_videos_in_memory(tmp_path: Path) -> None:
    pack(Gradients(), tmp_path / "packed", quality=95)
    packed = PackedVideos(root=tmp_path / "packed")
    assert (packed.channels, packed.classes, packed.info.labels.tolist()) == (1, ("a", "b"), [0, 1, 0])
    assert [sample["flip_changes_label"] for sample in map(packed.__getitem__, range(3))] == [False, True, False]
    original, video = Gradients()[2]["video"], packed[2]["video"]
    assert (video.frames, video.fps, packed.id(2)) == (7, 9.0, "video 2")
    assert (video.read(range(7)).float() - original.read(range(7)).float()).abs().mean() < 4
    overridden = PackedVideos(root=tmp_path / "packed", flip_sensitive_classes=["a"])
    assert [sample["flip_changes_label"] for sample in map(overridden.__getitem__, range(3))] == [True, False, True]


def test_several_labels(root: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("jump/0.mp4 0,2\nrun/1.mp4 1\n")
    pack(VideoList(file=tmp_path / "list.txt", root=root, multi_label=True), tmp_path / "packed")
    packed = PackedVideos(root=tmp_path / "packed")
    assert packed.info.multi_label and packed.info.labels.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert packed[0]["label"].tolist() == [1, 0, 1]


def test_packing_resumes(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(root, videos)
    (videos / "run" / "3.mp4").write_bytes(b"")
    source, packed = Videos(root=videos), tmp_path / "packed"
    with pytest.raises(DataMismatch, match=r"video 4: .*3\.mp4 is empty: it has 0 bytes"):
        pack(source, packed)
    finished_shard = packed / "00000.tar"
    before = finished_shard.stat().st_mtime_ns
    assert not list(packed.glob(".*.tmp"))
    with pytest.raises(ValueError, match=r"packed has no films\.json: packing has started there and not finished"):
        PackedVideos(root=packed)
    with pytest.raises(DataMismatch, match="holds a part of other videos, or of another size or quality"):
        pack(source, packed, size=32)
    assert pack(source, packed, skip=True).skipped == 1
    assert "skipped: video 4" in caplog.text
    assert finished_shard.stat().st_mtime_ns == before, "a finished shard is not written again"
    assert sorted(path.name for path in packed.glob("[!.]*")) == ["00000.tar", "00001.tar", "00002.tar", "films.json"]
    names = [PackedVideos(root=packed).id(index) for index in range(5)]
    assert names == [source.id(index) for index in (0, 1, 2, 3, 5)]
    with pytest.raises(DataMismatch, match="holds packed videos already"):
        pack(source, packed)
    with pytest.raises(DataMismatch, match="only videos can be packed"):
        pack(Digits(), tmp_path / "digits")


def test_damaged_files_raise(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    pack(Videos(root=root), folder)
    shard, index = folder / "00001.tar", folder / "films.json"
    shard_bytes, index_content = shard.read_bytes(), json.loads(index.read_bytes())

    def assert_refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PackedVideos(root=folder)

    shard.write_bytes(shard_bytes[:-512])
    assert_refused(r"00001\.tar has \d+ bytes, films\.json says \d+; pack the videos again")
    shard.unlink()
    assert_refused(r"00001\.tar is missing")
    offset = index_content["films"]["place"][2]
    shard.write_bytes(bytes(len(shard_bytes)))
    video = PackedVideos(root=folder)[2]["video"]
    with pytest.raises(ValueError, match=r"00001\.tar, jump/4\.mp4: the shard has changed since it was written"):
        video.read([0])
    shard.write_bytes(bytes(1024) + shard_bytes[1024:offset] + shard_bytes[offset:])
    with pytest.raises(ValueError, match=r"00001\.tar, jump/4\.mp4: frame 0 cannot be decoded"):
        PackedVideos(root=folder)[2]["video"].read([0])
    index_content["films"]["place"][2] = 10**12
    index.write_text(json.dumps(index_content))
    with pytest.raises(ValueError, match="its index is damaged: there are no bytes 1000000000000"):
        PackedVideos(root=folder)[2]["video"].read([0])
    for change in ({"format": 2}, {"films": {}}, {"channels": 2}):
        index.write_text(json.dumps({**index_content, **change}))
        assert_refused(r"films\.json is damaged \(")
    with pytest.raises(ValueError, match="there is no folder"):
        PackedVideos(root=tmp_path / "gone")
