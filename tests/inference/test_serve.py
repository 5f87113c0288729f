"""The prediction server, in its own process, over HTTP."""

import asyncio
import http.client
import importlib
import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import av
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import opabinia
from opabinia.cli.commands import app as program
from opabinia.config import ConfigError
from opabinia.data.decoding.images import decode_bytes
from opabinia.data.sources import Digits
from opabinia.inference.load import RunModel
from opabinia.inference.serving.inference import Inference
from opabinia.inference.serving.limits import Limits, RequestError, Upload, check_image, check_video
from opabinia.tasks.segmentation import Panoptic
from opabinia.training import launch
from tests.faults import programs

SMALL = ["train.length=4it", "data.num_workers=0", "loggers=[]", "data.batch_size=16"]


class Response(NamedTuple):
    status: int
    content: Any


class Server(NamedTuple):
    program: programs.Program
    address: str

    def get(self, path: str, **headers: str) -> Response:
        return self._send(urllib.request.Request(self.address + path, headers=headers))

    def post(self, body: Any, **headers: str) -> Response:
        headers = {"Content-Type": "application/octet-stream", **headers}
        return self._send(urllib.request.Request(self.address + "/predict", body, headers))

    def form(self, files: Sequence[tuple[str, bytes]]) -> Response:
        parts = [
            f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
            + content
            + b"\r\n"
            for name, content in files
        ]
        return self.post(b"".join(parts) + b"--edge--\r\n", **{"Content-Type": "multipart/form-data; boundary=edge"})

    def _send(self, request: urllib.request.Request) -> Response:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Response(response.status, json.loads(response.read()))
        except urllib.error.HTTPError as error:
            return Response(error.code, json.loads(error.read()))


@contextmanager
def started(warm_server: programs.Server, run: Path, *options: str) -> Iterator[Server]:
    """Start a server on a free port; check that it stops on SIGTERM."""
    program = warm_server.start("serve", str(run), "--port", "0", *options, folder=Path.cwd(), lasts=True)
    try:
        program.until(lambda: program.out.endswith("\n"))
        assert " answers at http://127.0.0.1:" in program.out
        yield Server(program, program.out.split()[3])
    finally:
        program.signal(signal.SIGTERM)
    program.expect(143)
    assert len(program.out.splitlines()) == 1 and not program.err


@pytest.fixture(scope="module")
def app() -> Any:
    """The module of the HTTP application."""
    for name in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(name, reason=f"{name} is absent: pip install 'opabinia[serve]'")
    return importlib.import_module("opabinia.inference.serving.app")


@pytest.fixture(scope="module")
def server(app: Any, run: Path, warm_server: programs.Server) -> Iterator[Server]:
    with started(warm_server, run, "--max-waiting", "4", "--max-megapixels", "40") as server:
        yield server


def digit(number: int, kind: str = "PNG", side: int = 8) -> bytes:
    source = Digits(split="val")
    file = BytesIO()
    Image.fromarray(source[number]["image"][0].numpy()).resize((side, side)).save(file, kind)
    return file.getvalue()


def empty_png(width: int, height: int) -> bytes:
    """A PNG of black pixels, compressed to about a thousandth of its size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + name + content + zlib.crc32(name + content).to_bytes(4)

    compressor = zlib.compressobj(1)
    row = bytes(1 + width // 8)
    content = b"".join(compressor.compress(row) for _ in range(height)) + compressor.flush()
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([1, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


# --- responses --------------------------------------------------------------------------------------------------------


def test_responses_equal_the_predictions_of_the_predictor(run: Path, server: Server, tmp_path: Path) -> None:
    files = [("one.png", digit(0)), ("no\u00e9 \u0001.jpg", digit(1, "JPEG", 40))]
    status, parsed = server.form(files)
    assert status == 200
    assert [prediction.pop("path") for prediction in parsed["predictions"]] == ["one.png", "no\u00e9 ?.jpg"]
    paths = []
    for name, content in files:
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    assert parsed["predictions"] == [prediction.readable for prediction in opabinia.load(run)(paths)]
    assert server.post(digit(0)).content["predictions"][0]["top"] == parsed["predictions"][0]["top"]


def test_the_server_describes_its_model(server: Server) -> None:
    model = server.get("/model").content
    assert (model["name"], model["task"], model["takes"]) == ("digits/default", "classification", "images")
    assert model["classes"] == list("0123456789")
    assert server.get("/health") == (200, {"status": "ok", "requests": 0})
    status, error = server.get("/docs")
    assert status == 404 and error["error"].startswith("there is no GET /docs; there are: GET /, ")
    assert server.get("/predict").status == 405
    assert server.get("/gallery/../../etc/passwd").status == 404
    assert server.get("/health", Host="elsewhere.example").status == 421


# --- refused requests -------------------------------------------------------------------------------------------------


def test_invalid_images_are_refused(server: Server) -> None:
    for content, expected, message in [
        (b"just some words", 415, "is not an image (BMP, GIF, JPEG"),
        (b"", 422, "empty"),
        (digit(0, "JPEG", 200)[:900], 422, "broken"),
        (digit(0, "PNG", 200)[:-60], 422, "broken"),
        (b"\x89PNG\r\n\x1a\nnothing else", 422, "broken"),
        # Strip offsets that are text: PIL's plugin raises a TypeError while it decodes.
        (digit(0, "TIFF").replace(b"\x11\x01\x04\0", b"\x11\x01\x02\0"), 422, "broken"),
    ]:
        status, reply = server.form([("image.jpg", content)])
        assert (status, list(reply)) == (expected, ["error"])
        assert message in reply["error"] and "\n" not in reply["error"] and "Traceback" not in reply["error"]
    assert server.post(b"").status == 422
    assert server.post(b"nonsense", **{"Content-Type": "multipart/form-data; boundary=x"}).status == 422
    assert server.post(b"nonsense", **{"Content-Type": "multipart/form-data"}).status == 422
    assert server.form([("a.png", digit(0))] * 33) == (413, {"error": "at most 32 files in one request"})
    assert server.post(digit(0)).status == 200


def test_an_image_of_200_megapixels_is_refused_without_decoding(server: Server) -> None:
    bomb = empty_png(20_000, 10_000)
    assert len(bomb) < 2_000_000
    start = time.monotonic()
    status, reply = server.form([("bomb.png", bomb)])
    assert (status, reply["error"]) == (413, "bomb.png has more than 40 megapixels")
    assert time.monotonic() - start < 10
    assert server.form([("large.png", empty_png(8_000, 8_000))]).content["error"] == (
        "large.png has 8000 x 8000 = 64 megapixels, more than 40"
    )
    status, reply = server.form([("line.png", empty_png(20_000, 16))])
    assert (status, reply["error"]) == (422, "line.png is 20000 x 16: one side may be at most 20 times the other")
    assert server.post(digit(0)).status == 200


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    assert server.post(bytes(21_000_000)) == (413, {"error": "the request is larger than 20 MB"})
    # Chunked: the length is not known in advance.
    chunks = (bytes(1_000_000) for _ in range(30))
    assert server.post(chunks, **{"Transfer-Encoding": "chunked"}).status == 413
    # Announced, but never sent: the server responds at once.
    with socket.create_connection(server.address.removeprefix("http://").split(":")) as connection:
        headers = ["POST /predict HTTP/1.1", "Host: localhost", "Expect: 100-continue", "Content-Length: 99999999999"]
        connection.sendall("\r\n".join([*headers, "", ""]).encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 413
    # Interrupted: the server logs nothing (see `started`).
    with socket.create_connection(server.address.removeprefix("http://").split(":")) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome")
    assert memory(server.program.pid) < memory(os.getpid()) + 1_500_000_000
    assert server.post(digit(0)).status == 200


def memory(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_concurrent_requests_get_their_own_predictions_or_are_refused_temporarily(server: Server) -> None:
    images = [digit(number, "JPEG", 1500) for number in range(10)]
    expected = [server.post(image).content for image in images]
    assert len({json.dumps(content) for content in expected}) == 10
    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(lambda number: server.post(images[number % 10]), range(50)))
    assert {response.status for response in responses} == {200, 503}  # at most five are pending
    for number, (status, content) in enumerate(responses):
        assert content == expected[number % 10] if status == 200 else content["error"].endswith("try again in a second")
    assert server.get("/health").content["requests"] == 0


FORMS = [
    b"",
    b"--edge",
    b"--edge--",
    b"--edge\r\n\r\n\r\n--edge--\r\n",
    b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n--edge--\r\n",
    b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\nno end',
    b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\na field\r\n--edge--\r\n',
    b"--edge\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--edge--\r\n",
    b"--edge\r\nContent-Disposition: form-data; name=\xff\xfe; filename=\xff\r\n\r\nx\r\n--edge--\r\n",
    b"--other\r\n" * 1000,
    bytes(range(256)) * 40,
]


@pytest.mark.parametrize(
    ("boundary", "body"),
    [*(("edge", body) for body in FORMS), ("x" * 10_000, b"nonsense"), ('""', b"nonsense")],
    ids=range(13),
)
def test_a_malformed_form_is_refused(server: Server, boundary: str, body: bytes) -> None:
    status, reply = server.post(body, **{"Content-Type": f"multipart/form-data; boundary={boundary}"})
    assert status in (415, 422) and list(reply) == ["error"], reply
    assert server.get("/health") == (200, {"status": "ok", "requests": 0})


def test_a_slow_body_times_out(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.requests import Request

    monkeypatch.setattr(app, "BODY_TIMEOUT", 0.05)
    messages = iter([{"type": "http.request", "body": b"the first bytes", "more_body": True}])

    async def receive() -> Any:
        for message in messages:
            return message
        await asyncio.sleep(60)

    service = app.Service(SimpleNamespace(limits=Limits()), {})
    request = Request({"type": "http", "headers": [], "method": "POST", "path": "/predict"}, receive)
    with pytest.raises(RequestError, match="did not arrive within") as refused:
        asyncio.run(service.predict(request))
    assert refused.value.status == 408 and service.pending == 0


def test_slow_uploads_do_not_block_other_requests(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    class Sizes:
        limits = Limits(waiting=1)

        def __call__(self, uploads: Sequence[Upload]) -> list[int]:
            return [len(upload.content) for upload in uploads]

    service = app.Service(Sizes(), {})
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as connections:
        http_server = uvicorn.Server(uvicorn.Config(app.make_app(service, None), log_level="critical"))
        thread = Thread(target=http_server.run, args=([listener],))
        thread.start()

        def send(body: bytes) -> http.client.HTTPResponse:
            connection = connections.enter_context(socket.create_connection(listener.getsockname()))
            connection.sendall(head + body)
            return connections.enter_context(http.client.HTTPResponse(connection))

        def status_of(response: http.client.HTTPResponse) -> int:
            response.begin()
            return response.status

        slow = [send(b"some") for _ in range(2)]
        while service.pending < 2:
            time.sleep(0.001)
        assert status_of(send(b"complete")) == 503
        monkeypatch.setattr(app, "CROWDED_BODY_TIMEOUT", 0)
        assert status_of(send(b"complete")) == 200
        assert status_of(slow[0]) == 408
        http_server.should_exit = True
        connections.close()
        thread.join()
    assert service.pending == 0 and not service.arriving


@contextmanager
def running(service: Any, **options: Any) -> Iterator[tuple[str, int]]:
    """Run a server of a service in a thread; yield its address."""
    from opabinia.inference.serving import app, server

    with socket.create_server(("127.0.0.1", 0)) as listener:
        http_server = server.make_server(app.make_app(service, None, **options))
        thread = Thread(target=http_server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            http_server.should_exit = True
            thread.join()


def ask(address: tuple[str, int], method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection(*address, timeout=30)
    with closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


class Waiting:
    """A model that waits while it predicts."""

    def __init__(self, **limits: int) -> None:
        self.limits, self.gallery = Limits(**limits), None
        self.begun, self.end = Event(), Event()

    def __call__(self, uploads: Sequence[Upload]) -> list[int]:
        self.begun.set()
        assert self.end.wait(30)
        return [len(upload.content) for upload in uploads]


def test_the_health_is_answered_during_a_prediction(app: Any) -> None:
    model = Waiting()
    with running(app.Service(model, {})) as address, ThreadPoolExecutor(1) as pool:
        prediction = pool.submit(ask, address, "POST", "/predict", b"image")
        try:
            assert model.begun.wait(30)
            status, _, body = ask(address, "GET", "/health")
        finally:
            model.end.set()
        assert (status, json.loads(body)) == (200, {"status": "ok", "requests": 1})
        assert prediction.result()[2] == b'{"predictions":[5]}'


def test_half_sent_headers_keep_nobody_out(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.inference.serving import connections

    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 4)
    half = b"POST /predict HTTP/1.1\r\nHost: loc"
    model = Waiting()
    with running(app.Service(model, {})) as address, ExitStack() as stack:
        prediction = stack.enter_context(ThreadPoolExecutor(1)).submit(ask, address, "POST", "/predict", b"image")
        try:
            assert model.begun.wait(30)
            slow = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(20)]
            for connection in slow:
                with suppress(OSError):
                    connection.sendall(half)
            for connection in (slow[0], slow[16]):  # the oldest one is closed; so is this one once the last is accepted
                with suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
            assert ask(address, "GET", "/health")[0] == 200
        finally:
            model.end.set()
        assert prediction.result()[0] == 200  # a request in progress is not


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "second"])
def test_headers_must_arrive_in_time(app: Any, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.inference.serving import connections

    with running(app.Service(Waiting(), {})) as address, ExitStack() as stack:
        if not first:
            monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.05)
        connection = stack.enter_context(socket.create_connection(address, timeout=30))
        connection.sendall(first)
        answer = b""
        while first and not answer.endswith(b"}"):
            answer += connection.recv(10_000)
        monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.05)
        with suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
            assert connection.recv(1) == b""


def test_head_is_answered_where_get_is(app: Any, tmp_path: Path) -> None:
    with running(app.Service(Waiting(), {"name": "x"})) as address:
        for path in ("/", "/page.js", "/model", "/health"):
            status, headers, body = ask(address, "HEAD", path)
            assert (status, body) == (200, b"")
            assert headers["content-length"] == ask(address, "GET", path)[1]["content-length"]
        assert ask(address, "HEAD", "/predict")[0] == 405


@pytest.mark.parametrize("name", ["new\nline.png", "end\n", "a b/\u00e9.png"])
def test_gallery_images_of_any_name_are_served(app: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(digit(0))
    model = SimpleNamespace(limits=Limits(), gallery=SimpleNamespace(files={name: file}))
    with running(app.Service(model, {})) as address:
        assert ask(address, "GET", "/gallery/" + urllib.parse.quote(name))[::2] == (200, digit(0))
        assert ask(address, "GET", "/gallery/other%0A")[0] == 404


TOKEN = "0123456789abcdef+/="


def test_requests_need_the_token(app: Any) -> None:
    service = app.Service(Waiting(), {"name": "x"})
    with running(service, token=TOKEN) as address:
        for path in ("/", "/page.js", "/model", "/metrics", "/gallery/x", "/health/", "//health", "/other"):
            status, headers, body = ask(address, "GET", path)
            assert (status, headers["WWW-Authenticate"], list(json.loads(body))) == (401, "Bearer", ["error"])
        wrong = [
            "",
            "Bearer",
            "Bearer ",
            TOKEN,
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer \xe9",
        ]
        for text in wrong:
            assert ask(address, "POST", "/predict", b"image", Authorization=text)[0] == 401
        for host in ("x/health?", "x/health#", "localhost/health?"):  # the path is not that of a URL made of the Host
            assert ask(address, "GET", "/model", Host=host)[0] == 401
            assert ask(address, "GET", "/", Host=host, Authorization=f"Bearer {TOKEN}")[0] == 200
        for text in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            assert ask(address, "GET", "/model", Authorization=text)[0] == 200
        assert ask(address, "GET", "/health")[0] == ask(address, "HEAD", "/health")[0] == 200


def test_tokens_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.inference.serving.address import read_token

    file = tmp_path / "token"
    monkeypatch.delenv("OPABINIA_TOKEN", raising=False)
    assert read_token(None) is None
    file.write_text(TOKEN + "\n")
    monkeypatch.setenv("OPABINIA_TOKEN", "other" * 4)
    assert (read_token(None), read_token(file)) == ("other" * 4, TOKEN)
    for text in ("", "short", "two words of 20 signs", "\u00e9" * 20, TOKEN + "\n" + TOKEN):
        file.write_text(text)
        with pytest.raises(ConfigError, match="a token has at least 16"):
            read_token(file)
        monkeypatch.setenv("OPABINIA_TOKEN", text)
        with pytest.raises(ConfigError, match="OPABINIA_TOKEN"):
            read_token(None)
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="cannot be read: it is not text"):
        read_token(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(tmp_path / "gone")


def test_metrics_count_requests(app: Any) -> None:
    model = Waiting()
    model.end.set()
    with running(app.Service(model, {})) as address:
        for body in (b"image", b"image", b""):
            ask(address, "POST", "/predict", body)
        for path in ("/health", "/gallery/x", "/gallery/y", '/"new\nline"'.replace("\n", "%0A")):
            ask(address, "GET", path)
        status, headers, body = ask(address, "GET", "/metrics")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"\\]*"(,[a-z]+="[^"\\]*")*\})? [0-9.]+', line) for line in lines)
    assert lines[:6] == [
        'opabinia_requests_total{path="/gallery",status="404"} 2',
        'opabinia_requests_total{path="/health",status="200"} 1',
        'opabinia_requests_total{path="/predict",status="200"} 2',
        'opabinia_requests_total{path="/predict",status="422"} 1',
        'opabinia_requests_total{path="other",status="404"} 1',
        "opabinia_files_total 2",
    ]
    assert "opabinia_requests_pending 0" in lines
    assert 'opabinia_predict_seconds_bucket{le="+Inf"} 3' in lines and "opabinia_predict_seconds_count 3" in lines


def test_a_model_is_loaded_again_beside_the_one_that_answers(app: Any) -> None:
    def predicts(name: str) -> Any:
        def inference(uploads: Sequence[Upload]) -> list[Any]:
            assert go_on.wait(30)
            return [name]

        inference.limits = Limits()  # type: ignore[attr-defined]
        return inference

    def load() -> Any:
        go_on.set()  # the one before it answers while this one is loaded
        return loaded.pop()

    async def requests() -> list[Any]:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"file", "more_body": False}

        async def predict() -> Any:
            request = Request({"type": "http", "headers": [], "method": "POST", "path": "/predict"}, receive)
            return json.loads((await service.predict(request)).body)["predictions"]

        first = asyncio.create_task(predict())
        while not service.worker._threads:
            await asyncio.sleep(0)
        await service.reload()
        second = await predict()
        await service.reload()  # fails
        return [await first, second, await predict(), service.about]

    from starlette.requests import Request

    go_on, loaded = Event(), [(predicts("second"), {"version": 2})]
    service = app.Service(predicts("first"), {"version": 1}, load)
    assert asyncio.run(requests()) == [["first"], ["second"], ["second"], {"version": 2}]


def test_sighup_loads_the_newest_checkpoint(app: Any, run: Path, warm_server: programs.Server, tmp_path: Path) -> None:
    copy = tmp_path / "classification" / "copy"
    shutil.copytree(run, copy)
    with started(warm_server, copy) as server:
        before = server.post(digit(0)).content["predictions"]
        other = launch.train("classification/digits", [*SMALL, "seed=5"], out=tmp_path / "other")[0]
        copy.rename(tmp_path / "old")
        shutil.copytree(other, copy)
        seconds = server.get("/model").content["load_seconds"]
        server.program.signal(signal.SIGHUP)
        while server.get("/model").content["load_seconds"] == seconds:
            assert server.post(digit(0)).status == 200
        after = server.post(digit(0)).content["predictions"]
        assert [{"path": "the file", **opabinia.load(other)(decode_bytes(digit(0), "", 1)).readable}] == after != before
        with urllib.request.urlopen(server.address + "/metrics") as response:
            assert re.search(rb"\nopabinia_model_load_seconds [0-9.]+\n", response.read())


@pytest.mark.slow
def test_memory_does_not_grow_with_requests(server: Server) -> None:
    def resident() -> int:
        return int(Path(f"/proc/{server.program.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    images = [digit(number, "JPEG", 400) for number in range(10)]
    for number in range(100):
        assert server.post(images[number % 10]).status == 200
    initial = resident()
    for number in range(500):
        assert server.post(images[number % 10]).status == 200
    assert resident() < initial + 30_000_000


@pytest.mark.slow
def test_a_stopped_server_responds_or_closes_connections(app: Any, run: Path, warm_server: programs.Server) -> None:
    large = digit(0, "JPEG", 1500)

    def send(_: int) -> int:
        try:
            return stopped.form([("large.jpg", large)]).status
        except (OSError, http.client.HTTPException):
            return 0

    with started(warm_server, run) as stopped, ThreadPoolExecutor(20) as pool:
        requests = [pool.submit(send, number) for number in range(20)]
        time.sleep(0.3)
        stopped.program.signal(signal.SIGTERM)
        assert {request.result() for request in requests} <= {0, 200, 500, 503}


# --- without a server -------------------------------------------------------------------------------------------------


def test_kinds_are_reported_by_content(tmp_path: Path) -> None:
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        check_image(Upload("x.txt", digit(0, kind)), Limits())
    for content in (b"<svg xmlns='...'/>", b"%PDF-1.7", b"RIFF____AVI ", b"MZ"):
        with pytest.raises(RequestError, match="is not an image") as refused:
            check_image(Upload("x.png", content), Limits())
        assert refused.value.status == 415
    with pytest.raises(RequestError, match="is not a video"):
        check_video(Upload("x.mp4", digit(0)), Limits())
    with pytest.raises(RequestError, match="header cannot be read"):
        check_video(Upload("x.mp4", b"\0\0\0\x20ftypisom"), Limits())
    with pytest.raises(RequestError, match="8 x 8 = 0 megapixels, more than 6e-05"):
        check_image(Upload("x.png", digit(0)), Limits(pixels=60))


def test_pil_limit_is_that_of_the_server_only_while_it_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'opabinia[serve]'")
    from opabinia.inference.serving.server import serve

    during = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: during.append(Image.MAX_IMAGE_PIXELS))
    before, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve(RunModel(run), listener, limits=Limits(pixels=1000))
    assert (during, Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == ([1000], before, filters)


@pytest.mark.parametrize("start", [b"GIF8", b"GIF89a", b"\0\0\x01\xba", b"\x1aE\xdf\xa3", b"0000ftyp"])
def test_a_session_description_opens_no_network_connection(start: bytes) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = ["", "v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=x", "c=IN IP4 127.0.0.1", "t=0 0", f"m=video {port} RTP/AVP 96"]
    upload = Upload("video.mp4", start + "\r\n".join([*lines, "a=rtpmap:96 H264/90000", ""]).encode())
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_video, upload, Limits())
        while not checked.done():
            assert f":{port:04X} " not in Path("/proc/self/net/udp").read_text()
    if start != b"GIF89a":  # a GIF of 2573 x 15734 pixels
        with pytest.raises(RequestError, match=r"is not a video|its header cannot be read") as refused:
            checked.result()
        assert refused.value.status == (415 if start == b"GIF8" else 422)


def test_the_largest_stream_of_a_video_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "video.mkv"
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream("mpeg4", rate=25) for _ in range(2)]
        for stream, side in zip(streams, (32, 320), strict=True):
            stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for stream in streams:
            for frame in (av.VideoFrame.from_image(Image.new("RGB", (stream.width, stream.height))), None):
                container.mux(stream.encode(frame))
    content = path.read_bytes()
    assert check_video(Upload("x.mkv", content), Limits()) == (320, 320)
    with pytest.raises(RequestError, match="320 x 320"):
        check_video(Upload("x.mkv", content), Limits(pixels=2000))
    unknown = content.replace(b"V_MPEG4/ISO/ASP", b"V_MPEG4/ISO/XXX")  # of both streams
    with pytest.raises(RequestError, match=r"x.mkv has no frames"):
        check_video(Upload("x.mkv", unknown), Limits())


class PixelCounter:
    """A model without transforms that notes the pixels of each batch."""

    takes_video, channels = False, 1

    task: torch.nn.Module = torch.nn.Identity()

    def __init__(self) -> None:
        self.batches: list[int] = []

    def sample(self, image: torch.Tensor) -> Any:
        return {"image": image}

    def batch(self, samples: Sequence[Any]) -> Any:
        self.batches.append(sum(sample["image"].numel() for sample in samples))
        return [SimpleNamespace(readable={"pixels": sample["image"].numel()}) for sample in samples]


def test_images_of_a_form_are_predicted_in_small_groups() -> None:
    model = PixelCounter()
    sides = [100, 100, 150, 40, 40, 40, 200]
    uploads = [Upload(str(side), digit(0, side=side)) for side in sides]
    results = Inference(cast(Any, model), Limits(input_pixels=40_000))(uploads)
    assert results == [{"path": str(side), "pixels": side**2} for side in sides]
    assert model.batches == [20_000, 27_300, 40_000]
    model = PixelCounter()  # masks and maps have the size of the file
    Inference(cast(Any, model), Limits(pixels=22_500))(uploads[:4])
    assert model.batches == [20_000, 22_500, 1_600]


def test_inputs_and_requests_with_too_many_pixels_are_refused() -> None:
    inference = Inference(cast(Any, PixelCounter()), Limits(pixels=50_000))
    with pytest.raises(RequestError, match=r"have 0 megapixels, more than 0.4, 8 times what one may have") as refused:
        inference([Upload("x.png", digit(0, side=200))] * 11)
    assert refused.value.status == 413
    inference = Inference(cast(Any, PixelCounter()), Limits())
    with pytest.raises(RequestError, match=r"^x.png has 4.01 megapixels after the transforms .*\(--max-input-megapix"):
        inference([Upload("x.png", empty_png(2008, 1999))])


def test_images_of_mask_classifiers_are_limited_before_they_are_decoded() -> None:
    upload = Upload("large.png", digit(0, side=200))
    counter = PixelCounter()
    assert len(Inference(cast(Any, counter), Limits(input_pixels=40_000))([upload])) == 1
    counter.task = Panoptic.__new__(Panoptic)
    torch.nn.Module.__init__(counter.task)
    assert len(Inference(cast(Any, counter), Limits(input_pixels=40_000))([upload])) == 1
    with pytest.raises(RequestError, match=r"of which the model predicts masks, more than 0\.039 \(--max-input"):
        Inference(cast(Any, counter), Limits(input_pixels=39_000))([upload])
    assert len(counter.batches) == 2


def test_clips_that_are_too_large_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    frames = [Image.new("L", (64, 32), 8 * number) for number in range(20)]
    frames[0].save(tmp_path / "video.gif", save_all=True, append_images=frames[1:])
    upload = Upload("video.gif", (tmp_path / "video.gif").read_bytes())

    def sample(video: Any) -> Any:
        return {"image": video.read(range(16), 16)}

    model = SimpleNamespace(
        task=torch.nn.Identity(), takes_video=True, channels=1, sample=sample, batch=lambda samples: samples
    )
    with pytest.raises(RequestError, match=r"has 0.00819 megapixels .* more than 0.008") as refused:
        Inference(cast(Any, model), Limits(input_pixels=8000))([upload])
    assert refused.value.status == 413
    with pytest.raises(AttributeError, match="readable"):  # decoded
        Inference(cast(Any, model), Limits(input_pixels=9000))([upload])


def test_errors_are_reported_before_a_model_is_loaded(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CliRunner().invoke(program, ["serve", str(tmp_path), "--port", port])
    assert result.exit_code == 2 and f"cannot listen at 127.0.0.1:{port}: Address already in use" in result.stderr
    monkeypatch.setattr(
        "opabinia.inference.serving.address.find_spec", lambda name: None if name == "fastapi" else name
    )
    result = CliRunner().invoke(program, ["serve", str(tmp_path)])
    assert result.exit_code == 2 and "serving needs fastapi: pip install 'opabinia[serve]'" in result.stderr


# --- other models -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_video_is_predicted(app: Any, warm_server: programs.Server, tmp_path: Path) -> None:
    run, _ = launch.train("video/digits", [*SMALL, "train.length=1it", "data.batch_size=4"], out=tmp_path)
    with started(warm_server, run) as server:
        frames = [Image.fromarray(np.full((32, 32), 8 * number, np.uint8)) for number in range(20)]
        content = BytesIO()
        frames[0].save(content, "GIF", save_all=True, append_images=frames[1:])
        status, reply = server.form([("video.gif", content.getvalue())])
        assert status == 200 and len(reply["predictions"][0]["top"]) == 5
        assert server.form([("video.mp4", digit(0))]).status == 415


@pytest.mark.slow
def test_nearest_images_of_a_gallery(app: Any, run: Path, warm_server: programs.Server, tmp_path: Path) -> None:
    images = tmp_path / "gallery" / "in side"
    images.mkdir(parents=True)
    for number in range(4):
        (images / f"{number}.png").write_bytes(digit(number))
    with started(warm_server, run, "--gallery", str(tmp_path / "gallery")) as server:
        nearest = server.post(digit(2)).content["predictions"][0]["nearest"]
        assert nearest[0] == {"path": "in side/2.png", "distance": pytest.approx(0, abs=1e-5)}
        assert len(nearest) == 4
        with urllib.request.urlopen(f"{server.address}/gallery/in%20side/2.png") as response:
            assert response.read() == digit(2)
        assert server.get("/gallery/in%20side/../../secret").status == 404


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_in_a_browser(server: Server, browser: Any, tmp_path: Path) -> None:
    hostile = '<img src=x onerror=alert(1)>".png'
    for name, content in [(hostile, digit(3)), ("words.jpg", b"words")]:
        (tmp_path / name).write_bytes(content)
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    allowed = (server.address, "blob:", "data:")
    page.on("request", lambda request: None if request.url.startswith(allowed) else errors.append(request.url))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.goto(server.address)
    page.get_by_text("classification, 10 classes").wait_for()
    page.keyboard.press("Tab")
    assert page.locator("#files").evaluate("element => element === document.activeElement")
    page.set_input_files("#files", [str(tmp_path / hostile), str(tmp_path / "words.jpg")])
    page.get_by_text("done", exact=True).wait_for()
    assert page.get_by_role("heading", level=2).all_text_contents() == ["words.jpg", hostile]
    assert "is not an image" in page.get_by_role("alert").text_content()
    top = server.post(digit(3)).content["predictions"][0]["top"]
    rows = page.locator(".bars li").all_text_contents()
    assert rows == [f"{entry['class']}{100 * entry['probability']:.1f} %" for entry in top]
    assert page.locator("html").evaluate("element => element.scrollWidth <= innerWidth")
    assert errors == []
    page.close()
