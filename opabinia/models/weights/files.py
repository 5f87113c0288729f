"""Read weights from files: run folders and checkpoints, safetensors, ``torch.save``, pickles of arrays.

No file can execute code when it is read.
"""

from __future__ import annotations

import pickle
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opabinia.models.lora import merge_tensors
from opabinia.models.weights.checkpoints import find_checkpoint, has_tensors
from opabinia.models.weights.download import HUB, hub_file
from opabinia.models.weights.safe_pickle import load_tensors, read_pickle
from opabinia.runtime.local_copies import fetch, local_copy
from opabinia.runtime.shards import ShardedTensors, load_safetensors
from opabinia.runtime.storage import is_url
from opabinia.runtime.text import printable

_WRAPPERS = (
    *("state_dict", "model_state_dict", "model_state", "model", "module", "network", "net", "weights", "params"),
    *("teacher", "student", "classy_state_dict", "base_model", "blobs"),
)
"""Keys under which trainers keep the weights."""

_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "model_ema_state_dict", "ema_model", "ema", "params_ema")
"""Keys under which they keep averaged weights."""

_MAX_DEPTH, _MAX_ENTRIES, _MAX_NAME = 32, 1_000_000, 200
"""Limits of nested dictionaries: levels, entries of all of them, and letters of a name in a message."""

_MAX_COMPRESSION, _MAX_EXPANSION = 4, 2**26
"""Limits of content beyond the size of a file: of compressed archives, as a factor, and of tensors that repeat their
values (``expand``), in bytes."""


def read_weights(path: Path, *, ema: bool = False) -> dict[str, Tensor]:
    """Read tensors by name, on the CPU.

    Wrappers of the weights in other systems' files (``model``, ``state_dict`` ...) are removed, and so are the prefixes
    of DataParallel and torch.compile. If a file holds several sets of weights (``teacher`` and ``student``), all are
    returned, with their key as prefix. Adapters (LoRA) are merged into the weights beside them.

    Args:
        path: a file (.safetensors, ``torch.save``: .pth, .pt, .bin, .tar, or a pickle of NumPy arrays: .pkl, as
            detectron2 and Caffe2 write it), a checkpoint folder, or a run folder, of which the best checkpoint is read,
            or the last one if none is marked; ``hf:OWNER/NAME`` is a repository of the Hugging Face Hub; a URL
            (``s3://bucket/weights.pth``) is fetched.
        ema: read averaged weights.

    Raises:
        ValueError: there is no such file, it is damaged, holds more than plain data, or has no averaged weights.
        StorageError: remote storage does not give it.
    """
    if str(path).startswith(HUB):
        path = hub_file(str(path).removeprefix(HUB))
    if is_url(path):
        path = Path(local_copy(path))
    if path.is_file():
        fetch(path)
    if path.is_dir():
        weights = _read_checkpoint(find_checkpoint(path), ema)
    elif not path.is_file():
        raise ValueError(f"{path}: there is no such file or folder")
    elif path.suffix == ".safetensors":
        weights = load_safetensors(path)
    else:
        # torch.save writes zip archives, under any name.
        is_pickle = path.suffix == ".pkl" and not zipfile.is_zipfile(path)
        content = _to_tensors(read_pickle(path)) if is_pickle else _torch_load(path)
        _check_nesting(content, path)
        weights = dict(_flatten(_unwrap(content, path, ema)))
    weights = {name.replace("_orig_mod.", ""): tensor for name, tensor in weights.items()}
    while weights and all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    if not weights:
        raise ValueError(f"{path}: there are no tensors in it")
    _check_tensors(weights, path)
    try:
        return merge_tensors(weights)
    except ValueError as error:
        raise ValueError(printable(f"{path}: {error}")) from error


def _read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Read a file of a checkpoint, or the files in its folder if it is sharded."""
    shards = sorted((folder / name).glob("*.safetensors"))
    return dict(ShardedTensors(shards)) if shards else load_safetensors(folder / f"{name}.safetensors")


def _read_checkpoint(folder: Path, ema: bool) -> dict[str, Tensor]:
    """Read the model's tensors; averaged ones (all, or only parameters) replace them if ``ema`` is set."""
    weights = _read_tensors(folder, "model")
    if not ema:
        return weights
    if not has_tensors(folder, "ema"):
        raise ValueError(f"{folder}: it has no averaged weights (ema.safetensors)")
    averaged = _read_tensors(folder, "ema")
    if not averaged.keys() & weights.keys():
        raise ValueError(f"{folder}: ema.safetensors names no tensor of the model")
    return {name: averaged.get(name, tensor) for name, tensor in weights.items()}


def _to_tensors(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _to_tensors(value) for key, value in content.items()}
    return torch.from_numpy(content) if isinstance(content, np.ndarray) else content


def _torch_load(path: Path) -> Any:
    _check_archive(path)
    try:
        return load_tensors(path)
    except pickle.UnpicklingError as error:
        offender = re.search(r"GLOBAL ([\w.]+)", str(error))
        if offender is None:
            raise ValueError(f"{path}: is no file of torch.save, or a damaged one") from error
        program = (
            'import sys, torch; d = torch.load(sys.argv[1], map_location="cpu", weights_only=False); '
            'd = d.state_dict() if hasattr(d, "state_dict") else d; '
            "torch.save({k: v for k, v in d.items() if isinstance(v, (dict, torch.Tensor))}, sys.argv[2])"
        )
        command = shlex.join(["python", "-c", program, str(path), str(path.with_suffix(".plain.pth"))])
        raise ValueError(
            f"{path}: refused: it holds {offender[1]}, and what is not plain data can run code when it is loaded. "
            f"If you trust the file, convert it once, in a place where it can do no harm: {command}"
        ) from error
    # Files that torch.save did not write, or damaged ones, can fail in any way.
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        raise ValueError(f"{path}: cannot be read: {type(error).__name__}: {first_line}") from error


def _check_archive(path: Path) -> None:
    """Check that a zip archive, as torch.save writes it, is whole and not compressed to a fraction of its content."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except Exception as error:
        raise ValueError(f"{path}: cannot be read: truncated or damaged ({error})") from error
    if size > _MAX_COMPRESSION * path.stat().st_size:
        raise ValueError(f"{path}: refused: it claims {size} bytes of content, and has {path.stat().st_size}")


def _check_nesting(content: Any, path: Path) -> None:
    """Check that the dictionaries of a file can be walked through, and that names can be made of their keys.

    Raises:
        ValueError: a dictionary contains itself, they are nested too deeply or shared too often, or a key is no name.
    """
    entries, pending = 0, [("", 0, content)]
    while pending:
        prefix, depth, mapping = pending.pop()
        if not isinstance(mapping, Mapping):
            continue
        if depth > _MAX_DEPTH:
            text = f"dictionaries are nested more than {_MAX_DEPTH} deep, or contain themselves"
            raise ValueError(f"{path}: {printable(prefix)[:100]}...: {text}")
        entries += len(mapping)
        if entries > _MAX_ENTRIES:
            text = f"more than {_MAX_ENTRIES} entries: dictionaries contain each other many times"
            raise ValueError(f"{path}: {printable(prefix)[:100]}...: {text}")
        for key, value in _walked(mapping):
            if not isinstance(key, str) and not (isinstance(key, int) and abs(key) < 2**63):
                text = f"the name of a tensor or dictionary is of type {type(key).__name__}, not text"
                raise ValueError(f"{path}: {printable(prefix)[:100]}: {text}")
            pending.append((f"{prefix}{key}."[:_MAX_NAME], depth + 1, value))


def _check_tensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that tensors have the content that they claim."""
    for name, tensor in weights.items():
        problem = ""
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            problem = "is sparse, quantized or nested; save it as a plain tensor"
        elif tensor.device.type != "cpu":
            problem = f"has a shape but no values (device {tensor.device})"
        elif tensor.nbytes > tensor.untyped_storage().nbytes() + _MAX_EXPANSION:
            shape = "x".join(map(str, tensor.shape))
            problem = f"claims {shape} values, and the file has {tensor.untyped_storage().nbytes()} bytes of them"
        if problem:
            raise ValueError(f"{path}: {printable(name)[:_MAX_NAME]}: the tensor {problem}")


def _unwrap(content: Any, path: Path, ema: bool) -> Any:
    """Return the weights under the keys in which trainers wrap them."""
    averaged = [key for key in _AVERAGED if _keyhas_tensors(content, key)]
    if ema:
        if not averaged:
            raise ValueError(f"{path}: it has no averaged weights (a key such as {', '.join(_AVERAGED[:3])})")
        return _unwrap(content[averaged[0]], path, False)
    wrappers = [key for key in _WRAPPERS if _keyhas_tensors(content, key)]
    if not wrappers:
        return content
    if len(wrappers) > 1:
        return {key: _unwrap(content[key], path, False) for key in wrappers}
    return _unwrap(content[wrappers[0]], path, False)


def _keyhas_tensors(content: Any, key: str) -> bool:
    if not isinstance(content, Mapping) or not isinstance(content.get(key), Mapping):
        return False
    return any(True for _ in _flatten(content[key]))


def _flatten(content: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested mappings under dotted names, without those of optimizers."""
    if isinstance(content, Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, Mapping):
        for key, value in _walked(content):
            yield from _flatten(value, f"{prefix}{key}.")


def _walked(content: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of a dictionary that are tensors, or dictionaries other than those of optimizers."""
    for key, value in content.items():
        is_optimizer = isinstance(value, Mapping) and isinstance(key, str) and key.startswith("optim")
        if isinstance(value, Mapping | Tensor) and not is_optimizer:
            yield key, value
