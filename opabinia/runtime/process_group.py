"""Set-up of the process group: from torchrun's variables, SLURM's, or an address in the config."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from opabinia.runtime import processes, slurm
from opabinia.runtime.device import choose_device
from opabinia.runtime.log import log
from opabinia.runtime.processes import is_rank_zero
from opabinia.runtime.signals import SAME_REQUEST_SECONDS, STOP_SIGNALS, Stopped, exit_status_of

Backend = Literal["auto", "gloo"]


class ProcessGroupError(Exception):
    """This process cannot join the process group.

    Attributes:
        on_all_ranks: the mistake is in the config or the environment, so every rank has the error.
        temporary: another attempt may succeed.
    """

    exit_status = 2

    def __init__(self, message: str, *, on_all_ranks: bool = False, temporary: bool = False) -> None:
        super().__init__(message)
        self.on_all_ranks, self.temporary = on_all_ranks, temporary


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, the world size, and the number of ranks on its machine (None if unknown)."""

    rank: int
    world: int
    local_world: int | None


def rank_info(environment: MutableMapping[str, str]) -> RankInfo | None:
    """Read the rank of this process from the environment; None for a single process.

    SLURM's variables are added to ``environment`` under torchrun's names, for later use.

    Raises:
        ValueError: the variables are incomplete, not numbers, or contradict each other.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment and slurm.is_step(environment):
        environment.update(slurm.torchrun_variables(environment))
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if not 0 <= rank < world:
        raise ValueError(f"RANK={rank}, WORLD_SIZE={world}: ranks go from 0 to one less than the number of processes")
    if world == 1:
        return None
    local_world = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else None
    if local_world is not None and (local_world < 1 or world % local_world):
        raise ValueError(
            f"WORLD_SIZE={world} does not divide by LOCAL_WORLD_SIZE={local_world}: "
            "every machine must run the same number of processes"
        )
    # By default all ranks are on this machine.
    environment.setdefault("LOCAL_RANK", str(rank % (local_world or world)))
    return RankInfo(rank, world, local_world)


def _number(environment: MutableMapping[str, str], name: str) -> int:
    text = environment.get(name)
    if text is None:
        raise ValueError(f"the environment variable {name} is missing: RANK and WORLD_SIZE identify this process")
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"the environment variable {name}={text!r} is not a number")
    return int(text)


@contextmanager
def process_group(
    init: str = "env", backend: Backend = "auto", timeout: float = 30, device: str = "auto"
) -> Iterator[None]:
    """Join the process group that the environment describes, until the end of the block; a single process joins none.

    Args:
        init: ``env``, ``tcp://host:port`` or ``file:///path``. An agent (torchrun) has its own address.
        backend: ``auto``: NCCL for tensors on a GPU and gloo for others; ``gloo`` for all.
        timeout: minutes to wait for other ranks, here and in every collective.
        device: as ``train.device``; decides whether the GPU of the local rank is used.

    Raises:
        ProcessGroupError: ``init`` or the environment are invalid, or other ranks cannot be reached.
    """
    if dist.is_initialized():
        log.warning("a process group already exists: train.distributed is ignored")
        yield
        return
    try:
        info = rank_info(os.environ)
    except ValueError as error:
        raise ProcessGroupError(str(error), on_all_ranks=True) from error
    if info is None:
        yield
        return
    _join(info, init, backend, timeout, device)
    try:
        yield
    except Stopped:  # on all ranks, after the same step
        _leave()
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            _mark_common_error(error)
        _abort()
        raise
    _leave()


@contextmanager
def single_process() -> Iterator[None]:
    """Take this process for the only one inside the block, after the process group of a run has ended, which cannot be
    joined a second time."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def _leave() -> None:
    # Other ranks may have ended already.
    with suppress(RuntimeError):
        dist.destroy_process_group()


_aborted: list[dist.ProcessGroup] = []
"""Groups that are never destroyed: gloo's would wait for their pending collectives, until the timeout."""


def _abort() -> None:
    """Leave the process group without waiting for collectives that other ranks may never join. They notice when this
    process ends: gloo's connections are closed then, and agents (torchrun) stop the other workers."""
    _aborted.extend(dist.distributed_c10d._world.pg_names)
    with suppress(RuntimeError):
        dist.distributed_c10d._abort_process_group()


def _join(info: RankInfo, init: str, backend: Backend, timeout: float, device: str) -> None:
    try:
        method = _method("env" if "TORCHELASTIC_RUN_ID" in os.environ else init)
        gpu = _rank_gpu(info) if device in ("auto", "cuda") and torch.cuda.is_available() else None
        chosen = "gloo" if backend == "gloo" or gpu is None else "cpu:gloo,cuda:nccl"
    except ValueError as error:
        raise ProcessGroupError(f"train.distributed: {error}", on_all_ranks=True) from error
    _choose_interface(info, method)
    with _ended_by_signals():
        try:
            limit = timedelta(minutes=timeout)
            store, rank, world = next(rendezvous(method, info.rank, info.world, timeout=limit))
            store.set_timeout(limit)
            store = PrefixStore(_attempt(), store)
            dist.init_process_group(chosen, store=store, rank=rank, world_size=world, timeout=limit, device_id=gpu)
            processes.collective_timeout = limit
        except (dist.DistError, RuntimeError, ValueError, OSError) as error:
            address = method
            if method == "env://":
                address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            reason = (str(error).splitlines() or [""])[0]
            # If a signal has stopped the other ranks it is about to stop this one: then it should end by that signal.
            time.sleep(SAME_REQUEST_SECONDS)
            message = f"the other ranks cannot be reached at {address}: {reason}"
            raise ProcessGroupError(message, temporary=True) from error


def _attempt() -> str:
    """A prefix that separates the keys of restarted workers in the agent's store from those of dead ones.

    Torch 2.15 no longer does this. Agents of several machines do not count restarts alike, so they share one prefix.
    """
    is_single_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_single_machine else "all"


def _rank_gpu(info: RankInfo) -> torch.device:
    if slurm.is_step(os.environ) and torch.cuda.device_count() == 1 and (info.local_world or 1) > 1:
        os.environ["LOCAL_RANK"] = "0"  # with srun --gpus-per-task a task sees only its own GPU
    try:
        return choose_device("cuda")
    except ValueError as error:
        raise ProcessGroupError(f"train.device: {error}") from error  # other ranks may have a GPU


def _method(init: str) -> str:
    """The address in torch's form.

    Raises:
        ValueError: it is invalid.
    """
    if init == "env":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(
                f"the environment variable {' and '.join(missing)} is missing: the address of rank 0 "
                "(or set init: tcp://host:port)"
            )
        if not re.fullmatch(r"\d{1,5}", os.environ["MASTER_PORT"]):
            raise ValueError(f"the environment variable MASTER_PORT={os.environ['MASTER_PORT']!r} is not a port")
        return "env://"
    if re.fullmatch(r"tcp://[^/\s]+:\d{1,5}", init) or re.fullmatch(r"file:///\S+", init):
        return init
    raise ValueError(f"init {init!r} is neither 'env' nor tcp://host:port nor file:///path")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal end the process while it waits for other ranks: in torch's C++ code no Python handler would run.

    If all ranks have connected in the meantime, the signal is raised later, in Python, and all stop together.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not hasattr(signal, "sigtimedwait"):  # macOS: the default action ends the process, also if others connect
        handlers = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
        return
    connected = threading.Event()
    late: list[int] = []

    def watch() -> None:
        while not connected.is_set():
            info = signal.sigtimedwait(STOP_SIGNALS, 0.1)
            if info is not None:
                if not connected.wait(GRACE_SECONDS):
                    os._exit(exit_status_of(info.si_signo))
                late.append(info.si_signo)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        connected.set()
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in late:
            signal.raise_signal(number)


GRACE_SECONDS = 1.0
"""Seconds after a signal in which ranks that wait for each other may still connect."""


# --- network interface ----------------------------------------------------------------------------------------


def _choose_interface(info: RankInfo, method: str) -> None:
    """Let gloo listen on the interface that reaches rank 0: otherwise it uses the host name, which may be wrong."""
    if "GLOO_SOCKET_IFNAME" in os.environ or method.startswith("file:"):
        return
    host = os.environ["MASTER_ADDR"] if method == "env://" else method.removeprefix("tcp://").rpartition(":")[0]
    address = local_address(host)
    # A loopback address is of no use to other machines.
    if address is None or (address.startswith("127.") and info.local_world != info.world):
        return
    name = _interface_of(address)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def local_address(host: str) -> str | None:
    """Return the IPv4 address of this machine from which packets to ``host`` are sent; None if there is no route."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return None


_SIOCGIFADDR = 0x8915  # Linux


def _interface_of(address: str) -> str | None:
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == wanted:
                    return name
    return "lo" if address.startswith("127.") else None


# --- one error, one message -----------------------------------------------------------------------------------------


def _mark_common_error(error: Exception) -> None:
    """Mark an error that rank 0 has, too (``on_all_ranks``): rank 0 reports it.

    An error of :func:`~opabinia.runtime.processes.from_rank_zero` is marked already. To ask for it would fail noisily
    where rank 0, which holds the store, has ended.
    """
    if hasattr(error, "on_all_ranks"):
        return
    key = "error-" + blake2b(f"{type(error).__name__}: {error}".encode(), digest_size=8).hexdigest()
    with suppress(AttributeError):
        error.on_all_ranks = _rank_zero_has(key)  # type: ignore[attr-defined]


def _rank_zero_has(key: str) -> bool:
    # Not a collective: other ranks may be anywhere.
    store = dist.distributed_c10d._get_default_store()
    try:
        if is_rank_zero():
            store.set(key, "1")
        else:
            store.wait([key], timedelta(seconds=3))
    except dist.DistNetworkError:
        return True  # rank 0 has ended, and has reported its error
    except (dist.DistError, RuntimeError):
        return False
    return True
