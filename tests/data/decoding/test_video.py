"""Video decoding: exact frames, no needless decoding, and errors with the file's name."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Video
from opabinia.data.decoding import seeking, video, video_index
from opabinia.data.decoding.image_sequences import FrameFolder, VideoInMemory
from opabinia.data.decoding.video import VideoFile
from tests.data.videos import decoded, make_frames, write, write_sound

UNEVEN = np.cumsum(np.random.default_rng(0).integers(10, 90, 40)).tolist()
OPEN = {"x264-params": "open-gop=1:bframes=3:keyint=12:scenecut=0"}
PYRAMID = {"x264-params": "b-pyramid=normal:bframes=5:b-adapt=0:keyint=30"}
REFRESH = {"x264-params": "intra-refresh=1:keyint=12:scenecut=0"}

KINDS: dict[str, dict[str, Any]] = {
    "long.mp4": {},
    "short.mp4": {"gop": 12},
    "sound.mp4": {"gop": 12, "sound": True},
    "whole.mp4": {"gop": 1, "b_frames": 0},
    "open.mp4": {"options": OPEN},
    "refresh.mp4": {"options": REFRESH, "b_frames": 0},  # its key frames are not intra-coded
    "pyramid.mkv": {"options": PYRAMID},
    "fragmented.mp4": {"gop": 12, "format_options": {"movflags": "frag_keyframe+empty_moov"}},
    "interlaced.mp4": {"gop": 12, "options": {"x264-params": "interlaced=1"}},
    "uneven.mp4": {"gop": 12, "times": UNEVEN},
    "uneven.mkv": {"times": UNEVEN},
    "odd.mp4": {"size": (49, 65), "pixels": "yuv444p"},
    "mpeg4.mov": {"codec": "mpeg4", "gop": 12},
    "mpeg4.avi": {"codec": "mpeg4", "gop": 12},
    "h264.avi": {"gop": 12},  # FFmpeg guesses its times wrong
    "mpeg2.mpeg": {"codec": "mpeg2video", "gop": 12},
    "mpeg1.MPG": {"codec": "mpeg1video", "gop": 12},
    "stream.ts": {"gop": 12},
    "vp8.webm": {"codec": "libvpx", "b_frames": 0, "options": {"lag-in-frames": "8", "auto-alt-ref": "1"}},
    "vp9.webm": {"codec": "libvpx-vp9", "b_frames": 0, "options": {"cpu-used": "8"}},
    "moving.gif": {"codec": "gif", "pixels": "rgb8", "b_frames": 0},
}


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    video._indices.clear()
    monkeypatch.setattr(video_index, "_warnings", {})


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("opabinia"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def read(path: Path, numbers: Sequence[int]) -> Any:
    return VideoFile(path).read(numbers).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("name", KINDS)
def test_frames_equal_those_of_sequential_decoding(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, 40, **KINDS[name])
    all_frames = decoded(path)
    reader = VideoFile(path)
    assert isinstance(reader, Video)
    assert (reader.frames, reader.size) == (len(all_frames), all_frames.shape[1:3])
    seconds = (UNEVEN[-1] - UNEVEN[0] + 40) / 1000 if name.startswith("uneven") else 40 / 25
    assert reader.seconds == pytest.approx(seconds, abs=0.05)
    assert reader.fps == pytest.approx(40 / reader.seconds)
    random = np.random.default_rng(0)
    requests = [[0], [39], [7, 7, 3, 30, 3], list(range(5, 38, 4)), list(range(40))]
    requests += [random.integers(0, 40, random.integers(1, 5)).tolist() for _ in range(4)]
    for numbers in requests:
        assert np.array_equal(read(path, numbers), all_frames[numbers]), numbers


def test_only_the_required_packets_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "video.mp4", 120, gop=12, b_frames=0)
    assert VideoFile(path).frames == 120
    unreferenced = write(tmp_path / "unreferenced.mp4", 60, codec="mpeg4", gop=60, b_frames=2)
    decoded_pts: list[int] = []
    real = seeking.decode_packet

    def recording_decode(track: Any, packet: Any) -> Any:
        if packet is not None and track.codec_context.skip_frame != "NONREF":
            decoded_pts.append(packet.pts)
        return real(track, packet)

    monkeypatch.setattr(seeking, "decode_packet", recording_decode)
    read(path, [62])
    assert len(decoded_pts) <= 5, "from the key frame at 60 to frame 62"
    decoded_pts.clear()
    read(path, [100, 3])
    assert len(decoded_pts) <= 4 + 7, "from 0 and from 96, not between"
    assert sorted(decoded_pts) == decoded_pts, "it never seeks backwards"
    decoded_pts.clear()
    read(unreferenced, [50])
    assert len(decoded_pts) < 25, "frames that no other refers to are skipped"


def test_the_file_is_opened_on_use_and_closed_after_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "video.mp4", 20)
    opened = []
    real = video.open_video
    monkeypatch.setattr(video, "open_video", lambda path: opened.append(path) or real(path))  # type: ignore[func-returns-value]
    reader = VideoFile(path)
    assert not opened
    assert reader.frames == 20 and reader._open is not None
    assert reader._open[1].codec_context.thread_count == 1
    first = reader.read([1, 2])
    assert reader._open is None and len(opened) == 1, "the file opened to count frames is also read"
    assert torch.equal(reader.read([1, 2]), first)
    second = VideoFile(path)
    assert second.frames == 20 and len(opened) == 2, "the number of frames is cached"
    with pytest.raises(ValueError, match=r"video\.mp4 has frames 0 to 19; there is no frame 20"):
        reader.read([3, 20])
    assert reader._open is None
    with pytest.raises(ValueError, match=r"video\.mp4: the list of frames is empty"):
        reader.read([])


def test_rotated_videos_are_upright(tmp_path: Path) -> None:
    for angle, turns in ((180, 2), (-90, 3), (90, 1)):
        reader = VideoFile(write(tmp_path / f"{turns}.mp4", 6, rotation=angle))
        assert reader.size == ((64, 48) if turns % 2 else (48, 64))
        upright = np.rot90(decoded(Path(reader.path))[[4, 1]], turns, axes=(1, 2))  # anticlockwise, as FFmpeg counts
        assert np.array_equal(reader.read([4, 1]).permute(0, 2, 3, 1).numpy(), upright)
    small = reader.read([3, 0], short_side=24)
    assert small.shape == (2, 3, 32, 24)
    large = reader.read([3, 0], short_side=100)
    assert large.shape == (2, 3, 64, 48), "never upscaled"
    means = torch.nn.functional.avg_pool2d(large.float(), 2)
    assert (means - small).abs().mean() < 12
    gray = VideoFile(reader.path, channels=1).read([2])
    assert gray.shape == (1, 1, 64, 48)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    assert ((reader.read([2]) * weights).sum(1) - gray[:, 0]).abs().mean() < 6


# --- errors ---------------------------------------------------------------------------------------------------------


def test_invalid_files_raise_with_their_name(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("this is no video, ça alors\n" * 30, encoding="utf-8")
    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(3000))
    write_sound(tmp_path / "sound.mp4")
    content = write(tmp_path / "whole.mp4", 30).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) // 2])  # the index is at the end
    (tmp_path / "strange.mp4").write_bytes(content.replace(b"avc1", b"zzzz"))
    expected = {
        "empty": "is empty: it has 0 bytes",
        "text": "is not a video, but text",
        "noise": "is not a readable video",
        "sound": "has no video stream, only audio",
        "cut": "is cut off: an mp4 or mov file whose table",
        "strange": "has a video codec that FFmpeg cannot decode",
    }
    for name, message in expected.items():
        reader = VideoFile(tmp_path / f"{name}.mp4")
        for ask in (lambda reader: reader.frames, lambda reader: reader.read([0])):
            with pytest.raises(ValueError, match=rf"{name}\.mp4 {message}"):
                ask(reader)
    with pytest.raises(FileNotFoundError, match=r"gone\.mp4"):
        _ = VideoFile(tmp_path / "gone.mp4").frames


def test_playlists_open_no_other_file(tmp_path: Path) -> None:
    write(tmp_path / "secret.mp4", 5)
    write(tmp_path / "secret.ts", 5)
    playlists = {
        "concat.mp4": "ffconcat version 1.0\nfile 'secret.mp4'\n",
        "hls.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1,\n{tmp_path}/secret.ts\n#EXT-X-ENDLIST\n",
    }
    for name, content in playlists.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=f"{name} is not a video, but text"):
            _ = VideoFile(tmp_path / name).frames


def test_videos_of_one_or_two_frames(tmp_path: Path) -> None:
    for count in (1, 2):
        path = write(tmp_path / f"{count}.mp4", count)
        reader = VideoFile(path)
        assert reader.frames == count and reader.seconds > 0 and reader.fps > 0
        assert np.array_equal(read(path, [count - 1, 0, 0]), decoded(path)[[count - 1, 0, 0]])


@pytest.mark.parametrize(
    ("name", "options"),
    [("video.mp4", {"movflags": "faststart"}), ("video.mkv", {}), ("video.mpeg", {}), ("video.avi", {})],
)
def test_a_truncated_video_has_the_frames_before_its_end(
    name: str, options: dict[str, str], tmp_path: Path, logged: Callable[[], list[str]]
) -> None:
    codec = "libx264" if name.endswith(("mp4", "mkv")) else "mpeg4" if name.endswith("avi") else "mpeg2video"
    path = write(tmp_path / name, 60, codec=codec, gop=12, format_options=options)
    before = decoded(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    reader = VideoFile(path)
    assert 5 < reader.frames < 55
    numbers = list(range(reader.frames))
    result = read(path, numbers)
    assert np.array_equal(result[:-3], before[: len(result) - 3])
    assert np.array_equal(read(path, numbers[-1:] * 2), result[-1:].repeat(2, 0)), "also alone"
    if not name.endswith("mpeg"):  # its header does not have the number of frames
        assert sum("is cut off" in message for message in logged()) == 1, logged()


def trimmed(path: Path, source: Path, start: int) -> Path:
    """Trim as ``ffmpeg -ss`` with ``-c copy``: an edit list hides the frames before the start."""
    with av.open(str(source)) as container, av.open(str(path), "w") as result:
        stream = container.streams.video[0]
        container.seek(start, stream=stream)
        copied = result.add_stream_from_template(stream)
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None:
                packet.pts, packet.dts, packet.stream = packet.pts - start, packet.dts - start, copied
                result.mux(packet)
    return path


def write_with_longer_audio(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream, tone = container.add_stream("libx264", rate=25), container.add_stream("aac", rate=8000)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in make_frames(10):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
        for second in range(3):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), dtype=np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 8000, 8000 * second
            container.mux(tone.encode(silence))
        container.mux(tone.encode())
    return path


def concatenated(path: Path) -> Path:
    parts = [write(path.with_name(f"{count}.ts"), count, gop=12) for count in (30, 25)]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


PAUSED = [40 * number + 500 * (number > 8) for number in range(20)]


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: trimmed(folder / "edit_list.mp4", write(folder / "video.mp4", 40, gop=12), 7680),
        lambda folder: write(folder / "paused.avi", 20, codec="mpeg4", b_frames=0, times=PAUSED),
        lambda folder: write_with_longer_audio(folder / "sound.mkv"),
        lambda folder: concatenated(folder / "concatenated.ts"),
    ],
    ids=["edit list", "variable rate", "longer sound", "concatenated"],
)
def test_valid_videos_are_not_reported_as_truncated(
    make: Callable[[Path], Path], tmp_path: Path, logged: Callable[[], list[str]]
) -> None:
    path = make(tmp_path)
    all_frames = decoded(path)
    reader = VideoFile(path)
    assert reader.frames == len(all_frames) and not logged()
    for numbers in (list(range(len(all_frames))), [len(all_frames) - 2], [1, 9, len(all_frames) - 1]):
        assert np.array_equal(read(path, numbers), all_frames[numbers])


def overwrite_packets(path: Path, first: int) -> None:
    """Overwrite the packets from this number on."""
    with av.open(str(path)) as container:
        entries = [(entry.pos, entry.size) for entry in container.streams.video[0].index_entries]
    content = bytearray(path.read_bytes())
    for position, size in entries[first:]:
        content[position : position + size] = b"\xff" * size
    path.write_bytes(content)


def test_broken_frames_repeat_the_frame_before(tmp_path: Path, logged: Callable[[], list[str]]) -> None:
    path = write(tmp_path / "video.mp4", 60, gop=12)
    before = decoded(path)
    overwrite_packets(path, 36)  # from a key frame on
    reader = VideoFile(path)
    assert reader.frames == 60
    for numbers in ([30, 50, 58], [58], [40, 41]):
        result = reader.read(numbers).permute(0, 2, 3, 1).numpy()
        assert np.array_equal(result, before[[min(number, 35) for number in numbers]])
    messages = [message for message in logged() if "cannot be decoded" in message]
    assert len(messages) == 1 and "video.mp4" in messages[0]


def test_a_video_without_a_decodable_frame_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", 20)
    overwrite_packets(path, 0)
    with pytest.raises(ValueError, match=r"video\.mp4 (is broken|is not a readable video)"):
        VideoFile(path).read([3, 12])


# --- folders and arrays ---------------------------------------------------------------------------------------------


def test_a_folder_of_images_is_a_video(tmp_path: Path) -> None:
    frames = make_frames(5)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    reader = FrameFolder(str(tmp_path), [f"{number}.png" for number in range(5)], fps=10)
    assert isinstance(reader, Video)
    assert (reader.frames, reader.seconds, reader.fps, reader.size) == (5, 0.5, 10, (48, 64))
    assert np.array_equal(reader.read([4, 0, 4]).permute(0, 2, 3, 1).numpy(), frames[[4, 0, 4]])
    assert reader.read([1], short_side=24).shape == (1, 3, 24, 32)
    Image.fromarray(frames[0][:40]).save(tmp_path / "3.png")
    with pytest.raises(ValueError, match=r"frames differ in size: 0\.png has 48 x 64, 3\.png has 40 x 64"):
        reader.read([0, 3])
    with pytest.raises(ValueError, match="there is no frame 5"):
        reader.read([5])
    with pytest.raises(ValueError, match="holds no images"):
        FrameFolder(str(tmp_path), [])


def test_an_array_is_a_video() -> None:
    pixels = torch.from_numpy(make_frames(5)).permute(0, 3, 1, 2)
    reader = VideoInMemory(pixels, fps=5)
    assert isinstance(reader, Video)
    assert (reader.frames, reader.seconds, reader.size) == (5, 1.0, (48, 64))
    result = reader.read([3, 3])
    assert torch.equal(result, pixels[[3, 3]])
    result.zero_()
    assert pixels[3].any(), "a transform may work in place"
    assert reader.read([1], short_side=24).shape == (1, 3, 24, 32)
    with pytest.raises(ValueError, match="there is no frame -1"):
        reader.read([-1])
