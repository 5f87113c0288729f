"""The drawings and features that an earlier ``opabinia predict`` wrote into a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from opabinia.runtime.files import disk_errors
from opabinia.runtime.json_files import InvalidFile, read_json, write_json

LIST = ".written.json"
"""Names of the files that were written, relative to the folder."""

_WRITTEN = re.compile(r"features\.npy|sheet-\d+\.png|\d{5,}-.*\.(png|mp4)", re.DOTALL)


@contextmanager
def replace_earlier(out: Path) -> Iterator[None]:
    """Remove the files that earlier calls wrote to ``out``, and that the block does not write again, when it ends
    without an error. Other files stay.

    Raises:
        DiskError: a file cannot be written or removed.
    """
    path = out / LIST
    earlier = _read_list(path)
    write_json(path, sorted(earlier), indent=None)
    with disk_errors(out):
        start = path.stat().st_mtime_ns
    try:
        yield
        with disk_errors(out):
            for name in earlier & {name for name, modified in _files(out).items() if modified < start}:
                (out / name).unlink()
    finally:
        files = _files(out)
        written = {name for name, modified in files.items() if modified >= start}
        write_json(path, sorted(written | earlier & files.keys()), indent=None)


def _read_list(path: Path) -> set[str]:
    with suppress(InvalidFile):  # there is none yet, or it is damaged
        return set(read_json(path, list[str]))
    return set()


def _files(out: Path) -> dict[str, int]:
    """Return when each file with a name of a drawing or of features was modified, in nanoseconds; of several tasks
    there is a folder each."""
    paths = chain.from_iterable(out.glob(pattern) for pattern in ("*", "*/*", "*/*/*"))
    named = (path for path in paths if _WRITTEN.fullmatch(path.name) and path.is_file())
    return {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in named}
