"""The process with the pretended CUDA device, one for each worker of xdist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.device import driver_hooks
from tests.device.program import DeviceProgram


@pytest.fixture(scope="session")
def device(warm_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceProgram]:
    """Runs functions on the pretended device; a test that asks for it is skipped without a C++ compiler."""
    if driver_hooks.compiler() is None:
        pytest.skip("the pretended CUDA device needs g++")
    driver_hooks.build()
    program = DeviceProgram(warm_server, tmp_path_factory.mktemp("device"))
    yield program
    program.close()
