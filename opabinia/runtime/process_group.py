"""How a process finds the others and joins them: by torchrun's variables, SLURM's, or an address in the config."""

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

from opabinia.runtime import slurm
from opabinia.runtime.device import choose_device
from opabinia.runtime.log import log
from opabinia.runtime.processes import is_rank_zero
from opabinia.runtime.signals import STOPPING, TOGETHER, Stopped, status_of

Backend = Literal["auto", "gloo", "nccl"]


class CannotJoin(Exception):
    """This process does not find the others.

    Attributes:
        alike: what is wrong stands in the config or the environment, where all processes find it.
        passing: another attempt may find them.
    """

    exit_status = 2

    def __init__(self, message: str, *, alike: bool = False, passing: bool = False) -> None:
        super().__init__(message)
        self.alike, self.passing = alike, passing


@dataclass(frozen=True)
class Place:
    """Which process this is among all (``rank`` of ``world``), and on its machine."""

    rank: int
    world: int
    local_world: int | None


def place_of(environment: MutableMapping[str, str]) -> Place | None:
    """Which process the environment says this is; None when it is alone.

    What SLURM says is written into ``environment`` under torchrun's names, for all who ask later.

    Raises:
        ValueError: the variables are incomplete, no numbers, or contradict each other.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment and slurm.is_step(environment):
        environment.update(slurm.variables(environment))
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
    # Nothing says otherwise: all on this machine.
    environment.setdefault("LOCAL_RANK", str(rank % (local_world or world)))
    return Place(rank, world, local_world)


def _number(environment: MutableMapping[str, str], name: str) -> int:
    text = environment.get(name)
    if text is None:
        raise ValueError(f"the environment variable {name} is missing: RANK and WORLD_SIZE say which process this is")
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"the environment variable {name}={text!r} is no number")
    return int(text)


@contextmanager
def joined_process_group(
    init: str = "env", backend: Backend = "auto", timeout: float = 30, device: str = "auto"
) -> Iterator[None]:
    """Be one of the processes that the environment speaks of, to the end of the block; alone: nothing.

    Args:
        init: ``env``, ``tcp://host:port`` or ``file:///path``. An agent (torchrun) brings its own.
        backend: ``auto``: NCCL for tensors on a GPU and gloo for all else.
        timeout: minutes that a process waits for the others, here and in every exchange.
        device: as ``train.device``; decides whether a GPU of the local rank is taken.

    Raises:
        CannotJoin: ``init``, ``backend`` or the environment are wrong, or the others cannot be reached.
    """
    if dist.is_initialized():
        log.warning("the processes have been joined before: train.distributed is not looked at")
        yield
        return
    try:
        place = place_of(os.environ)
    except ValueError as error:
        raise CannotJoin(str(error), alike=True) from error
    if place is None:
        yield
        return
    _join(place, init, backend, timeout, device)
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        _settle_who_tells(error)
        raise
    finally:
        # After an error the others may never come to this point.
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _join(place: Place, init: str, backend: Backend, timeout: float, device: str) -> None:
    try:
        method = _method("env" if "TORCHELASTIC_RUN_ID" in os.environ else init)
        gpu = _own_gpu(place) if device in ("auto", "cuda") and torch.cuda.is_available() else None
        chosen = _backend(backend, gpu)
    except ValueError as error:
        raise CannotJoin(f"train.distributed: {error}", alike=True) from error
    _choose_interface(place, method)
    with _ended_by_signals(), _told(method):
        limit = timedelta(minutes=timeout)
        store, rank, world = next(rendezvous(method, place.rank, place.world, timeout=limit))
        store.set_timeout(limit)
        dist.init_process_group(
            chosen,
            store=PrefixStore(_attempt(), store),
            rank=rank,
            world_size=world,
            timeout=limit,
            device_id=gpu,
        )


def _attempt() -> str:
    """Keeps what dead workers of this agent have left in its store apart from what those started again write there.

    Torch 2.15 no longer does. Agents of several machines do not count alike.
    """
    alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "all"


def _own_gpu(place: Place) -> torch.device:
    if slurm.is_step(os.environ) and torch.cuda.device_count() == 1 and (place.local_world or 1) > 1:
        os.environ["LOCAL_RANK"] = "0"  # srun --gpus-per-task shows each its own only
    try:
        return choose_device("cuda")
    except ValueError as error:
        raise CannotJoin(f"train.device: {error}") from error  # others may have one


def _backend(backend: Backend, gpu: torch.device | None) -> str:
    if backend == "nccl" and gpu is None:
        raise ValueError("backend 'nccl' needs a GPU, and train.device a GPU to be chosen; 'auto' takes what there is")
    if backend == "auto":
        return "gloo" if gpu is None else "cpu:gloo,cuda:nccl"
    return backend


def _method(init: str) -> str:
    """The address, as torch wants it.

    Raises:
        ValueError: it is none.
    """
    if init == "env":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(
                f"the environment variable {' and '.join(missing)} is missing: where the first process can be reached "
                "(or say init: tcp://host:port)"
            )
        if not re.fullmatch(r"\d{1,5}", os.environ["MASTER_PORT"]):
            raise ValueError(f"the environment variable MASTER_PORT={os.environ['MASTER_PORT']!r} is no port")
        return "env://"
    if re.fullmatch(r"tcp://[^/\s]+:\d{1,5}", init) or re.fullmatch(r"file:///\S+", init):
        return init
    raise ValueError(f"init {init!r} is neither 'env' nor tcp://host:port nor file:///path")


@contextmanager
def _told(method: str) -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, ValueError, OSError) as error:
        where = method
        if method == "env://":
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = (str(error).splitlines() or [""])[0]
        # Who has stopped the others is about to stop this one: then that is what ends it.
        time.sleep(TOGETHER)
        raise CannotJoin(f"the other processes cannot be reached at {where}: {reason}", passing=True) from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal end the process while it waits for others: in torch's C++ no handler of Python's would run.

    Those who have all been found meanwhile get the signal later, in Python, and stop together.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    late: list[int] = []

    def watch() -> None:
        while not over.is_set():
            found = signal.sigtimedwait(STOPPING, 0.1)
            if found is not None:
                if not over.wait(NEARLY):
                    os._exit(status_of(found.si_signo))
                late.append(found.si_signo)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in late:
            signal.raise_signal(number)


NEARLY = 1.0
"""Seconds after a signal in which processes that wait for each other may still meet."""


# --- which network interface ----------------------------------------------------------------------------------------


def _choose_interface(place: Place, method: str) -> None:
    """Let gloo listen where the first process is reached: it would look up this machine's name, which may lie."""
    if "GLOO_SOCKET_IFNAME" in os.environ or method.startswith("file:"):
        return
    host = os.environ["MASTER_ADDR"] if method == "env://" else method.removeprefix("tcp://").rpartition(":")[0]
    own = address_towards(host)
    # A name that leads here from here only says nothing about other machines.
    if own is None or (own.startswith("127.") and place.local_world != place.world):
        return
    name = _interface_of(own)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def address_towards(host: str) -> str | None:
    """The IPv4 address of this machine from which packets to ``host`` leave; None if there is no way."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        found: str = probe.getsockname()[0]
        return found
    return None


_SIOCGIFADDR = 0x8915  # Linux


def _interface_of(address: str) -> str | None:
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == wanted:
                    return name
    return "lo" if address.startswith("127.") else None


# --- one error, one message -----------------------------------------------------------------------------------------


def _settle_who_tells(error: Exception) -> None:
    """Mark an error that the first process has, too: that one tells it (``alike``)."""
    key = "told-" + blake2b(f"{type(error).__name__}: {error}".encode(), digest_size=8).hexdigest()
    with suppress(AttributeError):
        error.alike = _first_has(key)  # type: ignore[attr-defined]


def _first_has(key: str) -> bool:
    # Not a collective: the others may be anywhere.
    store = dist.distributed_c10d._get_default_store()
    try:
        if is_rank_zero():
            store.set(key, "1")
        else:
            store.wait([key], timedelta(seconds=3))
    except dist.DistNetworkError:
        return True  # it has gone, not without a word
    except (dist.DistError, RuntimeError):
        return False
    return True
