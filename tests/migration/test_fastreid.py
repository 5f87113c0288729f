"""Conversion of FastReID configs: heads, losses, samplers and how epochs are counted."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration.fastreid import convert
from tests.migration.recipes import resolve, unconverted, write_files

BASE = """
MODEL:
  BACKBONE: {NAME: build_resnet_backbone, DEPTH: 50x, LAST_STRIDE: 1, FEAT_DIM: 2048, PRETRAIN: True}
  HEADS: {WITH_BNNECK: True, POOL_LAYER: GlobalAvgPool, NECK_FEAT: before}
  LOSSES:
    NAME: ("CrossEntropyLoss", "TripletLoss",)
    CE: {EPSILON: 0.1, SCALE: 1.}
    TRI: {MARGIN: 0.3, HARD_MINING: True}
INPUT:
  SIZE_TRAIN: [ 256, 128 ]
  REA: {ENABLED: True, PROB: 0.5}
  FLIP: {ENABLED: True}
  PADDING: {ENABLED: True}
DATALOADER: {SAMPLER_TRAIN: NaiveIdentitySampler, NUM_INSTANCE: 4}
SOLVER: {AMP: {ENABLED: True}, OPT: Adam, MAX_EPOCH: 60, BASE_LR: 0.00035, STEPS: [ 40, 90 ], WARMUP_ITERS: 2000}
TEST: {EVAL_PERIOD: 30, IMS_PER_BATCH: 128}
"""


def convert_text(folder: Path, own: str) -> Any:
    return convert(write_files(folder, {"Base.yml": BASE, "Set/own.yml": f"_BASE_: ../Base.yml\n{own}"}))


def test_the_bag_of_tricks(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, "OUTPUT_DIR: logs\n")
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["name"], task["backbone"]["model"], task["backbone"]["last_stride"]) == ("reid", "resnet50.tv_in1k", 1)
    assert (task["pooling"]["name"], task["neck"], task["metric_feature"]) == ("average", "batch", "before")
    assert task["loss"] == {
        "name": "cross_entropy", "label_smoothing": 0.1, "smoothing_classes": "others", "averaged_samples": "nonzero",
    }  # fmt: skip
    [triplet] = task["metric_losses"]
    assert (triplet["margin"], triplet["mining"], triplet["distance"]) == (0.3, "hard", "euclidean")
    steps = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert steps == ["Resize", "RandomCrop", "RandomHorizontalFlip", "random_erase"]
    assert (
        config["data"]["sampler"]["name"] == "identities" and config["data"]["train"]["source"]["name"] == "market1501"
    )
    assert (config["optimizer"]["name"], config["optimizer"]["weight_decay"]) == ("adam", 0.0005)
    assert config["schedule"]["warmup_rule"] == "fastreid" and config["schedule"]["warmup_factor"] == 0.1
    assert (str(config["train"]["length"]), str(config["evaluate"]["every"])) == ("60ep", "30ep")
    assert unconverted(recipe) == {"MODEL.BACKBONE.FEAT_DIM": "follows from the backbone", "OUTPUT_DIR": "--out"}


def test_the_stronger_baseline(tmp_path: Path) -> None:
    own = """
MODEL:
  FREEZE_LAYERS: [ backbone ]
  BACKBONE: {WITH_NL: True}
  HEADS: {NECK_FEAT: after, POOL_LAYER: GeneralizedMeanPoolingP, CLS_LAYER: CircleSoftmax, SCALE: 64, MARGIN: 0.35}
INPUT: {AUTOAUG: {ENABLED: True, PROB: 0.1}, CJ: {ENABLED: True}, RPT: {ENABLED: True, PROB: 0.2}}
SOLVER: {SCHED: CosineAnnealingLR, DELAY_EPOCHS: 30, ETA_MIN_LR: 0.0000007, FREEZE_ITERS: 1000}
"""
    config = resolve(convert_text(tmp_path, own), tmp_path)
    assert config["task"]["head"] == {"name": "circle", "scale": 64, "margin": 0.35}
    assert config["task"]["pooling"]["name"] == "gem_learned" and config["task"]["backbone"]["non_local"]
    assert (config["schedule"]["end"], str(config["schedule"]["delay"])) == (0.002, "30ep")
    assert str(config["hooks"]["freeze"]["until"]) == "1000it"
    first, *_ = config["data"]["train"]["transforms"]
    assert first["p"] == 0.1 and first["transforms"][0]["policy"] == "original"
    assert config["data"]["mix"][0]["probability"] == 0.2


def test_mgn_and_a_transformer(tmp_path: Path) -> None:
    mgn = "MODEL: {META_ARCHITECTURE: MGN, HEADS: {EMBEDDING_DIM: 256, POOL_LAYER: GlobalMaxPool}}"
    task = resolve(convert_text(tmp_path, mgn), tmp_path)["task"]
    assert (task["name"], task["embedding"], task["pooling"]["name"]) == ("mgn", 256, "max")
    vit = """
MODEL:
  PIXEL_MEAN: [127.5, 127.5, 127.5]
  BACKBONE: {NAME: build_vit_backbone, DEPTH: base, PRETRAIN_PATH: some/file.pth, STRIDE_SIZE: "(12, 12)"}
  HEADS: {POOL_LAYER: Identity}
SOLVER: {OPT: SGD, CLIP_GRADIENTS: {ENABLED: True}}
"""
    config = resolve(convert_text(tmp_path, vit), tmp_path)
    assert config["task"]["backbone"]["stride"] == [12, 12] and config["task"]["backbone"]["image_size"] == [256, 128]
    assert config["task"]["pooling"] is None and config["task"]["mean"] == [0.5] * 3
    assert (str(config["init"]["weights"]), config["init"]["target_prefix"]) == ("some/file.pth", "backbone")
    assert config["train"]["step"]["clip_each"] == 5 and config["optimizer"]["momentum"] == 0.9


def test_vehicles_with_several_test_sets(tmp_path: Path) -> None:
    own = """
DATASETS: {NAMES: [VehicleID], TESTS: [SmallVehicleID, LargeVehicleID], COMBINEALL: True}
SOLVER: {WEIGHT_DECAY_BIAS: 0.0, BIAS_LR_FACTOR: 2., HEADS_LR_FACTOR: 10.}
"""
    config = resolve(convert_text(tmp_path, own), tmp_path)
    assert [val_set["prefix"] for val_set in config["data"]["val"]] == ["smallvehicleid", "largevehicleid"]
    assert [val_set["source"]["test_size"] for val_set in config["data"]["val"]] == [800, 2400]
    assert config["data"]["train"]["source"]["split"] == "all"
    bias, heads = config["param_groups"]["rules"]
    assert (bias["kind"], bias["weight_decay"], bias["lr_factor"]) == ("bias", 0, 2)
    assert (heads["pattern"], heads["lr_factor"]) == ("^(?!backbone)", 10)


def test_unknown_datasets_and_several_training_sets(tmp_path: Path) -> None:
    own = "DATASETS: {NAMES: [Market1501, Own-Set], TESTS: [Own-Set]}\n"
    recipe = convert_text(tmp_path, own)
    sources = resolve(recipe, tmp_path)["data"]["train"]["source"]["sources"]
    assert [source["name"] for source in sources] == ["market1501", "identities"]
    assert recipe.config["vars"]["own_set"] == "path/to/own_set.csv" and any("Own-Set" in note for note in recipe.notes)


def test_evaluation_and_teachers(tmp_path: Path) -> None:
    own = """
MODEL: {META_ARCHITECTURE: Distiller, LOSSES: {NAME: [CircleLoss, FocalLoss], CE: {EPSILON: -1}}}
KD: {MODEL_CONFIG: [a.yml, b.yml], MODEL_WEIGHTS: [a.pth, b.pth], EMA: {ENABLED: True}}
TEST: {METRIC: euclidean, FLIP: {ENABLED: True}, AQE: {ENABLED: True, QE_K: 7}, RERANK: {ENABLED: True, LAMBDA: 0.5}}
"""
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    evaluator = config["task"]["evaluator"]
    assert evaluator["metric"] == "squared_euclidean" and evaluator["query_expansion"]["k"] == 7
    assert evaluator["rerank"]["lambda_value"] == 0.5 and evaluator["rerank"]["variant"] == "fastreid"
    assert config["task"]["flip_test"] and config["task"]["loss"] is None
    assert [str(teacher["run"]) for teacher in config["distill"]["teachers"]] == ["path/to/run", "path/to/run"]
    assert config["distill"]["temperature"] == 16 and config["distill"]["ema_teacher"]["decay"] == 0.999
    assert any("'FocalLoss' is dropped" in note for note in recipe.notes) and "KD.MODEL_WEIGHTS" in unconverted(recipe)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("MODEL: {META_ARCHITECTURE: PartialBaseline}", "'PartialBaseline' is not supported; supported: 'Baseline'"),
        ("MODEL: {BACKBONE: {NAME: build_osnet_backbone}}", "'build_osnet_backbone' is not supported"),
        ("MODEL: {BACKBONE: {DEPTH: 51x}}", "'51x' is not supported"),
        ("MODEL: {HEADS: {NAME: AttrHead}}", "'AttrHead' is not supported"),
        ("MODEL: {HEADS: {CLS_LAYER: linear}}", "'linear' is not supported; supported: 'Linear'"),
        ("DATALOADER: {SAMPLER_TRAIN: Own}", "'Own' is not supported"),
        ("SOLVER: {SCHED: OneCycle}", "'OneCycle' is not supported"),
        ("SOLVER: {STEPS: [a]}", "SOLVER.STEPS: expected a list such as"),
        ("SOLVER: {MAX_EPOCH: -1}", "-1 is not a duration"),
        ("INPUT: {FLIP: {ENABLED: maybe}}", "expected true or false"),
    ],
)
def test_unsupported_values_are_rejected(own: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(tmp_path, own)
