"""The HTTP side: what comes in is limited before it is kept, what goes out is JSON, errors too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from opabinia.inference.serving.answers import Answers
from opabinia.inference.serving.limits import MOST_PICTURES, Received, Refused, refuse_body
from opabinia.runtime.log import log

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}

SECONDS = 60
"""In which a request's body has to arrive."""

DRAINED = 64_000_000
"""Bytes of a refused body that are read and thrown away: many clients read no answer before they have sent all."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Service:
    """Answers requests, one after the other in one thread; so many wait, and others are turned away.

    Args:
        answers: what the model says.
        about: what ``GET /model`` tells.
    """

    def __init__(self, answers: Answers, about: dict[str, Any]) -> None:
        self.answers, self.about = answers, about
        self.limits = answers.limits
        self.present = 0
        self._worker = ThreadPoolExecutor(1, "model")

    async def predict(self, request: Request) -> Response:
        """``POST /predict``: pictures as ``multipart/form-data``, or one as the body itself.

        Raises:
            Refused: there are too many requests (503), the body comes too slowly (408), is too large or holds nothing
                (413, 422), or see :class:`Answers`.
        """
        if self.present > self.limits.waiting:
            raise Refused(503, f"{self.present} requests are waiting; try again in a second")
        self.present += 1
        try:
            files = await self._received(request)
            said = await asyncio.get_running_loop().run_in_executor(self._worker, self.answers, files)
        finally:
            self.present -= 1
        return JSONResponse({"predictions": said})

    async def _received(self, request: Request) -> list[Received]:
        refuse_body(_told_length(request), self.limits)
        try:
            async with asyncio.timeout(SECONDS):
                body = await self._body(request)
        except TimeoutError as error:
            raise Refused(408, f"the request did not arrive within {SECONDS} s") from error
        files = await files_in(request, body)
        if not files or not all(one.content for one in files):
            raise Refused(422, "there is no picture in the request" if not files else "a file of the request is empty")
        return files

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            refuse_body(len(body) + len(part), self.limits)
            body += part
        return bytes(body)

    async def health(self, request: Request) -> Response:
        """``GET /health``: that it answers, and how many requests are there."""
        return JSONResponse({"status": "ok", "requests": self.present})

    async def model(self, request: Request) -> Response:
        """``GET /model``: what it is."""
        return JSONResponse(self.about)

    async def page(self, request: Request) -> Response:
        """``GET /`` and what the page needs."""
        return FileResponse(PAGE / FILES[request.url.path])

    async def neighbour(self, request: Request) -> Response:
        """``GET /gallery/NAME``: a picture of the gallery.

        Raises:
            Refused: there is none of this name (404).
        """
        name = request.path_params["name"]
        files = self.answers.neighbours.files if self.answers.neighbours else {}
        if name not in files:
            raise Refused(404, "the gallery has no such picture")
        return FileResponse(files[name])

    def close(self) -> None:
        """Begin nothing more."""
        self._worker.shutdown(wait=False, cancel_futures=True)


async def files_in(request: Request, body: bytes) -> list[Received]:
    """The files of a request.

    Raises:
        Refused: the body is no such form as its header says (422), or holds too many files (413).
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [Received("the picture", body)] if body else []

    async def parts() -> AsyncIterator[bytes]:
        yield body

    try:
        form = await MultiPartParser(
            request.headers, parts(), max_files=MOST_PICTURES, max_fields=MOST_PICTURES
        ).parse()
    except (MultiPartException, KeyError) as error:
        too_many = "Too many" in str(error)
        text = f"at most {MOST_PICTURES} pictures in one request" if too_many else "the form in the request is broken"
        raise Refused(413 if too_many else 422, text) from error
    files = [one for _, one in form.multi_items() if not isinstance(one, str)]
    return [Received(_one_line(one.filename or "a picture"), await one.read()) for one in files]


def _one_line(name: str) -> str:
    """A name that somebody else has chosen, fit to be told."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:200]


def _told_length(request: Request) -> int:
    told = request.headers.get("content-length", "")
    return int(told) if told.isdecimal() else 0


async def drain(request: Request) -> None:
    """Read a body to its end and throw it away, so that the sender gets to read the answer; but not for ever."""
    if request.headers.get("expect"):  # it asks before it sends
        return
    seen = 0
    try:
        async with asyncio.timeout(5):
            async for part in request.stream():
                seen += len(part)
                if seen > DRAINED:
                    return
    except Exception:  # it has gone, or has been read to its end
        return


def make_app(service: Service, hosts: frozenset[str] | None) -> FastAPI:
    """The application.

    Args:
        service: answers.
        hosts: names by which the server may be called; None: any. A page elsewhere that lets a name of its own point to
            this machine could otherwise read answers.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_api_route("/predict", service.predict, methods=["POST"], response_model=None)
    app.add_api_route("/health", service.health, methods=["GET"], response_model=None)
    app.add_api_route("/model", service.model, methods=["GET"], response_model=None)
    app.add_api_route("/gallery/{name:path}", service.neighbour, methods=["GET"], response_model=None)
    for path in FILES:
        app.add_api_route(path, service.page, methods=["GET"], response_model=None)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _unknown)

    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        name = (request.url.hostname or "").lower()
        if hosts is not None and name not in hosts:
            response = _error(421, "this server is called by another name: " + ", ".join(sorted(hosts)))
        else:
            try:
                response = await proceed(request)
            except ClientDisconnect:
                response = _error(400, "the request was broken off")
            except Exception as error:
                log.error("%s %s", request.method, request.url.path, exc_info=error)
                response = _error(500, f"the model failed ({type(error).__name__}); the server's output tells more")
        response.headers.update(HEADERS)
        return response

    app.middleware("http")(guard)
    return app


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": " ".join(text.split())}, status, {"Retry-After": "1"} if status == 503 else None)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    await drain(request)
    return _error(error.status, str(error))


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    await drain(request)
    there = "GET /, GET /health, GET /model, POST /predict"
    return _error(status, f"there is no {request.method} {_one_line(request.url.path)}; there are: {there}")
