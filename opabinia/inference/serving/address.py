"""Checks before a server starts: its model, its libraries, and a free port. Importing this module is fast."""

from __future__ import annotations

import os
import re
import socket
from importlib.util import find_spec
from pathlib import Path

from opabinia.config import ConfigError, Problem

EXPORTED = (".onnx", ".xml", ".pte", ".tflite")
"""Endings of the names of exported graphs."""


def is_exported(path: Path) -> bool:
    """Return whether a path is an exported model: a file with such an ending, or the folder with OpenVINO's
    ``model.xml``."""
    file = path / "model.xml" if path.is_dir() else path
    return file.suffix in EXPORTED and file.is_file()


def check_libraries() -> None:
    """Check for the libraries that serving needs, before the model is loaded.

    Raises:
        ConfigError: one is missing.
    """
    for name in ("fastapi", "python_multipart", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(Problem("", "", f"serving needs {name}: pip install 'opabinia[serve]'"))


def read_token(file: Path | None) -> str | None:
    """Return the token that clients must have: the content of a file, or else of the variable ``OPABINIA_TOKEN``; None
    if there is neither.

    Raises:
        ConfigError: the file cannot be read, or the token is shorter than 16 letters or has blanks, control characters
            or letters beyond ASCII, which no header may have.
    """
    place, token = "OPABINIA_TOKEN", os.environ.get("OPABINIA_TOKEN")
    if file is not None:
        place = f"--token-file {file}"
        try:
            token = file.read_text()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(Problem("command line", place, f"cannot be read: {reason}")) from error
    if token is None:
        return None
    token = token.strip()
    if not re.fullmatch("[!-~]{16,}", token):
        message = "a token has at least 16 letters, digits or signs of ASCII, and no blanks (openssl rand -hex 32)"
        raise ConfigError(Problem("command line" if file else "environment", place, message))
    return token


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: the port is taken, or this machine has no such address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(Problem("command line", "--port", f"cannot listen at {host}:{port}: {reason}")) from error
