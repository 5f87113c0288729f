"""Tensors by name from files: run folders and checkpoints of ours, safetensors, ``torch.save``, pickles of arrays.

Nothing that is read can run code.
"""

from __future__ import annotations

import json
import pickle
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from opabinia.models.weights.safe_pickle import read_pickle
from opabinia.runtime.shards import Shards

_WRAPPERS = (
    *("state_dict", "model_state_dict", "model_state", "model", "module", "network", "net", "weights", "params"),
    *("teacher", "student", "classy_state_dict", "base_model", "blobs"),
)
"""Keys under which trainers keep the weights."""

_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "model_ema_state_dict", "ema_model", "ema", "params_ema")
"""Keys under which they keep averaged ones."""


def read_weights(path: Path, *, ema: bool = False) -> dict[str, Tensor]:
    """Tensors by name, on the CPU.

    Args:
        path: a file (.safetensors, what ``torch.save`` wrote: .pth, .pt, .bin, .tar, or a pickle of NumPy arrays: .pkl,
            as detectron2 and Caffe2 write it), a checkpoint folder, or a run folder of ours, of which the best
            checkpoint is taken, the last one if none is marked.
        ema: take averaged weights.

    What wraps the weights in files of others (``model``, ``state_dict`` ...) is taken off; so are the marks of
    DataParallel and torch.compile on the names. Where a file holds several sets of weights (``teacher`` and
    ``student``), all are given, named after their key.

    Raises:
        ValueError: there is no such file, it is damaged, it holds more than plain data, or no averaged weights.
    """
    if path.is_dir():
        weights = _of_checkpoint(_checkpoint(path), ema)
    elif not path.is_file():
        raise ValueError(f"{path}: there is no such file or folder")
    elif path.suffix == ".safetensors":
        weights = _of_safetensors(path)
    elif path.suffix == ".pkl" and not zipfile.is_zipfile(path):  # torch.save writes archives, under any name
        weights = dict(_flat(_unwrapped(_as_tensors(read_pickle(path)), path, ema)))
    else:
        weights = dict(_flat(_unwrapped(_of_torch(path), path, ema)))
    weights = {name.replace("_orig_mod.", ""): tensor for name, tensor in weights.items()}
    while weights and all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    if not weights:
        raise ValueError(f"{path}: there are no tensors in it")
    return weights


def _checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder is or holds."""
    if _holds(folder, "model"):
        return folder
    for place in (folder / "checkpoints", folder):
        for pointer in ("best", "last"):
            if (place / pointer).is_file():
                found = place / (place / pointer).read_text(encoding="utf-8", errors="replace").strip()
                if _holds(found, "model"):
                    return found
    raise ValueError(f"{folder}: neither a run with a checkpoint nor a checkpoint (model.safetensors)")


def _holds(folder: Path, kind: str) -> bool:
    return (folder / f"{kind}.safetensors").is_file() or (folder / kind).is_dir()


def _kind_of(folder: Path, kind: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint's file, or of the files in its folder if it is a sharded one."""
    shards = sorted((folder / kind).glob("*.safetensors"))
    try:
        return dict(Shards(shards)) if shards else _of_safetensors(folder / f"{kind}.safetensors")
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{folder / kind}: cannot be read: {error}") from error


def _of_checkpoint(folder: Path, ema: bool) -> dict[str, Tensor]:
    """The model's tensors; what is averaged of them (all or only parameters) replaces them if asked for."""
    weights = _kind_of(folder, "model")
    if not ema:
        return weights
    if not _holds(folder, "ema"):
        raise ValueError(f"{folder}: it has no averaged weights (ema.safetensors)")
    averaged = _kind_of(folder, "ema")
    if not averaged.keys() & weights.keys():
        raise ValueError(f"{folder}: ema.safetensors names no tensor of the model")
    return {name: averaged.get(name, tensor) for name, tensor in weights.items()}


def _of_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            # Our checkpoints keep tied tensors once.
            aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return {**tensors, **{name: tensors[other] for name, other in aliases.items()}}


def _as_tensors(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: _as_tensors(value) for key, value in found.items()}
    return torch.from_numpy(found) if isinstance(found, np.ndarray) else found


def _of_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # Files that are none of torch.save fail in many ways.
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
    except pickle.UnpicklingError as error:
        offender = re.search(r"GLOBAL ([\w.]+)", str(error))
        if offender is None:
            raise ValueError(f"{path}: is no file of torch.save, or a damaged one") from error
        raise ValueError(
            f"{path}: refused: it holds {offender[1]}, and what is not plain data can run code when it is loaded. "
            f"If you trust the file, convert it once, in a place where it can do no harm: {_conversion(path)}"
        ) from error


def _conversion(path: Path) -> str:
    """A command that writes what is plain in a file to another one."""
    program = (
        'import sys, torch; d = torch.load(sys.argv[1], map_location="cpu", weights_only=False); '
        'd = d.state_dict() if hasattr(d, "state_dict") else d; '
        "torch.save({k: v for k, v in d.items() if isinstance(v, (dict, torch.Tensor))}, sys.argv[2])"
    )
    return shlex.join(["python", "-c", program, str(path), str(path.with_suffix(".plain.pth"))])


def _unwrapped(found: Any, path: Path, ema: bool) -> Any:
    """What lies under the keys that trainers wrap weights in."""
    averaged = [key for key in _AVERAGED if _holds_tensors(found, key)]
    if ema:
        if not averaged:
            raise ValueError(f"{path}: it has no averaged weights (a key such as {', '.join(_AVERAGED[:3])})")
        return _unwrapped(found[averaged[0]], path, False)
    wrappers = [key for key in _WRAPPERS if _holds_tensors(found, key)]
    if not wrappers:
        return found
    if len(wrappers) > 1:
        return {key: _unwrapped(found[key], path, False) for key in wrappers}
    return _unwrapped(found[wrappers[0]], path, False)


def _holds_tensors(found: Any, key: str) -> bool:
    return isinstance(found, Mapping) and isinstance(found.get(key), Mapping) and any(True for _ in _flat(found[key]))


def _flat(found: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors of nested mappings under dotted names, without those of optimizers."""
    if isinstance(found, Tensor):
        yield prefix.removesuffix("."), found
    elif isinstance(found, Mapping):
        for key, value in found.items():
            if not (isinstance(value, Mapping) and str(key).startswith("optim")):
                yield from _flat(value, f"{prefix}{key}.")
