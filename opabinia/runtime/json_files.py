"""JSON files: written atomically, read with a check against a schema (a damaged file is refused with its field)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import TypedDict, is_typeddict

from opabinia.runtime.files import write_atomic
from opabinia.runtime.text import printable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


class InvalidFile(ValueError):
    """A file cannot be read, or its content does not fit its schema. The text is one line: file, field and problem."""

    exit_status = 2

    def __init__(self, message: str) -> None:
        # Hostile files hold line breaks and terminal codes.
        super().__init__(printable(message))


class MetricsLine(TypedDict):
    """A line of ``metrics.jsonl``: the step, and values by name."""

    step: int


def write_json(path: Path, values: Any, *, indent: int | None = 1) -> None:
    """Write JSON values atomically (a temporary file is renamed).

    Args:
        path: path of the file.
        values: to write.
        indent: spaces per level; None writes one line, which is many times faster.

    Raises:
        DiskError: the file cannot be written.
    """
    write_atomic(path, json.dumps(values, indent=indent) + "\n")


def read_json(path: Path, schema: type[T]) -> T:
    """Read a JSON file.

    Args:
        path: the file.
        schema: a type that pydantic validates: ``dict[str, float]``, a dataclass, or a TypedDict, which keeps fields
            that it does not name.

    Raises:
        InvalidFile: the file is missing, cannot be read, is not JSON, or a field of it does not fit the schema.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from error
    return parse_json(raw, schema, str(path))


def parse_json(raw: bytes | str, schema: type[T], place: str) -> T:
    """Parse JSON; ``place`` is the file, and perhaps the line, for errors. See :func:`read_json`."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise InvalidFile(f"{place}: not valid JSON: {reason}") from error
    return check_fields(value, schema, place)


def check_fields(value: Any, schema: type[T], place: str) -> T:
    """Return ``value``, plain data, as the schema's type. See :func:`read_json`."""
    from pydantic import ValidationError

    adapter: TypeAdapter[T] = _adapter(cast("Any", schema))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        found = "" if problem["type"] == "missing" else f" (found {shortened(problem['input'])})"
        field = ".".join(map(str, problem["loc"]))
        raise InvalidFile(": ".join(filter(None, [place, field, problem["msg"].lower() + found]))) from error


def read_json_lines(path: Path, schema: type[T]) -> Iterator[T]:
    """Yield the value of each line of a JSON Lines file, the last one first, without one that is still being written.

    A line is parsed when it is asked for: what is newest in a long log is found at once.

    Raises:
        InvalidFile: see :func:`read_json`; the line is named, too.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InvalidFile(f"{path}: {error.strerror}") from error
    for number, line in reversed(list(enumerate(lines, 1))):
        yield parse_json(line, schema, f"{path}:{number}")


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    if is_typeddict(schema):
        schema.__pydantic_config__ = ConfigDict(extra="allow")
    return TypeAdapter(schema)
