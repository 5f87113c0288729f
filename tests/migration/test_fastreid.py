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
    dropped = {key.path: key.value for key in recipe.dropped()}
    assert dropped["MODEL.LOSSES.NAME"] == "FocalLoss" and "KD.MODEL_WEIGHTS" in unconverted(recipe)


@pytest.mark.parametrize(
    ("backbone", "model", "options"),
    [
        ("NAME: build_resnext_backbone, DEPTH: 101x, WITH_IBN: True", "resnext101_32x4d", {"ibn": True, "se": False}),
        ("NAME: build_resnest_backbone, DEPTH: 50x, WITH_IBN: True", "resnest50d", {"ibn": False, "norm": "batch"}),
        ("NAME: build_resnet_backbone_distill, DEPTH: 34x, WITH_SE: True", "resnet34.tv_in1k", {"se": True}),
    ],
)
def test_resnets_keep_their_last_stride_and_variations(
    backbone: str, model: str, options: dict[str, Any], tmp_path: Path
) -> None:
    recipe = convert_text(tmp_path, f"MODEL: {{BACKBONE: {{{backbone}}}}}\n")
    built = resolve(recipe, tmp_path)["task"]["backbone"]
    assert (built["name"], built["model"], built["last_stride"]) == ("resnet", model, 1)
    assert {key: built[key] for key in options} == options
    if "resnest" in model:
        assert unconverted(recipe)["MODEL.BACKBONE.WITH_IBN"] == "FastReID's backbone of this name does not use it"


def test_strides_that_timm_does_not_have_are_reported(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, "MODEL: {BACKBONE: {NAME: build_regnet_backbone, DEPTH: 800y}}\n")
    assert resolve(recipe, tmp_path)["task"]["backbone"]["model"] == "regnety_008"
    assert any("LAST_STRIDE is 1: dropped" in note for note in recipe.notes)


def test_retrieval_with_frozen_norms(tmp_path: Path) -> None:
    """A ResNet with frozen norms and this head has no bias that a rule could match."""
    own = """
MODEL: {BACKBONE: {NORM: FrozenBN}, HEADS: {NORM: syncBN, POOL_LAYER: GeneralizedMeanPooling}}
SOLVER: {WEIGHT_DECAY_BIAS: 0.}
TEST: {RECALLS: [1, 10]}
DATASETS: {NAMES: [SOP], TESTS: [NAME]}
"""
    config = resolve(convert_text(tmp_path, own.replace("NAME]", "SOP]")), tmp_path)
    assert config["param_groups"] is None
    assert config["data"]["train"]["source"]["name"] == "online_products"
    assert config["task"]["evaluator"] == {"name": "recall", "metric": "cosine", "ks": [1, 10]}
    shop = resolve(convert_text(tmp_path, own.replace("NAME]", "InShop]")), tmp_path)
    assert shop["task"]["evaluator"]["ranks"] == [1, 10] and shop["data"]["val"]["source"]["name"] == "in_shop"
    cub = convert_text(tmp_path, own.replace("SOP", "CUB").replace("NAME]", "CUB, Cars196]"))
    assert cub.config["vars"] == {"cub": "path/to/cub", "cars196": "path/to/cars196"}


def test_veri_wild(tmp_path: Path) -> None:
    own = "DATASETS: {NAMES: [VeRiWild], TESTS: [SmallVeRiWild, LargeVeRiWild]}\n"
    config = resolve(convert_text(tmp_path, own), tmp_path)
    assert [val_set["source"]["test_size"] for val_set in config["data"]["val"]] == [3000, 10000]


def test_a_classifier(tmp_path: Path) -> None:
    own = """
MODEL:
  HEADS: {NAME: ClasHead, WITH_BNNECK: False, POOL_LAYER: FastGlobalAvgPool}
  LOSSES:
    NAME: ("CrossEntropyLoss",)
DATALOADER: {SAMPLER_TRAIN: TrainingSampler}
DATASETS: {NAMES: [Hymenoptera], TESTS: [Hymenoptera]}
"""
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    assert config["task"]["name"] == "classification" and config["task"]["loss"]["label_smoothing"] == 0.1
    assert config["data"]["train"]["source"]["name"] == config["data"]["val"]["source"]["name"] == "image_folder"
    assert recipe.config["vars"]["hymenoptera_val"] == "path/to/hymenoptera/val"


def test_attributes(tmp_path: Path) -> None:
    own = """
MODEL:
  META_ARCHITECTURE: AttrBaseline
  HEADS: {NAME: AttrHead, POOL_LAYER: FastGlobalAvgPool, NUM_CLASSES: 26}
  LOSSES: {NAME: [BinaryCrossEntropyLoss], BCE: {WEIGHT_ENABLED: False, SCALE: 2.0}}
DATALOADER: {SAMPLER_TRAIN: TrainingSampler}
DATASETS: {NAMES: [PA100K], TESTS: [PA100K, Own]}
TEST: {THRES: 0.4}
"""
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["name"], task["weighted"], task["threshold"]) == ("attributes", False, 0.4)
    train = config["data"]["train"]["source"]
    assert (train["name"], train["split"]) == ("pa100k", "train")
    pa100k, other = (val_set["source"] for val_set in config["data"]["val"])
    assert (pa100k["split"], other["name"], other["multi_label"]) == ("test", "table", True)
    assert [key.path for key in recipe.dropped()] == ["MODEL.LOSSES.BCE.SCALE"]


def test_faces(tmp_path: Path) -> None:
    own = """
MODEL:
  META_ARCHITECTURE: FaceBaseline
  BACKBONE: {NAME: build_resnetIR_backbone, DEPTH: 100x, WITH_SE: True, PRETRAIN: False}
  HEADS: {NAME: FaceHead, EMBEDDING_DIM: 512, POOL_LAYER: Flatten, CLS_LAYER: CosSoftmax, SCALE: 64, MARGIN: 0.4,
          PFC: {ENABLED: True, SAMPLE_RATE: 0.2}}
  LOSSES: {NAME: [CrossEntropyLoss]}
INPUT: {SIZE_TRAIN: [0,], SIZE_TEST: [0,], REA: {ENABLED: False}, PADDING: {ENABLED: False}}
DATALOADER: {SAMPLER_TRAIN: TrainingSampler}
DATASETS: {REC_PATH: /data/faces/train.rec, NAMES: [MS1MV2], TESTS: [CFP_FP, LFW]}
"""
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert task["backbone"] == {
        "name": "iresnet", "model": "iresnet100", "image_size": [112, 112], "se": True, "dropout": 0.0,
    }  # fmt: skip
    assert (task["pooling"], task["embedding"], task["sampled_classes"]) == (None, 512, 0.2)
    assert (task["head"]["name"], task["evaluator"]) == ("cosface", {"name": "verification", "folds": 10})
    assert config["data"]["train"]["source"]["name"] == "class_folders"
    assert [val_set["source"]["name"] for val_set in config["data"]["val"]] == ["image_pairs"] * 2
    assert recipe.config["vars"] == {"train": "path/to/train", "cfp_fp": "path/to/cfp_fp.csv", "lfw": "path/to/lfw.csv"}
    assert any("build_resnetIR_backbone is not part of FastReID" in note for note in recipe.notes)


def test_small_backbones(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, "MODEL: {BACKBONE: {NAME: build_osnet_backbone, DEPTH: x0_25, WITH_IBN: True}}\n")
    config = resolve(recipe, tmp_path)
    assert config["task"]["backbone"] == {"name": "osnet", "model": "osnet_x0_25", "ibn": True}
    assert recipe.config["init"]["target_prefix"] == "backbone.module"
    assert recipe.config["vars"]["weights"] == "path/to/pretrained.pth"
    own = "MODEL: {BACKBONE: {NAME: build_shufflenetv2_backbone, DEPTH: 1.5x, NORM: syncBN, PRETRAIN: False}}\n"
    config = resolve(convert_text(tmp_path, own), tmp_path)
    assert config["task"]["backbone"] == {"name": "shufflenet", "model": "shufflenet_v2_x1_5"}
    assert config["train"]["sync_batch_norm"]


def test_dropped_keys_are_listed_first_by_effect(tmp_path: Path) -> None:
    own = "TEST: {OWN: 1}\nSOLVER: {OWN: 2}\nMODEL: {OWN: 3}\nINPUT: {OWN: 4}\nOUTPUT_DIR: logs\n"
    recipe = convert_text(tmp_path, own)
    names = ["MODEL.OWN", "INPUT.OWN", "SOLVER.OWN", "TEST.OWN"]
    assert [key.path for key in recipe.dropped()] == names
    assert [key.path for key in recipe.unconverted()] == [*names, "MODEL.BACKBONE.FEAT_DIM", "OUTPUT_DIR"]
    lines = recipe.text().splitlines()
    assert lines[1] == "# Dropped, the most important first:" and lines[2].startswith("#   MODEL.OWN = 3 (")
    assert lines[-1].startswith("#   OUTPUT_DIR")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            "MODEL: {META_ARCHITECTURE: PartialBaseline}",
            "'PartialBaseline' is not supported: images are compared by one",
        ),
        ("MODEL: {META_ARCHITECTURE: Own}", "'Own' is not supported; supported: 'Baseline'"),
        ("MODEL: {BACKBONE: {NAME: build_osnet_backbone}}", "'50x' is not supported; supported: 'x1_0'"),
        ("MODEL: {BACKBONE: {DEPTH: 51x}}", "'51x' is not supported"),
        (
            "MODEL: {HEADS: {NAME: AttrHead}}",
            r"\['CrossEntropyLoss', 'TripletLoss'\] is not supported with",
        ),
        ("MODEL: {HEADS: {NAME: OwnHead}}", "'OwnHead' is not supported; supported: EmbeddingHead, ClasHead"),
        ("MODEL: {HEADS: {NORM: GN}}", "MODEL.HEADS.NORM: 'GN' is not supported; supported: BN, syncBN"),
        ("MODEL: {HEADS: {NAME: ClasHead}}", "MODEL.HEADS.WITH_BNNECK: true is not supported with ClasHead"),
        ("MODEL: {BACKBONE: {NAME: build_effnet_backbone, DEPTH: b0, NORM: GN}}", "'GN' is only supported for ResNets"),
        ("MODEL: {BACKBONE: {NAME: build_regnet_backbone, DEPTH: regnetx_200mf}}", "supported: '200x', '400x'"),
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
