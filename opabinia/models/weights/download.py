"""Downloads of pretrained weights. Without an internet connection they fail within seconds, and say what to do."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import torch
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from pydantic import StringConstraints
from typing_extensions import TypedDict

from opabinia.models.weights import HUB_FILES
from opabinia.runtime.json_files import read_json

HUB = "hf:"
"""Prefix of the names of repositories of the Hugging Face Hub."""

_replaced: ContextVar[bool] = ContextVar("replaced", default=False)


@contextmanager
def replacing_weights() -> Iterator[None]:
    """Build models inside without pretrained weights, whose place a checkpoint is about to take; all else that
    ``pretrained`` decides stays: preprocessing, width of the classifier."""
    token = _replaced.set(True)
    try:
        yield
    finally:
        _replaced.reset(token)


def are_replaced() -> bool:
    """Return whether the weights of a model that is built now are about to be replaced."""
    return _replaced.get()


class UnavailableWeights(ValueError):
    """Pretrained weights that are neither in the cache nor can be downloaded."""


@contextmanager
def pretrained_weights(
    name: str, url: str | None, *, hub_id: str | None = None, hub_file: str | None = None, remedy: str = ""
) -> Iterator[None]:
    """Create a model with pretrained weights inside: from the cache without any connection, else after one attempt.

    Args:
        name: the model, for messages.
        url: URL of the weights, if they are not on the Hugging Face Hub.
        hub_id: their repository on the Hugging Face Hub.
        hub_file: their file there; None: any of ``HUB_FILES``.
        remedy: a way to weights without a download, for messages.

    Raises:
        UnavailableWeights: the weights are not in the cache and cannot be downloaded.
    """
    offline = constants.HF_HUB_OFFLINE
    if hub_id:
        repository, _, revision = hub_id.partition("@")
        files = (hub_file,) if hub_file else HUB_FILES
        found = (try_to_load_from_cache(repository, file, revision=revision or None) for file in files)
        is_cached, server = any(isinstance(path, str) for path in found), constants.ENDPOINT
    else:
        file = os.path.basename(urlsplit(url or "").path)
        is_cached, server = os.path.isfile(os.path.join(torch.hub.get_dir(), "checkpoints", file)), url or ""
    from_scratch = (
        "set pretrained: false to train from scratch; for weights in a local file also init.weights=FILE and "
        "init.target_prefix=backbone"
    )
    remedy = f"{remedy}; or {from_scratch}" if remedy else from_scratch
    if not is_cached and (offline or not can_connect(server)):
        reason = "HF_HUB_OFFLINE is set" if offline else f"there is no connection to {urlsplit(server).hostname}"
        raise UnavailableWeights(f"pretrained: the weights of {name} are not in the cache, and {reason}; {remedy}")
    constants.HF_HUB_OFFLINE = offline or is_cached
    try:
        yield
    except OSError as error:
        raise UnavailableWeights(f"pretrained: the weights of {name} cannot be loaded: {error}; {remedy}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def hub_file(name: str, files: Sequence[str] = HUB_FILES[:2]) -> Path:
    """Return the local path of a repository's file on the Hugging Face Hub: from the cache, else after a download.

    Args:
        name: the repository, such as ``ustc-community/dfine-small-coco``; ``NAME@REVISION`` for one of its revisions.
        files: names of the file, the first that there is; by default those of weights.

    Raises:
        UnavailableWeights: it is not in the cache and cannot be downloaded.
    """
    repository, _, revision = name.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UnavailableWeights(f"hf:{name}: a repository of the Hugging Face Hub is named OWNER/NAME")
    for file in files:
        found = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(found, str):
            return Path(found)
    page = f"{constants.ENDPOINT}/{repository}/resolve/{revision or 'main'}/{files[0]}"
    remedy = f"download {page} on another machine, and give the path of the file instead"
    if constants.HF_HUB_OFFLINE or not can_connect(constants.ENDPOINT):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "there is no connection to the hub"
        raise UnavailableWeights(f"hf:{name}: {files[0]} is not in the cache, and {reason}; {remedy}")
    for file in files:
        try:
            return Path(hf_hub_download(repository, file, revision=revision or None))
        except (EntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                continue
            cause = error.__cause__ or error
            reason = f"{next(iter(str(cause).splitlines()), type(cause).__name__)}; {remedy}"
            if isinstance(error, RepositoryNotFoundError):
                reason = f"{constants.ENDPOINT} has no such repository, or it is private (hf auth login)"
            raise UnavailableWeights(f"hf:{name}: {reason}") from error
    raise UnavailableWeights(f"hf:{name}: the repository has no {' and no '.join(files)}")


class _State(TypedDict):
    files: dict[Annotated[str, StringConstraints(pattern=r"^\w+\.safetensors$")], Any]


def hub_folder(name: str) -> Path:
    """Return the local folder of a model that ``opabinia export --format huggingface`` wrote and that is on the Hugging
    Face Hub: from the cache, else after a download.

    Args:
        name: see :func:`hub_file`.

    Raises:
        UnavailableWeights: it is not in the cache and cannot be downloaded, or the repository holds no such model.
    """
    folder = hub_file(name, ["state.json"]).parent
    same_revision = f"{name.partition('@')[0]}@{folder.name}"
    for file in ("config.yaml", *read_json(folder / "state.json", _State)["files"]):
        hub_file(same_revision, [file])
    return folder


_PATIENCE = 4.0
"""Seconds within which a server accepts a connection, with the name look-up."""


def can_connect(url: str) -> bool:
    """Return whether a server, or the proxy that leads to it, accepts a connection in time."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme, "") if not proxy_bypass(parts.hostname or "") else ""
    target = urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else parts
    address = (target.hostname or "", target.port or (443 if target.scheme == "https" else 80))
    connected = Event()

    def connect() -> None:
        with suppress(OSError), socket.create_connection(address, timeout=_PATIENCE / 2):
            connected.set()

    thread = Thread(target=connect, daemon=True)  # a name look-up cannot be interrupted
    thread.start()
    thread.join(_PATIENCE)
    return connected.is_set()
