"""State of trackers in plain files: a safetensors file of its arrays, whose metadata have everything else as JSON.

Dictionaries, lists, tuples, numbers, text, arrays, and the classes in ``CLASSES`` can be saved. Nothing that is loaded
can run code: the classes are chosen by name from this list.
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from opabinia.models.trackers.kalman import Motion
from opabinia.models.trackers.table import TrackTable
from opabinia.runtime.files import temporary_file
from opabinia.runtime.json_files import InvalidFile

CLASSES = {"Motion": Motion, "TrackTable": TrackTable}
_STATE = "state"

Arrays = dict[str, NDArray[Any]]


def save_state(path: Path, state: Any) -> None:
    """Write a state to a file.

    Raises:
        TypeError: it holds something that cannot be saved.
        DiskError: the file cannot be written.
    """
    arrays: Arrays = {}
    text = json.dumps(_encode(state, arrays))
    with temporary_file(path) as temporary:
        save_file(arrays, temporary, {_STATE: text})


def load_state(path: Path) -> Any:
    """Read a state.

    Raises:
        InvalidFile: the file is missing or damaged.
    """
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it cannot be iterated)
            return _decode(json.loads((file.metadata() or {})[_STATE]), arrays)
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidFile(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _encode(value: Any, arrays: Arrays) -> Any:
    """Return JSON data; arrays are collected under their numbers."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        name = str(len(arrays))
        arrays[name] = np.array(value, order="C")
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if kind in (list, tuple):
        return {kind.__name__: [_encode(item, arrays) for item in value]}
    if kind is dict:
        return {"dict": [[_encode(key, arrays), _encode(item, arrays)] for key, item in value.items()]}
    if kind in CLASSES.values():
        fields = vars(value) if is_dataclass(value) else value._asdict()
        return {kind.__name__: {name: _encode(item, arrays) for name, item in fields.items()}}
    raise TypeError(f"{kind.__name__} is neither a dictionary, list, tuple, number, text nor array")


def _decode(value: Any, arrays: Arrays) -> Any:
    if not isinstance(value, dict):
        return value
    (form, content), *_ = value.items()
    match form:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "list":
            return [_decode(item, arrays) for item in content]
        case "tuple":
            return tuple(_decode(item, arrays) for item in content)
        case "dict":
            return {_decode(key, arrays): _decode(item, arrays) for key, item in content}
    return CLASSES[form](**{name: _decode(item, arrays) for name, item in content.items()})
