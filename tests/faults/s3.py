"""An S3 server on this machine (moto), which records its requests and can delay, falsify or refuse answers."""

import io
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

_ERROR = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>It was so wanted.</Message></Error>'


class S3Server:
    """An S3 server in a thread of this process; a WSGI application around that of moto.

    Attributes:
        requests: method and path of each request, and the bytes that it asks for (``GET /bucket/a.tar bytes=0-99``).
        latency: seconds before each answer.
        errors, slow, truncated, wrong_etags: shares of the requests of content that are answered by 500 or 503, after
            ``slow_seconds``, with half of the body, and with an ETag of other content.
    """

    def __init__(self, port: int = 0) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._buckets = count()
        self.port = port
        self.reset()
        self._start()

    def reset(self) -> None:
        """Clear the requests and disable all faults."""
        self.requests: list[str] = []
        self.latency = self.errors = self.slow = self.truncated = self.wrong_etags = 0.0
        self.slow_seconds = 2.0
        self.random = random.Random(0)

    def _start(self) -> None:
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self.port, self, threaded=True)
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def outage(self, seconds: float) -> None:
        """Refuse connections for some seconds from now on."""
        self.stop()
        threading.Timer(seconds, self._start).start()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients of the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, folder: Path | None = None, **objects: bytes) -> str:
        """Return the name of a new bucket with the files of a folder and some objects; no faults."""
        import boto3

        variables = self.environment
        client = boto3.client(
            "s3",
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        )
        name = f"bucket-{next(self._buckets)}"
        client.create_bucket(Bucket=name)
        files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()} if folder else {}
        for key, content in {**{key: file.read_bytes() for key, file in files.items()}, **objects}.items():
            client.put_object(Bucket=name, Key=key, Body=content)
        return name

    def reads(self) -> list[str]:
        """Return the requests of content."""
        return [line for line in self.requests if line.startswith("GET") and "?" not in line]

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query, byte_range = environ.get("QUERY_STRING"), environ.get("HTTP_RANGE")
        line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}" + (f"?{query}" if query else "")
        self.requests.append(line + (f" {byte_range}" if byte_range else ""))
        time.sleep(self.latency)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return self._application(environ, start_response)
        if self.random.random() < self.errors:
            status, code = self.random.choice([("500 Internal", b"InternalError"), ("503 Slow Down", b"SlowDown")])
            start_response(status, [("Content-Type", "application/xml")])
            return [_ERROR % code]
        if self.random.random() < self.slow:
            time.sleep(self.slow_seconds)
        answer: list[Any] = []
        body = b"".join(self._application(environ, lambda *parts: answer.extend(parts)))
        status, headers = answer[0], dict(answer[1])
        if self.random.random() < self.wrong_etags and "ETag" in headers:
            headers["ETag"] = '"00000000000000000000000000000000"'
        start_response(status, list(headers.items()))
        if body and self.random.random() < self.truncated:
            return io.BytesIO(body[: len(body) // 2])  # Content-Length is that of the whole body
        return [body]
