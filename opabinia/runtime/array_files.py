"""Files of NumPy arrays that can be computed again."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opabinia.runtime.files import write_atomic
from opabinia.runtime.log import log

Arrays = dict[str, NDArray[Any]]

Content = TypeVar("Content")


def cached_arrays(path: Path, compute: Callable[[], Arrays], decode: Callable[[Arrays], Content]) -> Content:
    """Return the content of a file of arrays (.npz); if it is missing or broken, compute and write it.

    Args:
        path: the file; if it cannot be written, the arrays are not kept.
        compute: computes the arrays.
        decode: returns what the arrays stand for, and raises a ValueError or KeyError for those that cannot be the ones
            that were written. Checksums find changed bytes.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return decode(dict(file))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        log.warning("%s is broken and made again: %s", path, error)
    computed = compute()
    content = io.BytesIO()
    np.savez(content, **computed)  # type: ignore[arg-type]  # numpy's stub takes any name for its flag
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        log.warning("%s is not kept: %s", path, error)
    return decode(computed)
