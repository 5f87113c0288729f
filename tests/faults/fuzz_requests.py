"""Damaged requests to a server of images and one of videos, over HTTP: each gets a result, or an error of one line.

``python -m tests.faults.fuzz_requests --seed 1 --first 0 --count 20000``
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile, TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import av
import numpy as np
from PIL import Image
from torch import nn

ROOT = Path(__file__).parents[2]

SECONDS = 10.0
"""Time limit of a case."""

MEMORY = 2**30
"""Bytes that the server may take above those at its start."""

TIMEOUT = 0.1
"""Seconds for headers and bodies, of which some never arrive."""

TOKEN = "0123456789abcdef"


# --- the servers, in a process of their own ---------------------------------------------------------------------------


def serve() -> None:
    """Run both servers until standard input ends; print their ports."""
    from opabinia.inference.serving import app, connections, server
    from opabinia.inference.serving.inference import Inference
    from opabinia.inference.serving.limits import Limits

    app.BODY_TIMEOUT = cast(Any, TIMEOUT)
    connections.HEADER_TIMEOUT = cast(Any, TIMEOUT)
    limits = Limits(bytes=300_000, pixels=500_000, waiting=4, input_pixels=200_000)
    Image.MAX_IMAGE_PIXELS = limits.pixels
    ports = []
    for takes_video in (False, True):
        model = SimpleNamespace(takes_video=takes_video, channels=3, task=nn.Identity(), sample=_sample, batch=_batch)
        service = app.Service(Inference(cast(Any, model), limits), {"name": "fuzz"})
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        http_server = server.make_server(app.make_app(service, server.LOCAL, TOKEN if takes_video else None))
        Thread(target=http_server.run, args=([listener],), daemon=True).start()
        ports.append(listener.getsockname()[1])
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


def _sample(item: Any) -> Any:
    return {"image": item.read([0, item.frames // 2, item.frames - 1], 32) if hasattr(item, "read") else item}


def _batch(samples: Sequence[Any]) -> Any:
    return [SimpleNamespace(readable={"mean": sample["image"].float().mean().item()}) for sample in samples]


class Servers(NamedTuple):
    """The process of both servers, its ports, its output and its memory at the start."""

    process: subprocess.Popen[str]
    ports: list[int]
    output: Any
    start: int

    def problem(self) -> str:
        """Return what is wrong with the process; an empty text: nothing."""
        if self.process.poll() is not None:
            return f"the server ended with status {self.process.returncode}: {self.text()[-300:]!r}"
        if "Traceback" in (text := self.text()):
            return f"a traceback in the output of the server: {text[-600:]!r}"
        grown = _peak(self.process.pid) - self.start
        return f"the server takes {grown / 2**20:.0f} MiB more than at its start" if grown > MEMORY else ""

    def text(self) -> str:
        """Return the output so far."""
        self.output.seek(0)
        content: str = self.output.read().decode(errors="replace")
        return content


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []  # Linux
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


@contextmanager
def servers() -> Iterator[Servers]:
    """Start both servers."""
    with ExitStack() as stack:
        output = stack.enter_context(NamedTemporaryFile())
        command = [sys.executable, "-m", "tests.faults.fuzz_requests", "--serve"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output, "text": True}
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes))
        stack.callback(process.kill)
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        yield Servers(process, ports, output, _peak(process.pid))


# --- cases ------------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """The bytes of a request; ``complete``: the server must answer it, and not only close the connection."""

    content: bytes
    video: bool
    complete: bool


@cache
def files(video: bool) -> list[bytes]:
    """Return small images or videos of all kinds."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 24, 32, 3), dtype=np.uint8)
    images = [Image.fromarray(frame) for frame in pixels]
    if not video:
        return [_encoded(images[0], kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")]
    result = [_encoded(images[0], "GIF", save_all=True, append_images=images[1:])]
    with TemporaryDirectory() as folder:
        for ending, codec in [("mp4", "mpeg4"), ("avi", "mpeg4"), ("mkv", "mpeg4"), ("mpg", "mpeg1video")]:
            path = Path(folder) / f"video.{ending}"
            with av.open(str(path), "w") as container:
                stream = cast(Any, container.add_stream(codec, rate=25))
                stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
                for frame in [*map(av.VideoFrame.from_image, images), None]:
                    container.mux(stream.encode(frame))
            result.append(path.read_bytes())
    return result


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def mutated(content: bytes, random: Random) -> bytes:
    """Return content with one to four changes, half of them in its first 128 bytes."""
    raw = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(min(len(raw), 128) if random.random() < 0.5 else len(raw)) if raw else 0
        length = random.choice([1, 2, 4, 64])
        match random.randrange(6):
            case 0 | 1:
                raw[at : at + 1] = bytes([random.choice([0, 1, 10, 13, 127, 128, 255, random.randrange(256)])])
            case 2:
                raw[at : at + 4] = random.choice([0, 1, 2**16, 2**31 - 1, 2**32 - 1]).to_bytes(4, "big")
            case 3:
                raw[at : at + random.choice([length, length, len(raw)])] = b""
            case 4:
                raw[at:at] = random.randbytes(length)
            case _:
                raw[at:at] = raw[at : at + length]
    return bytes(raw)


_NAMES = ("a.png", "", "..", "a/b.png", "\r\nX: y", '"', "\0", "x" * 5000, "\u00e9\u202e", "%0A", "; filename=b")
_TYPES = ("application/octet-stream", "image/png", "multipart/form-data", "multipart/form-data; boundary=", "\xff", "")
_PATHS = (
    "/",
    "/model",
    "/health",
    "/metrics",
    "/page.js",
    "/gallery/a",
    "/gallery/%0a%00%ff",
    "/../x",
    "//",
    "/predict?",
)
_HOSTS = (
    "localhost",
    "127.0.0.1:1",
    "[::1]",
    "evil.example",
    "[",
    "localhost/x?",
    "localhost#",
    "a@localhost",
    "",
    "\xff",
    ":",
    "[::",
)
_METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "FOO")
_EXTRA = (
    *("Expect: 100-continue", "Expect: x", "Upgrade: websocket\r\nConnection: upgrade", "Range: bytes=5-1"),
    *("If-Range: \xff", "Cookie: " + "x" * 4000, "Authorization: Bearer \xff", "Content-Length: -1", "X: \0"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: x", "Content-Length: 1\r\nContent-Length: 2"),
)


def request(random: Random) -> Request:
    """Draw a request."""
    video = random.random() < 0.3
    token = "" if video and random.random() < 0.05 else f"Authorization: Bearer {TOKEN}"
    if random.random() < 0.15:
        lines = [f"Host: {random.choice(_HOSTS)}", *random.sample(_EXTRA, random.choice([0, 0, 1])), token]
        start = f"{random.choice(_METHODS)} {random.choice(_PATHS)} HTTP/1.1"
        return Request(_request(start, lines, b""), video, complete=False)
    kind, body = _body(video, random)
    lines = ["Host: localhost", f"Content-Type: {kind}", f"Content-Length: {len(body)}", token]
    content = _request("POST /predict HTTP/1.1", lines, body)
    damaged = random.random() < 0.15
    return Request(mutated(content, random) if damaged else content, video, complete=not damaged)


def _request(start: str, lines: Sequence[str], body: bytes) -> bytes:
    return "\r\n".join([start, *filter(None, lines), "Connection: close", "", ""]).encode("latin-1", "replace") + body


def _body(video: bool, random: Random) -> tuple[str, bytes]:
    """Return type and content of a body: a file, or a form of files."""

    def draw() -> bytes:
        content = random.choice(files(video if random.random() < 0.95 else not video))
        return mutated(content, random) if random.random() < 0.8 else content

    if random.random() < 0.4:
        return random.choice(_TYPES), draw()
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{random.choice(_NAMES)}"\r\n\r\n'.encode()
        + (draw() + b"\r\n")
        for _ in range(random.choice([1, 1, 2, 4, 40]))
    ]
    body = b"".join(parts) + b"--edge--\r\n"
    return "multipart/form-data; boundary=edge", mutated(body, random) if random.random() < 0.3 else body


def problem_of(sent: Request, port: int) -> str:
    """Send a request; return what is wrong with the answer, or an empty text."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            connection.sendall(sent.content)
            method = sent.content.partition(b" ")[0].decode("latin-1")
            with http.client.HTTPResponse(connection, method=method) as response:
                response.begin()
                status, kind, body = response.status, response.headers["content-type"] or "", response.read()
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error!r}" if sent.complete else ""
    if status == 200:
        if sent.complete and list(json.loads(body)) != ["predictions"]:
            return f"no predictions: {body[:200]!r}"
        return ""
    if not (400 <= status < 500 or status == 503):
        return f"status {status}: {body[:300]!r}"
    if method == "HEAD" and not body:
        return ""
    text = json.loads(body)["error"] if kind == "application/json" else body.decode()
    return f"{status} with an error of {len(text.splitlines())} lines: {text!r}" if len(text.splitlines()) != 1 else ""


def run_cases(seed: int, first: int, count: int) -> list[str]:
    """Run cases ``first`` to ``first + count - 1`` of a seed; return a text for each problem, which ends with the
    command that repeats it."""
    problems, start = list[str](), first
    while start < first + count:
        with servers() as running:
            for number in range(start, first + count):
                sent = request(Random(f"{seed} {number}"))
                problem, state = problem_of(sent, running.ports[sent.video]), running.problem()
                if problem or state:
                    command = f"python -m tests.faults.fuzz_requests --seed {seed} --first {number} --count 1"
                    problems.append(f"case {number}: {problem} {state}; repeat it with: {command}")
                start = number + 1
                if state:
                    break  # a new process
    return problems


def main() -> None:
    """Run cases from the command line, and print their problems."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz_requests")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=500, help="number of cases")
    options = parser.parse_args()
    if options.serve:
        return serve()
    problems = run_cases(options.seed, options.first, options.count)
    print("\n".join(problems) or f"{options.count} cases, no problem")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
