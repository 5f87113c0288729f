"""Frame-by-frame predictions of image models on videos, URLs and cameras."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import RawIOBase
from pathlib import Path
from socket import create_server
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import av
import numpy as np
import pytest
import torch

import opabinia
from opabinia.config import ConfigError
from opabinia.data.decoding.sequential import is_video, read_frames
from opabinia.data.decoding.video import VideoFile
from opabinia.data.errors import DataError
from opabinia.inference import frames as frames_module
from opabinia.inference.frames import predict_frames
from opabinia.inference.input_files import find_files
from opabinia.inference.predict import predict
from opabinia.inference.windows import predict_windows
from opabinia.runtime.addresses import public_name
from opabinia.runtime.signals import Stopped
from opabinia.visualization import video_strips
from tests.data.videos import write, write_sound

RUNS = Path(__file__).parents[1] / "compat" / "v0.1"
CLASSIFIER = RUNS / "classification" / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a video of ten frames at 25 fps, one of frames at irregular times, and one without video."""
    folder = tmp_path_factory.mktemp("videos")
    write(folder / "ten.mp4", 10, size=(30, 42))
    write(folder / "times.mkv", 4, size=(32, 32), times=[0, 40, 1000, 1100], rotation=90)
    write_sound(folder / "sound.mp4")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class RtpPackets(RawIOBase):
    """Collects the packets of FFmpeg's RTP muxer: one for each call."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.packets.append(bytes(data))
        return len(data)


class Camera(StreamRequestHandler):
    """An RTSP server (RFC 2326) that sends ten gray frames, each brighter, over the connection of the requests."""

    SDP = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nt=0 0\r\nm=video 0 RTP/AVP 32\r\na=control:video\r\n"

    def handle(self) -> None:
        while request := self.rfile.readline().decode().split():
            rows = iter(lambda: self.rfile.readline().decode().strip(), "")
            headers = dict(row.split(": ", 1) for row in rows)
            reply = {
                "DESCRIBE": f"Content-Type: application/sdp\r\nContent-Length: {len(self.SDP)}\r\n\r\n{self.SDP}",
                "SETUP": f"Transport: {headers.get('Transport')}\r\nSession: 1\r\n\r\n",
            }.get(request[0], "\r\n")
            self.wfile.write(f"RTSP/1.0 200 OK\r\nCSeq: {headers['CSeq']}\r\n{reply}".encode())
            if request[0] == "PLAY":
                return self._play()

    def _play(self) -> None:
        muxer = RtpPackets()
        with av.open(muxer, "w", format="rtp", container_options={"packetsize": "1400"}) as container:
            stream: Any = container.add_stream("mpeg1video", 25)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for number in range(10):
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8))
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        for packet in muxer.packets:
            channel = bytes([packet[1] == 200])  # 1: a sender report, 0: video
            self.wfile.write(b"$" + channel + len(packet).to_bytes(2) + packet)


def lines_of(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def times_of(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [round(frame.time or 0, 3) for frame in container.decode(video=0)]


def test_all_frames_of_a_file_are_read(folder: Path) -> None:
    for name in ("ten.mp4", "times.mkv"):
        file, frames = VideoFile(folder / name), list(read_frames(str(folder / name)))
        assert [frame.number for frame in frames] == list(range(file.frames))
        assert torch.equal(torch.stack([frame.image for frame in frames]), file.read(range(file.frames)))
    times = str(folder / "times.mkv")
    assert [round(frame.seconds, 2) for frame in read_frames(times, 1)] == [0, 0.04, 1, 1.1]
    assert [frame.number for frame in read_frames(times, every=0.5)] == [0, 2]
    assert [frame.number for frame in read_frames(str(folder / "ten.mp4"), every=0.08)] == [0, 2, 4, 6, 8]


def test_names_of_videos_and_credentials_in_urls() -> None:
    for name in ("a.MP4", "webcam:0", "/dev/video0", "rtsp://x/y"):
        assert is_video(name)
    assert not any(map(is_video, ("a.gif", "a.jpg", "folder", "/dev/video")))
    assert public_name("rtsp://me:secret@camera/live?token=x") == "rtsp://camera/live"
    assert public_name("rtsp://me:p@ss@camera/live") == "rtsp://camera/live"
    assert public_name("a?b@c.mp4") == "a?b@c.mp4"


def test_videos_and_urls_are_predicted(
    folder: Path, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url = f"http://me:secret@{server}/ten.mp4?key=1"
    with pytest.raises(DataError, match=r"2 of 4 files were skipped:\n.*sound.mp4 has no video.*\n.*absent.mp4 cannot"):
        paths: list[Path | str] = [folder / "ten.mp4", url, folder / "sound.mp4", f"http://{server}/absent.mp4"]
        predict(opabinia.load(CLASSIFIER), paths, tmp_path, max_frames=8)
    lines, public_url = lines_of(tmp_path), f"http://{server}/ten.mp4"
    assert [(line["path"], line["frame"]) for line in lines] == [
        (path, number) for path in (str(folder / "ten.mp4"), public_url) for number in range(8)
    ]
    best = [line["top"][0]["probability"] for line in lines]
    assert lines[3]["time"] == 0.12 and best[:8] == pytest.approx(best[8:], abs=1e-5), "in a batch or alone"
    sixth = opabinia.load(CLASSIFIER)(VideoFile(folder / "ten.mp4", 1).read([5])[0])
    assert lines[5]["top"][0]["class"] == sixth.readable["top"][0]["class"]
    assert best[5] == pytest.approx(sixth.readable["top"][0]["probability"], abs=1e-5)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["00000-ten.mp4", "00001-ten.mp4"]
    assert times_of(tmp_path / "videos" / "00001-ten.mp4") == [round(number / 25, 3) for number in range(8)]
    printed = capsys.readouterr().out
    assert f"{public_url}  0.00 s  " in printed and "secret" not in printed

    detector = opabinia.load(RUNS / "detection" / "run")
    predict_windows(detector, [str(folder / "times.mkv")], tmp_path / "objects", every=1.0)
    assert [(line["frame"], line["time"]) for line in lines_of(tmp_path / "objects")] == [(0, 0.0), (2, 1.0)]
    assert times_of(tmp_path / "objects" / "videos" / "00000-times.mp4") == [0.0, 1.0]


@pytest.mark.slow
def test_a_camera_is_predicted(tmp_path: Path) -> None:
    with ThreadingTCPServer(("127.0.0.1", 0), Camera) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}/live"
        frames = [int(frame.image.float().mean()) for frame in read_frames(f"rtsp://{address}")]
        predict(opabinia.load(CLASSIFIER), [f"rtsp://me:secret@{address}"], tmp_path, max_frames=4)
        server.shutdown()
    assert frames == pytest.approx([20 * number for number in range(10)], abs=2)
    assert [(line["path"], line["frame"]) for line in lines_of(tmp_path)] == [
        (f"rtsp://{address}", i) for i in range(4)
    ]
    assert len(times_of(tmp_path / "videos" / "00000-live.mp4")) == 4


def test_a_silent_connection_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opabinia.data.decoding.sequential.TIMEOUT", 0.2)
    silent = pytest.raises(ValueError, match=r"/x cannot be opened: no data for 0\.2 seconds")
    with create_server(("127.0.0.1", 0)) as listening, silent:
        next(read_frames(f"tcp://127.0.0.1:{listening.getsockname()[1]}/x"))


def test_ctrl_c_completes_the_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes after three frames; the encoder is in every build of FFmpeg."""

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for frame in read_frames(*arguments, **options):
            if frame.number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield frame

    monkeypatch.setattr(frames_module, "read_frames", interrupted)
    monkeypatch.setattr(frames_module, "is_live", lambda name: True)
    monkeypatch.setattr(video_strips, "CODECS", ("absent", "mpeg4"))
    with pytest.raises(Stopped) as stopped:
        predict_frames(opabinia.load(CLASSIFIER), [str(folder / "ten.mp4"), "other.mp4"], tmp_path)
    assert stopped.value.exit_status == 130
    assert len(lines_of(tmp_path)) == len(times_of(tmp_path / "videos" / "00000-ten.mp4")) == 4


def test_options_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    video, image = str(folder / "ten.mp4"), str(tmp_path / "a.png")
    for paths, options, message in (
        ([video, image], {}, "images and videos are predicted in separate commands"),
        ([video], {"explain": True}, "--explain: frames of videos have no heat maps"),
        ([image], {"max_frames": 3}, "--max-frames: it is for models of images on videos"),
    ):
        with pytest.raises(ConfigError, match=message):
            predict(opabinia.load(CLASSIFIER), paths, tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="--every: the model of this run takes images: give videos, URLs"):
        predict_windows(opabinia.load(CLASSIFIER), [video], tmp_path / "out", every=1.0, window=2.0)
    with pytest.raises(ConfigError, match="rtsp://x/y: URLs and cameras are for `predict` with a model of images"):
        list(find_files(["rtsp://me:secret@x/y"]))
    for name, reason in (
        ("tcp://127.0.0.1:9/x", "cannot be opened: Connection refused"),
        ("webcam:99", "there is no camera /dev/video99|this build of PyAV reads no cameras|cannot be opened"),
    ):
        with pytest.raises(ValueError, match=reason):
            next(read_frames(name))
