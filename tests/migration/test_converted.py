"""Configs of other systems and their recipes, from the tables ``cases/SYSTEM.yaml``.

A case has a ``config``, or the name of one of ``bases`` with ``change`` (pairs of old and new text) and ``add`` (text
at the end). ``files`` of the table are in the folder of every case, except those that are ``alone``. Expected are
values of the complete config (``expect``; an ``incomplete`` one lacks required variables) and of the recipe itself by
dotted path, where ``len`` is the length of a list, ``keys`` are those of a mapping and ``absent`` stands for none;
reasons of keys that are not converted; ``notes``; paths of ``dropped`` keys; or the beginnings of ``errors``.
"""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import convert
from tests.migration.recipes import config_of, example, resolve, table, unconverted, write_files


def cases() -> list[Any]:
    systems = sorted(path.stem for path in (Path(__file__).parent / "cases").glob("*.yaml"))
    return [
        pytest.param(system, case, id=f"{system}-{case['id']}") for system in systems for case in table(system)["cases"]
    ]


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path; keys may have dots."""
    if not path:
        return value
    if isinstance(value, dict) and path != "keys":
        keys = [key for key in map(str, value) if path == key or path.startswith(f"{key}.")]
        key = max(keys, key=len, default=None)
        return "absent" if key is None else value_at(value[key], path[len(key) + 1 :])
    key, _, rest = path.partition(".")
    if key in ("len", "keys"):
        return len(value) if key == "len" else sorted(value)
    return value_at(value[int(key)], rest)


def check_values(values: dict[str, Any], expected: dict[str, Any]) -> None:
    for path, value in expected.items():
        found = value_at(values, path)
        is_number = isinstance(value, float) or (
            isinstance(value, list) and all(isinstance(item, float) for item in value)
        )
        assert found == (pytest.approx(value, rel=1e-6) if is_number else value), path


@pytest.mark.parametrize(("system", "case"), cases())
def test_a_config_becomes_a_recipe(system: Any, case: dict[str, Any], tmp_path: Path) -> None:
    shared = {} if "alone" in case else table(system).get("files", {})
    name = case.get("file", "own.py")
    file = write_files(tmp_path, {**shared, **case.get("files", {}), name: config_of(system, case)})
    arguments = (system, file, case.get("gpus"), case.get("overrides", []))
    if "errors" in case:
        with pytest.raises(ConfigError) as caught:
            convert(*arguments)
        problems = [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
        assert all(text.startswith(start) for text, start in zip(problems, case["errors"], strict=False)), problems
        return
    recipe = convert(*arguments)
    if "incomplete" not in case:
        check_values(resolve(recipe, tmp_path), case.get("expect", {}))
    check_values(recipe.config, case.get("recipe", {}))
    check_values(unconverted(recipe), case.get("unconverted", {}))
    assert set(case.get("notes", ())) <= {note.replace(f"{tmp_path}/", "") for note in recipe.notes}
    if "dropped" in case:
        assert [key.path for key in recipe.dropped()] == case["dropped"]


def test_the_recipe_lists_origins_and_unconverted_keys(tmp_path: Path) -> None:
    own = "_BASE_: ../Base.yaml\nSOLVER: {GAMMA: 0.5}\nX: {Y: 1}\n"
    file = write_files(tmp_path, {**table("detectron2")["files"], "COCO/own.yaml": own})
    text = convert("detectron2", file, None, ["SOLVER.MAX_ITER=70000"]).text()
    assert "#   schedule.gamma = SOLVER.GAMMA 0.5 (" in text and "own.yaml:2)" in text
    assert "#   optimizer.lr = SOLVER.BASE_LR 0.01 (" in text and "Base.yaml:16)" in text
    assert "#   optimizer.momentum = SOLVER.MOMENTUM 0.9 (default of detectron2)" in text
    assert "#   X.Y = 1 (" in text and "own.yaml:3): no equivalent" in text
    assert "(command line: SOLVER.MAX_ITER=70000)" in text


def test_dropped_keys_are_listed_first_by_effect(tmp_path: Path) -> None:
    own = "TEST: {OWN: 1}\nSOLVER: {OWN: 2}\nMODEL: {OWN: 3}\nINPUT: {OWN: 4}\nOUTPUT_DIR: logs\n"
    files = {**table("fastreid")["files"], "Set/own.yml": f"_BASE_: ../Base.yml\n{own}"}
    recipe = convert("fastreid", write_files(tmp_path, files))
    names = ["MODEL.OWN", "INPUT.OWN", "SOLVER.OWN", "TEST.OWN"]
    assert [key.path for key in recipe.dropped()] == names
    assert [key.path for key in recipe.unconverted()] == [*names, "MODEL.BACKBONE.FEAT_DIM", "OUTPUT_DIR"]
    lines = recipe.text().splitlines()
    assert lines[1] == "# Dropped, the most important first:" and lines[2].startswith("#   MODEL.OWN = 3 (")
    assert lines[-1].startswith("#   OUTPUT_DIR")


FIRST_GENERATION = """norm = dict(type='Normalize', mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375], to_bgr=False)
data = dict(videos_per_gpu=8, workers_per_gpu=8,
    train=dict(type='VideoDataset', ann_file='train.txt', data_prefix='data/train', pipeline=train_pipeline+[norm]),
    val=dict(type='VideoDataset', ann_file='val.txt', data_prefix='data/val', pipeline=val_pipeline),
    test=dict(type='VideoDataset', ann_file='val.txt', data_prefix='data/val', pipeline=test_pipeline))
optimizer = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=40, norm_type=2))
lr_config = dict(policy='step', step=[40, 80])
total_epochs = 100
checkpoint_config = dict(interval=5, max_keep_ckpts=3)
"""


def test_the_first_generation_of_openmmlab_gives_the_same_recipe(tmp_path: Path) -> None:
    text = example("mmaction", "an i3d")
    pipelines, model = text.split("preprocessor = ")[0], text[text.index("model = ") :]
    model = model.replace("data_preprocessor=preprocessor,", "").replace(", average_clips='prob'", "")
    first = convert("mmaction", write_files(tmp_path, {"old.py": pipelines + model + FIRST_GENERATION})).config
    new = convert("mmaction", write_files(tmp_path, {"own.py": text})).config
    assert {key: first[key] for key in new} == new
