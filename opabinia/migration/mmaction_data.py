"""Conversion of MMAction2's datasets and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opabinia.config.errors import show
from opabinia.migration.recipe import Recipe
from opabinia.migration.tables.mmaction import CLASSES, NO_EFFECT

Options = dict[str, Any]

DATASETS = ("VideoDataset", "RawframeDataset", "RepeatAugDataset")
POSITIONS = {5: "corners", 13: "grid"}
"""Names of the positions of ``multi_scale_crop`` by their number."""


def convert_data(recipe: Recipe) -> int:
    """Convert the datasets of training, validation and, as views of the same videos, of the test.

    Returns:
        the number of times that a video occurs in a row (``RepeatAugDataset``).
    """
    foreign = recipe.foreign
    key = "train_dataloader.dataset"
    recipe.put("data.train.source", _source(recipe, "train"), f"{key}.ann_file")
    recipe.put("data.train.transforms", _train_transforms(recipe, f"{key}.pipeline"), f"{key}.pipeline")
    split = "val" if "val_dataloader.dataset" in foreign else "test"
    key = f"{split}_dataloader.dataset"
    look, _, _ = _views(recipe, f"{key}.pipeline")
    sets: list[Options] = [{"source": _source(recipe, split), "transforms": look}]
    if "test_dataloader.dataset.pipeline" in foreign and split == "val":
        look, clips, crops = _views(recipe, "test_dataloader.dataset.pipeline")
        if clips * crops > 1:
            views = {"name": "video_views", "source": sets[0]["source"], "clips": clips, "crops": crops}
            sets.append({"prefix": "views", "every": "0ep", "source": views, "transforms": look})
    recipe.put("data.val", sets, f"{key}.pipeline", "test_dataloader.dataset.pipeline")
    if foreign("train_dataloader.dataset.type") != "RepeatAugDataset":
        return 1
    repeats = int(foreign("train_dataloader.dataset.num_repeats", CLASSES["RepeatAugDataset"]["num_repeats"]))
    sampler = {"name": "repeated", "num_repeats": repeats, "extend_epoch": True}
    recipe.put("data.sampler", sampler, "train_dataloader.dataset.num_repeats")
    return repeats


def _source(recipe: Recipe, split: str) -> Options:
    foreign, section = recipe.foreign, f"{split}_dataloader.dataset"
    kind = foreign(f"{section}.type")
    if kind not in DATASETS:
        raise foreign.problem(f"{section}.type", f"{show(kind)} is not supported", f"supported: {', '.join(DATASETS)}")
    options = {key: foreign.untyped(f"{section}.{key}", value) for key, value in CLASSES[kind].items()}
    expected = {"modality": "RGB", "with_offset": False, "sample_once": options.get("sample_once")}
    if kind == "RawframeDataset":
        expected["multi_class"] = False
    for key, value in expected.items():
        if options.get(key, value) != value:
            recipe.refuse(f"{section}.{key}", f"{show(options[key])} is not supported", f"supported: {show(value)}")
    root_key = next((path for path in foreign.keys(section) if path.startswith(f"{section}.data_prefix")), "")
    files = {"file": recipe.variable(f"{split}_list", foreign(f"{section}.ann_file"), f"{section}.ann_file")}
    if root_key and foreign(root_key):
        files["root"] = recipe.variable(f"{split}_root", foreign(root_key), root_key)
    if kind == "RawframeDataset":
        source = {"name": "frame_folders", **files, "pattern": options["filename_tmpl"]}
        source |= {"start_index": options["start_index"]} if options["start_index"] != 1 else {}
    else:
        delimiter = options.get("delimiter", " ")
        source = {"name": "video_list", **files, **({"separator": delimiter} if delimiter != " " else {})}
        source |= {"multi_label": True} if options["multi_class"] else {}
    swapped = [step.get("flip_label_map") for step in _steps(recipe, f"{section}.pipeline")]
    if labels := sorted({int(label) for mapping in swapped if mapping for label in mapping}):
        source["flip_sensitive_classes"] = [str(label) for label in labels]
        recipe.note("videos of classes whose mirror image is of another class are not mirrored; there their label is")
    return source


def _steps(recipe: Recipe, key: str) -> Iterator[Options]:
    """Yield the steps of a pipeline that have an effect, with the defaults of their class.

    Raises:
        ConfigError: an option is one that the class does not have.
    """
    for step in recipe.foreign(key) or []:
        kind = step["type"]
        if kind in NO_EFFECT:
            continue
        defaults = CLASSES.get(kind, {})
        yield {**defaults, **step}


def _train_transforms(recipe: Recipe, key: str) -> list[Options]:
    """Convert the pipeline of training. Before a crop that is relative to the frame, the decoder resizes."""
    transforms: list[Options] = []
    scale: list[Any] | None = None
    for step in _steps(recipe, key):
        match step["type"]:
            case "SampleFrames" | "DenseSampleFrames" | "UniformSample":
                transforms.append(_clip(recipe, key, step, training=True))
            case "Resize" if step["keep_ratio"] is not False and not scale and len(transforms) == 1:
                scale = [max(step["scale"])] * 2
            case "RandomRescale":
                scale = step["scale_range"]
            case "Resize" if "size" in transforms[-1] and transforms[-1]["size"] is None:
                width, height = step["scale"]
                transforms[-1]["size"] = width if width == height else [height, width]
            case "RandomCrop":
                transforms.append({"name": "scale_jitter", "size": step["size"], "scale": scale or [step["size"]] * 2})
            case "RandomResizedCrop" | "MultiScaleCrop":
                transforms.append(_crop(recipe, key, step))
                if scale:
                    transforms[0]["short_side"] = scale[1]
            case "Flip" if step["direction"] == "horizontal":
                probability = {} if step["flip_ratio"] == 0.5 else {"probability": step["flip_ratio"]}
                transforms.append({"name": "clip_flip", **probability})
            case "ColorJitter":
                names = ("brightness", "contrast", "saturation", "hue")
                transforms.append({"name": "ColorJitter", **{name: step[name] for name in names}})
            case "PytorchVideoWrapper" if step.get("op") == "RandAugment":
                magnitude = min(30, 3 * step.get("magnitude", 9))
                augment = {"name": "RandAugment", "num_ops": step.get("num_layers", 2), "magnitude": magnitude}
                transforms.append(augment)
                recipe.note("RandAugment: torchvision's, with every operation applied; there each with probability 0.5")
            case "RandomErasing":
                transforms.append(_erasing(recipe, step))
            case kind:
                recipe.refuse(key, f"{kind} is not supported here: {show(step)}")
    if unsized := [step["name"] for step in transforms if "size" in step and step["size"] is None]:
        recipe.refuse(key, f"a Resize to the size of the network is missing after {show(unsized)}")
    return transforms


def _crop(recipe: Recipe, key: str, step: Options) -> Options:
    """Return the crop, whose size follows from the Resize after it."""
    if step["type"] == "RandomResizedCrop":
        area, ratio = step["area_range"], [float(f"{end:.6g}") for end in step["aspect_ratio_range"]]
        return {"name": "RandomResizedCrop", "size": None, "scale": area, "ratio": ratio}
    positions = "random" if step["random_crop"] else POSITIONS[step["num_fixed_crops"]]
    sizes = {"scales": step["scales"], "max_distort": step["max_wh_scale_gap"]}
    return {"name": "multi_scale_crop", "size": None, **sizes, "positions": positions}


def _erasing(recipe: Recipe, step: Options) -> Options:
    if step["mode"] != "const":
        recipe.note("erased rectangles are gray instead of noise")
    fill = step["fill_color"]
    area = [step["min_area_ratio"], float(f"{step['max_area_ratio']:.6g}")]
    ratio = [float(f"{end:.6g}") for end in step["aspect_range"]]
    value = fill[0] if isinstance(fill, list) else fill
    return {"name": "RandomErasing", "p": step["erase_prob"], "scale": area, "ratio": ratio, "value": value}


def _clip(recipe: Recipe, key: str, step: Options, *, training: bool) -> Options:
    """Return the transform that samples the frames of a clip."""
    if step["type"] == "UniformSample":
        return {"name": "clip", "frames": step["clip_len"], "sampling": "uniform"}
    if step["temporal_jitter"]:
        recipe.refuse(key, "temporal_jitter is not supported")
    frames, clips = step["clip_len"], step["num_clips"]
    dense = step["type"] == "DenseSampleFrames"
    if frames > 1 and clips > 1 and training:
        recipe.refuse(key, f"{clips} clips of {frames} frames in a sample are not supported")
    if frames == 1 and clips > 1 and not dense:
        return {"name": "clip", "frames": clips, "sampling": "uniform"}
    frames, stride = (
        (clips, step["sample_range"] // clips) if dense and frames == 1 else (frames, step["frame_interval"])
    )
    bounds = {"out_of_bounds": step["out_of_bound_opt"]} if step["out_of_bound_opt"] != "loop" else {}
    fps = {"fps": step["target_fps"]} if step["target_fps"] else {}
    return {"name": "clip", "frames": frames, "stride": stride, **bounds, **fps}


def _views(recipe: Recipe, key: str) -> tuple[list[Options], int, int]:
    """Return the transforms of a pipeline of evaluation, and its numbers of clips and crops."""
    transforms: list[Options] = []
    clips = crops = 1
    short = 0
    for step in _steps(recipe, key):
        match step["type"]:
            case "SampleFrames" | "DenseSampleFrames" | "UniformSample":
                transforms.append({**_clip(recipe, key, step, training=False), "position": "middle"})
                clips = step["num_clips"] if step["type"] == "UniformSample" or step["clip_len"] > 1 else 1
                if step["type"] == "DenseSampleFrames":
                    clips *= step["num_sample_positions"]
                elif step.get("twice_sample"):
                    clips *= 2
                    recipe.note("twice_sample: frames at 1/4 and 3/4 of each segment; there at its start and middle")
            case "Resize" if step["keep_ratio"]:
                short = max(step["scale"])
            case "CenterCrop" | "ThreeCrop" | "TenCrop" as kind:
                size = step["crop_size"]
                transforms.append(
                    {"name": "three_crop", "size": size, **({"short_side": short} if short > size else {})}
                )
                crops = 3 if kind == "ThreeCrop" else 1
                if kind == "TenCrop":
                    recipe.note("the test's TenCrop, and its number of segments, are not converted: see video_views")
            case "Flip" if step["flip_ratio"] == 0:
                pass
            case "ColorJitter" as kind:
                recipe.skip_part(key, kind, "colors are changed in training only")
            case kind:
                recipe.refuse(key, f"{kind} is not supported here: {show(step)}")
    return transforms, clips, crops
