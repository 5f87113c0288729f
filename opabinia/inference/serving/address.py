"""What has to be there before a server begins: its libraries, and a free port. It loads nothing heavy."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from opabinia.config import ConfigError, Problem


def refuse_missing_libraries() -> None:
    """Tell what serving needs, before the model is loaded.

    Raises:
        ConfigError: some of it is missing.
    """
    for name in ("fastapi", "python_multipart", "uvicorn"):
        if find_spec(name) is None:
            raise ConfigError(Problem("", "", f"serving needs {name}: pip install 'opabinia[serve]'"))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: the port is taken, or there is no such address on this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(Problem("command line", "--port", f"cannot listen at {host}:{port}: {reason}")) from error
