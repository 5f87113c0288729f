"""The work of ``opabinia serve``: load the model and answer requests."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import uvicorn
from fastapi import FastAPI
from PIL import Image

from opabinia.contracts import channel_count
from opabinia.inference.class_thresholds import chosen_thresholds
from opabinia.inference.export.exported_task import ExportedTask, load_exported
from opabinia.inference.load import RunModel
from opabinia.inference.serving.address import is_exported
from opabinia.inference.serving.app import Service, make_app
from opabinia.inference.serving.connections import BACKLOG, Connection
from opabinia.inference.serving.inference import Inference, ServedGallery
from opabinia.inference.serving.limits import MAX_FILES, Limits
from opabinia.inference.serving.streams import StreamOptions, TrackingInference
from opabinia.runtime.log import logging_to
from opabinia.runtime.version import __version__
from opabinia.tasks.multitask import Multitask
from opabinia.training.run_folder import resolve

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def serve(
    model: RunModel,
    listening: socket.socket,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    limits: Limits,
    gallery: Path | None = None,
    task: Sequence[str] = (),
    streams: StreamOptions | None = None,
    min_score: float | None = None,
) -> None:
    """Answer requests with a run's model until the process is stopped.

    Args:
        model: the model of a run; or an exported one (:func:`opabinia.inference.serving.address.is_exported`) as its
            ``run``.
        listening: a listening socket (:func:`opabinia.inference.serving.address.open_socket`).
        host: the address that it listens at.
        token: that requests must have; None: none.
        limits: limits of uploads.
        gallery: return the images in this folder that are nearest to an upload, instead of predictions.
        task: see :func:`opabinia.load`.
        streams: also track the objects of streams; for a detector.
        min_score: minimum score of what is predicted; None: the thresholds of the run's classes, if there are some.

    Raises:
        ConfigError: there is no such run, checkpoint or gallery, the file was not exported, or the model cannot track.
    """
    load = partial(_load, model, task, limits, gallery, streams, min_score)
    inference, about = load()
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the client gets the error message
    name = about["name"]
    if min_score is None and "thresholds" in about:
        print("predictions are those above the threshold of their class (GET /model); --score takes one for all")
    app = make_app(Service(inference, about, load), LOCAL if host in LOCAL else None, token)
    url_host = f"[{host}]" if ":" in host else host
    print(f"{name} answers at http://{url_host}:{listening.getsockname()[1]} (Ctrl-C ends it)", flush=True)
    if host not in LOCAL:
        who = "everyone who can reach this machine can use it; there is no token (--token-file)"
        print("the token is sent unencrypted: use a proxy with TLS (docs/serving.md)" if token else who, flush=True)
    with _pixel_limit(limits.pixels):
        make_server(app).run(sockets=[listening])


def _load(
    model: RunModel,
    task: Sequence[str],
    limits: Limits,
    gallery: Path | None,
    streams: StreamOptions | None,
    min_score: float | None,
) -> tuple[Inference, dict[str, Any]]:
    """Load the model and embed the gallery; return what predicts uploads, and the answer of ``GET /model``."""
    start = perf_counter()
    with logging_to(None):
        if is_exported(model.run):
            predictor = load_exported(model.run)
            assert isinstance(predictor.task, ExportedTask)
            name_of_task = predictor.task.metadata["task"]
            classes = {name: info.classes for name, info in predictor.task.subtasks.items()}
        else:
            predictor = model.load(task)
            section, classes = resolve(model.run, model.overrides).config["task"], {}
            name_of_task = section["tasks"][task[0]]["task"]["name"] if len(task) == 1 else section["name"]
            chosen = chosen_thresholds(model.run, model.checkpoint)
            predictor.thresholds = None if chosen is None else chosen.values
            if isinstance(predictor.task, Multitask):
                classes = {name: subtask.dataset_info.classes for name, subtask in predictor.task.tasks.items()}
        if min_score is not None:
            predictor.thresholds = dict.fromkeys(predictor.classes, min_score)
        limits = limits.for_channels(channel_count(predictor.channels))
        served_gallery = ServedGallery(predictor, gallery) if gallery is not None else None
        inference = (
            TrackingInference(predictor, limits, streams) if streams else Inference(predictor, limits, served_gallery)
        )
    name = "/".join(model.run.resolve().parts[-2:])
    parameters = sum(param.numel() for param in predictor.task.parameters())  # 0: those of a graph are not known
    about = {
        "name": name,
        "task": name_of_task,
        "classes": list(predictor.classes),
        **({"tasks": classes} if classes else {}),
        "channels": channel_count(predictor.channels),
        **({} if predictor.thresholds is None else {"thresholds": predictor.thresholds}),
        "takes": "videos" if predictor.takes_video else "images",
        **({"parameters": parameters} if parameters else {}),
        "device": str(predictor.device),
        "gallery": len(served_gallery.files) if served_gallery else 0,
        **({"tracking": streams.tracking.config} if streams else {}),
        "limits": {
            "bytes": limits.bytes,
            "pixels": limits.pixels,
            "input_pixels": inference.input_pixels,
            "files": MAX_FILES,
            **({"streams": streams.max_streams, "idle_seconds": streams.max_idle} if streams else {}),
        },
        "load_seconds": round(perf_counter() - start, 3),
        "version": __version__,
    }
    return inference, about


@contextmanager
def _pixel_limit(pixels: int) -> Iterator[None]:
    """Set PIL's limit inside: it refuses images of twice this size itself; where it would only warn, limits.py refuses
    them."""
    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            Image.MAX_IMAGE_PIXELS = pixels
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return the HTTP server of an application."""
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=10,
    )
    return uvicorn.Server(config)
