"""Foreign files are read as far as they are data. Hostile ones end with one message and status 2."""

import random
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opabinia.cli import app
from opabinia.config import ConfigError
from opabinia.migration import System, convert, hydra, yacs
from opabinia.migration.foreign_config import leaves
from tests.migration import test_detectron2, test_fastreid, test_vissl
from tests.migration.recipes import written
from tests.migration.test_paddlevideo import MULTIGRID

SMALL = (
    "MODEL: {BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}, META_ARCHITECTURE: RetinaNet, "
    "ANCHOR_GENERATOR: {SIZES: [[32], [64], [128], [256], [512]]}}\n"
)


def told(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["config", "import", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


# --- yacs ----------------------------------------------------------------------------------------------------------


def test_bases_are_beside_the_file_and_later_ones_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = {
        "home/c.yaml": "A: {X: 1, Y: 1, Z: [1, 2]}",
        "b.yaml": "_BASE_: ~/c.yaml\nA: {Y: 2, Z: [3]}",
        "sub/d.yaml": "B: 4",
        "sub/a.yaml": f"_BASE_: [../b.yaml, {tmp_path / 'sub' / 'd.yaml'}]\nA: {{X: 3}}",
    }
    assert yacs.read(written(tmp_path, files)).plain() == {"A": {"X": 3, "Y": 2, "Z": [3]}, "B": 4}


def test_texts_that_are_literals_are_taken_as_yacs_takes_them(tmp_path: Path) -> None:
    text = """A: (640, 672)\nB: "('x', (1, 2.5))"\nC: 50x\nD: 1.\nE: "None"\nF: __import__('os')\nG: "{1, 2}"\n"""
    assert yacs.read(written(tmp_path, {"a.yaml": text})).plain() == {
        "A": [640, 672], "B": ["x", [1, 2.5]], "C": "50x", "D": 1.0, "E": None, "F": "__import__('os')", "G": "{1, 2}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_BASE_: a.yaml", "leads back to itself: .*a.yaml -> .*a.yaml"),
        ("_BASE_: [b.yaml]", "b.yaml: there is no such file"),
        ("_BASE_: 3", "is the name of a file, and not 3"),
        ("_BASE_: https://example.org/a.yaml", "is an address: fetch the file"),
        ('_BASE_: "a\\0b"', "is the name of no file"),
        ("_BASE_: .", "is a folder, not a file"),
        (
            "A: !!python/object/apply:os.system [touch here]",
            "a.yaml:1: the tag .*python/object/apply:os.system' is not",
        ),
        ("A: !!python/object/apply:eval ['open(1)']", "is not allowed"),
        ("A: !!python/tuple [1, 2]", "the tag .*python/tuple' is not allowed"),
        ("- 1", "is no mapping of keys to values"),
        ("A: &a [*a]", "contains itself"),
        ("{" * 100 + "}" * 100, "nested more than 40 levels deep|not valid YAML"),
    ],
)
def test_hostile_yacs(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        yacs.read(written(tmp_path, {"a.yaml": text}))
    assert len(caught.value.problems) == 1 and not (tmp_path / "here").exists()


def test_a_chain_without_end(tmp_path: Path) -> None:
    files = {f"{number}.yaml": f"_BASE_: {number + 1}.yaml" for number in range(99, -1, -1)}
    with pytest.raises(ConfigError, match="more than 30 files"):
        yacs.read(written(tmp_path, files))
    twice = {f"{number}.yaml": f"_BASE_: [{number + 1}.yaml, {number + 1}.yaml]" for number in range(20, -1, -1)}
    with pytest.raises(ConfigError, match="more than 30 files"):
        yacs.read(written(tmp_path / "twice", {"21.yaml": "A: 1", **twice}))


# --- hydra ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("defaults: [a]", [], "leads back to itself"),
        ("defaults: [gone]", [], "there is no file gone.yaml beside this one"),
        ("defaults: [{b: '???'}]", [], "names no file"),
        ("A: ${A}", [], "leads to no single value"),
        ("A: !!python/name:os.system", [], "the tag"),
        ("A: 1", ["A"], "a change is written config.KEY=VALUE"),
        ("A: 1", ["~A=1"], "a change is written config.KEY=VALUE"),
        ("A: 1", ["+config/models=gone"], "there is no file config/models/gone.yaml in a folder above"),
    ],
)
def test_hostile_hydra(text: str, overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        hydra.read(written(tmp_path, {"a.yaml": text}), overrides)


def test_references_that_lead_elsewhere_are_texts(tmp_path: Path) -> None:
    text = 'A: "${B.C}"\nB: {C: "${D}", E: "${oc.env:HOME}", F: "x/${D}"}\nD: 5\n'
    assert hydra.read(written(tmp_path, {"a.yaml": text})).plain() == {
        "A": 5, "B": {"C": 5, "E": "${oc.env:HOME}", "F": "x/${D}"}, "D": 5,
    }  # fmt: skip


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_recipe_goes_to_standard_output_and_what_is_to_be_known_to_the_other(tmp_path: Path) -> None:
    file = written(tmp_path, {"a.yaml": SMALL + 'X: "${env:HOME}"\nMODEL_: 1\nSOLVER: {MAX_ITER: 10}\n'})
    status, out, err = told("detectron2", str(file), "SOLVER.MAX_ITER=20")
    assert status == 0 and out.startswith("# From ") and "length: 20it" in out
    assert "note: pictures are RGB here" in err and "not taken over: X = '${env:HOME}'" in err


def test_a_file_is_written_whole_and_none_is_written_over(tmp_path: Path) -> None:
    file = written(tmp_path, {"a.yaml": SMALL})
    out = tmp_path / "new" / "recipe.yaml"
    assert told("detectron2", str(file), "--out", str(out))[:2] == (0, "")
    assert out.read_text(encoding="utf-8").startswith("# From ")
    status, _, err = told("detectron2", str(file), "--out", str(out))
    assert status == 2 and "is there already" in err
    status, _, err = told("detectron2", str(file), "--out", str(tmp_path / "recipe.txt"))
    assert status == 2 and "a recipe is a FILE.yaml" in err


def test_texts_of_theirs_are_no_references_of_ours(tmp_path: Path) -> None:
    file = written(tmp_path, {"a.yaml": SMALL.replace("MODEL: {", "MODEL: {WEIGHTS: '${env:HOME}/w.pth', ")})
    _, out, _ = told("detectron2", str(file))
    plain = out.replace("'", "")
    assert "weights: $${env:HOME}/w.pth" in plain and "weights: ${vars.weights}" in plain


@pytest.mark.parametrize("system", ["basecls", "detectron2", "fastreid", "paddlevideo", "vissl"])
@pytest.mark.parametrize("content", [None, b"", b"\x80\x04\x95 a pickle", b"a: b: c: (", b"[" * 300, b"- 1\n", b"\0"])
def test_files_that_are_no_configs(system: str, content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    status, out, err = told(system, str(file))
    lines = err.strip().splitlines()
    if content == b"" and system == "fastreid":  # nothing written: all of it is FastReID's defaults
        assert status == 0
    else:
        assert (status, out) == (2, "") and len(lines) == 1 and "a.yaml" in lines[0], err


TEXTS = {
    "detectron2": test_detectron2.BASE,
    "fastreid": test_fastreid.BASE,
    "paddlevideo": MULTIGRID,
    "vissl": test_vissl.config_of("{name: swav_loss}", test_vissl.MULTI, optimizer=test_vissl.WARM),
}
HOSTILE = ["null", "x", "-1", "[]", ".nan", "1e40", "[[]]", "[null]", "[x, {y: 1}]", "true", "0"]


@pytest.mark.parametrize("system", TEXTS)
def test_any_value_at_any_key_ends_with_a_recipe_or_a_message(system: System, tmp_path: Path) -> None:
    """A sample of all pairs; all of them were tried once."""
    file = written(tmp_path, {"a.yaml": TEXTS[system]})
    defaults = import_module(f"opabinia.migration.{system}").__dict__.get("DEFAULTS", {})
    before = "config." if system == "vissl" else ""
    keys = sorted({*(f"{before}{key}" for key in defaults), *(key for key, _ in leaves(hydra.read(file)))})
    draw = random.Random(system)
    for _ in range(40):
        change = f"{draw.choice(keys)}={draw.choice(HOSTILE)}"
        with suppress(ConfigError):
            assert convert(system, file, None, [change]).text()


def test_cards_are_for_systems_that_do_not_tell(tmp_path: Path) -> None:
    status, _, err = told("detectron2", str(written(tmp_path, {"a.yaml": SMALL})), "--cards", "8")
    assert status == 2 and "configs of detectron2 tell the batch of all cards" in err
    status, _, err = told("caffe", str(tmp_path / "a.yaml"))
    assert status == 2 and "basecls" in err


def test_missing_files(tmp_path: Path) -> None:
    for system in ("basecls", "detectron2", "vissl"):
        status, _, err = told(system, str(tmp_path / "gone.yaml"))
        assert status == 2 and "there is no such file" in err
