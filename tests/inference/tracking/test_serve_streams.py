"""The trackers of ``opabinia serve --tracker``: one for each stream."""

import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia.cli.commands import app as program
from opabinia.data.decoding.sequential import TimedFrame
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.serving import streams
from opabinia.inference.serving.limits import Limits, RequestError, Upload
from opabinia.inference.serving.streams import StreamOptions, TrackingInference, check_name, read_time
from opabinia.inference.tracking.pipeline import Pipeline
from opabinia.inference.tracking.streams import Stream
from opabinia.inference.tracking.track import track
from opabinia.training.tracking import Tracking, resolve_tracking
from opabinia.visualization.drawing import to_pil
from tests.inference.test_serve import app, ask, running
from tests.inference.tracking.conftest import BOTSORT, EAGER, RUNS

assert app  # a fixture
BYTETRACK = resolve_tracking({"tracker": "bytetrack"}, EAGER)


def encoded(frame: TimedFrame) -> bytes:
    file = BytesIO()
    to_pil(frame.image).save(file, "PNG")
    return file.getvalue()


def served(detector: Predictor, tracking: Tracking = BYTETRACK, limits: Limits | None = None, **options: Any) -> Any:
    model = Predictor(detector.task, list(detector.transforms), detector.dataset_info, channels=1)
    return TrackingInference(model, limits or Limits(), StreamOptions(tracking, score=0.05, **options))


def post(inference: Any, name: str, frame: TimedFrame, seconds: float | None = None) -> dict[str, Any]:
    reply: dict[str, Any] = inference.track(name, [Upload("frame", encoded(frame))], seconds)
    return reply


def refused(status: int, text: str, inference: Any, *arguments: Any) -> None:
    with pytest.raises(RequestError) as error:
        post(inference, *arguments)
    assert error.value.status == status and text in str(error.value), error.value


def lines_of_track(
    pipeline: Pipeline, tracking: Tracking, videos: Sequence[Sequence[TimedFrame]], out: Path
) -> list[list[Any]]:
    """Return ``tracks`` of each frame of ``opabinia track``, by video."""
    read = [Stream(str(number), str(number), lambda _, video=video: iter(video)) for number, video in enumerate(videos)]
    track(pipeline, tracking, read, out, settings={}, video=False)
    lines = [json.loads(line) for line in (out / "tracks.jsonl").read_text().splitlines()]
    return [[line["tracks"] for line in lines if line["path"] == str(number)] for number in range(len(videos))]


def test_interleaved_streams_have_the_tracks_of_the_command(
    detector: Predictor, embedder: Predictor, frames: list[TimedFrame], tmp_path: Path
) -> None:
    """The frames of the first one have a time, those of the second one none."""
    tracking = resolve_tracking({"tracker": "botsort", "camera_motion": True}, EAGER + BOTSORT)
    videos = [frames[:4], [frame._replace(seconds=number / 10) for number, frame in enumerate(frames[1:5])]]
    expected = lines_of_track(Pipeline(detector, embedder, min_score=0.05), tracking, videos, tmp_path)
    inference = served(detector, tracking, embedder=RunModel(RUNS / "reid" / "run"), rate=10)
    replies: list[list[Any]] = [[], []]
    for number in [0, 0, 1, 1, 1, 0, 1, 0]:
        frame = videos[number][len(replies[number])]
        replies[number].append(post(inference, "ab"[number], frame, None if number else frame.seconds))
    assert [[reply["tracks"] for reply in part] for part in replies] == expected
    assert [reply["frame"] for reply in replies[1]] == list(range(4)) and replies[0][2]["time"] == 0.08
    assert max(row["id"] for row in replies[1][-1]["tracks"]) > 3
    assert {"reading", "detector", "re-ID", "camera", "tracker"} == inference.pipeline.latency.keys()


def test_a_refused_frame_leaves_its_stream_as_it_was(
    detector: Predictor, frames: list[TimedFrame], tmp_path: Path
) -> None:
    ((first, second, *_),) = lines_of_track(Pipeline(detector, min_score=0.05), BYTETRACK, [frames[:2]], tmp_path)
    inference = served(detector, limits=Limits(input_pixels=64 * 64))
    assert post(inference, "a", frames[0], 5.0)["tracks"] == first
    for seconds in (5.0, 4.0):
        text = f"the time of the frame is {seconds:g} s: it must be after 5 s, the time of the frame before in the str"
        refused(409, text, inference, "a", frames[1], seconds)
    refused(409, "the frames of the stream a so far have a time", inference, "a", frames[1])
    larger = frames[0].image[:, :100]
    refused(413, "after the transforms", inference, "a", frames[0]._replace(image=larger), 5.04)
    for uploads, status in [([Upload("x", b"some words")], 415), ([Upload("x", encoded(frames[0])[:-90])], 422)]:
        with pytest.raises(RequestError) as error:
            inference.track("a", uploads, 5.04)
        assert error.value.status == status
    with pytest.raises(RequestError, match="one frame of a stream, not 2"):
        inference.track("a", [Upload("x", b"")] * 2, 5.04)
    assert post(inference, "a", frames[1], 5.04)["tracks"] == second
    post(inference, "b", frames[1])
    refused(409, "the frames of the stream b so far have no time", inference, "b", frames[1], 1.0)
    assert inference.frames == 3


def test_the_number_of_streams_is_limited(
    detector: Predictor, frames: list[TimedFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: clock.now))
    inference = served(detector, max_streams=2, max_idle=10)
    for name in "aba":
        post(inference, name, frames[0])
    refused(429, "2 streams are open (--max-streams): end one (DELETE), or wait until one", inference, "c", frames[0])
    assert inference.end("b") == {"stream": "b", "frames": 1, "tracks": len(post(inference, "c", frames[0])["tracks"])}
    with pytest.raises(RequestError, match="there is no stream b"):
        inference.end("b")
    clock.now = 10
    assert post(inference, "a", frames[0])["frame"] == 2 and inference.streams == 2
    clock.now = 11
    assert inference.streams == 1
    with pytest.raises(RequestError, match="there is no stream c"):
        inference.end("c")
    assert post(inference, "c", frames[0])["frame"] == 0
    clock.now = 22
    assert post(inference, "a", frames[0])["frame"] == 0 and inference.streams == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\n", "-x", "x" * 65])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(RequestError, match="the name of a stream has 1 to 64 characters"):
        check_name(name)
    assert check_name("Door-1_left.mp4") and check_name("x" * 64)


def test_times_are_checked() -> None:
    assert (read_time([]), read_time([("time", "1.5")]), read_time([("time", "-2e9")])) == (None, 1.5, -2e9)
    for text in ("", "x", "nan", "inf", "1e300", "1,5"):
        with pytest.raises(RequestError, match="a number of seconds"):
            read_time([("time", text)])
    for query in ([("tme", "1")], [("time", "1"), ("time", "2")]):
        with pytest.raises(RequestError, match="the only parameter"):
            read_time(query)


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(app: Any, detector: Predictor) -> Iterator[tuple[str, int]]:
    service = app.Service(served(detector), {})
    with running(service) as address:
        yield address
    assert service.pending == 0


def test_several_clients_at_once(
    address: tuple[str, int], detector: Predictor, frames: list[TimedFrame], tmp_path: Path
) -> None:
    videos = [frames[start : start + 3] for start in range(4)]
    expected = lines_of_track(Pipeline(detector, min_score=0.05), BYTETRACK, videos, tmp_path)

    def send(number: int) -> list[Any]:
        replies = [
            ask(address, "POST", f"/track/camera-{number}?time={frame.seconds}", encoded(frame))
            for frame in videos[number]
        ]
        return [json.loads(body)["tracks"] for _, _, body in replies]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(send, range(4))) == expected
    status, _, body = ask(address, "GET", "/metrics")
    metrics = body.decode().splitlines()
    assert "opabinia_tracked_frames_total 12" in metrics and "opabinia_streams 4" in metrics
    assert 'opabinia_requests_total{path="/track",status="200"} 12' in metrics
    for stage in ("reading", "detector", "tracker"):
        assert any(line.startswith(f'opabinia_track_seconds_total{{stage="{stage}"}} 0.') for line in metrics)
    status, _, body = ask(address, "DELETE", "/track/camera-1")
    assert status == 200 and json.loads(body)["frames"] == 3
    assert ask(address, "DELETE", "/track/camera-1")[0] == 404


def test_refused_requests(app: Any, address: tuple[str, int], frames: list[TimedFrame]) -> None:
    image = encoded(frames[0])
    for method, path, body, status, text in [
        ("POST", "/track/a?time=1", image, 200, ""),
        ("POST", "/track/a?time=1", image, 409, "must be after 1 s"),
        ("POST", "/track/a?time=soon", image, 422, "a number of seconds"),
        ("POST", "/track/a?time=2", b"", 422, "no file"),
        ("POST", "/track/%2e%2e%2fx", image, 422, "1 to 64 characters"),
        ("POST", "/track/" + "x" * 5000, image, 422, "1 to 64 characters"),
        ("GET", "/track/a", None, 405, "POST /track/NAME"),
        ("DELETE", "/track/b", None, 404, "there is no stream b"),
    ]:
        actual, _, reply = ask(address, method, path, body)
        assert actual == status and text in json.loads(reply).get("error", ""), reply
    plain = SimpleNamespace(limits=Limits(), gallery=None)
    with running(app.Service(plain, {})) as other:
        for method in ("POST", "DELETE"):
            status, _, reply = ask(other, method, "/track/a", image)
            assert status == 404 and "--tracker" in json.loads(reply)["error"]


def test_too_many_requests(app: Any, detector: Predictor, frames: list[TimedFrame]) -> None:
    service = app.Service(served(detector, limits=Limits(waiting=2)), {})
    with running(service) as address:
        service.pending = 3
        assert ask(address, "POST", "/track/a", encoded(frames[0]))[0] == 503
        assert ask(address, "DELETE", "/track/a")[0] == 503
        service.pending = 0
        assert ask(address, "POST", "/track/a", encoded(frames[0]))[0] == 200


# --- the command ------------------------------------------------------------------------------------------------------

DETECTOR, REID = str(RUNS / "detection" / "run"), str(RUNS / "reid" / "run")


def test_the_command(app: Any, frames: list[TimedFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    from uvicorn import Server

    def client(server: Server, address: tuple[str, int]) -> list[tuple[int, Any]]:
        image = encoded(frames[0])
        try:
            requests = [("POST", "/track/a", image), ("POST", "/track/b", image), ("POST", "/predict", image)]
            answers = [ask(address, *request) for request in [*requests, ("GET", "/model", None)]]
            return [(status, json.loads(body)) for status, _, body in answers]
        finally:
            server.should_exit = True

    run, results = Server.run, []
    with ThreadPoolExecutor(1) as pool:

        def run_with_client(server: Server, sockets: list[socket.socket]) -> None:
            results.append(pool.submit(client, server, sockets[0].getsockname()))
            run(server, sockets=sockets)

        monkeypatch.setattr(Server, "run", run_with_client)
        words = ["--tracker", "botsort", "--reid", REID, "--score", "0.05", *EAGER, *BOTSORT, "--max-streams", "1"]
        assert CliRunner().invoke(program, ["serve", DETECTOR, *words, "--port", "0"]).exit_code == 0
        tracked, other, predicted, about = results[0].result()
    assert tracked[0] == 200 and {row["id"] for row in tracked[1]["tracks"]} >= {1, 2}
    assert other[0] == 429 and predicted[1]["predictions"][0]["detections"]
    assert about[1]["tracking"]["tracker"]["name"] == "botsort" and about[1]["limits"]["streams"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([DETECTOR, "--tracker", "bytetrak"], "did you mean 'bytetrack'"),
        ([DETECTOR, "--tracker", "sort", "tracker.min_hit=1"], "did you mean 'min_hits'"),
        ([DETECTOR, "--tracker", "sort", "--reid", "nowhere"], "nowhere"),
        ([DETECTOR, "--tracker", "sort", "optimizer.lr=1"], "optimizer.lr=1: changes to the config of the run are --s"),
        ([DETECTOR, "--tracker", "sort", "--gallery", "x"], "--gallery: is for images, not for streams"),
        ([DETECTOR, "--reid", REID], "--reid: is for trackers: add --tracker, such as botsort"),
        ([DETECTOR, "tracker.min_hits=1"], "add --tracker"),
        ([DETECTOR, "--max-idle", "1"], "--max-idle: is for streams: add --tracker NAME"),
        ([REID, "--tracker", "sort"], "its model predicts embedding, logits; a detector"),
    ],
)
def test_mistakes(app: Any, words: list[str], message: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(program, ["serve", *words, "--port", "0"])
    assert result.exit_code == 2 and message in result.stderr, result.stderr
