import math
from pathlib import Path
from typing import Any

import pytest

from opabinia.config.errors import Problem
from opabinia.config.tree import BROKEN, MAX_DEPTH, read_file, read_text


def read(text: str) -> tuple[Any, list[str]]:
    problems: list[Problem] = []
    node = read_text(text, problems, lambda line: f"f:{line}")
    return (node.plain() if node else None), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5E+2", -50.0),
        ("12", 12),
        ("+12", 12),
        ("012", 12),
        ("0o14", 12),
        ("0xfF", 255),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ("12ep", "12ep"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("=", "="),
        ("1e400", math.inf),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    items, problems = read(f"- {text}")
    assert (items, problems) == ([value], [])
    assert type(items[0]) is type(value)


def test_every_value_knows_its_line() -> None:
    root = read_text("a: 1\nb:\n  c:\n  - 1\n  - {d: 2}\n", [], lambda line: f"f:{line}")
    assert root is not None
    b = root.value["b"]
    assert (root.value["a"].where, b.where, b.value["c"].where) == ("f:1", "f:2", "f:3")
    assert [item.where for item in b.value["c"].value] == ["f:4", "f:5"]
    assert b.value["c"].value[1].value["d"].where == "f:5"


def test_anchors_are_copied() -> None:
    assert read("a: &x {b: [1]}\nc: *x") == ({"a": {"b": [1]}, "c": {"b": [1]}}, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "f:3: the key 'a' is already given in line 1"),
        ("1: a", "f:1: the key 1 is not text; put it in quotes: '1'"),
        ("true: a", "f:1: the key true is not text; put it in quotes: 'true'"),
        ("[a, b]: c", "f:1: the key ['a', 'b'] is not text"),
        ("? {a: b}\n: c", "f:1: the key {a: 'b'} is not text"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is",
        ),
        ("a: !!int 3", "f:1: the tag 'tag:yaml.org,2002:int' is not allowed"),
        ("a: !thing {b: c}", "f:1: the tag '!thing' is not allowed"),
        ("a: &x [*x]", "f:1: *x contains itself"),
        ("a: &base 1\nb: *bass", "f:2: *bass refers to no anchor; did you mean 'base'?"),
        ("a:\n\tb: 1", "f:2: a tab; YAML is indented with spaces"),
        ("a: [1, 2", "f:1: not valid YAML: while parsing a flow sequence"),
        ("a: 'b", "f:1: not valid YAML: while scanning a quoted scalar"),
        ("b: {a: ${b}}", "f:1: not valid YAML; inside [] and {} a reference needs quotes: '${...}'"),
        ("a: b: c", "f:1: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n--- \nb: 2", "f:2: a second document; a recipe has one"),
        ("a: 1\nb: \x00", "f:2: the character U+0000 is not allowed"),
        ('a: "\\ud800"', "f:1: '\\ud800' is not printable text"),
        ('a: "\\UFFFFFFFF"', "f:1: not valid YAML: "),
        ("a: " + "9" * 101, "f:1: a number of more than 100 digits"),
        ("%YAML " + "9" * 5000 + ".1\n--- a", "f:1: not valid YAML: "),
        ("[" * 5000, f"f:1: nested more than {MAX_DEPTH} levels deep"),
        ("\n".join("  " * i + "a:" for i in range(5000)), f"f:{MAX_DEPTH}: nested more than"),
    ],
)
def test_mistakes_are_reported(text: str, problem: str) -> None:
    _, problems = read(text)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
    assert "\n" not in problems[0]


def test_reading_continues_after_a_mistake_other_than_of_syntax() -> None:
    value, problems = read("a: 1\na: 2\n3: x\nb: !t 1\nc: 4")
    assert value == {"a": 1, "b": BROKEN, "c": 4}
    assert len(problems) == 3


def test_exponential_aliases_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    value, problems = read("\n".join(lines))
    assert value is None
    assert problems == ["f:5: more than 50000 values, too many for a recipe"]


def problems_of(path: Path) -> list[str]:
    problems: list[Problem] = []
    assert read_file(path, problems) is None
    return [str(problem) for problem in problems]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    Path("large.yaml").write_bytes(b"a" * 4_000_001)
    Path("folder.yaml").mkdir()
    assert problems_of(Path("latin.yaml")) == ["latin.yaml:2: byte 0xe9 is not UTF-8"]
    assert problems_of(Path("large.yaml")) == ["large.yaml: is larger than 4 MB, too large for a recipe"]
    assert problems_of(Path("folder.yaml")) == ["folder.yaml: is a folder, not a file"]
    assert problems_of(Path("none.yaml")) == ["none.yaml: there is no such file"]
    assert problems_of(Path("x" * 5000))[0].endswith("File name too long")
    assert "null byte" in problems_of(Path("a\0b"))[0]


def test_paths_are_shown_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: .nan\r\n")  # with a byte order mark
    node = read_file(tmp_path / "a.yaml", [])
    assert node is not None and node.where == f"{tmp_path}/a.yaml:1"
    monkeypatch.chdir(tmp_path)
    node = read_file(tmp_path / "a.yaml", [])
    assert node is not None and node.where == "a.yaml:1"
    assert node.plain()["a"] == 1 and math.isnan(node.plain()["b"])
