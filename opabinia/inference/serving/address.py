"""Checks before a server starts: its model, its libraries, and a free port. Importing this module is fast."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

from opabinia.config import ConfigError, Problem


def is_exported(path: Path) -> bool:
    """Return whether a path is an exported model: an ONNX file, or OpenVINO's ``model.xml`` or the folder with it."""
    file = path / "model.xml" if path.is_dir() else path
    return file.suffix in (".onnx", ".xml") and file.is_file()


def check_libraries() -> None:
    """Check for the libraries that serving needs, before the model is loaded.

    Raises:
        ConfigError: one is missing.
    """
    for name in ("fastapi", "python_multipart", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(Problem("", "", f"serving needs {name}: pip install 'opabinia[serve]'"))


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
