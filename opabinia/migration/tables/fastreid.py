"""Tables for FastReID: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from typing import Any

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS = read_tables("fastreid", "DEFAULTS", "REASONS")


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
