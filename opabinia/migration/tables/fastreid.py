"""Tables for FastReID: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, Any] = {
    "MODEL.META_ARCHITECTURE": "Baseline",
    "MODEL.FREEZE_LAYERS": [],
    "MODEL.QUEUE_SIZE": 8192,
    "MODEL.WEIGHTS": "",
    "MODEL.PIXEL_MEAN": [123.675, 116.28, 103.53],
    "MODEL.PIXEL_STD": [58.395, 57.12, 57.375],
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.BACKBONE.DEPTH": "50x",
    "MODEL.BACKBONE.LAST_STRIDE": 1,
    "MODEL.BACKBONE.NORM": "BN",
    "MODEL.BACKBONE.WITH_IBN": False,
    "MODEL.BACKBONE.WITH_SE": False,
    "MODEL.BACKBONE.WITH_NL": False,
    "MODEL.BACKBONE.DROPOUT": 0.0,
    "MODEL.BACKBONE.STRIDE_SIZE": [16, 16],
    "MODEL.BACKBONE.DROP_PATH_RATIO": 0.1,
    "MODEL.BACKBONE.DROP_RATIO": 0.0,
    "MODEL.BACKBONE.ATT_DROP_RATE": 0.0,
    "MODEL.BACKBONE.PRETRAIN": False,
    "MODEL.BACKBONE.PRETRAIN_PATH": "",
    "MODEL.HEADS.NAME": "EmbeddingHead",
    "MODEL.HEADS.NORM": "BN",
    "MODEL.HEADS.EMBEDDING_DIM": 0,
    "MODEL.HEADS.WITH_BNNECK": False,
    "MODEL.HEADS.NECK_FEAT": "before",
    "MODEL.HEADS.POOL_LAYER": "GlobalAvgPool",
    "MODEL.HEADS.CLS_LAYER": "Linear",
    "MODEL.HEADS.MARGIN": 0.0,
    "MODEL.HEADS.SCALE": 1,
    "MODEL.HEADS.PFC.ENABLED": False,
    "MODEL.HEADS.PFC.SAMPLE_RATE": 0.1,
    "MODEL.LOSSES.NAME": ["CrossEntropyLoss"],
    "MODEL.LOSSES.CE.EPSILON": 0.0,
    "MODEL.LOSSES.CE.ALPHA": 0.2,
    "MODEL.LOSSES.CE.SCALE": 1.0,
    "MODEL.LOSSES.TRI.MARGIN": 0.3,
    "MODEL.LOSSES.TRI.NORM_FEAT": False,
    "MODEL.LOSSES.TRI.HARD_MINING": False,
    "MODEL.LOSSES.TRI.SCALE": 1.0,
    "MODEL.LOSSES.CIRCLE.MARGIN": 0.25,
    "MODEL.LOSSES.CIRCLE.GAMMA": 128,
    "MODEL.LOSSES.CIRCLE.SCALE": 1.0,
    "MODEL.LOSSES.COSFACE.MARGIN": 0.25,
    "MODEL.LOSSES.COSFACE.GAMMA": 128,
    "MODEL.LOSSES.COSFACE.SCALE": 1.0,
    "MODEL.LOSSES.BCE.WEIGHT_ENABLED": True,
    "MODEL.LOSSES.BCE.SCALE": 1.0,
    "KD.MODEL_CONFIG": [],
    "KD.MODEL_WEIGHTS": [],
    "KD.EMA.ENABLED": False,
    "KD.EMA.MOMENTUM": 0.999,
    "INPUT.SIZE_TRAIN": [256, 128],
    "INPUT.SIZE_TEST": [256, 128],
    "INPUT.CROP.ENABLED": False,
    "INPUT.CROP.SIZE": [224, 224],
    "INPUT.CROP.SCALE": [0.16, 1],
    "INPUT.CROP.RATIO": [0.75, 1.3333333333333333],
    "INPUT.FLIP.ENABLED": False,
    "INPUT.FLIP.PROB": 0.5,
    "INPUT.PADDING.ENABLED": False,
    "INPUT.PADDING.MODE": "constant",
    "INPUT.PADDING.SIZE": 10,
    "INPUT.CJ.ENABLED": False,
    "INPUT.CJ.PROB": 0.5,
    "INPUT.CJ.BRIGHTNESS": 0.15,
    "INPUT.CJ.CONTRAST": 0.15,
    "INPUT.CJ.SATURATION": 0.1,
    "INPUT.CJ.HUE": 0.1,
    "INPUT.AFFINE.ENABLED": False,
    "INPUT.AUTOAUG.ENABLED": False,
    "INPUT.AUTOAUG.PROB": 0.0,
    "INPUT.AUGMIX.ENABLED": False,
    "INPUT.AUGMIX.PROB": 0.0,
    "INPUT.REA.ENABLED": False,
    "INPUT.REA.PROB": 0.5,
    "INPUT.REA.VALUE": [123.675, 116.28, 103.53],
    "INPUT.RPT.ENABLED": False,
    "INPUT.RPT.PROB": 0.5,
    "DATASETS.NAMES": ["Market1501"],
    "DATASETS.TESTS": ["Market1501"],
    "DATASETS.REC_PATH": "",
    "DATASETS.COMBINEALL": False,
    "DATALOADER.SAMPLER_TRAIN": "TrainingSampler",
    "DATALOADER.NUM_INSTANCE": 4,
    "DATALOADER.NUM_WORKERS": 8,
    "DATALOADER.SET_WEIGHT": [],
    "SOLVER.AMP.ENABLED": False,
    "SOLVER.OPT": "Adam",
    "SOLVER.MAX_EPOCH": 120,
    "SOLVER.BASE_LR": 3e-4,
    "SOLVER.HEADS_LR_FACTOR": 1.0,
    "SOLVER.BIAS_LR_FACTOR": 1.0,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.NESTEROV": False,
    "SOLVER.WEIGHT_DECAY": 5e-4,
    "SOLVER.WEIGHT_DECAY_NORM": 5e-4,
    "SOLVER.WEIGHT_DECAY_BIAS": 5e-4,
    "SOLVER.SCHED": "MultiStepLR",
    "SOLVER.STEPS": [30, 55],
    "SOLVER.GAMMA": 0.1,
    "SOLVER.ETA_MIN_LR": 1e-7,
    "SOLVER.DELAY_EPOCHS": 0,
    "SOLVER.WARMUP_FACTOR": 0.1,
    "SOLVER.WARMUP_ITERS": 1000,
    "SOLVER.WARMUP_METHOD": "linear",
    "SOLVER.FREEZE_ITERS": 0,
    "SOLVER.CHECKPOINT_PERIOD": 20,
    "SOLVER.IMS_PER_BATCH": 64,
    "SOLVER.CLIP_GRADIENTS.ENABLED": False,
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": "norm",
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": 5.0,
    "SOLVER.CLIP_GRADIENTS.NORM_TYPE": 2.0,
    "TEST.EVAL_PERIOD": 20,
    "TEST.IMS_PER_BATCH": 64,
    "TEST.METRIC": "cosine",
    "TEST.ROC.ENABLED": False,
    "TEST.FLIP.ENABLED": False,
    "TEST.AQE.ENABLED": False,
    "TEST.AQE.ALPHA": 3.0,
    "TEST.AQE.QE_TIME": 1,
    "TEST.AQE.QE_K": 5,
    "TEST.RERANK.ENABLED": False,
    "TEST.RERANK.K1": 20,
    "TEST.RERANK.K2": 6,
    "TEST.RERANK.LAMBDA": 0.3,
    "TEST.PRECISE_BN.ENABLED": False,
    "TEST.PRECISE_BN.NUM_ITER": 300,
    "TEST.THRES": 0.5,
    "TEST.RECALLS": [1, 2, 4, 8, 16, 32],
    "CUDNN_BENCHMARK": False,
}
"""FastReID's defaults of the keys that are converted."""

REASONS = {
    "VERSION": "version of FastReID's config format",
    "MODEL.DEVICE": "train.device; auto uses a GPU if there is one",
    "MODEL.BACKBONE.FEAT_DIM": "follows from the backbone",
    "MODEL.BACKBONE.SIE_COE": "FastReID never uses it; see task.camera_embedding_scale",
    "MODEL.BACKBONE.WITH_IBN": "FastReID's backbone of this name does not use it",
    "MODEL.BACKBONE.WITH_SE": "FastReID's backbone of this name does not use it",
    "MODEL.BACKBONE.WITH_NL": "FastReID's backbone of this name does not use it",
    "MODEL.HEADS.NUM_CLASSES": "follows from the data",
    "MODEL.HEADS.MARGIN": "a linear head has none",
    "MODEL.LOSSES.FL": "FastReID never uses it; see task.loss: {name: focal}",
    "TEST.PRECISE_BN.DATASET": "always the training set",
    "OUTPUT_DIR": "--out",
    # Keys of FastReID's projects.
    "DATASETS.REC_PATH": "read by FastFace only",
    "TEST.SAVE_DISTMAT": "opabinia predict --gallery writes the nearest images",
    "SOLVER.FREEZE_FC_ITERS": "FastReID never uses it",
}

_RESNEXTS = {"50x": "resnext50_32x4d", "101x": "resnext101_32x4d"}
_RESNESTS = {"50x": "resnest50d", "101x": "resnest101e", "200x": "resnest200e", "269x": "resnest269e"}
_DEPTHS = {f"{depth}x": f"resnet{depth}.tv_in1k" for depth in (18, 34, 50, 101)}

RESNETS: dict[str, dict[str, str]] = {
    "build_resnet_backbone": _DEPTHS,
    "build_resnet_backbone_distill": _DEPTHS,
    "build_resnext_backbone": _RESNEXTS,
    "build_resnest_backbone": _RESNESTS,
}
"""timm's names of the models of the backbone ``resnet``, by builder function and depth."""

RESNET_KEYS: dict[str, tuple[str, ...]] = {
    "build_resnet_backbone": ("last_stride", "ibn", "se", "non_local", "norm"),
    "build_resnet_backbone_distill": ("last_stride", "ibn", "se", "non_local", "norm"),
    "build_resnext_backbone": ("last_stride", "ibn", "non_local", "norm"),
    "build_resnest_backbone": ("last_stride", "norm"),
}
"""The options of the backbone ``resnet`` that each builder function reads."""

TIMM_MODELS: dict[str, dict[str, str]] = {
    "build_regnet_backbone": {
        f"{size}{kind}": f"regnet{kind}_{size // 100:03}"
        for kind in "xy"
        for size in (200, 400, 800, 1600, 3200, 4000, 6400)
    },
    "build_effnet_backbone": {f"b{number}": f"efficientnet_b{number}" for number in range(6)},
    "build_repvgg_backbone": {
        name: f"repvgg_{name.lower()}" for name in ("A0", "A1", "A2", "B0", "B1", "B1g4", "B2", "B2g4", "B3", "B3g4")
    },
    "build_mobilenetv2_backbone": {
        f"{width}x": f"mobilenetv2_{round(float(width) * 100):03}" for width in ("1.0", "0.75", "0.5", "0.35")
    },
    "build_mobilenetv3_backbone": {"Large": "mobilenetv3_large_100", "Small": "mobilenetv3_small_100"},
}
"""timm's names by builder function and depth."""

STRIDED = ("build_regnet_backbone", "build_repvgg_backbone", "build_effnet_backbone")
"""Builder functions that read LAST_STRIDE; timm's models of these names have a last stage of stride 2."""

_IRESNETS = {f"{depth}x": f"iresnet{depth}" for depth in (18, 34, 50, 100, 200)}

OWN_MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "build_osnet_backbone": ("osnet", {f"x{width}": f"osnet_x{width}" for width in ("1_0", "0_75", "0_5", "0_25")}),
    "build_shufflenetv2_backbone": (
        "shufflenet",
        {f"{width}x": f"shufflenet_v2_x{width.replace('.', '_')}" for width in ("0.5", "1.0", "1.5", "2.0")},
    ),
    "build_iresnet_backbone": ("iresnet", _IRESNETS),
    "build_resnetIR_backbone": ("iresnet", _IRESNETS),
}
"""Our backbones and their models, by builder function and depth."""

TASKS: dict[str, dict[str, str]] = {
    "EmbeddingHead": {"Baseline": "reid", "MGN": "mgn", "MoCo": "reid", "Distiller": "reid", "FaceBaseline": "reid"},
    "ClasHead": {"Baseline": "classification"},
    "AttrHead": {"AttrBaseline": "attributes"},
    "FaceHead": {"FaceBaseline": "reid"},
}
"""Our tasks by head and architecture."""

REFUSED = {
    "DSRHead": "images are compared by one vector each, not by reconstructing one feature map from another",
    "PartialBaseline": "images are compared by one vector each, not by reconstructing one feature map from another",
    "DistillerOverhaul": "feature maps between the stages are not distilled; see distill.features_weight",
}
"""Names of FastReID and its projects that are refused, with the reason."""

NORMS = {"BN": "batch", "syncBN": "batch", "FrozenBN": "frozen", "GN": "group"}

POOLINGS = {
    "Identity": None,
    "Flatten": None,
    "GlobalAvgPool": "average",
    "FastGlobalAvgPool": "average",
    "GlobalMaxPool": "max",
    "GeneralizedMeanPooling": "gem",
    "GeneralizedMeanPoolingP": "gem_learned",
    "AdaptiveAvgMaxPool": "average_max",
    "ClipGlobalAvgPool": "clipped_average",
}

HEADS = {"Linear": "linear", "CosSoftmax": "cosface", "ArcSoftmax": "arcface", "CircleSoftmax": "circle"}

METRIC_LOSSES = {"TripletLoss": "TRI", "CircleLoss": "CIRCLE", "Cosface": "COSFACE"}

METRICS = {"cosine": "cosine", "euclidean": "squared_euclidean", "jaccard": "cosine"}

WARMUPS = {"linear": "linear", "constant": "constant", "exp": "exponential"}

SOURCES: dict[str, dict[str, Any]] = {
    "Market1501": {"name": "market1501"},
    "DukeMTMC": {"name": "dukemtmc"},
    "MSMT17": {"name": "msmt17"},
    "CUHK03": {"name": "cuhk03"},
    "VeRi": {"name": "veri"},
    "VehicleID": {"name": "vehicleid"},
    "SmallVehicleID": {"name": "vehicleid", "test_size": 800},
    "MediumVehicleID": {"name": "vehicleid", "test_size": 1600},
    "LargeVehicleID": {"name": "vehicleid", "test_size": 2400},
    "VeRiWild": {"name": "veri_wild", "test_size": 10000},
    "SmallVeRiWild": {"name": "veri_wild", "test_size": 3000},
    "MediumVeRiWild": {"name": "veri_wild", "test_size": 5000},
    "LargeVeRiWild": {"name": "veri_wild", "test_size": 10000},
    "InShop": {"name": "in_shop"},
    "SOP": {"name": "online_products"},
    "CUB": {"name": "class_folders"},
    "Cars196": {"name": "class_folders"},
}

ATTRIBUTE_SOURCES = {
    "PA100K": "pa100k",
    "Market1501Attr": "market1501_attributes",
    "DukeMTMCAttr": "dukemtmc_attributes",
}

OPEN_SOURCES = ("online_products", "class_folders")
"""Sources whose test images are queries and gallery at once."""
