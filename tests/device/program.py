"""A process with the pretended device, in which tests run functions: the device cannot be removed from a process."""

from __future__ import annotations

import gc
import importlib
import inspect
import logging
import os
import traceback
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch

from tests.device.records import RECORD
from tests.faults.programs import Program, Server

ADDRESS = "OPABINIA_TEST_DEVICE"
"""Environment variable with the socket at which the tests are reached."""

MAX_SECONDS = 300
"""Longest time that a function may take."""


class DeviceProgram:
    """Starts the process with the first function to run, and again after it has died.

    Args:
        server: starts processes that have imported torch.
        folder: for the socket.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self._address = server, str(folder / "device")
        self._program: Program | None = None
        self._connection: Connection[Any, Any] | None = None

    def call(self, module: str, function: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of ``module.function`` there.

        Raises:
            AssertionError: it raised an error, whose traceback is the message, or the process died.
        """
        connection = self._connection or self._start()
        connection.send((module, function, args, kwargs))
        try:
            assert connection.poll(MAX_SECONDS), f"{function} takes longer than {MAX_SECONDS} seconds"
            succeeded, result = connection.recv()
        except (EOFError, ConnectionError, AssertionError) as error:
            self.close()
            raise AssertionError(f"the process of the device died: {error}") from error
        assert succeeded, result
        return result

    def _start(self) -> Connection[Any, Any]:
        with Listener(self._address, "AF_UNIX") as listener:
            self._program = self._server.start(
                function="tests.device.program:serve", environment={ADDRESS: self._address}, lasts=True
            )
            self._connection = listener.accept()
        return self._connection

    def close(self) -> None:
        """End the process."""
        if self._connection is not None and self._program is not None:
            self._connection.close()
            self._program.wait(10)
            self._connection = None


def serve() -> None:
    """Run functions in this process until the tests end."""
    from opabinia.training import builtin_parts  # noqa: F401 (a catalog of what is imported needs no cache)
    from tests.device.installation import install
    from tests.device.phases import record_phases

    logging.disable()
    install()
    record_phases()
    gc.collect()
    gc.freeze()
    gc.disable()  # networks lie in circles: they are collected after each function, and nothing else is looked through
    with Client(os.environ[ADDRESS], "AF_UNIX") as connection:
        while True:
            try:
                module, name, args, kwargs = connection.recv()
            except EOFError:
                return
            try:
                function = getattr(importlib.import_module(module), name)
                RECORD.reset()
                torch.use_deterministic_algorithms(False)
                connection.send((True, getattr(function, "__wrapped__", function)(*args, **kwargs)))
            except Exception:
                connection.send((False, traceback.format_exc()))
            gc.collect()


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the process of the device. It may have parameters, but no fixtures."""
    signature = inspect.signature(test)

    @wraps(test)
    def run(*, device: DeviceProgram, **kwargs: Any) -> None:
        device.call(test.__module__, test.__name__, **kwargs)

    device = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), device])  # type: ignore[attr-defined]
    return run
