"""The HTTP application: uploads are limited before they are stored; answers, also errors, are JSON."""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from opabinia.inference.serving.inference import Inference
from opabinia.inference.serving.limits import MAX_FILES, RequestError, Upload, check_body_size
from opabinia.inference.serving.metrics import CONTENT_TYPE, Metrics, tracking_text
from opabinia.inference.serving.streams import TrackingInference, check_name, read_time
from opabinia.runtime.log import log

PAGE = Path(__file__).parent / "page"
ROUTES = ("/predict", "/health", "/metrics", "/model")
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}

BODY_TIMEOUT = 60
"""Seconds in which a request's body must arrive."""

CROWDED_BODY_TIMEOUT = 5
"""The same once other requests are refused for it."""

MAX_DRAINED = 64_000_000
"""Bytes of a refused body that are read and discarded: many clients read no answer before they have sent all."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Anything(Convertor[str]):  # type: ignore[misc]  # starlette is optional: no types
    """A part of a path that may have line breaks, as file names may; starlette's own ``path`` ends at one."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


# Returns what predicts uploads, and the answer of GET /model.
Load = Callable[[], tuple[Inference, dict[str, Any]]]


class Service:
    """Answers requests one after the other in one thread; a limited number waits, others are refused.

    Args:
        inference: predicts uploads.
        about: the answer of ``GET /model``.
        load: returns both of a model that is loaded again.
    """

    def __init__(self, inference: Inference, about: dict[str, Any], load: Load | None = None) -> None:
        self.inference, self.about = inference, about
        self.load, self._loading = load, asyncio.Lock()
        self.limits = inference.limits
        self.pending = 0
        self.metrics = Metrics()
        self.arriving: dict[asyncio.Timeout, float] = {}  # the bodies that are read, with their start, oldest first
        self.worker = ThreadPoolExecutor(1, "model")

    async def predict(self, request: Request) -> Response:
        """``POST /predict``: images as ``multipart/form-data``, or one as the body itself.

        Raises:
            RequestError: there are too many requests (503), the body is too slow (408), too large (413) or empty
                (422), or see :class:`opabinia.inference.serving.inference.Inference`.
        """
        with self._waiting():
            uploads = await self._uploads(request)
            results = await asyncio.get_running_loop().run_in_executor(self.worker, self.inference, uploads)
        self.metrics.files += len(uploads)
        return JSONResponse({"predictions": results})

    async def track(self, request: Request) -> Response:
        """``POST /track/NAME``: the next frame of a stream, as the body or in a form, perhaps with ``?time=SECONDS``.
        Frames are tracked in the order in which they have arrived.

        Raises:
            RequestError: see :meth:`predict` and :meth:`TrackingInference.track`; or the server does not track (404).
        """
        name, seconds = check_name(request.path_params["name"]), read_time(request.query_params.multi_items())
        with self._waiting():
            self._tracking()
            uploads = await self._uploads(request)
            work = partial(self._tracking().track, name, uploads, seconds)
            return JSONResponse(await asyncio.get_running_loop().run_in_executor(self.worker, work))

    async def end_stream(self, request: Request) -> Response:
        """``DELETE /track/NAME``: forget a stream, after the frames that have arrived before.

        Raises:
            RequestError: there is no such stream, or the server does not track (404); too many requests wait (503).
        """
        with self._waiting():
            work = partial(self._tracking().end, check_name(request.path_params["name"]))
            return JSONResponse(await asyncio.get_running_loop().run_in_executor(self.worker, work))

    def _tracking(self) -> TrackingInference:
        if not isinstance(self.inference, TrackingInference):
            raise RequestError(404, "this server does not track objects: it was started without --tracker NAME")
        return self.inference

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count a pending request inside; refuse it if there are too many."""
        if self.pending > self.limits.waiting and not self._stop_slow_body():
            raise RequestError(503, f"{self.pending} requests are waiting; try again in a second")
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1

    async def reload(self) -> None:
        """Load the model again. The present one answers until then and, if loading fails, from then on.
        Requests that wait get the answer of the model that was there when they arrived."""
        assert self.load is not None
        async with self._loading:
            try:
                self.inference, self.about = await asyncio.to_thread(self.load)
            except Exception as error:
                log.error("the model could not be loaded again; the one before it continues: %s", error)

    def _stop_slow_body(self) -> bool:
        """Stop waiting for the oldest body if it is slow; return whether there was one."""
        timeout, start = next(iter(self.arriving.items()), (None, 0.0))
        now = asyncio.get_running_loop().time()
        if timeout is None or now - start < CROWDED_BODY_TIMEOUT:
            return False
        del self.arriving[timeout]
        timeout.reschedule(now)
        return True

    async def _uploads(self, request: Request) -> list[Upload]:
        length = request.headers.get("content-length", "")
        check_body_size(int(length) if length.isdecimal() else 0, self.limits)
        clock, timeout, body = asyncio.get_running_loop().time, asyncio.timeout(BODY_TIMEOUT), bytearray()
        start = self.arriving[timeout] = clock()
        try:
            async with timeout:
                async for chunk in request.stream():
                    check_body_size(len(body) + len(chunk), self.limits)
                    body += chunk
        except TimeoutError as error:
            raise RequestError(408, f"the request did not arrive within {clock() - start:.0f} s") from error
        finally:
            self.arriving.pop(timeout, None)
        uploads = await parse_uploads(request, bytes(body))
        if not uploads or not all(upload.content for upload in uploads):
            raise RequestError(422, "a file of the request is empty" if uploads else "there is no file in the request")
        return uploads

    async def health(self, request: Request) -> Response:
        """``GET /health``: the status, and the number of pending requests."""
        return JSONResponse({"status": "ok", "requests": self.pending})

    async def model(self, request: Request) -> Response:
        """``GET /model``: a description of the model."""
        return JSONResponse(self.about)

    async def show_metrics(self, request: Request) -> Response:
        """``GET /metrics``: counts since the start, for Prometheus."""
        text, inference = self.metrics.text(self.pending, self.about.get("load_seconds", 0.0)), self.inference
        if isinstance(inference, TrackingInference):
            text += tracking_text(inference.frames, inference.streams, dict(inference.pipeline.latency))
        return Response(text, media_type=CONTENT_TYPE)

    async def page(self, request: Request) -> Response:
        """``GET /`` and the files of the page."""
        return FileResponse(PAGE / FILES[request.scope["path"]])

    async def gallery_image(self, request: Request) -> Response:
        """``GET /gallery/NAME``: an image of the gallery.

        Raises:
            RequestError: the gallery has no such image (404).
        """
        name = request.path_params["name"]
        files = self.inference.gallery.files if self.inference.gallery else {}
        if name not in files:
            raise RequestError(404, "the gallery has no such image")
        return FileResponse(files[name])


async def parse_uploads(request: Request, body: bytes) -> list[Upload]:
    """Return the files of a request.

    Raises:
        RequestError: the form is broken (422), or has too many files (413).
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [Upload("the file", body)] if body else []

    async def parts() -> AsyncIterator[bytes]:
        yield body

    try:
        form = await MultiPartParser(request.headers, parts(), max_files=MAX_FILES, max_fields=MAX_FILES).parse()
    except (MultiPartException, KeyError) as error:
        too_many = "Too many" in str(error)
        text = f"at most {MAX_FILES} files in one request" if too_many else "the form in the request is broken"
        raise RequestError(413 if too_many else 422, text) from error
    files = [item for _, item in form.multi_items() if not isinstance(item, str)]
    return [Upload(_one_line(file.filename or "a file"), await file.read()) for file in files]


def _one_line(name: str) -> str:
    """Return a client's text without control characters, shortened, for messages."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:200]


async def drain(request: Request) -> None:
    """Read and discard a body, up to a limit, so that the client gets to read the answer."""
    if request.headers.get("expect"):  # the client asks before it sends
        return
    size = 0
    try:
        async with asyncio.timeout(5):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_DRAINED:
                    return
    except Exception:  # the client has left, or the body has been read
        return


def make_app(service: Service, hosts: frozenset[str] | None, token: str | None = None) -> FastAPI:
    """Return the application.

    Args:
        service: answers requests.
        hosts: allowed values of the Host header; None: any. They prevent DNS rebinding: a foreign page whose name
            points to this machine could otherwise read answers.
        token: needed (``Authorization: Bearer TOKEN``) for anything but ``/health``; None: no token is needed.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reloads = set[asyncio.Task[None]]()
        if service.load is not None and not os.isatty(0):  # where it ends the server with its terminal
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(loop.create_task(service.reload())))
        yield
        service.worker.shutdown(wait=False, cancel_futures=True)  # pending requests are cancelled

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_api_route("/predict", service.predict, methods=["POST"], response_model=None)
    app.add_api_route("/track/{name:anything}", service.track, methods=["POST"], response_model=None)
    app.add_api_route("/track/{name:anything}", service.end_stream, methods=["DELETE"], response_model=None)
    app.add_api_route("/health", service.health, methods=["GET", "HEAD"], response_model=None)
    app.add_api_route("/metrics", service.show_metrics, methods=["GET", "HEAD"], response_model=None)
    app.add_api_route("/model", service.model, methods=["GET", "HEAD"], response_model=None)
    app.add_api_route("/gallery/{name:anything}", service.gallery_image, methods=["GET", "HEAD"], response_model=None)
    for path in FILES:
        app.add_api_route(path, service.page, methods=["GET", "HEAD"], response_model=None)
    app.add_exception_handler(RequestError, _answer_refused)
    app.add_exception_handler(HTTPException, _answer_unknown)

    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        clock = asyncio.get_running_loop().time
        name, start = (request.url.hostname or "").lower(), clock()
        if hosts is not None and name not in hosts:
            response = _error(421, "unknown host name; use " + ", ".join(sorted(hosts)))
        elif token is not None and request.scope["path"] != "/health" and not _has_token(request, token):
            response = _error(401, "a token is needed: Authorization: Bearer TOKEN")
        else:
            try:
                response = await proceed(request)
            except ClientDisconnect:
                response = _error(400, "the client closed the connection")
            except Exception as error:
                log.error("%s %s", request.method, _one_line(request.scope["path"]), exc_info=error)
                response = _error(500, f"the model failed ({type(error).__name__}); see the server's output")
        response.headers.update(HEADERS)
        service.metrics.answered(_route(request.scope["path"]), response.status_code, clock() - start)
        return response

    app.middleware("http")(guard)
    return app


def _has_token(request: Request, token: str) -> bool:
    """Return whether a request has the token; the time that this takes does not depend on the one it has."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return hmac.compare_digest(given.strip().encode("latin-1"), token.encode()) and scheme.lower() == "bearer"


def _route(path: str) -> str:
    """Return the path of the route that answers, of which there are few: clients choose paths."""
    if path.startswith(("/gallery/", "/track/")):
        return f"/{path.split('/')[1]}"
    return path if path in ROUTES or path in FILES else "other"


def _error(status: int, text: str) -> Response:
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        408: {"Connection": "close"},
        503: {"Retry-After": "1"},
    }.get(status)
    return JSONResponse({"error": " ".join(text.split())}, status, headers)


async def _answer_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    if error.status != 408:  # its body has been waited for
        await drain(request)
    return _error(error.status, str(error))


async def _answer_unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    await drain(request)
    path = _one_line(request.scope["path"])
    known = "GET /, GET /health, GET /metrics, GET /model, POST /predict, POST /track/NAME, DELETE /track/NAME"
    return _error(status, f"there is no {request.method} {path}; there are: {known}")
