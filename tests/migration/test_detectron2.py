"""Conversion of detectron2 configs: values, channel order, parameter groups, and keys that are not converted."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration.detectron2 import convert
from tests.migration.recipes import resolve, unconverted, write_files

BASE = """
MODEL:
  BACKBONE: {NAME: build_resnet_fpn_backbone}
  RESNETS: {OUT_FEATURES: [res2, res3, res4, res5]}
  FPN: {IN_FEATURES: [res2, res3, res4, res5]}
  ANCHOR_GENERATOR:
    SIZES: [[32], [64], [128], [256], [512]]
    ASPECT_RATIOS: [[0.5, 1.0, 2.0]]
  RPN: {IN_FEATURES: [p2, p3, p4, p5, p6], PRE_NMS_TOPK_TRAIN: 2000, PRE_NMS_TOPK_TEST: 1000, POST_NMS_TOPK_TRAIN: 1000}
  ROI_HEADS: {NAME: StandardROIHeads, IN_FEATURES: [p2, p3, p4, p5]}
  ROI_BOX_HEAD: {NAME: FastRCNNConvFCHead, NUM_FC: 2, POOLER_RESOLUTION: 7}
  ROI_MASK_HEAD: {NUM_CONV: 4}
DATASETS:
  TRAIN: ("coco_2017_train",)
  TEST: ("coco_2017_val",)
SOLVER: {IMS_PER_BATCH: 8, BASE_LR: 0.01, STEPS: "(60000, 80000)", MAX_ITER: 90000}
INPUT:
  MIN_SIZE_TRAIN: (640, 800)
VERSION: 2
"""
RETINANET = """
MODEL:
  META_ARCHITECTURE: RetinaNet
  BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}
  ANCHOR_GENERATOR:
    SIZES: !!python/object/apply:eval ["[[x, x * 2**(1.0/3), x * 2**(2.0/3) ] for x in [32, 64, 128, 256, 512 ]]"]
  RETINANET: {SMOOTH_L1_LOSS_BETA: 0.0}
SOLVER: {MAX_ITER: 90000}
"""


def convert_text(folder: Path, own: str, *overrides: str) -> Any:
    return convert(write_files(folder, {"Base.yaml": BASE, "COCO/own.yaml": f"_BASE_: ../Base.yaml\n{own}"}), overrides)


def test_mask_rcnn(tmp_path: Path) -> None:
    own = (
        "MODEL: {WEIGHTS: 'detectron2://ImageNetPretrained/MSRA/R-50.pkl', MASK_ON: True}\nOUTPUT_DIR: ./o\nX: {Y: 1}\n"
    )
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert task["detector"]["name"] == "mask_rcnn" and task["backbone"]["stride_in_1x1"]
    assert task["detector"]["proposals"]["pre_nms_topk_train"] == 2000 and task["detector"]["box"]["num_fc"] == 2
    assert (task["freeze_stages"], task["freeze_norms"]) == (2, True)
    # BGR in detectron2; a standard deviation of 1 in 0..255.
    assert task["mean"] == [0.485, 0.456, 0.406] and task["std"] == [0.00392157] * 3
    assert config["data"]["train"]["source"]["masks"] and config["data"]["train"]["source"]["empty"] == "drop"
    assert config["data"]["train"]["transforms"][0]["short_edge_length"] == [640, 800]
    assert config["data"]["sampler"] == {"name": "aspect_ratio_batches", "sampler": None}
    assert (config["data"]["batch_size"], config["optimizer"]["lr"]) == (8, 0.01)
    # Defaults of detectron2 that differ from Opabinia's.
    assert (config["optimizer"]["weight_decay"], config["optimizer"]["momentum"]) == (0.0001, 0.9)
    assert [str(milestone) for milestone in config["schedule"]["milestones"]] == ["60000it", "80000it"]
    assert (str(config["schedule"]["warmup"]), config["schedule"]["warmup_rule"]) == ("1000it", "sliced")
    assert "param_groups" not in recipe.config  # all norms are frozen: a rule for them would match no parameter
    assert str(config["init"]["weights"]) == "R-50.pkl" and any("fetch detectron2://" in note for note in recipe.notes)
    assert unconverted(recipe)["X.Y"] == "no equivalent" and unconverted(recipe)["OUTPUT_DIR"] == "--out"


def test_the_recipe_lists_origins_and_unconverted_keys(tmp_path: Path) -> None:
    text = convert_text(tmp_path, "SOLVER: {GAMMA: 0.5}\nX: {Y: 1}\n").text()
    assert "#   schedule.gamma = SOLVER.GAMMA 0.5 (" in text and "own.yaml:2)" in text
    assert "#   optimizer.lr = SOLVER.BASE_LR 0.01 (" in text and "Base.yaml:16)" in text
    assert "#   optimizer.momentum = SOLVER.MOMENTUM 0.9 (default of detectron2)" in text
    assert "#   X.Y = 1 (" in text and "own.yaml:3): no equivalent" in text


def test_keypoints_and_cascade(tmp_path: Path) -> None:
    points = "MODEL: {KEYPOINT_ON: True, ROI_HEADS: {NUM_CLASSES: 1}, ROI_BOX_HEAD: {SMOOTH_L1_BETA: 0.5}}\n"
    points += "DATASETS: {TRAIN: \"('keypoints_coco_2017_train',)\", TEST: \"('keypoints_coco_2017_val',)\"}\n"
    config = resolve(convert_text(tmp_path, points), tmp_path)
    assert config["task"]["detector"]["keypoint"]["num_convs"] == 8
    source = config["data"]["train"]["source"]
    assert source["keypoints"] and source["min_keypoints"] == 1
    assert str(source["file"]) == "path/to/coco/annotations/person_keypoints_train2017.json"
    cascade = "MODEL: {MASK_ON: True, ROI_HEADS: {NAME: CascadeROIHeads}, ROI_BOX_HEAD: {CLS_AGNOSTIC_BBOX_REG: True}}"
    detector = resolve(convert_text(tmp_path, cascade), tmp_path)["task"]["detector"]
    assert detector["name"] == "cascade_rcnn" and detector["later_ious"] == [0.6, 0.7]
    assert detector["box"]["class_agnostic"] and detector["mask"]
    assert detector["box"]["bbox_reg_weights"] == [10, 10, 5, 5]


def test_retinanet_with_the_supported_expression(tmp_path: Path) -> None:
    recipe = convert(write_files(tmp_path, {"own.yaml": RETINANET}))
    detector = resolve(recipe, tmp_path)["task"]["detector"]
    assert detector["neck"]["name"] == "fpn_p3_p7" and detector["smooth_l1_beta"] == 0
    assert (detector["scales_per_octave"], detector["anchor_sizes"]) == (3, [32, 64, 128, 256, 512])
    assert detector["loss_normalizer"] == "running_mean"
    assert recipe.config["vars"] == {
        "train_images": "path/to/train", "train_file": "path/to/instances_train.json",
        "val_images": "path/to/val", "val_file": "path/to/instances_val.json",
    }  # fmt: skip


def test_other_norms_have_parameter_groups_and_a_backbone(tmp_path: Path) -> None:
    norms = "MODEL: {RESNETS: {NORM: GN, STRIDE_IN_1X1: False}, FPN: {NORM: GN}}\nSOLVER: {BIAS_LR_FACTOR: 2.0}\n"
    config = resolve(convert_text(tmp_path, norms), tmp_path)
    assert config["task"]["backbone"]["norm"] == "group" and not config["task"]["freeze_norms"]
    norm, bias = config["param_groups"]["rules"]
    assert (norm["kind"], norm["weight_decay"]) == ("norm", 0) and (bias["kind"], bias["lr_factor"]) == ("bias", 2)
    wide = "MODEL: {RESNETS: {DEPTH: 101, NUM_GROUPS: 32, WIDTH_PER_GROUP: 8, STRIDE_IN_1X1: False, NORM: SyncBN}}"
    config = resolve(convert_text(tmp_path, wide), tmp_path)
    assert config["task"]["backbone"]["model"] == "resnext101_32x8d" and config["train"]["sync_batch_norm"]


def test_training_and_evaluation(tmp_path: Path) -> None:
    own = """
SOLVER:
  LR_SCHEDULER_NAME: WarmupCosineLR
  BASE_LR_END: 0.001
  AMP: {ENABLED: True}
  CLIP_GRADIENTS: {ENABLED: True, CLIP_TYPE: norm, CLIP_VALUE: 0.5}
  REFERENCE_WORLD_SIZE: 8
TEST:
  EVAL_PERIOD: 5000
  AUG: {ENABLED: True, MIN_SIZES: [400, 1200]}
  EXPECTED_RESULTS: [[bbox_TTA, AP, 38.5, 0.2], [bbox, AP, 37.5, 0.2], [sem_seg, mIoU, 40, 1]]
  DETECTIONS_PER_IMAGE: 300
DATALOADER: {SAMPLER_TRAIN: RepeatFactorTrainingSampler, REPEAT_THRESHOLD: 0.001}
DATASETS: {TRAIN: [lvis_v1_train], TEST: [lvis_v1_val]}
INPUT: {CROP: {ENABLED: True}, RANDOM_FLIP: none}
SEED: 3
"""
    recipe = convert_text(tmp_path, own)
    config = resolve(recipe, tmp_path)
    dropped = [str(key) for key in recipe.dropped()]
    assert len(dropped) == 2 and dropped[0].endswith("evaluated with augmentation")
    assert (config["schedule"]["name"], config["schedule"]["end"]) == ("cosine", 0.1)
    assert config["train"]["step"]["clip_each"] == 0.5 and config["train"]["precision"] == "fp16"
    assert (config["train"]["reference_world_size"], config["seed"]) == (8, 3)
    assert (
        config["task"]["test_time_augmentation"]["scales"] == [0.5, 1.5]
        and config["task"]["evaluator"]["name"] == "lvis"
    )
    assert config["hooks"]["expected_scores"]["scores"] == {"val/AP": [0.385, 0.002]}
    assert config["data"]["sampler"]["sampler"]["threshold"] == 0.001
    assert [step["name"] for step in config["data"]["train"]["transforms"]] == ["random_crop", "resize_shortest_edge"]
    assert config["task"]["detector"]["box"]["max_detections"] == 300


def test_the_federated_loss(tmp_path: Path) -> None:
    own = """
MODEL: {ROI_BOX_HEAD: {USE_SIGMOID_CE: True, USE_FED_LOSS: True, FED_LOSS_NUM_CLASSES: 30}}
DATASETS: {TRAIN: [lvis_v1_train], TEST: [lvis_v1_val]}
"""
    box = resolve(convert_text(tmp_path, own), tmp_path)["task"]["detector"]["box"]
    assert (box["class_loss"], box["federated_classes"], box["federated_power"]) == ("federated", 30, 0.5)
    sigmoid = convert_text(tmp_path, own, "MODEL.ROI_BOX_HEAD.USE_FED_LOSS=False")
    assert sigmoid.config["task"]["detector"]["box"]["class_loss"] == "sigmoid"


def test_milestones_after_the_end_and_overrides(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, "", "SOLVER.MAX_ITER=70000", "INPUT.FORMAT=RGB", "MODEL.PIXEL_MEAN=[255.0, 0, 0]")
    config = resolve(recipe, tmp_path)
    assert [str(milestone) for milestone in config["schedule"]["milestones"]] == ["60000it"]
    assert config["task"]["mean"] == [1, 0, 0] and str(config["train"]["length"]) == "70000it"
    assert "(command line: SOLVER.MAX_ITER=70000)" in recipe.text()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            "MODEL: {META_ARCHITECTURE: PanopticDeepLab}",
            "META_ARCHITECTURE: 'PanopticDeepLab' is not supported; supported: GeneralizedRCNN",
        ),
        ("MODEL: {BACKBONE: {NAME: build_hrnet_backbone}}", "NAME: 'build_hrnet_backbone' is not supported"),
        ("MODEL: {ROI_HEADS: {NAME: Res5ROIHeads}}", "'Res5ROIHeads' does not fit a feature pyramid"),
        ("MODEL: {ROI_HEADS: {NAME: PointRendROIHeads}}", "'PointRendROIHeads' is not supported"),
        ("MODEL: {MASK_ON: True, ROI_MASK_HEAD: {NAME: PointRendMaskHead}}", "NAME: 'PointRendMaskHead' is not supp"),
        ("MODEL: {POINT_HEAD: {NAME: StandardPointHead}}", "POINT_HEAD.NAME: is no key of detectron2 itself"),
        ("MODEL: {ROI_BOX_HEAD: {USE_FED_LOSS: True}}", "needs USE_SIGMOID_CE=True, as in detectron2"),
        ("MODEL: {PROPOSAL_GENERATOR: {NAME: PrecomputedProposals}}", "proposals come from an RPN"),
        ("MODEL: {RPN: {IN_FEATURES: [p2, p3]}}", "supported with this backbone"),
        ("MODEL: {KEYPOINT_ON: True, ROI_KEYPOINT_HEAD: {POOLER_TYPE: ROIAlign}}", "must be that of ROI_BOX_HEAD"),
        ("DATALOADER: {SAMPLER_TRAIN: OwnSampler}", "'OwnSampler' is not supported; supported: TrainingSampler"),
        ("MODEL: {MASK_ON: True, KEYPOINT_ON: True}", "masks and keypoints in one detector"),
        ("MODEL: {RESNETS: {DEPTH: 77}}", "DEPTH: 77 is not supported"),
        ("SOLVER: {BASE_LR: fast}", "SOLVER.BASE_LR: expected a number, got 'fast'"),
        ("SOLVER: {MAX_ITER: 0.5}", "SOLVER.MAX_ITER: 0.5 is not a number of steps"),
        (
            "SOLVER: {CLIP_GRADIENTS: {ENABLED: True, CLIP_TYPE: hard}}",
            "'hard' is not supported; supported: value, norm",
        ),
        ("SOLVER: {LR_SCHEDULER_NAME: Own}", "'Own' is not supported"),
        ("SOLVER: {LR_SCHEDULER_NAME: WarmupCosineLR, BASE_LR: 0}", "SOLVER.BASE_LR: must not be 0"),
        ("MODEL: {ANCHOR_GENERATOR: {SIZES: [[32], [64]]}}", "expected a list for each of the 5 feature maps"),
        ("MODEL: {FPN: {NORM: XN}}", "'XN' is not supported; supported"),
        ("INPUT: {MIN_SIZE_TRAIN: [a, b]}", "INPUT.MIN_SIZE_TRAIN: expected a list such as"),
        ("TEST: {EXPECTED_RESULTS: [[box, AP]]}", "task, metric, score, tolerance"),
    ],
)
def test_unsupported_values_are_rejected(own: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        convert_text(tmp_path, own)
    assert "own.yaml:2" in str(caught.value)


def test_several_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_text(tmp_path, "MODEL: {FPN: {NORM: XN}, ROI_BOX_HEAD: {NORM: YN}}")
    assert [problem.path for problem in caught.value.problems] == ["MODEL.FPN.NORM", "MODEL.ROI_BOX_HEAD.NORM"]


def test_lazy_configs_are_code(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is Python code, which is not executed"):
        convert(write_files(tmp_path, {"lazy.py": "model = 1"}))
    with pytest.raises(ConfigError, match="LazyConfig"):
        convert(write_files(tmp_path, {"lazy.yaml": "model: {_target_: detectron2.modeling.RetinaNet}"}))


C4 = """
MODEL:
  MASK_ON: True
  ROI_HEADS: {NAME: Res5ROIHeads}
DATASETS: {TRAIN: [coco_2017_train], TEST: [coco_2017_val, coco_2017_val_100]}
TEST: {EXPECTED_RESULTS: [[bbox, AP, 35, 1]]}
SOLVER: {MAX_ITER: 300, CHECKPOINT_PERIOD: 50}
"""


def test_c4(tmp_path: Path) -> None:
    config = resolve(convert(write_files(tmp_path, {"c4.yaml": C4})), tmp_path)
    detector = config["task"]["detector"]
    assert detector["name"] == "mask_rcnn" and detector["neck"]["name"] == "no_neck"
    assert (detector["pooling"]["last_stage"], detector["pooling"]["num_levels"]) == (True, 1)
    assert (detector["box"]["num_fc"], detector["box"]["resolution"]) == (0, 14)
    assert (detector["mask"]["num_convs"], detector["mask"]["resolution"]) == (0, 14)
    assert detector["proposals"]["anchor_sizes"] == [[32, 64, 128, 256, 512]]
    # The warm-up ends with the training, all checkpoints are kept, and expected scores are those of the first dataset.
    assert str(config["schedule"]["warmup"]) == "300it" and config["checkpoint"]["keep"] == 6
    assert config["hooks"]["expected_scores"]["scores"] == {"val0/AP": [0.35, 0.01]}


def test_dc5(tmp_path: Path) -> None:
    dc5 = """
MODEL:
  RESNETS: {OUT_FEATURES: [res5], RES5_DILATION: 2}
  RPN: {IN_FEATURES: [res5]}
  ROI_HEADS: {NAME: StandardROIHeads, IN_FEATURES: [res5]}
  ROI_BOX_HEAD: {NAME: FastRCNNConvFCHead, NUM_FC: 2, POOLER_RESOLUTION: 7}
"""
    task = resolve(convert(write_files(tmp_path, {"dc5.yaml": dc5})), tmp_path)["task"]
    assert (task["backbone"]["last_stride"], task["backbone"]["last_dilation"]) == (1, 2)
    assert task["detector"]["neck"]["name"] == "no_neck" and not task["detector"]["pooling"]["last_stage"]


def test_proposal_network(tmp_path: Path) -> None:
    own = "MODEL: {META_ARCHITECTURE: ProposalNetwork}\nTEST: {EXPECTED_RESULTS: [[box_proposals, AR@1000, 57, 1]]}"
    config = resolve(convert_text(tmp_path, own), tmp_path)
    assert (config["task"]["detector"]["name"], config["task"]["evaluator"]["name"]) == ("rpn", "proposal_recall")
    assert config["hooks"]["expected_scores"]["scores"] == {"val/AR1000": [0.57, 0.01]}
    for stage, last in (("res4", False), ("res5", True)):
        own = f"MODEL: {{META_ARCHITECTURE: ProposalNetwork, RPN: {{IN_FEATURES: [{stage}]}}}}"
        detector = resolve(convert(write_files(tmp_path, {"c4.yaml": own})), tmp_path)["task"]["detector"]
        assert (detector["last_stage"], detector["neck"]["name"]) == (last, "no_neck")


def test_losses_and_layers_of_heads(tmp_path: Path) -> None:
    own = """
MODEL:
  KEYPOINT_ON: True
  RPN: {LOSS_WEIGHT: 0.5, BBOX_REG_LOSS_WEIGHT: 2.0}
  ROI_BOX_HEAD: {BBOX_REG_LOSS_WEIGHT: 3.0, NUM_CONV: 4, NUM_FC: 1, CONV_DIM: 128, NORM: GN}
  ROI_KEYPOINT_HEAD: {LOSS_WEIGHT: 4.0, NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS: False, POOLER_SAMPLING_RATIO: 2}
  RESNETS: {DEPTH: 152, NUM_GROUPS: 32, WIDTH_PER_GROUP: 8, STRIDE_IN_1X1: False,
            DEFORM_ON_PER_STAGE: [False, True, True, True]}
"""
    config = resolve(convert_text(tmp_path, own), tmp_path)
    detector, backbone = config["task"]["detector"], config["task"]["backbone"]
    assert (detector["proposals"]["loss_weight"], detector["proposals"]["box_loss_weight"]) == (0.5, 2)
    assert (detector["box"]["box_loss_weight"], detector["box"]["conv_dim"]) == (3, 128)
    assert (detector["keypoint"]["loss_weight"], detector["keypoint"]["keypoints_per_image"]) == (4, 17 * 128)
    assert detector["keypoint"]["sampling_ratio"] == 2 and detector["pooling"]["sampling_ratio"] == 0
    assert backbone["options"] == {"cardinality": 32, "base_width": 8} and backbone["model"] == "resnet152"
    assert backbone["deformable"]["stages"] == [2, 3, 4]
    # The group norms of the box head are trained, and decay like all norms.
    assert [(rule["kind"], rule["weight_decay"]) for rule in config["param_groups"]["rules"]] == [("norm", 0)]
