"""Reading other systems' files. Malicious or invalid ones end with one message and status 2."""

import random
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opabinia.cli.commands import app
from opabinia.config import ConfigError, check, compose
from opabinia.migration import System, convert, hydra, yacs
from opabinia.migration.foreign_config import leaves
from tests.migration import test_vissl
from tests.migration.recipes import example, parts, resolve, table, write_files

SMALL = (
    "MODEL: {BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}, META_ARCHITECTURE: RetinaNet, "
    "ANCHOR_GENERATOR: {SIZES: [[32], [64], [128], [256], [512]]}}\n"
)


def run_import(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["config", "import", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


# --- yacs -------------------------------------------------------------------------------------------------------------


def test_bases_are_relative_to_the_file_and_later_ones_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = {
        "home/c.yaml": "A: {X: 1, Y: 1, Z: [1, 2]}",
        "b.yaml": "_BASE_: ~/c.yaml\nA: {Y: 2, Z: [3]}",
        "sub/d.yaml": "B: 4",
        "sub/a.yaml": f"_BASE_: [../b.yaml, {tmp_path / 'sub' / 'd.yaml'}]\nA: {{X: 3}}",
    }
    assert yacs.read(write_files(tmp_path, files)).plain() == {"A": {"X": 3, "Y": 2, "Z": [3]}, "B": 4}


def test_literals_in_texts_are_parsed_as_in_yacs(tmp_path: Path) -> None:
    text = """A: (640, 672)\nB: "('x', (1, 2.5))"\nC: 50x\nD: 1.\nE: "None"\nF: __import__('os')\nG: "{1, 2}"\n"""
    assert yacs.read(write_files(tmp_path, {"a.yaml": text})).plain() == {
        "A": [640, 672], "B": ["x", [1, 2.5]], "C": "50x", "D": 1.0, "E": None, "F": "__import__('os')", "G": "{1, 2}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("_BASE_: a.yaml", "includes itself: .*a.yaml -> .*a.yaml"),
        ("_BASE_: [b.yaml]", "b.yaml: there is no such file"),
        ("_BASE_: 3", "expected the name of a file, got 3"),
        ("_BASE_: https://example.org/a.yaml", "is a URL: download the file"),
        ('_BASE_: "a\\0b"', "is not a file name"),
        ("_BASE_: .", "is a folder, not a file"),
        (
            "A: !!python/object/apply:os.system [touch here]",
            "a.yaml:1: the tag .*python/object/apply:os.system' is not",
        ),
        ("A: !!python/object/apply:eval ['open(1)']", "is not allowed"),
        ("A: !!python/tuple [1, 2]", "the tag .*python/tuple' is not allowed"),
        ("- 1", "is not a mapping of keys to values"),
        ("A: &a [*a]", "contains itself"),
        ("{" * 100 + "}" * 100, "nested more than 40 levels deep|not valid YAML"),
    ],
)
def test_hostile_yacs(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        yacs.read(write_files(tmp_path, {"a.yaml": text}))
    assert len(caught.value.problems) == 1 and not (tmp_path / "here").exists()


def test_too_many_bases(tmp_path: Path) -> None:
    files = {f"{number}.yaml": f"_BASE_: {number + 1}.yaml" for number in range(99, -1, -1)}
    with pytest.raises(ConfigError, match="more than 30 files"):
        yacs.read(write_files(tmp_path, files))
    twice = {f"{number}.yaml": f"_BASE_: [{number + 1}.yaml, {number + 1}.yaml]" for number in range(20, -1, -1)}
    with pytest.raises(ConfigError, match="more than 30 files"):
        yacs.read(write_files(tmp_path / "twice", {"21.yaml": "A: 1", **twice}))


# --- hydra ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("defaults: [a]", [], "includes itself"),
        ("defaults: [gone]", [], "no file gone.yaml in this file's folder"),
        ("defaults: [{b: '???'}]", [], "does not name a file"),
        ("A: ${A}", [], "does not refer to a single value"),
        ("A: !!python/name:os.system", [], "the tag"),
        ("A: 1", ["A"], "a change is written as config.KEY=VALUE"),
        ("A: 1", ["~A=1"], "a change is written as config.KEY=VALUE"),
        ("A: 1", ["+config/models=gone"], "no file config/models/gone.yaml in a folder above"),
    ],
)
def test_hostile_hydra(text: str, overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        hydra.read(write_files(tmp_path, {"a.yaml": text}), overrides)


def test_unresolvable_references_stay_texts(tmp_path: Path) -> None:
    text = 'A: "${B.C}"\nB: {C: "${D}", E: "${oc.env:HOME}", F: "x/${D}"}\nD: 5\n'
    assert hydra.read(write_files(tmp_path, {"a.yaml": text})).plain() == {
        "A": 5, "B": {"C": 5, "E": "${oc.env:HOME}", "F": "x/${D}"}, "D": 5,
    }  # fmt: skip


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_recipe_goes_to_standard_output_and_notes_to_standard_error(tmp_path: Path) -> None:
    file = write_files(tmp_path, {"a.yaml": SMALL + 'X: "${env:HOME}"\nMODEL_: 1\nSOLVER: {MAX_ITER: 10}\n'})
    status, out, err = run_import("detectron2", str(file), "SOLVER.MAX_ITER=20")
    assert status == 0 and out.startswith("# From ") and "length: 20it" in out
    assert "note: images are RGB in Opabinia" in err and "not converted: X = '${env:HOME}'" in err


def test_the_printed_recipe_is_valid(tmp_path: Path) -> None:
    status, out, err = run_import(
        "paddlevideo", str(write_files(tmp_path, {"a.yaml": TEXTS["paddlevideo"]})), "--gpus", "2"
    )
    assert status == 0 and "8 samples per GPU on 2 GPUs are 16" in err
    resolved = check(compose(write_files(tmp_path, {"b.yaml": out})), parts())
    assert not resolved.warnings and resolved.config["data"]["batch_size"] == 16


def test_a_file_is_written_whole_and_none_is_written_over(tmp_path: Path) -> None:
    file = write_files(tmp_path, {"a.yaml": SMALL})
    out = tmp_path / "new" / "recipe.yaml"
    assert run_import("detectron2", str(file), "--out", str(out))[:2] == (0, "")
    assert out.read_text(encoding="utf-8").startswith("# From ")
    status, _, err = run_import("detectron2", str(file), "--out", str(out))
    assert status == 2 and "exists already" in err
    status, _, err = run_import("detectron2", str(file), "--out", str(tmp_path / "recipe.txt"))
    assert status == 2 and "a recipe is a FILE.yaml" in err


def test_references_in_texts_are_escaped(tmp_path: Path) -> None:
    file = write_files(tmp_path, {"a.yaml": SMALL.replace("MODEL: {", "MODEL: {WEIGHTS: '${env:HOME}/w.pth', ")})
    _, out, _ = run_import("detectron2", str(file))
    plain = out.replace("'", "")
    assert "weights: $${env:HOME}/w.pth" in plain and "weights: ${vars.weights}" in plain


@pytest.mark.parametrize("system", ["basecls", "detectron2", "fastreid", "paddlevideo", "vissl"])
@pytest.mark.parametrize("content", [None, b"", b"\x80\x04\x95 a pickle", b"a: b: c: (", b"[" * 300, b"- 1\n", b"\0"])
def test_files_that_are_not_configs(system: str, content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    status, out, err = run_import(system, str(file))
    lines = err.strip().splitlines()
    if content == b"" and system in ("detectron2", "fastreid"):  # an empty file: all values are their defaults
        assert status == 0
    else:
        assert (status, out) == (2, "") and len(lines) == 1 and "a.yaml" in lines[0], err


TEXTS = {
    "detectron2": table("detectron2")["files"]["Base.yaml"],
    "fastreid": table("fastreid")["files"]["Base.yml"],
    "paddlevideo": example("paddlevideo", "the batch size per gpu becomes the total"),
    "vissl": test_vissl.config_of("{name: swav_loss}", test_vissl.MULTI, optimizer=test_vissl.WARM),
}
HOSTILE = ["null", "x", "-1", "[]", ".nan", "1e40", "[[]]", "[null]", "[x, {y: 1}]", "true", "0"]


@pytest.mark.parametrize("system", TEXTS)
def test_any_value_at_any_key_ends_with_a_recipe_or_a_message(system: System, tmp_path: Path) -> None:
    """A random sample of all pairs of a key and a value; all pairs were tested once."""
    file = write_files(tmp_path, {"a.yaml": TEXTS[system]})
    defaults = import_module(f"opabinia.migration.{system}").__dict__.get("DEFAULTS", {})
    before = "config." if system == "vissl" else ""
    keys = sorted({*(f"{before}{key}" for key in defaults), *(key for key, _ in leaves(hydra.read(file)))})
    draw = random.Random(system)
    for _ in range(40):
        change = f"{draw.choice(keys)}={draw.choice(HOSTILE)}"
        with suppress(ConfigError):
            assert convert(system, file, None, [change]).text()


ALL_OPTIONS = {
    "detectron2": "TEST.PRECISE_BN.ENABLED=True TEST.AUG.ENABLED=True "
    "DATALOADER.SAMPLER_TRAIN=RandomSubsetTrainingSampler "
    "INPUT.CROP.ENABLED=True MODEL.MASK_ON=True SOLVER.AMP.ENABLED=True SOLVER.CLIP_GRADIENTS.ENABLED=True "
    "SOLVER.REFERENCE_WORLD_SIZE=8 CUDNN_BENCHMARK=True MODEL.RESNETS.NORM=SyncBN",
    "fastreid": "MODEL.META_ARCHITECTURE=MoCo TEST.PRECISE_BN.ENABLED=True TEST.ROC.ENABLED=True TEST.AQE.ENABLED=True "
    "TEST.METRIC=jaccard DATALOADER.SAMPLER_TRAIN=SetReWeightSampler DATALOADER.SET_WEIGHT=[1,1] "
    "INPUT.AUGMIX.ENABLED=True INPUT.AFFINE.ENABLED=True "
    "INPUT.CROP.ENABLED=True INPUT.CJ.ENABLED=True INPUT.RPT.ENABLED=True MODEL.LOSSES.CE.EPSILON=-1 "
    "MODEL.LOSSES.NAME=('CrossEntropyLoss','TripletLoss','CircleLoss','Cosface') CUDNN_BENCHMARK=True",
    "vissl": "config.MODEL.AMP_PARAMS.USE_AMP=true config.MODEL.GRAD_CLIP.USE_GRAD_CLIP=true "
    "config.MODEL.CUDA_CACHE.CLEAR_CUDA_CACHE=true config.DATA.TRAIN.DATA_LIMIT=100 config.OPTIMIZER.use_larc=true "
    "config.LOSS.swav_loss.queue.queue_length=3840 config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true",
    "paddlevideo": "MULTIGRID.LONG_CYCLE=false MULTIGRID.SHORT_CYCLE=false",
}


@pytest.mark.parametrize("system", ALL_OPTIONS)
def test_converted_recipes_have_no_deprecated_names(system: System, tmp_path: Path) -> None:
    text = TEXTS[system].replace("SCALING", "fixed")
    recipe = convert(system, write_files(tmp_path, {"a.yaml": text}), None, ALL_OPTIONS[system].split())
    resolve(recipe, tmp_path)


def test_gpus_are_only_for_configs_with_the_batch_size_per_gpu(tmp_path: Path) -> None:
    status, _, err = run_import("detectron2", str(write_files(tmp_path, {"a.yaml": SMALL})), "--gpus", "8")
    assert status == 2 and "configs of detectron2 contain the total batch size" in err
    status, _, err = run_import("caffe", str(tmp_path / "a.yaml"))
    assert status == 2 and "basecls" in err


def test_missing_files(tmp_path: Path) -> None:
    for system in ("basecls", "detectron2", "paddlevideo", "vissl"):
        status, _, err = run_import(system, str(tmp_path / "gone.yaml"))
        assert status == 2 and "there is no such file" in err
