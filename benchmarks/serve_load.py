"""Claim: ``opabinia serve`` answers about as many requests as LitServe with the same model, in 0.6 times the memory.

LitServe (``pip install -e .[bench]``; without it only ours is measured) runs the same predictor: decoding, transforms,
model and readable result. It gets images in base64 within JSON, as its examples do, ours as the body. Both servers run
at once, on one thread each, and eight clients with connections of their own send rounds of requests to one after the
other. A third side sends ours forms of eight files, which the model gets together. Each answer is compared with the
prediction for its file. Memory (proportional set size) and CPU time are those of all processes of a server. ``digits``
is a small model, whose requests show the server's own cost; ``resnet18`` resizes JPEGs of 500 x 375 and computes on
224 x 224. ``--quick`` sends few, to see that it works. Run: ``python benchmarks/serve_load.py``.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import opabinia
from opabinia.data.decoding.images import decode_bytes
from opabinia.training import launch

OTHER = Path(__file__).with_name("serve_other.py")
CLIENTS, FILES, FORM = 8, 50, 8
REQUESTS, ROUNDS = (
    ({"digits": 400, "resnet18": 80}, 2) if "--quick" in sys.argv else ({"digits": 10_000, "resnet18": 1_000}, 10)
)
SHORT = ["train.length=1it", "data.num_workers=0", "loggers=[]", "evaluate.every=1it"]


def images(kind: str) -> list[bytes]:
    """Return encoded images: 28 x 28 PNGs, or JPEGs of 500 x 375, with blobs of different colors."""
    random, contents = np.random.default_rng(0), []
    for _ in range(FILES):
        small = Image.fromarray(random.integers(0, 255, (6, 8, 3), np.uint8))
        file = BytesIO()
        if kind == "digits":
            small.convert("L").resize((28, 28), Image.Resampling.BICUBIC).save(file, "PNG")
        else:
            small.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents.append(file.getvalue())
    return contents


def train(kind: str, folder: Path) -> Path:
    """Train for one step; return the run folder."""
    if kind == "digits":
        return launch.train("classification/digits", SHORT, out=folder)[0]
    for split in ("train", "val"):
        for number, content in enumerate(images(kind)[:20]):
            path = folder / "data" / split / str(number % 10) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    overrides = [*SHORT, f"vars.root={folder / 'data'}", "data.batch_size=10"]
    return launch.train("classification/image_folder", overrides, out=folder)[0]


# --- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def started(program: Sequence[str], port: int) -> Iterator[int]:
    """Start a program of Python that serves, and wait until it answers; return its process number."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, *program]
    with subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            while status(port) != 200:
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(program)} ended")
                time.sleep(0.2)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def status(port: int) -> int:
    """Return the status of ``GET /health``, 0 without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def processes_of(session: int) -> list[Path]:
    """Return the folders in ``/proc`` of the processes of a session."""
    folders = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                folders.append(folder)
        except OSError:  # it has ended
            continue
    return folders


def memory(session: int) -> float:
    """Return the megabytes of the processes of a session."""
    lines = [line for folder in processes_of(session) for line in (folder / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def cpu_seconds(session: int) -> float:
    """Return the CPU time of the processes of a session."""
    fields = [(folder / "stat").read_text().rpartition(")")[2].split() for folder in processes_of(session)]
    return sum(int(user) + int(system) for *_, user, system in (row[:13] for row in fields)) / os.sysconf("SC_CLK_TCK")


# --- clients ----------------------------------------------------------------------------------------------------------


class Side:
    """Requests to a server.

    Args:
        name: for the table.
        port: of the server.
        process: its number.
        bodies: of the requests.
        content_type: of the bodies.
        expected: predictions for the files of each request.
    """

    def __init__(
        self, name: str, port: int, process: int, bodies: list[bytes], content_type: str, expected: list[list[Any]]
    ) -> None:
        self.name, self.port, self.process, self.bodies, self.expected = name, port, process, bodies, expected
        self.headers = {"Content-Type": content_type}
        self.files = len(expected[0])
        self.rates: list[float] = []
        self.latencies: list[float] = []
        self.cpu = 0.0
        self.wrong = 0

    def round(self, requests: range) -> None:
        """Send requests; add images per second, latencies, CPU time and wrong answers."""
        start, cpu = time.perf_counter(), cpu_seconds(self.process)
        with ThreadPoolExecutor(CLIENTS) as pool:
            results = list(pool.map(self._client, [islice(requests, first, None, CLIENTS) for first in range(CLIENTS)]))
        self.rates.append(self.files * len(requests) / (time.perf_counter() - start))
        self.cpu += cpu_seconds(self.process) - cpu
        for latencies, wrong in results:
            self.latencies += latencies
            self.wrong += wrong

    def _client(self, requests: Iterator[int]) -> tuple[list[float], int]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        latencies, wrong = [], 0
        for request in requests:
            number = request % len(self.bodies)
            start = time.perf_counter()
            connection.request("POST", "/predict", self.bodies[number], self.headers)
            content = json.loads(connection.getresponse().read())
            latencies.append(time.perf_counter() - start)
            answers = content.get("predictions", [content])
            wrong += not same([answer.get("top") for answer in answers], self.expected[number])
        connection.close()
        return latencies, wrong

    def line(self) -> str:
        """Return a line of the table."""
        low, high = (1000 * np.quantile(self.latencies, q) for q in (0.5, 0.99))
        cpu = 1000 * self.cpu / len(self.latencies) / self.files
        rate = f"{statistics.median(self.rates):6.1f} images/s   p50 {low:5.1f} ms   p99 {high:6.1f} ms"
        costs = f"{cpu:4.1f} ms CPU for an image   {memory(self.process):4.0f} MB   {self.wrong} wrong"
        return f"  {self.name:<26} {rate}   {costs}"


def same(answers: list[Any], expected: list[Any]) -> bool:
    """Return whether predictions are the same, up to the rounding of computing several images together."""
    return len(answers) == len(expected) and all(
        answer is not None
        and [entry["class"] for entry in answer] == [entry["class"] for entry in other]
        and all(abs(a["probability"] - b["probability"]) < 3e-6 for a, b in zip(answer, other, strict=True))
        for answer, other in zip(answers, expected, strict=False)
    )


def form(contents: list[bytes]) -> bytes:
    """Return a body of ``multipart/form-data``."""
    head = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="image"\r\n\r\n'
    return b"".join(head + content + b"\r\n" for content in contents) + b"--edge--\r\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def compare(kind: str, folder: Path) -> None:
    """Print the table of one model."""
    contents, run = images(kind), train(kind, folder)
    predictor = opabinia.load(run)
    decoded = [decode_bytes(content, "image", predictor.channels) for content in contents]
    expected = [predictor(image).readable["top"] for image in decoded]
    print(f"{kind}: {REQUESTS[kind]} images to each, {len({json.dumps(top) for top in expected})} different answers")
    with ExitStack() as servers:
        port = free_port()
        process = servers.enter_context(started(["-m", "opabinia", "serve", str(run), "--port", str(port)], port))
        one = [[top] for top in expected]
        sides = [Side("opabinia serve", port, process, contents, "application/octet-stream", one)]
        if find_spec("litserve"):
            other = free_port()
            bodies = [json.dumps({"image": base64.b64encode(content).decode()}).encode() for content in contents]
            process_of_other = servers.enter_context(started([str(OTHER), str(run), str(other)], other))
            sides.append(Side("LitServe", other, process_of_other, bodies, "application/json", one))
        starts = range(0, FILES - FORM + 1)
        forms = [form(contents[start : start + FORM]) for start in starts]
        several = [expected[start : start + FORM] for start in starts]
        content_type = "multipart/form-data; boundary=edge"
        sides.append(Side(f"opabinia serve, forms of {FORM}", port, process, forms, content_type, several))
        for side in sides:
            side.round(range(2 * CLIENTS))  # warm up
            side.rates, side.latencies, side.cpu = [], [], 0.0
        for number in range(ROUNDS):
            for side in sides[:: 1 if number % 2 else -1]:
                count = REQUESTS[kind] // ROUNDS // side.files
                side.round(range(number * count, (number + 1) * count))
        print("\n".join(side.line() for side in sides))
        if len(sides) == 3:
            for side in (sides[0], sides[2]):
                ratios = [ours / theirs for ours, theirs in zip(side.rates, sides[1].rates, strict=True)]
                spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"  images/s, {side.name} / LitServe: median {statistics.median(ratios):.2f} {spread}")
    if any(side.wrong for side in sides):
        raise SystemExit("answers are wrong")


def main() -> None:
    for kind in REQUESTS:
        with tempfile.TemporaryDirectory() as folder:
            compare(kind, Path(folder))


if __name__ == "__main__":
    main()
