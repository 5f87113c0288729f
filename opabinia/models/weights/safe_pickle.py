"""Read pickles of NumPy arrays, and metadata in files of torch.save, without executing their code.

A pickle is a program that names functions and calls them. Here every allowed name is listed, and resolves not to a
function of NumPy or Python but to a stub that only stores its arguments. Shapes, types and bytes are validated before
an array is made of them. Every other name is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

_DEPTH = 2
"""Levels of nested containers: a wrapper of the weights, and the weights by name."""


def read_pickle(path: Path, depth: int = _DEPTH) -> dict[Any, Any]:
    """Read a pickled dictionary of arrays, dictionaries, lists, strings and numbers. Tuples and sets become lists; more
    deeply nested containers are dropped.

    Pickles of Python 2 are supported; their strings are decoded as Latin-1, as the bytes of arrays are.

    Args:
        path: the file.
        depth: levels of nested containers that are kept.

    Raises:
        ValueError: it needs anything else, is damaged, or holds no dictionary.
    """
    try:
        # In memory: lengths stated in a file cannot exceed the file.
        content = _resolve(_Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load(), depth)
    except Refused as error:
        raise ValueError(f"{path}: refused: {error}") from error
    # A truncated pickle, or another file, can fail in any way.
    except Exception as error:
        raise ValueError(f"{path}: is no pickle, or a damaged one: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: it holds no dictionary of arrays")
    return content


def load_tensors(path: Path) -> Any:
    """Read a file of torch.save on the CPU. Beside what ``weights_only`` accepts it may hold ``argparse.Namespace``,
    paths and NumPy's arrays and numbers, as other systems' training scripts save them; these become stubs.

    Raises:
        pickle.UnpicklingError: it holds more than plain data.
        Exception: of many kinds: it is no such file, or damaged.
    """
    with torch.serialization.safe_globals(_METADATA):
        return torch.load(path, map_location="cpu", weights_only=True)


class Refused(pickle.UnpicklingError):
    """A pickle needs something that is not allowed."""


# The unpickler in Python: that in C allocates as many memo entries as a file claims to need.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise Refused(
                f"it asks for {f'{module}.{name}'!r}, and what is no array, dictionary, list, string or number can run "
                f"code when it is loaded"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to something outside the file (a persistent id)")


# --- stubs of the allowed functions and classes ---------------------------------------------------------------------


class _Function:
    """A function that a pickle may call, without attributes that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return object.__getattribute__(self, "_call")(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(f"it sets {name!r} of a function")


class _DType:
    """A numeric dtype, made by its name (``f4``); its byte order follows as state."""

    __slots__ = ("plain",)

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or name.lstrip("<>=|") not in _NUMBERS:
            raise Refused(f"it holds an array of {name!r}, which are no numbers")
        self.plain = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order, *details = state[1:5]
        if order not in ("<", ">", "=", "|") or any(detail is not None for detail in details):
            raise Refused("it holds an array of records, which are no numbers")
        self.plain = self.plain.newbyteorder(order)


_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}


class _PendingArray:
    """An array whose shape, type and bytes follow as state."""

    __slots__ = ("array",)

    def __init__(self, *_: Any) -> None:
        self.array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.array = _array(content, dtype, shape, "F" if fortran else "C")


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """Make an array of bytes, if their number fits shape and type."""
    content = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(dtype, _DType) or not isinstance(content, bytes | bytearray):
        raise Refused("it holds an array of objects, which are no numbers")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise Refused("it holds an array whose shape is none")
    if len(content) != prod(shape) * dtype.plain.itemsize:
        raise ValueError(f"{len(content)} bytes are no array of {shape} {dtype.plain}")
    array = np.frombuffer(content, dtype.plain).reshape(shape, order="F" if order == "F" else "C")
    return array.astype(dtype.plain.newbyteorder("="), order="C")


def _encode(text: Any, encoding: Any) -> bytes:
    """Decode bytes as Python 3 pickles them for Python 2; empty bytes are pickled as ``bytes()``."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused("it encodes what are no bytes")
    return text.encode("latin1")


def _refuse_call(*_: Any) -> Any:
    raise Refused("it makes an array by itself")


def _allowed() -> Iterator[tuple[tuple[str, str], _Function]]:
    yield ("collections", "OrderedDict"), _Function(lambda pairs=(): dict(pairs))
    yield ("_codecs", "encode"), _Function(_encode)
    yield ("__builtin__", "bytes"), _Function(lambda: b"")
    yield ("numpy", "ndarray"), _Function(_refuse_call)
    yield ("numpy", "dtype"), _Function(_DType)
    for core in ("numpy.core", "numpy._core"):
        yield (f"{core}.multiarray", "_reconstruct"), _Function(_PendingArray)
        yield (f"{core}.multiarray", "scalar"), _Function(lambda dtype, content: _array(content, dtype, (), "C").item())
        yield (f"{core}.numeric", "_frombuffer"), _Function(_array)


_ALLOWED: Mapping[tuple[str, str], _Function] = dict(_allowed())
"""The names that a pickle may use, by module and name; modules differ between NumPy 2 and older versions."""


class _Namespace:
    """An ``argparse.Namespace``: attributes, which are ignored."""


_METADATA: list[Any] = [
    (_Namespace, "argparse.Namespace"),
    *((_Function(lambda *parts: "/".join(map(str, parts))), f"pathlib.{kind}Path") for kind in ("Posix", "Windows")),
    (_DType, "numpy.dtype"),
    (_ALLOWED["numpy", "ndarray"], "numpy.ndarray"),
    *((_PendingArray, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_ALLOWED["numpy.core.multiarray", "scalar"], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""Stubs, and the names for which they stand in files of torch.save."""


def _resolve(content: Any, depth: int) -> Any:
    """Replace stubs by their arrays, and drop containers below ``depth``: nested without end, or circular, they would
    not terminate."""
    if isinstance(content, _PendingArray):
        if content.array is None:
            raise ValueError("an array without content")
        return content.array
    if isinstance(content, dict):
        return {key: _resolve(value, depth - 1) for key, value in content.items()} if depth else None
    if isinstance(content, list | tuple | set):
        return [_resolve(value, depth - 1) for value in content] if depth else None
    return content
