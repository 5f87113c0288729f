"""What the serve command does."""

from __future__ import annotations

import logging
import socket
import warnings
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image

from opabinia.inference.load import load
from opabinia.inference.serving.answers import Answers, Neighbours
from opabinia.inference.serving.app import Service, make_app
from opabinia.inference.serving.limits import MOST_PICTURES, Limits
from opabinia.runtime.log import logging_to
from opabinia.runtime.version import __version__
from opabinia.training.run_folder import resolve

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def serve(
    run: Path,
    door: socket.socket,
    *,
    host: str = "127.0.0.1",
    limits: Limits,
    gallery: Path | None = None,
    checkpoint: str = "best",
    device: str | None = None,
) -> None:
    """Answer requests with what a run's model says, until the process is asked to end.

    Args:
        run: the run folder.
        door: listens (:func:`opabinia.inference.serving.address.listening`).
        host: the address that it listens at.
        limits: of what is accepted.
        gallery: tell which pictures in this folder are most like what is posted.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint or gallery.
    """
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
        neighbours = Neighbours(predictor, gallery) if gallery is not None else None
    # PIL refuses by itself what is twice as large; what it would only warn of is refused by its size.
    Image.MAX_IMAGE_PIXELS = limits.pixels
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the sender is told what is wrong with a form
    name, task = "/".join(run.resolve().parts[-2:]), resolve(run).config["task"]["name"]
    answers = Answers(predictor, limits, neighbours)
    app = make_app(Service(answers, about(name, task, answers)), LOCAL if host in LOCAL else None)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=10
    )
    print(f"{name} answers at {address(host, door)} (Ctrl-C ends it)", flush=True)
    if host not in LOCAL:
        print("whoever can reach this machine can ask it; there is no password", flush=True)
    uvicorn.Server(config).run(sockets=[door])


def address(host: str, door: socket.socket) -> str:
    """Where a browser finds it."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{door.getsockname()[1]}"


def about(name: str, task: str, answers: Answers) -> dict[str, Any]:
    """What ``GET /model`` tells.

    Args:
        name: of the run.
        task: its name in the config.
        answers: of the model.
    """
    predictor, limits = answers.predictor, answers.limits
    return {
        "name": name,
        "task": task,
        "classes": list(predictor.classes),
        "channels": predictor.channels,
        "takes": "films" if predictor.films else "pictures",
        "parameters": sum(one.numel() for one in predictor.task.parameters()),
        "device": str(predictor.device),
        "gallery": len(answers.neighbours.files) if answers.neighbours else 0,
        "limits": {"bytes": limits.bytes, "pixels": limits.pixels, "files": MOST_PICTURES},
        "version": __version__,
    }
