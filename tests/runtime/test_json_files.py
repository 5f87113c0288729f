"""Files that are read back are checked against a schema; an error names the file and the field, on one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

from opabinia.contracts import DatasetInfo
from opabinia.runtime.json_files import InvalidFile, MetricsLine, parse_json, read_json, read_json_lines


class Point(TypedDict):
    x: int


class Drawing(TypedDict, total=False):
    points: list[Point]


def test_a_file_that_fits_is_returned_with_its_other_fields(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"points": [{"x": 1, "y": 2}], "name": "\\udcff"}')
    assert read_json(file, Drawing) == {"points": [{"x": 1, "y": 2}], "name": "\udcff"}
    assert read_json(file, dict[str, Any]) == json.loads(file.read_text())
    assert parse_json('{"samples": 3, "classes": ["a"], "later": 1}', DatasetInfo, "") == DatasetInfo(3, classes=("a",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"points": [{"x": "y"}]}', "a.json: points.0.x: input should be a valid integer"),
        (b'{"points": [{}]}', "a.json: points.0.x: field required"),
        (b'{"points": [{"x": 1' + b"0" * 400 + b"}]}", None),
        (b"[]", "a.json: input should be a valid dictionary (found [])"),
        (b"{", "a.json: not valid JSON: Expecting property name"),
        (b"\xff\xfe\0", "a.json: not valid JSON: "),
        (b"[" * 100_000, "a.json: not valid JSON: too deeply nested"),
        (b"9" * 10_000, "a.json: not valid JSON: "),
    ],
    ids=range(8),
)
def test_another_file_is_refused_by_name_and_field(tmp_path: Path, content: bytes, message: str | None) -> None:
    (tmp_path / "a.json").write_bytes(content)
    if message is None:
        read_json(tmp_path / "a.json", Drawing)
        return
    with pytest.raises(InvalidFile) as refused:
        read_json(tmp_path / "a.json", Drawing)
    text = str(refused.value)
    assert text.startswith(str(tmp_path)) and message in text and text.isprintable() and len(text) < 300


def test_files_without_content_and_control_characters_of_a_key(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "missing.json", r"missing\.json: No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InvalidFile, match=message):
            read_json(path, Drawing)
    with pytest.raises(InvalidFile, match=r"a\.json: \\x1b\[2J\\n: "):
        parse_json('{"\\u001b[2J\\n": "x"}', dict[str, int], "a.json")


def test_errors_name_the_line_and_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2}\n{"step": 2}\n{"ste')
    assert list(read_json_lines(file, MetricsLine)) == [{"step": 2}, {"step": 1, "loss": 2}]
    file.write_text("damaged\n" * 100_000 + '{"step": 2}\n')
    assert next(read_json_lines(file, MetricsLine)) == {"step": 2}, "lines are parsed only when they are read"
    file.write_text('{"step": 1}\n{"step": null}\n')
    with pytest.raises(InvalidFile, match=r"metrics\.jsonl:2: step: input should be a valid integer"):
        list(read_json_lines(file, MetricsLine))
