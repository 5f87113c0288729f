"""Conversion of OpenMMLab's configs, which are Python files that inherit from each other, without executing them."""

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.migration import convert, openmmlab
from opabinia.migration.openmmlab_training import modernize
from tests.migration.recipes import resolve, unconverted, write_files

# --- reader -----------------------------------------------------------------------------------------------------------


def read(folder: Path, text: str, **bases: str) -> Any:
    files = {f"{name}.py": body for name, body in bases.items()} | {"own.py": text}
    return openmmlab.read(write_files(folder, files)).plain()


def test_dictionaries_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    own = """_base_ = ['./first.py', './second.py']
model = dict(head=dict(_delete_=True, width=2), stages=[3])
pipeline = [dict(type='A', size={{_base_.size}}), *()] if False else 0
"""
    with pytest.raises(ConfigError, match=r"own.py:3: is code, which is not executed: \[dict"):
        read(tmp_path, own, first="size = (4, 2)\nmodel = dict(head=dict(depth=1), stages=[1, 2])", second="lr = 0.1")
    own = """_base_ = ['./first.py', './second.py']
model = dict(head=dict(_delete_=True, width=2), stages=[3])
pipeline = [dict(type='A', size={{_base_.size}}), dict(type='B', **_base_.model.head)]
_base_.extra.value = 5
_base_.schedule[1].milestones = [8, _base_.schedule[1].milestones[0]]
"""
    first = "size = (4, 2)\nmodel = dict(head=dict(depth=1), stages=[1, 2], name='net')\nextra = dict(value=1)"
    first += "\nschedule = [dict(by_epoch=True), dict(milestones=[3], gamma=0.1)]"
    assert read(tmp_path, own, first=first, second="lr = 0.1") == {
        "size": [4, 2],
        "lr": 0.1,
        "extra": {"value": 5},
        "schedule": [{"by_epoch": True}, {"milestones": [8, 3], "gamma": 0.1}],
        "model": {"head": {"width": 2}, "stages": [3], "name": "net"},
        "pipeline": [{"type": "A", "size": [4, 2]}, {"type": "B", "depth": 1}],
    }


def test_arithmetic_of_constants(tmp_path: Path) -> None:
    text = """mean = [1.4, 2.6]
bgr = mean[::-1]
rounded = [round(value) for value in bgr]
lr = 0.02 / 16 * 8
file = f"{'data/'}a" + '.json'
preprocessor = dict(std=dict(a=1))
std = preprocessor['std']['a']
many = [1.0] * 3
limit: int = -(7 // 2)
del mean
"""
    expected = {"bgr": [2.6, 1.4], "rounded": [3, 1], "lr": 0.01, "file": "data/a.json", "many": [1.0] * 3, "limit": -3}
    assert read(tmp_path, text) == {**expected, "preprocessor": {"std": {"a": 1}}, "std": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nx = os.system('true')", ":1: is code, which is not executed: import os"),
        ("x = open('f').read()", ":1: is code, which is not executed: open"),
        ("x = unknown", ":1: is code, which is not executed: unknown"),
        ("x = [1]\nx.append(2)", ":2: is code, which is not executed: x.append"),
        ("for i in (1, 2):\n    x = i", ":1: is code, which is not executed: for i in"),
        ("x = dict(a=1)\nx['a'] = 2", ":2: is code"),
        ("x = 9 ** 9 ** 9", ":1: is code"),
        ("x = 'a' * 10 ** 9", ":1: is code"),
        ("x = [0] * 200000000", ":1: is code"),
        (
            "x = [1, 2]\n" + "".join(f"x{i + 1 or ''} = [x{i or ''}] * 2\n" for i in range(40)).replace("x0", "x"),
            "more than",
        ),
        ("_base_.steps[7].size = 3", ":1: is code"),
        ("_base_ = 'own.py'", "includes itself"),
        ("_base_ = 'mmdet::x.py'", "expected the path of a file"),
        ("_base_ = './missing.py'", "there is no such file"),
        ("with read_base():\n    from .x import *", ":1: is code, which is not executed: with read_base"),
        ("x = (", "is not valid Python"),
        (f"x = {'(' * 60}1{',)' * 60}", "nested more than"),
    ],
)
def test_code_is_rejected_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read(tmp_path, text)


def test_the_second_generation_becomes_the_third(tmp_path: Path) -> None:
    text = """data = dict(samples_per_gpu=2, workers_per_gpu=3, train=dict(type='A'), val=dict(type='B'))
optimizer = dict(type='SGD', lr=0.1, paramwise_cfg=dict(custom_keys={'.cls_token': dict(lr_mult=2)}))
optimizer_config = dict(grad_clip=dict(max_norm=35))
lr_config = dict(policy='CosineAnnealing', min_lr=0.01, warmup='linear', warmup_iters=500, warmup_ratio=0.1)
runner = dict(type='EpochBasedRunner', max_epochs=12)
fp16 = dict(loss_scale=512.)
variable = 1
"""
    tree = modernize(openmmlab.read(write_files(tmp_path, {"own.py": text}))).plain()
    assert tree["train_dataloader"] == {"batch_size": 2, "num_workers": 3, "dataset": {"type": "A"}}
    assert tree["optim_wrapper"]["paramwise_cfg"]["custom_keys"] == [[".cls_token", {"lr_mult": 2}]]
    assert tree["optim_wrapper"]["clip_grad"] == {"max_norm": 35}
    assert tree["optim_wrapper"]["type"] == "AmpOptimWrapper" and tree["train_cfg"] == {"max_epochs": 12}
    warmup, cosine = tree["param_scheduler"]
    assert (warmup["type"], warmup["end"], warmup["start_factor"]) == ("LinearLR", 500, 0.1)
    assert (cosine["type"], cosine["eta_min"]) == ("CosineAnnealingLR", 0.01)
    assert "variable" not in tree and "data" not in tree


# --- MMDetection ------------------------------------------------------------------------------------------------------

RUNTIME = """default_scope = 'mmdet'
default_hooks = dict(logger=dict(type='LoggerHook', interval=50), checkpoint=dict(type='CheckpointHook', interval=1))
"""
SCHEDULE = """train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1)]
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001))
auto_scale_lr = dict(enable=False, base_batch_size=16)
"""
COCO = """data_root = 'data/coco/'
pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomChoiceResize', scales=[(1333, 640), (1333, 800)], keep_ratio=True),
    dict(type='RandomFlip', prob=0.5), dict(type='PackDetInputs')]
train_dataloader = dict(batch_size=2, num_workers=2, batch_sampler=dict(type='AspectRatioBatchSampler'),
    sampler=dict(type='DefaultSampler', shuffle=True), dataset=dict(type='RepeatDataset', times=3, dataset=dict(
        type='CocoDataset', data_root=data_root, ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'), filter_cfg=dict(filter_empty_gt=True, min_size=32), pipeline=pipeline)))
val_dataloader = dict(batch_size=1, dataset=dict(type='CocoDataset', data_root=data_root,
    ann_file='annotations/instances_val2017.json', data_prefix=dict(img='val2017/'), metainfo=dict(classes=('cat', )),
    pipeline=[dict(type='Resize', scale=(1333, 800), keep_ratio=True), dict(type='PackDetInputs')]))
val_evaluator = dict(type='CocoMetric', metric='bbox')
"""
CODER = "bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_means=[0., 0., 0., 0.], target_stds={})"
RPN = f"""rpn_head=dict(type='RPNHead', in_channels=256, feat_channels=256,
    anchor_generator=dict(type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64]),
    {CODER.format([1.0] * 4)}, loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=True, loss_weight=1.0),
    loss_bbox=dict(type='L1Loss', loss_weight=1.0))"""
BACKBONE = """data_preprocessor=dict(type='DetDataPreprocessor', mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375], bgr_to_rgb=True, pad_size_divisor=32),
backbone=dict(type='ResNet', depth=50, num_stages=4, out_indices=(0, 1, 2, 3), frozen_stages=1,
    norm_cfg=dict(type='BN', requires_grad=True), norm_eval=True, style='pytorch',
    init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'))"""
HEAD = f"""dict(type='Shared2FCBBoxHead', in_channels=256, fc_out_channels=1024, roi_feat_size=7, num_classes=80,
    {CODER.format([0.1, 0.1, 0.2, 0.2])}, reg_class_agnostic=False,
    loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    loss_bbox=dict(type='L1Loss', loss_weight=1.0))"""
EXTRACTOR = "dict(type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size={}, sampling_ratio=0), "
EXTRACTOR += "out_channels=256, featmap_strides=[4, 8, 16, 32])"
ASSIGNER = "assigner=dict(type='MaxIoUAssigner', pos_iou_thr={0}, neg_iou_thr={1}, min_pos_iou={1}, ignore_iof_thr=-1)"
TRAIN = f"""train_cfg=dict(rpn=dict({ASSIGNER.format(0.7, 0.3)},
        sampler=dict(type='RandomSampler', num=256, pos_fraction=0.5, neg_pos_ub=-1), allowed_border=-1, debug=False),
    rpn_proposal=dict(nms_pre=2000, max_per_img=1000, nms=dict(type='nms', iou_threshold=0.7), min_bbox_size=0),
    rcnn=dict({ASSIGNER.format(0.5, 0.5)}, mask_size=28, pos_weight=-1,
        sampler=dict(type='RandomSampler', num=512, pos_fraction=0.25, add_gt_as_proposals=True)))"""
TEST = """test_cfg=dict(
    rpn=dict(nms_pre=1000, max_per_img=1000, nms=dict(type='nms', iou_threshold=0.7), min_bbox_size=0),
    rcnn=dict(score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=100, mask_thr_binary=0.5))"""
MASK_RCNN = f"""model = dict(type='MaskRCNN', {BACKBONE},
neck=dict(type='FPN', in_channels=[256, 512, 1024, 2048], out_channels=256, num_outs=5), {RPN},
roi_head=dict(type='StandardRoIHead', bbox_roi_extractor={EXTRACTOR.format(7)}, bbox_head={HEAD},
    mask_roi_extractor={EXTRACTOR.format(14)}, mask_head=dict(type='FCNMaskHead', num_convs=4, in_channels=256,
        conv_out_channels=256, num_classes=80, loss_mask=dict(type='CrossEntropyLoss', use_mask=True))),
{TRAIN}, {TEST})
"""
BASES = {"model.py": MASK_RCNN, "data.py": COCO, "schedule.py": SCHEDULE, "runtime.py": RUNTIME}
OWN = "_base_ = ['model.py', 'data.py', 'schedule.py', 'runtime.py']\n"


def detection(folder: Path, body: str = "", *overrides: str, gpus: int | None = None) -> Any:
    return convert("mmdetection", write_files(folder, {**BASES, "own.py": OWN + body}), gpus, overrides)


def test_a_mask_rcnn(tmp_path: Path) -> None:
    recipe = detection(tmp_path)
    config = resolve(recipe, tmp_path)
    task, detector = config["task"], config["task"]["detector"]
    assert (detector["name"], detector["neck"]["name"]) == ("mask_rcnn", "fpn")
    backbone = task["backbone"]
    assert (backbone["model"], backbone["stride_in_1x1"], backbone["last_stride"]) == ("resnet50", False, 2)
    assert (task["freeze_stages"], task["freeze_norms"]) == (2, "statistics")
    assert task["mean"] == [0.485, 0.456, 0.406] and task["std"] == [0.229, 0.224, 0.225]
    proposals = detector["proposals"]
    assert proposals["anchor_sizes"] == [32, 64, 128, 256, 512] and proposals["smooth_l1_beta"] == 0
    assert (proposals["pre_nms_topk_train"], proposals["post_nms_topk_train"]) == (2000, 1000)
    assert (detector["box"]["bbox_reg_weights"], detector["box"]["class_agnostic"]) == ([10, 10, 5, 5], False)
    assert (detector["mask"]["resolution"], detector["mask"]["channels"]) == (14, 256)
    train, val = config["data"]["train"], config["data"]["val"]
    assert train["source"]["root"] == "data/coco/train2017" and train["source"]["masks"]
    assert train["source"]["file"] == "data/coco/annotations/instances_train2017.json"
    assert (train["source"]["empty"], val["source"]["empty"], val["source"]["classes"]) == ("drop", "keep", ["cat"])
    assert train["transforms"][0]["short_edge_length"] == [640, 800] and train["transforms"][0]["sampling"] == "choice"
    assert (
        val["transforms"][0]["short_edge_length"] == 800 and config["data"]["sampler"]["name"] == "aspect_ratio_batches"
    )
    # The data come three times in an epoch there.
    assert (str(config["train"]["length"]), config["data"]["batch_size"]) == ("36ep", 16)
    assert [str(step) for step in config["schedule"]["milestones"]] == ["24ep", "33ep"]
    assert (str(config["schedule"]["warmup"]), config["schedule"]["warmup_factor"]) == ("500it", 0.001)
    assert config["optimizer"]["lr"] == 0.02 and str(config["evaluate"]["every"]) == "3ep"
    assert [key.path for key in recipe.dropped()] == ["model.train_cfg.rpn.assigner.min_pos_iou"]


def test_caffe_weights_expect_bgr(tmp_path: Path) -> None:
    body = """model = dict(
    data_preprocessor=dict(mean=[103.53, 116.28, 123.675], std=[1.0, 1.0, 1.0], bgr_to_rgb=False),
    backbone=dict(style='caffe', norm_cfg=dict(requires_grad=False),
                  init_cfg=dict(checkpoint='open-mmlab://detectron2/resnet50_caffe')))"""
    config = resolve(detection(tmp_path, body), tmp_path)
    assert config["task"]["mean"] == [0.485, 0.456, 0.406] and config["task"]["std"] == [pytest.approx(1 / 255)] * 3
    assert config["task"]["backbone"]["stride_in_1x1"] and config["task"]["freeze_norms"] is True
    assert (config["init"]["weights"], config["init"]["channel_order"]) == ("path/to/resnet50_caffe", "bgr")


def test_pixel_statistics_of_the_second_generation(tmp_path: Path) -> None:
    """A step of the pipeline of the innermost dataset."""
    steps = "dict(type='LoadImageFromFile'), dict(type='Normalize', mean=[127.5, 0, 0], std=[51.0] * 3, to_rgb={})"
    for rgb, mean in ((True, [0.5, 0, 0]), (False, [0, 0, 0.5])):
        body = f"""model = dict(data_preprocessor=None)
train_dataloader = dict(dataset=dict(dataset=dict(pipeline=[{steps.format(rgb)}])))"""
        task = resolve(detection(tmp_path, body), tmp_path)["task"]
        assert (task["mean"], task["std"]) == (mean, [0.2] * 3)


def cascade(mask: str = "", second: str = "") -> str:
    heads = ", ".join(
        HEAD.replace("0.1, 0.1, 0.2, 0.2", stds).replace("agnostic=False", "agnostic=True")
        for stds in ("0.1, 0.1, 0.2, 0.2", "0.05, 0.05, 0.1, 0.1")
    )
    rcnn = ", ".join(
        f"dict({ASSIGNER.format(iou, iou)}, sampler=dict(type='RandomSampler', num=512{more}))"
        for iou, more in ((0.5, ""), (0.6, second))
    )
    return f"""model = dict(type='CascadeRCNN', roi_head=dict(_delete_=True, type='CascadeRoIHead', num_stages=2,
    stage_loss_weights=[1, 0.5], bbox_roi_extractor={EXTRACTOR.format(7)}, bbox_head=[{heads}]{mask}),
    train_cfg=dict(rcnn=[{rcnn}]))"""


def test_a_cascade_has_weights_of_stages(tmp_path: Path) -> None:
    config = resolve(detection(tmp_path, cascade()), tmp_path)
    detector = config["task"]["detector"]
    assert (detector["mask"], detector["score_average"]) == (None, "logits")
    assert "masks" not in config["data"]["train"]["source"] or not config["data"]["train"]["source"]["masks"]
    assert (detector["stage_loss_weights"], detector["later_ious"]) == ([1, 0.5], [0.6])
    assert detector["later_bbox_reg_weights"] == [[20, 20, 10, 10]] and detector["box"]["class_agnostic"]
    mask = f""", mask_roi_extractor={EXTRACTOR.format(14)},
        mask_head=dict(type='FCNMaskHead', num_convs=4, in_channels=256, conv_out_channels=128, num_classes=80)"""
    config = resolve(detection(tmp_path, cascade(mask)), tmp_path)
    detector = config["task"]["detector"]
    assert (detector["mask"]["channels"], detector["num_mask_heads"]) == (128, 2)
    assert config["data"]["train"]["source"]["masks"]
    with pytest.raises(ConfigError, match=r"rcnn\.1\.sampler\.pos_fraction: 0.5: only IoUs and coding may differ"):
        detection(tmp_path, cascade(second=", pos_fraction=0.5"))


RETINANET = f"""model = dict(_delete_=True, type='RetinaNet', {BACKBONE},
neck=dict(type='FPN', in_channels=[256, 512, 1024, 2048],
    out_channels=256, start_level=1, add_extra_convs='on_input', num_outs=5),
bbox_head=dict(type='RetinaHead', num_classes=80, in_channels=256, stacked_convs=4, feat_channels=256,
    anchor_generator=dict(type='AnchorGenerator', octave_base_scale=4, scales_per_octave=3, ratios=[0.5, 1.0, 2.0],
                          strides=[8, 16, 32, 64, 128]),
    loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.3, loss_weight=1.0),
    loss_bbox=dict(type='SmoothL1Loss', beta=0.11, loss_weight=1.0)),
train_cfg=dict(assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0)),
test_cfg=dict(nms_pre=1000, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))
"""


def test_a_retinanet_and_gpus(tmp_path: Path) -> None:
    config = resolve(detection(tmp_path, RETINANET, gpus=4), tmp_path)
    detector = config["task"]["detector"]
    assert detector["neck"] == {"name": "fpn_p3_p7", "channels": 256, "norm": "none", "relu_before_p7": False}
    assert (detector["anchor_sizes"], detector["scales_per_octave"]) == ([32, 64, 128, 256, 512], 3)
    assert (detector["alpha"], detector["smooth_l1_beta"], config["data"]["batch_size"]) == (0.3, 0.11, 8)
    recipe = detection(tmp_path, RETINANET, "train_dataloader.batch_size=4")
    assert "the batch size is that of 4 GPUs; --gpus sets another number" in recipe.notes


def test_fcos_of_both_papers(tmp_path: Path) -> None:
    body = RETINANET.replace("RetinaNet", "FCOS").replace("'RetinaHead'", "'FCOSHead'").replace("on_input", "on_output")
    start, end = body.index("    anchor_generator"), body.index("    loss_cls")
    body = body[:start] + "    strides=[8, 16, 32, 64, 128], {}\n" + body[end:]
    body = body.replace("num_outs=5", "num_outs=5, relu_before_extra_convs=True")
    for more, loss, expected in (
        ("", "IoULoss", (None, "exponential", "class", "iou")),
        (
            "center_sampling=True, norm_on_bbox=True, centerness_on_reg=True,",
            "GIoULoss",
            (1.5, "strides", "box", "giou"),
        ),
    ):
        text = body.replace("{}", more).replace("type='SmoothL1Loss', beta=0.11", f"type='{loss}'")
        detector = resolve(detection(tmp_path, text), tmp_path)["task"]["detector"]
        keys = ("center_sampling_radius", "distances", "centerness_branch", "box_loss")
        assert tuple(detector[key] for key in keys) == expected
        assert (detector["level_factors"], detector["weight_boxes"], detector["norm"]) == (True, True, "group")


SHARED = """roi_head=dict(shared_head=dict(type='ResLayer', depth=50, stage=3, stride={}, dilation=1, style='pytorch',
        norm_cfg=dict(type='BN', requires_grad=True), norm_eval=True),
    bbox_roi_extractor=dict(roi_layer=dict(output_size=14), featmap_strides=[16]), mask_roi_extractor=None,
    bbox_head=dict(type='BBoxHead', with_avg_pool=True, in_channels=2048),
    mask_head=dict(num_convs=0, in_channels=2048)), train_cfg=dict(rcnn=dict(mask_size=14))"""
WITHOUT_NECK = """model = dict({type}neck=None, backbone=dict({layout}), rpn_head=dict(in_channels={width},
    feat_channels={width}, anchor_generator=dict(scales=[2, 4, 8, 16, 32], strides=[16])), {more})"""
STAGES = "num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2, )"
DILATED = "strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2), out_indices=(3, )"


def test_detectors_without_a_pyramid(tmp_path: Path) -> None:
    def task(**parts: Any) -> Any:
        text = WITHOUT_NECK.format(**{"type": "", "layout": STAGES, "width": 1024, "more": SHARED.format(2), **parts})
        return resolve(detection(tmp_path, text), tmp_path)["task"]

    c4 = task()["detector"]
    assert c4["neck"] == {"name": "no_neck"} and c4["proposals"]["anchor_sizes"] == [[32, 64, 128, 256, 512]]
    assert (c4["pooling"]["last_stage"], c4["pooling"]["num_levels"]) == (True, 1)
    assert (c4["box"]["num_fc"], c4["box"]["resolution"]) == (0, 14)
    assert (c4["mask"]["num_convs"], c4["mask"]["resolution"]) == (0, 14)
    dc5 = task(layout=DILATED, width=2048, more="roi_head=dict(bbox_roi_extractor=dict(featmap_strides=[16]))")
    assert (dc5["backbone"]["last_stride"], dc5["backbone"]["last_dilation"]) == (1, 2)
    assert (dc5["detector"]["box"]["num_fc"], dc5["detector"]["pooling"]["last_stage"]) == (2, False)
    rpn = task(type="type='RPN', ", more="roi_head=None, train_cfg=dict(rcnn=None), test_cfg=dict(rcnn=None)")
    assert (rpn["detector"]["last_stage"], rpn["evaluator"]["name"]) == (False, "proposal_recall")
    for parts, message in (
        ({"more": SHARED.format(1)}, "shared_head.stride: 1: expected 2"),
        ({"layout": "out_indices=(3, )"}, "ResNet-C4 and ResNet-DC5 are supported"),
        (
            {"more": SHARED.format(2).replace("mask_size=14", "mask_size=28")},
            "mask_size: 28: masks have 14 x 14 pixels",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            task(**parts)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("model = dict(type='YOLOX')", "'YOLOX' is not supported; supported: FasterRCNN"),
        ("model = dict(type='CascadeRCNN')", "bbox_head.0.type: null is not supported"),
        ("model = dict(backbone=dict(type='PyramidVisionTransformer'))", "supported: ResNet, ResNeXt, RegNet"),
        ("model = dict(backbone=dict(plugins=[dict(cfg=dict(type='ContextBlock'))]))", "plugins"),
        ("model = dict(train_cfg=dict(rcnn=dict(sampler=dict(type='OHEMSampler'))))", "'OHEMSampler' is not supported"),
        ("model = dict(test_cfg=dict(rcnn=dict(nms=dict(type='soft_nms'))))", "'soft_nms' is not supported"),
        ("model = dict(roi_head=dict(bbox_head=dict(loss_bbox=dict(type='Novel'))))", "'Novel' is not supported"),
        ("model = dict(neck=dict(type='PAFPN'))", "'PAFPN' is not supported"),
        ("optim_wrapper = dict(optimizer=dict(type='Novel'))", "'Novel' is not supported; supported: SGD"),
        ("param_scheduler = [dict(type='Novel')]", "'Novel' is not supported"),
        ("train_dataloader = dict(batch_size='x')", "train_dataloader.batch_size: expected a number"),
        ("train_cfg = 3\nparam_scheduler = [3]", "train_cfg"),
        ("param_scheduler = [3]", "unexpected type"),
    ],
)
def test_others_are_rejected(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detection(tmp_path, body)


# --- MMPretrain -------------------------------------------------------------------------------------------------------

CLASSIFIER = """model = dict(type='ImageClassifier',
    backbone=dict(type='SwinTransformer', arch='base', img_size=384, drop_path_rate=0.5,
                  stage_cfgs=dict(block_cfgs=dict(window_size=12))),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=1024,
              loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='classy_vision'), cal_acc=False),
    init_cfg=[dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.)],
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
data_preprocessor = dict(num_classes=1000, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
bgr_mean = data_preprocessor['mean'][::-1]
train_pipeline = [dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=384, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='RandAugment', policies='timm_increasing', num_policies=2, total_level=10, magnitude_level=9,
         magnitude_std=0.5, hparams=dict(pad_val=[round(x) for x in bgr_mean], interpolation='bicubic')),
    dict(type='RandomErasing', erase_prob=0.25, mode='rand', min_area_ratio=0.02, max_area_ratio=1 / 3),
    dict(type='PackInputs')]
test_pipeline = [dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=438, edge='short', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384), dict(type='PackInputs')]
train_dataloader = dict(batch_size=64, num_workers=5, sampler=dict(type='RepeatAugSampler', shuffle=True),
    dataset=dict(type='ImageNet', data_root='data/imagenet', split='train', pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(type='ImageNet', data_root='data/imagenet', pipeline=test_pipeline))
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=5e-4 * 1024 / 512, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={
        '.relative_position_bias_table': dict(decay_mult=0.5), '.cls_token': dict(lr_mult=2), '.odd': dict(lr_mult=2)}),
    clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=280, eta_min=1e-5, by_epoch=True, begin=20, end=300)]
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
auto_scale_lr = dict(base_batch_size=1024)
custom_hooks = [dict(type='EMAHook', momentum=1e-4)]
"""


def test_a_swin_transformer(tmp_path: Path) -> None:
    recipe = convert("mmpretrain", write_files(tmp_path, {"own.py": CLASSIFIER}))
    config = resolve(recipe, tmp_path)
    backbone = config["task"]["backbone"]
    assert backbone["model"] == "swin_base_patch4_window7_224"
    assert (backbone["drop_path"], backbone["options"]) == (0.5, {"img_size": 384, "window_size": 12})
    # Targets of classy_vision are divided by their sum, 1.1.
    assert config["task"]["loss"]["label_smoothing"] == pytest.approx(0.1 / 1.1)
    [mix] = config["data"]["mix"]
    assert [entry["name"] for entry in mix["mixes"]] == ["mixup", "cutmix"] and mix["weights"] == [0.5, 0.5]
    names = [step["name"] for step in config["data"]["train"]["transforms"]]
    assert names == ["RandomResizedCrop", "RandomHorizontalFlip", "timm_policy", "RandomErasing"]
    assert config["data"]["train"]["transforms"][2]["policy"] == "rand-m9-n2-mstd0.5-inc1"
    [crop] = config["data"]["val"]["transforms"]
    assert (crop["size"], crop["crop"]) == (384, pytest.approx(384 / 438, abs=1e-5))
    assert config["data"]["sampler"]["name"] == "repeated" and config["data"]["batch_size"] == 1024
    schedule = config["schedule"]
    assert (schedule["name"], schedule["end"], str(schedule["warmup"])) == ("cosine", 0.01, "20ep")
    assert schedule["warmup_rule"] == "after" and config["ema"]["decay"] == 0.9999
    assert [rule["weight_decay"] for rule in config["param_groups"]["rules"]] == [0, 0.025]
    reasons = unconverted(recipe)
    assert reasons["optim_wrapper.paramwise_cfg.custom_keys"] == "see param_groups.rules: pattern"


def test_unknown_networks_are_a_variable(tmp_path: Path) -> None:
    overrides = ("model.backbone.type=LeViT", "model.backbone.arch=256")
    recipe = convert("mmpretrain", write_files(tmp_path, {"own.py": CLASSIFIER}), None, overrides)
    assert recipe.config["vars"]["model"] == "LeViT"
    assert any("no equivalent of LeViT is known" in note for note in recipe.notes)
    for override, message in {
        "model.type=DenseCL": "supported: ImageClassifier",
        "model.head.type=ArcFaceClsHead": "'ArcFaceClsHead' is not supported",
        "model.head.loss.type=SeesawLoss": "'SeesawLoss' is not supported",
    }.items():
        with pytest.raises(ConfigError, match=message):
            convert("mmpretrain", write_files(tmp_path, {"own.py": CLASSIFIER}), None, [override])
