"""The surroundings of every test: few threads, caches of its own, no network, plain output."""

import ctypes
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

# --- environment: before torch is imported, and inherited by the workers and by programs that tests start ------------

# xdist runs two tests at once on two cores: with a thread each they do not fight, and sums are added in one order.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

NETWORK = os.environ.get("OPABINIA_NETWORK") == "1"
if not NETWORK:
    os.environ["HF_HUB_OFFLINE"] = "1"  # a test that would fetch weights unasked fails at once

# What the command prints must not depend on the terminal of whoever runs the tests.
os.environ.pop("FORCE_COLOR", None)
os.environ.update(NO_COLOR="1", COLUMNS="120")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No cache of ours from earlier work is seen. The first process makes the folder, xdist's workers share it.
CACHE = None if "PYTEST_XDIST_WORKER" in os.environ else tempfile.mkdtemp(prefix="opabinia-cache-")
if CACHE:
    os.environ["XDG_CACHE_HOME"] = CACHE
    for name in ("HF_HOME", "TORCH_HOME"):
        os.environ.pop(name, None)

# A program makes its parser once (50 ms); the tests call the program hundreds of times in one process.
typer.main.get_command = cache(typer.main.get_command)


def pytest_unconfigure() -> None:
    gc.unfreeze()
    if CACHE:
        shutil.rmtree(CACHE, ignore_errors=True)


# --- memory: networks lie in circles, which would wait long, and the C library keeps what it is given back -----------

gc.disable()  # during the imports, whose modules stay


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays: no collection need look through it
    gc.set_threshold(50_000, 20, 20)  # 700 of Python, at which the collector takes a tenth of the time of the tests
    gc.enable()


kept = 0
"""Resident memory in bytes after the last collection."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module", autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """Collect once modules have left 200 MB behind: a collection takes 0.1 s."""
    global kept
    yield
    with suppress(OSError, AttributeError):  # without /proc or glibc
        if resident_bytes() > kept + 200e6:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            kept = resident_bytes()


# --- Hypothesis: no deadline, since the machine may be busy; few examples, in CI the same each time -----------------

options = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", max_examples=30, **options)
settings.register_profile("thorough", max_examples=100, **options)  # make test-all
settings.register_profile("ci", max_examples=30, derandomize=True, database=None, **options)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast"))

# --- markers ----------------------------------------------------------------------------------------------------------


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


NEEDS = {
    "gpu": (has_gpu, "no CUDA device"),
    "network": (lambda: NETWORK, "set OPABINIA_NETWORK=1 to run it"),
    "shared": (SHARED.is_dir, "../shared/data is absent"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (available, reason) in NEEDS.items():
        if item.get_closest_marker(marker) and not available():
            pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--max-skips", type=int, help="fail if more tests than this are skipped")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skips too much: a missing package would silence its tests on every landing."""
    limit, reporter = (
        session.config.getoption("--max-skips"),
        session.config.pluginmanager.get_plugin("terminalreporter"),
    )
    if limit is None or reporter is None:
        return
    skipped = len(reporter.stats.get("skipped", ()))
    if skipped > limit:
        reporter.write_line(
            f"\n{skipped} tests were skipped, and --max-skips is {limit}: `pytest -rs` says why", red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The small real data sets beside the repository; a test that asks for them is skipped where they are absent."""
    if not SHARED.is_dir():
        pytest.skip(NEEDS["shared"][1])
    return SHARED


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts programs by forking (:class:`tests.faults.programs.Server`): none of them imports torch anew."""
    from tests.faults.programs import Server

    server = Server(tmp_path_factory.mktemp("programs"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3_process() -> Iterator[Any]:
    """An S3 server (:class:`tests.faults.s3.S3Server`) on this machine."""
    for module in ("moto.server", "s3fs"):
        pytest.importorskip(module, reason=f"{module} is absent: pip install 'opabinia[storage]'")
    from tests.faults.s3 import S3Server

    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3_server(s3_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An S3 server without faults and without requests so far, and an empty cache of remote files."""
    for name, value in s3_process.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "remote"))
    s3_process.reset()
    import s3fs

    from opabinia.runtime import storage

    s3fs.S3FileSystem.clear_instance_cache()  # one of an earlier test has its credentials
    storage._connect.cache_clear()
    return s3_process


CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, driven by playwright (``browser.new_page()``); a test that asks for it is skipped where
    either is absent. Of a module, since playwright drives one at a time."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is absent: pip install 'opabinia[browser]'")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
