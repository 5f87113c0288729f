from typing import Any

import pytest

from opabinia.config.errors import Problem
from opabinia.config.references import dotted, resolve, targets
from opabinia.config.tree import MAX_DEPTH, read_text


def resolved(text: str) -> tuple[Any, list[str]]:
    problems: list[Problem] = []
    root = read_text(text, problems, lambda line: f"f:{line}")
    assert root is not None and not problems
    return resolve(root, problems).plain(), [str(problem) for problem in problems]


def test_a_reference_alone_keeps_the_type_of_its_value() -> None:
    value, problems = resolved("a: 3\nb: {c: [1, 2], d: null}\ne: ${a}\nf: ${b}\ng: ${b.c.1}\nh: ' ${a}'")
    assert not problems
    assert (value["e"], value["f"], value["g"], value["h"]) == (3, {"c": [1, 2], "d": None}, 2, " 3")


def test_a_reference_inside_text_becomes_text() -> None:
    value, problems = resolved("a: 3\nt: true\nn: null\ns: x\ntext: '${s}/${a}-${t}-${n}'")
    assert (value["text"], problems) == ("x/3-true-null", [])


def test_chains_and_references_through_references() -> None:
    value, problems = resolved("a: ${b}\nb: ${c.d}\nc: {d: {e: '${f}'}}\nf: 7\ng: ${b.e}\nh: ${a.e}")
    assert not problems
    assert (value["a"], value["g"], value["h"]) == ({"e": 7}, 7, 7)


def test_a_sibling_in_the_same_section() -> None:
    assert resolved("a: {x: 1, y: '${a.x}'}") == ({"a": {"x": 1, "y": 1}}, [])


def test_escapes() -> None:
    assert resolved("a: $${b}\nc: $$\nd: ${a}\ne: '$${x} ${a}'\nf: $x {}") == (
        {"a": "${b}", "c": "$$", "d": "${b}", "e": "${x} ${b}", "f": "$x {}"},
        [],
    )


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", "1e-3")
    monkeypatch.setenv("ROOT", "/data")
    monkeypatch.setenv("LIST", "[1, 2]")
    monkeypatch.delenv("NOTHING", raising=False)
    value, problems = resolved(
        "a: ${env:NUMBER}\nb: ${env:ROOT}/x\nc: ${env:LIST}\nd: ${env:NOTHING,4}\n"
        "e: ${env:NOTHING,}\nf: x${env:NOTHING, a b}"
    )
    assert value == {"a": 0.001, "b": "/data/x", "c": "[1, 2]", "d": 4, "e": None, "f": "xa b"}
    assert not problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: ${b}", "f:1: a: ${b} refers to no key"),
        ("size: 1\na: ${sise}", "f:2: a: ${sise} refers to no key; did you mean 'size'?"),
        ("a: {size: 1}\nb: ${a.sizes}", "f:2: b: ${a.sizes} refers to no key; did you mean 'a.size'?"),
        ("a: [1]\nb: ${a.1}", "f:2: b: ${a.1} refers to no key"),
        ("a: [1]\nb: ${a.x.y}", "f:2: b: ${a.x.y} refers to no key"),
        ("a: 1\nb: ${a.x}", "f:2: b: ${a.x} refers to no key"),
        ("a: ${}", "f:1: a: ${} refers to no key"),
        ("a: ${a}", "f:1: a: ${a} leads back to itself: a -> a"),
        ("a: {b: '${a}'}", "f:1: a.b: ${a} leads back to itself: a.b -> a"),
        ("a: ${b}\nb: x${a}", "f:2: b: ${a} leads back to itself: a -> b -> a"),
        ("a: x${b", "f:1: a: a reference is not closed: '${' without '}'; a plain '${' is written '$${'"),
        (
            "a: ${env:OPABINIA_NOWHERE}",
            "f:1: a: the environment variable 'OPABINIA_NOWHERE' is not set; ${env:OPABINIA_NOWHERE,default} gives",
        ),
        ("a: ${env:}", "f:1: a: the environment variable '' is not set"),
        ("a: {x: 1}\nb: x${a}", "f:2: b: ${a} is a section and cannot be part of a text"),
    ],
)
def test_mistakes_are_reported_once(text: str, problem: str) -> None:
    _, problems = resolved(text)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_an_environment_variable_that_is_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTES", "\udc80")
    assert "cannot be used" in resolved("a: ${env:BYTES}")[1][0]


def test_exponential_growth_is_refused() -> None:
    def tenfold(i: int, text: str) -> str:
        return text.replace("@", f"${{a{i - 1}}}").join((f"a{i}: ", ""))

    sections = "a0: {x: 1}\n" + "\n".join(tenfold(i, str(["@"] * 10)) for i in range(1, 9))
    assert any("makes the config too large" in problem for problem in resolved(sections)[1])
    texts = "a0: xxxxxxxxxx\n" + "\n".join(tenfold(i, f"'{'@' * 10}'") for i in range(1, 9))
    assert any("grows to more than" in problem for problem in resolved(texts)[1])
    chain = "a0: 1\n" + "\n".join(f"a{i}: ${{a{i - 1}}}" for i in range(1, 3000))
    assert resolved(chain)[1] == []  # each is resolved before the next one refers to it
    backwards = "\n".join(f"a{i}: ${{a{i + 1}}}" for i in range(3000)) + "\na3000: 1"
    assert any("chain of more than" in problem for problem in resolved(backwards)[1])
    deep = "a0: 1\n" + "\n".join(f"a{i}: {{b: '${{a{i - 1}}}'}}" for i in range(1, 2 * MAX_DEPTH))
    assert any("makes the config too large" in problem for problem in resolved(deep)[1])


def test_targets_and_dotted() -> None:
    root = read_text("a: '${b.c} $${d}'\ne: [{f: '${ g }'}, '${env:H}']", [], str)
    assert root is not None and list(targets(root)) == ["b.c", "g", "env:H"]
    assert dotted(("data", "x.y", 0, "")) == 'data."x.y".0.""'
