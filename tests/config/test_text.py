import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from opabinia.config import compose, dump, flatten
from opabinia.config.errors import Problem
from opabinia.config.references import leaves, resolve
from opabinia.config.tree import read_text
from opabinia.runtime.durations import Duration

WORDS = ["", "on", "1e-3", "1.0", "12", "0o7", "0x1F", "null", "~", "true", "${a}", "$${", "a: b", "- c", "# d", " e ",
         "12:30", "2026-01-01", "=", "<<", "!t", "&a", "*a", "é\n\u2028", "\x00\x85\ufeff", "9" * 200]  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(WORDS)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


def read_back(text: str) -> Any:
    problems: list[Problem] = []
    root = read_text(text, problems, str)
    assert root is not None and not problems
    value = resolve(root, problems).plain()
    assert not problems
    return value


@settings(max_examples=2 * settings().max_examples)
@given(st.dictionaries(texts, values, max_size=4))
def test_a_dump_reads_back_to_the_same(config: dict[str, Any]) -> None:
    loaded = read_back(dump(config))
    assert loaded == config
    assert [type(value) for _, value in leaves(loaded)] == [type(value) for _, value in leaves(config)]


def test_a_dump_keeps_the_order_and_plain_forms(tmp_path: Path) -> None:
    config = {"b": Duration(12, "ep"), "a": Path("x/y"), "t": (1, 2.5), "n": {"z": 1e-5, "y": math.inf}}
    text = dump(config)
    assert text == "b: 12ep\na: x/y\nt: [1, 2.5]\nn: {z: 1.0e-05, y: .inf}\n"
    (tmp_path / "config.yaml").write_text(text)
    assert compose(tmp_path).root.plain() == {"b": "12ep", "a": "x/y", "t": [1, 2.5], "n": {"z": 1e-5, "y": math.inf}}


def test_flatten() -> None:
    config = {"a": {"b": [1, {"c": None}], "d": {}, "e.f": 2}, "g": [], "h": Duration(1, "it")}
    assert flatten(config) == {"a.b.0": 1, "a.b.1.c": None, "a.d": {}, 'a."e.f"': 2, "g": [], "h": "1it"}
    assert flatten({}) == {}
    for value in (3, None, "x", {}, []):
        assert list(leaves(value)) == [((), value)]
