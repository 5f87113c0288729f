import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import Tree, compose

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files into the working directory, whose ``recipes/`` has the packaged recipes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def compose_recipe(recipe: str, *overrides: str) -> Tree:
    return compose(recipe, overrides, recipes=Path("recipes"))


def value(recipe: str, *overrides: str) -> Any:
    tree = compose_recipe(recipe, *overrides)
    assert [str(problem) for problem in tree.problems] == []
    return tree.root.plain()


def problems(recipe: str, *overrides: str) -> list[str]:
    return [str(problem) for problem in compose_recipe(recipe, *overrides).problems]


# --- locations of recipes -------------------------------------------------------------------------------------------


def test_packaged_recipes_files_and_run_folders(write: Write) -> None:
    write(recipes__reid__digits="a: packaged", child="a: file", runs__x__config="a: run")
    assert value("reid/digits") == {"a": "packaged"}
    assert value("child.yaml") == {"a": "file"}
    assert value("runs/x") == {"a": "run"}
    names = [compose_recipe(recipe).name for recipe in ("reid/digits", "child.yaml", "runs/x")]
    assert names == ["reid/digits", "child", "x"]
    Path("no_suffix").write_text("a: 1")
    assert value("no_suffix") == {"a": 1}


def test_an_unknown_recipe_has_a_suggestion(write: Write) -> None:
    write(recipes__reid__digits="a: 1", recipes__video__digits="a: 1")
    (tmp := Path("folder")).mkdir()
    assert problems("reid/digit") == [
        "reid/digit: there is no such recipe, file or run folder; did you mean 'reid/digits'?"
    ]
    assert problems("nothing.yaml")[0].startswith("nothing.yaml: there is no such file")
    assert problems(str(tmp))[0].startswith("folder: is a folder without a config.yaml, so it is not a run folder")
    assert problems("a\0b")[0].startswith("a\\x00b: there is no such recipe")
    assert problems("x" * 5000)[0].startswith("xxx")
    assert not compose_recipe("nothing").complete


def test_a_recipe_is_a_mapping(write: Write) -> None:
    write(empty="", only_comments="# nothing\n", a_list="- 1\n- 2", a_word="word")
    assert value("empty.yaml") == {} == value("only_comments.yaml")
    assert problems("a_list.yaml") == ["a_list.yaml:1: a recipe is a mapping of keys to values (found [1, 2])"]
    assert problems("a_word.yaml") == ["a_word.yaml:1: a recipe is a mapping of keys to values (found 'word')"]


# --- bases ----------------------------------------------------------------------------------------------------------


def test_later_bases_win_and_the_file_wins_over_all(write: Write) -> None:
    write(recipes__one="a: 1\nb: 1\nc: 1\nd: {x: 1, y: 1}", sub__two="b: 2\nc: 2\nd: {y: 2}")
    write(sub__child="base: [one, two.yaml]\nc: 3\nd: {z: 3}")
    assert value("sub/child.yaml") == {"a": 1, "b": 2, "c": 3, "d": {"x": 1, "y": 2, "z": 3}}


def test_bases_have_bases(write: Write) -> None:
    write(a="base: b.yaml\nx: a", b="base: sub/c.yaml\nx: b\ny: b", sub__c="base: ../d.yaml\nz: c", d="z: d\nw: d")
    assert value("a.yaml") == {"x": "a", "y": "b", "z": "c", "w": "d"}


def test_origins_of_packaged_recipes_do_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, Path("/")):
        monkeypatch.chdir(folder)
        assert compose("video/folder").root.where.startswith("opabinia/recipes/video/folder.yaml")


def test_origins_survive_merging(write: Write) -> None:
    write(base="a:\n  x: 1\n  y: 1\n", child="base: base.yaml\na:\n  y: 2\n")
    a = compose_recipe("child.yaml", "a.z=3").root.value["a"].value
    assert [a[key].where for key in "xyz"] == ["base.yaml:2", "child.yaml:3", "command line: a.z=3"]


def test_circular_bases_are_reported(write: Write) -> None:
    write(a="base: b.yaml", b="\nbase: a.yaml", self="base: self.yaml")
    assert problems("a.yaml") == ["b.yaml:2: base: leads back to itself: a.yaml -> b.yaml -> a.yaml"]
    assert problems("self.yaml") == ["self.yaml:1: base: leads back to itself: self.yaml -> self.yaml"]


def test_two_bases_may_share_a_base(write: Write) -> None:
    write(a="base: [b.yaml, c.yaml]", b="base: d.yaml\nx: b", c="base: d.yaml\ny: c", d="x: d\ny: d")
    assert value("a.yaml") == {"x": "d", "y": "c"}


def test_a_missing_base_has_a_suggestion(write: Write) -> None:
    write(recipes__reid__digits="a: 1", other="a: 1", child="a: 1\nbase: [reid/digts, othr.yaml, 3]")
    tree = compose_recipe("child.yaml")
    assert [str(problem) for problem in tree.problems] == [
        "child.yaml:2: base: there is no such file beside this one, and no such recipe (found 'reid/digts'); "
        "did you mean 'reid/digits'?",
        "child.yaml:2: base: there is no such file beside this one, and no such recipe (found 'othr.yaml'); "
        "did you mean 'other.yaml'?",
        "child.yaml:2: base: is a recipe's name or path, or a list of them (found 3)",
    ]
    assert not tree.complete


# --- merging --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ("{x: 1, y: {z: 1}}", "{y: {w: 2}}", {"x": 1, "y": {"z": 1, "w": 2}}),
        ("{name: sgd, lr: 1}", "{lr: 2}", {"name": "sgd", "lr": 2}),
        ("{name: sgd, lr: 1}", "{name: sgd, momentum: 2}", {"name": "sgd", "lr": 1, "momentum": 2}),
        ("{name: sgd, lr: 1}", "{name: adam}", {"name": "adam"}),
        ("{name: sgd, lr: 1}", "adam", {"name": "adam"}),
        ("{name: sgd, lr: 1}", "sgd", {"name": "sgd", "lr": 1}),
        ("sgd", "{lr: 2}", {"name": "sgd", "lr": 2}),
        ("sgd", "{name: adam, lr: 2}", {"name": "adam", "lr": 2}),
        ("sgd", "adam", "adam"),
        ("{lr: 1}", "{name: adam, lr: 2}", {"name": "adam", "lr": 2}),
        ("{x: 1}", "word", "word"),
        ("[1, 2]", "[3]", [3]),
        ("{x: 1}", "null", None),
        ("null", "{x: 1}", {"x": 1}),
        ("1", "{x: 1}", {"x": 1}),
        ("{x: 1}", "[1]", [1]),
        ("{name: sgd, lr: 1}", "{_delete_: true, name: sgd, momentum: 2}", {"name": "sgd", "momentum": 2}),
        ("{x: {y: 1, z: 1}, w: 1}", "{x: {_delete_: true, y: 2}}", {"x": {"y": 2}, "w": 1}),
        ("{x: 1}", "{_delete_: false, y: 1}", {"x": 1, "y": 1}),
        ("1", "{_delete_: true, y: 1}", {"y": 1}),
    ],
)
def test_merging(write: Write, base: str, over: str, merged: Any) -> None:
    write(base=f"a: {base}", child=f"base: base.yaml\na: {over}")
    merged_value = value("child.yaml")["a"]
    assert _sections(merged_value) == _sections(merged)
    assert _sections(value("base.yaml", f"a={over}")["a"]) == _sections(merged)  # an override merges in the same way


def _sections(value: Any) -> Any:
    """Replace sections that have only a name by the name."""
    return value["name"] if isinstance(value, dict) and set(value) == {"name"} else value


# --- overrides ------------------------------------------------------------------------------------------------------

RECIPE = (
    "optimizer: {name: sgd, lr: 0.1}\nloss: cross_entropy\ndata:\n  transforms:\n  - crop\n  - {name: pad, by: 1}\n"
)


@pytest.mark.parametrize(
    ("overrides", "path", "expected"),
    [
        (["optimizer.lr=1e-2"], "optimizer.lr", 0.01),
        (["--optimizer.lr=0.2"], "optimizer.lr", 0.2),
        (["optimizer.lr=0.2", "optimizer.lr=0.3"], "optimizer.lr", 0.3),
        (["optimizer.name=adam"], "optimizer", {"name": "adam"}),
        (["optimizer.lr=0.2", "optimizer.name=adam"], "optimizer", {"name": "adam", "lr": 0.2}),
        (["optimizer.lr=0.2", "optimizer=adam"], "optimizer", {"name": "adam", "lr": 0.2}),
        (["loss.smoothing=0.1"], "loss", {"name": "cross_entropy", "smoothing": 0.1}),
        (["data.transforms.1.by=2"], "data.transforms.1", {"name": "pad", "by": 2}),
        (["data.transforms.0.size=3"], "data.transforms.0", {"name": "crop", "size": 3}),
        (["data.transforms.2=flip"], "data.transforms.2", "flip"),
        (["data.transforms.2.name=flip", "data.transforms.2.p=1"], "data.transforms.2", {"name": "flip", "p": 1}),
        (["data.transforms=[a, {name: b}]"], "data.transforms", ["a", {"name": "b"}]),
        (["hooks.ema.decay=0.9"], "hooks", {"ema": {"decay": 0.9}}),
        (["hooks.ema=null"], "hooks", {"ema": None}),
        (["text=a=b"], "text", "a=b"),
        (["text="], "text", None),
        (["text='12'"], "text", "12"),
        (["vars.x=3", "y=${vars.x}"], "y", 3),
        (["optimizer={_delete_: true, name: sgd, momentum: 1}"], "optimizer", {"name": "sgd", "momentum": 1}),
    ],
)
def test_overrides(write: Write, overrides: list[str], path: str, expected: Any) -> None:
    write(child=RECIPE)
    actual = value("child.yaml", *overrides)
    for key in path.split("."):
        actual = actual[int(key)] if isinstance(actual, list) else actual[key]
    assert actual == expected


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("optimizer", "command line: optimizer: an override is written key=value, such as optimizer.lr=0.1"),
        ("=3", "command line: =3: the part before '=' is a dotted path of keys"),
        ("a..b=3", "command line: a..b=3: the part before '=' is a dotted path of keys"),
        (
            "data.transforms.5=a",
            "data.transforms.5: '5' is not a position of this list; positions: 0 to 1, or 2 to append",
        ),
        ("data.transforms.-1=a", "data.transforms.-1: '-1' is not a position of this list"),
        ("data.transforms.x.y=a", "data.transforms.x: 'x' is not a position of this list"),
        ("train.parts.0=a", "train.parts.0: this list is not written in the config; give all of it"),
        ("optimizer.lr.0=a", "optimizer.lr.0: this list is not written in the config"),
        ("base=other", "a base cannot be changed from the command line"),
        ("a=[1", "command line: a=[1: not valid YAML"),
        ("a={b: 1, b: 2}", "the key 'b' is already given"),
        ("a=!!int 3", "the tag 'tag:yaml.org,2002:int' is not allowed"),
        (".".join("a" * 50) + "=1", "the path has more than 40 keys"),
        ("a\n=1", "command line: a\\n=1: "),
        ("a=\udc80", "command line: a=\\udc80: "),
        ("a=\x00", "command line: a=\\x00: the character U+0000 is not allowed"),
    ],
)
def test_invalid_overrides(write: Write, override: str, problem: str) -> None:
    write(child=RECIPE)
    messages = problems("child.yaml", override)
    assert len(messages) == 1 and "\n" not in messages[0]
    assert messages[0].startswith("command line: ") and problem in messages[0]
    messages[0].encode()


# --- vars and plugins -----------------------------------------------------------------------------------------------


def test_vars_are_read_and_removed(write: Write) -> None:
    write(child="vars: {root: /data, n: 3}\na: ${vars.root}/x\nb: ${vars.n}")
    assert value("child.yaml") == {"a": "/data/x", "b": 3}
    assert value("child.yaml", "vars.n=4")["b"] == 4


def test_an_unused_var_is_reported(write: Write) -> None:
    write(child="vars:\n  size: 3\n  other: 4\na: ${vars.size}")
    assert problems("child.yaml") == ["child.yaml:3: vars.other: nothing reads it (found 4)"]
    write(sections="vars: {a: {b: 1}, c: {d: 2}}\nx: ${vars.a.b}\ny: ${vars.c}", plain="vars: 3")
    assert problems("sections.yaml") == []
    assert problems("plain.yaml") == ["plain.yaml:1: vars: is a mapping of names to values (found 3)"]


def test_a_misspelt_reference_to_a_var_is_one_problem(write: Write) -> None:
    write(child="vars: {size: 3}\na: ${vars.sise}")
    assert problems("child.yaml") == ["child.yaml:2: a: ${vars.sise} refers to no key; did you mean 'vars.size'?"]


def test_a_var_that_only_a_replaced_section_reads_counts_as_used(write: Write) -> None:
    write(base="vars: {size: 3}\na: {name: x, size: '${vars.size}'}", child="base: base.yaml\na: {name: y}")
    assert value("child.yaml") == {"a": {"name": "y"}}


def test_plugins(write: Write) -> None:
    write(child="plugins: [one, two.parts, one]", single="plugins: one", bad="plugins: [1x, 3, ../evil]")
    assert compose_recipe("child.yaml").plugins == ("one", "two.parts")
    assert compose_recipe("single.yaml").plugins == ("one",)
    assert [json.dumps(problem)[:40] for problem in problems("bad.yaml")] == [
        '"bad.yaml:1: plugins: is a list of modul'
    ] * 3


def test_nested_deeper_than_the_limit_by_merging(write: Write) -> None:
    write(child="a: " + "{a: " * 30 + "1" + "}" * 30)
    (problem,) = problems("child.yaml", ".".join("a" * 32) + "=" + "[" * 20 + "]" * 20)
    assert problem.endswith("nested more than 40 levels deep")


def test_a_chain_of_bases_that_is_too_long_or_too_wide_is_one_problem(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number}.yaml").write_text(f"base: {number + 1}.yaml\n")
    (problem,) = compose(tmp_path / "0.yaml").problems
    assert "more than 40 levels of bases" in str(problem)
    for number in range(30):  # 2^30 files
        (tmp_path / f"{number}.yaml").write_text(f"base: [{number + 1}.yaml, {number + 1}.yaml]\n")
    (tmp_path / "30.yaml").write_text("seed: 1\n")
    assert "or 200 in all" in str(compose(tmp_path / "0.yaml").problems[0])
