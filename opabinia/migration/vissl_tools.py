"""Conversion of VISSL's configs that train nothing: extraction of features and benchmarks of them.

They become recipes for ``opabinia eval``, ``extract`` and ``predict`` with the weights of the config.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.recipe import Recipe, lookup
from opabinia.migration.tables.vissl import REFUSED_TOOLS, STAGES

LAYERS = "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP"


def method(recipe: Recipe) -> Callable[[Recipe], None] | None:
    """Return the conversion function if the config belongs to a tool; None if it trains.

    Raises:
        ConfigError: the tool has no equivalent.
    """
    foreign = recipe.foreign
    engine = foreign("engine_name")
    for name in ("GEO_LOCALIZATION", engine):
        if name in REFUSED_TOOLS and (name == engine or name in foreign):
            key = "engine_name" if name == engine else name
            raise foreign.problem(key, f"{show(name)} is not supported: {REFUSED_TOOLS[name]}")
    if "LOSS.name" in foreign:
        return None
    if any("SEGMENTATION" in str(name) for name in foreign("DATA.TRAIN.DATASET_NAMES")):
        raise foreign.problem(
            "DATA.TRAIN.DATASET_NAMES", "nearest neighbors of the patches of an image are not supported"
        )
    return next((convert for key, convert in TOOLS.items() if key in foreign), ENGINES.get(str(engine)))


def _frozen_features(recipe: Recipe, commands: str) -> None:
    """Set a task that evaluates the features of a frozen backbone."""
    recipe.put("task.name", "classification")
    recipe.put("hooks.freeze", {"name": "freeze", "pattern": "^backbone"})
    recipe.note(f"VISSL trains nothing with this config, and neither need you: {commands}")
    if recipe.foreign("MODEL.FEATURE_EVAL_SETTINGS.EVAL_TRUNK_AND_HEAD"):
        recipe.skip("MODEL.HEAD.PARAMS", "features are those of the backbone, not of a head")


def _evaluator(recipe: Recipe, name: str, *source_keys: str, **options: Any) -> None:
    evaluator = {"evaluator": {"name": name, **options}, "every": "0ep"}
    recipe.put(f"evaluate.evaluators.{name}", evaluator, *source_keys)


def _layer(recipe: Recipe) -> dict[str, str]:
    """Return the last layer of a list of layers as an option; the others are reported."""
    names = [str(entry[0]) for entry in recipe.foreign(LAYERS) if isinstance(entry, list) and entry]
    known = [name for name in names if name in STAGES]
    for name in names:
        if name != known[-1:][0] if known else True:
            recipe.skip_part(LAYERS, name, "one layer is evaluated; see the evaluator's layer")
    return {"layer": STAGES[known[-1]]} if known else {}


def nearest_neighbors(recipe: Recipe) -> None:
    """Convert k-nearest neighbors."""
    foreign, section = recipe.foreign, "NEAREST_NEIGHBOR"
    _frozen_features(recipe, "opabinia eval FILE.yaml --weights WEIGHTS")
    keys = {"k": "TOPK", "temperature": "SIGMA", "normalize": "L2_NORM_FEATS"}
    options = {option: foreign(f"{section}.{key}") for option, key in keys.items()}
    _evaluator(recipe, "knn", *(f"{section}.{key}" for key in keys.values()), **options)


def svm(recipe: Recipe) -> None:
    """Convert support vector machines."""
    foreign = recipe.foreign
    _frozen_features(recipe, "opabinia eval FILE.yaml --weights WEIGHTS")
    base, powers = foreign("SVM.costs.base"), foreign("SVM.costs.power_range")
    costs = foreign("SVM.costs.costs_list")
    if base > 0 and len(powers) == 2:
        costs = [*costs, *(base**power for power in range(powers[0], powers[1]))]
    layer = _layer(recipe)
    _evaluator(recipe, "linear_svm", "SVM.costs.costs_list", costs=costs, folds=foreign("SVM.cross_val_folds"), **layer)
    if "SVM.low_shot" in foreign:
        recipe.skip("SVM.low_shot.k_values", "machines are trained on all samples; see the evaluator low_shot")


def low_shot(recipe: Recipe) -> None:
    """Convert logistic regression on a few images of each class."""
    path = "LOW_SHOT_BENCHMARK.LOGISTIC_REGRESSION.LAMBDA"
    _frozen_features(recipe, "opabinia eval FILE.yaml --weights WEIGHTS")
    values = recipe.foreign.untyped(path)
    first, *others = values if isinstance(values, list) and values else [values]
    for other in others:
        recipe.skip_part(path, other, "one regularization is evaluated; add an evaluator for each")
    _evaluator(recipe, "low_shot", path, regularization=first)
    recipe.note("evaluate.evaluators.low_shot draws its images itself: shots per class, in several repeats")


def instance_retrieval(recipe: Recipe) -> None:
    """Convert instance retrieval with whitened features."""
    foreign, section = recipe.foreign, "IMG_RETRIEVAL"
    recipe.put("task.name", "reid")
    recipe.put("task.neck", None)
    recipe.note(
        "VISSL trains nothing with this config, and neither need you: opabinia eval FILE.yaml --weights WEIGHTS"
    )
    kind = foreign(f"{section}.FEATS_PROCESSING_TYPE")
    if kind == "rmac":
        recipe.put(
            "task.pooling",
            {"name": "rmac", "levels": foreign(f"{section}.SPATIAL_LEVELS")},
            f"{section}.SPATIAL_LEVELS",
        )
    elif kind == "gem":
        recipe.put(
            "task.pooling", {"name": "gem", "p": foreign(f"{section}.GEM_POOL_POWER")}, f"{section}.GEM_POOL_POWER"
        )
    else:
        recipe.convert(f"{section}.FEATS_PROCESSING_TYPE", "task.pooling", lookup({"": "average"}))
    recipe.put("task.evaluator.name", "instance_retrieval")
    recipe.convert(f"{section}.N_PCA", "task.evaluator.components")
    size = foreign(f"{section}.RESIZE_IMG")
    for split, name in (("train", "TRAIN_DATASET_NAME"), ("val", "EVAL_DATASET_NAME")):
        dataset = foreign(f"{section}.{name}")
        source = {"name": "identities", "file": recipe.variable(split, f"path/to/{dataset}.csv", f"{section}.{name}")}
        source |= {"split": "test"} if split == "val" else {}
        transforms = [{"name": "Resize", "size": None, "max_size": size}]
        recipe.put(f"data.{split}", {"source": source, "transforms": transforms}, f"{section}.RESIZE_IMG")
    recipe.put("data.batch_size", 1)
    recipe.note("Oxford, Paris and Copydays become lists of images: set vars (opabinia config list source identities)")


def extract(recipe: Recipe) -> None:
    """Convert the extraction of features."""
    _frozen_features(recipe, "opabinia extract FILE.yaml --weights WEIGHTS --split train,val")


def predict(recipe: Recipe) -> None:
    """Convert the extraction of predictions."""
    _frozen_features(recipe, "opabinia predict FILE.yaml --weights WEIGHTS IMAGES")


def clusters(recipe: Recipe) -> None:
    """Convert the extraction of features for ClusterFit."""
    _frozen_features(
        recipe, "opabinia extract FILE.yaml --weights WEIGHTS --split train; cluster the features yourself"
    )
    _evaluator(recipe, "clustering", "CLUSTERFIT.NUM_CLUSTERS", k=recipe.foreign("CLUSTERFIT.NUM_CLUSTERS"))
    layer = recipe.foreign("CLUSTERFIT.FEATURES.LAYER_NAME")
    if layer in STAGES:
        recipe.note(f"CLUSTERFIT.FEATURES.LAYER_NAME: opabinia extract --layers {STAGES[layer]}")


TOOLS: dict[str, Callable[[Recipe], None]] = {
    "NEAREST_NEIGHBOR": nearest_neighbors,
    "LOW_SHOT_BENCHMARK": low_shot,
    "SVM": svm,
    "IMG_RETRIEVAL": instance_retrieval,
    "CLUSTERFIT": clusters,
}
"""Conversion functions by the section that only the configs of a tool have."""

ENGINES: dict[str, Callable[[Recipe], None]] = {"extract_features": extract, "extract_label_predictions": predict}
"""Conversion functions by ``engine_name``."""
