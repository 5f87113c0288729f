"""Pickles of NumPy arrays, read without running what is written in them.

A pickle is a program: it names functions and has them called. Here every name it may ask for stands in a list, and what
it gets is no function of NumPy or Python but a stand-in that only keeps what it is told. Shapes, types and bytes are
checked before an array is made of them. Anything else is refused by its name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_DEPTH = 2
"""Containers within each other: what wraps the weights, and the weights by name."""


def read_pickle(path: Path) -> dict[Any, Any]:
    """What a pickle of a dictionary holds: arrays, dictionaries, lists, strings, numbers. Tuples and sets become lists;
    containers in containers in containers are left out.

    Pickles of Python 2 are read, too; their strings are taken for Latin-1, as bytes of arrays are.

    Raises:
        ValueError: it asks for anything else, it is damaged, or it holds no dictionary.
    """
    try:
        # In memory: what a file says of its lengths is never believed further than it goes.
        found = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        found = _finished(found, _DEPTH)
    except Refused as error:
        raise ValueError(f"{path}: refused: {error}") from error
    # A pickle that is cut short or no pickle at all fails wherever it happens to.
    except Exception as error:
        raise ValueError(f"{path}: is no pickle, or a damaged one: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: it holds no dictionary of arrays")
    return found


class Refused(pickle.UnpicklingError):
    """A pickle asks for what it does not get."""


# The one in Python: that in C makes room for as many things as a file says that it will remember.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            asked = f"{module}.{name}"
        raise Refused(
            f"it asks for {asked!r}, and what is no array, dictionary, list, string or number can run code when it is "
            f"loaded"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to something outside the file (a persistent id)")


# --- what stands in for what a pickle asks for ----------------------------------------------------------------------


class _Function:
    """A function that a pickle may call. It has no attributes that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return object.__getattribute__(self, "_call")(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(f"it sets {name!r} of a function")


class _Type:
    """A type of numbers, named first (``f4``); its byte order is told afterwards."""

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


class _Pending:
    """An array that is still to be told its shape, type and bytes."""

    __slots__ = ("array",)

    def __init__(self, *_: Any) -> None:
        self.array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.array = _array(content, dtype, shape, "F" if fortran else "C")


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """An array of these bytes, if they are as many as shape and type say."""
    content = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(dtype, _Type) or not isinstance(content, bytes | bytearray):
        raise Refused("it holds an array of objects, which are no numbers")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise Refused("it holds an array whose shape is none")
    if len(content) != prod(shape) * dtype.plain.itemsize:
        raise ValueError(f"{len(content)} bytes are no array of {shape} {dtype.plain}")
    array = np.frombuffer(content, dtype.plain).reshape(shape, order="F" if order == "F" else "C")
    return array.astype(dtype.plain.newbyteorder("="), order="C")


def _pending(*_: Any) -> _Pending:
    return _Pending()


def _scalar(dtype: Any, content: Any) -> Any:
    return _array(content, dtype, (), "C").item()


def _encoded(text: Any, encoding: Any) -> bytes:
    """What Python 3 writes for bytes when Python 2 is to read it; :func:`_no_bytes` where there are none."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused("it encodes what are no bytes")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _dictionary(pairs: Any = ()) -> dict[Any, Any]:
    return dict(pairs)


def _class(*_: Any) -> Any:
    raise Refused("it makes an array by itself")


def _admitted() -> Iterator[tuple[tuple[str, str], _Function]]:
    yield ("collections", "OrderedDict"), _Function(_dictionary)
    yield ("_codecs", "encode"), _Function(_encoded)
    yield ("__builtin__", "bytes"), _Function(_no_bytes)
    yield ("numpy", "ndarray"), _Function(_class)
    yield ("numpy", "dtype"), _Function(_Type)
    for core in ("numpy.core", "numpy._core"):
        yield (f"{core}.multiarray", "_reconstruct"), _Function(_pending)
        yield (f"{core}.multiarray", "scalar"), _Function(_scalar)
        yield (f"{core}.numeric", "_frombuffer"), _Function(_array)


_ADMITTED: Mapping[tuple[str, str], _Function] = dict(_admitted())
"""All that a pickle may ask for, by module and name; NumPy 2 has another module than those before."""


def _finished(found: Any, depth: int) -> Any:
    """The same with arrays in place of what stood in for them; containers deeper than that are left out.

    Args:
        depth: a file that nests dictionaries without end, or in circles, is not followed further.
    """
    if isinstance(found, _Pending):
        if found.array is None:
            raise ValueError("an array without content")
        return found.array
    if isinstance(found, dict):
        return {key: _finished(value, depth - 1) for key, value in found.items()} if depth else None
    if isinstance(found, list | tuple | set):
        return [_finished(value, depth - 1) for value in found] if depth else None
    return found
