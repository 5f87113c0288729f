"""Predict images with an exported model: ``python predict.py FILE.onnx IMAGE ...``.

Also ``model.xml`` of OpenVINO, ``.pte`` of ExecuTorch (whose Python package needs torch) and ``.tflite`` of LiteRT (the
package ai-edge-litert). Needs that runtime, NumPy and Pillow. Of a video model the images are the frames of one clip.
"""

import json
import os
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def main(path: str, *files: str) -> None:
    """Print the predictions for image files, one line of JSON each; ``--score NUMBER`` replaces the thresholds of the
    classes."""
    score = float(files[files.index("--score") + 1]) if "--score" in files else None
    if score is not None:
        files = files[: files.index("--score")] + files[files.index("--score") + 2 :]
    openers = {".xml": open_openvino, ".pte": open_executorch, ".tflite": open_litert}
    about, shapes, run = openers.get(os.path.splitext(path)[1], open_onnx)(path)
    height, width = json.loads(about["size"])
    classes, crop, tasks = (json.loads(about.get(key, "{}")) for key in ("classes", "crop", "tasks"))
    keypoints = json.loads(about.get("keypoints", "[]"))
    thresholds = json.loads(about.get("thresholds", "null"))
    filter_ = Image.Resampling.BICUBIC if "bicubic" in about["transforms"] else Image.Resampling.BILINEAR

    def read(file: str) -> tuple[Any, tuple[int, int], tuple[int, int]]:
        """Return the pixels, and height and width: without padding, and those of the file."""
        planes = open_planes(file, about)
        image = planes[0]
        original = (image.height, image.width)
        factor = min(width / image.width, height / image.height, 1.0 if about["resize"] == "shrink" else float("inf"))
        if about["resize"] in ("fit", "shrink"):
            size = (round(image.width * factor), round(image.height * factor))
            planes = [plane.resize(size, filter_) for plane in planes]
        elif about["resize"] == "crop":
            planes = [ImageOps.fit(plane, (width, height), filter_, bleed=(1 - crop) / 2) for plane in planes]
        else:
            planes = [plane.resize((width, height), filter_) for plane in planes]
        image = planes[0]
        resized = np.concatenate([np.asarray(plane).reshape(image.height, image.width, -1) for plane in planes], 2)
        pixels = np.zeros((height, width, int(about["channels"])), resized.dtype)
        pixels[: image.height, : image.width] = resized
        array = pixels.transpose(2, 0, 1)
        values = array if about["dtype"] == str(array.dtype) else array.astype(np.float32) / 255
        return values, (image.height, image.width), original

    images = [read(file) for file in files]
    if len(shapes["image"]) == 5:
        frames = np.linspace(0, len(images) - 1, shapes["image"][1]).round().astype(int)
        images = [(np.stack([images[index][0] for index in frames]), *images[0][1:])]
    for file, (image, *sizes) in zip(files, images, strict=False):
        inputs = {"image": image[None], "image_sizes": np.array(sizes[:1])}
        outputs = run({name: inputs[name] for name in shapes})
        tensors = {name: rows[0] for name, rows in outputs.items()}
        prediction = {} if tasks else describe(tensors, classes, keypoints, *sizes)
        if prediction and (thresholds is not None or score is not None):
            prediction = at_thresholds(prediction, tensors, classes, thresholds if score is None else {}, score or 0.5)
        for task, task_about in tasks.items():  # a multi-task model: the outputs of each task begin with its name
            start = f"{task}/"
            task_outputs = {name.removeprefix(start): rows for name, rows in tensors.items() if name.startswith(start)}
            prediction[task] = describe(task_outputs, task_about["classes"], task_about.get("keypoints", []), *sizes)
        print(json.dumps({"path": file, **prediction}))


def open_planes(file: str, about: dict[str, str]) -> list[Image.Image]:
    """Return an image file in 8-bit color or gray; of other models an image for each channel."""
    pixels = json.loads(about.get("pixels", "null"))
    if pixels is None:
        return [open_image(file, int(about["channels"]))]
    return [Image.fromarray(channel) for channel in scale_values(read_values(file), pixels, file)]


def read_values(file: str) -> Any:
    """Return the values of an .npy, .npz, TIFF or other image file as they are: H x W, H x W x C or C x H x W."""
    if file.lower().endswith((".npy", ".npz")):
        values = np.load(file, allow_pickle=False)
        return values if isinstance(values, np.ndarray) else values[values.files[0]]
    if file.lower().endswith((".tif", ".tiff")):
        try:
            import tifffile
        except ImportError:
            pass  # Pillow reads those with one channel, or 8 bits
        else:
            return tifffile.imread(file)
    return np.asarray(ImageOps.exif_transpose(Image.open(file, formats=("PNG", "TIFF", "PPM", "BMP"))))


def scale_values(values: Any, pixels: dict[str, Any], file: str) -> Any:
    """Return values (C x H x W) of 8 bits as they are, others in 0 to 1, as the training data was read."""
    values = values[:, :, None] if values.ndim == 2 else values
    image = np.ascontiguousarray(values.transpose(2, 0, 1) if values.shape[2] == pixels["count"] else values)
    if image.shape[0] != pixels["count"]:
        raise SystemExit(f"{file}: its shape is {values.shape}; the model takes {pixels['count']} channels")
    high, low = pixels["max_value"], pixels["min_value"] or 0.0
    if image.dtype == np.uint8 and high is None:
        return image
    if high is None:
        high = 65535.0 if image.dtype.kind == "u" else 1.0
    scaled = image.astype(np.float32)
    missing = ~np.isfinite(scaled) | (image == pixels["no_data"] if pixels["no_data"] is not None else False)
    if missing.any() and pixels["fill"] is None:
        raise SystemExit(f"{file} has values that are NaN or infinite")
    scaled[missing] = pixels["fill"]
    return ((scaled - np.float32(low)) / np.float32(high - low)).clip(0, 1)


def open_image(file: str, channels: int) -> Image.Image:
    """Return an image file, upright, in color (3 channels) or gray (1)."""
    formats = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP")  # PIL would run Ghostscript on EPS
    image = Image.open(file, formats=formats)
    mode = "RGB" if channels == 3 else "L"
    image.draft(mode, None)  # the gray values that a JPEG has, not those of its colors
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # PIL would clip the values at 255
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    return upright.convert(mode)


Graph = tuple[dict[str, str], dict[str, list[int]], Callable[[dict[str, Any]], dict[str, Any]]]
"""Metadata, the shape of each input (-1: any number), and the function from inputs to outputs by name."""


def open_onnx(path: str) -> Graph:
    """Open an ONNX file in onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    shapes = {
        value.name: [side if isinstance(side, int) else -1 for side in value.shape] for value in session.get_inputs()
    }
    about = session.get_modelmeta().custom_metadata_map
    return about, shapes, lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def open_openvino(path: str) -> Graph:
    """Open a ``model.xml`` in OpenVINO, without its telemetry, computed in FP32."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    model = openvino.Core().read_model(path)
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    shapes = {value.any_name: [side.get_max_length() for side in value.partial_shape] for value in model.inputs}
    about = model.get_rt_info(["opabinia"]).value
    return about, shapes, lambda inputs: {value.any_name: rows for value, rows in compiled(inputs).items()}


def open_executorch(path: str) -> Graph:
    """Open a ``.pte`` in ExecuTorch; its method ``opabinia`` returns the metadata."""
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    (text,) = program.load_method("opabinia").execute([])
    about, forward = json.loads(text), program.load_method("forward")
    shapes, names = json.loads(about["inputs"]), json.loads(about["outputs"])

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = forward.execute([torch.from_numpy(inputs[name]) for name in shapes])
        return {name: rows.numpy().copy() for name, rows in zip(names, outputs, strict=True)}

    return about, shapes, run


def open_litert(path: str) -> Graph:
    """Open a ``.tflite`` in LiteRT; its metadata is in the zip archive at its end."""
    from ai_edge_litert.interpreter import Interpreter

    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("opabinia.json"))
    graph = Interpreter(path).get_signature_runner()
    return about, json.loads(about["inputs"]), lambda inputs: graph(**inputs)


def describe(
    outputs: dict[str, Any],
    classes: list[str],
    keypoints: list[str],
    size: tuple[int, int],
    original: tuple[int, int],
) -> dict[str, Any]:
    """Return a prediction as JSON values. Boxes (left, top, right, bottom; oriented: center x, center y, width, height,
    angle), keypoints (x, y and score by name) and masks (COCO's run lengths) are in pixels of the image file. Of a
    segmentation, whose map is the output of that name, the share of each class; of a panoptic one the share of each of
    its segments, by their numbers in the map ``segments``. ``size`` is what the model got, ``original`` the file's."""
    height, width = size
    if "segments" in outputs:
        labels, scores = outputs["segment_labels"], outputs["segment_scores"].tolist()
        counts = np.bincount(outputs["segments"][:height, :width].ravel(), minlength=len(labels) + 1)[1:]
        rows = zip(labels, scores, (counts / (height * width)).tolist(), strict=True)
        segments = [
            {"id": number, "class": classes[label], "score": score, "share": share}
            for number, (label, score, share) in enumerate(rows, 1)
            if label >= 0
        ]
        return {"segments": segments}
    if "boxes" in outputs:
        return {"detections": describe_objects(outputs, classes, keypoints, size, original)}
    if "segmentation" in outputs:
        counts = np.bincount(outputs["segmentation"][:height, :width].ravel(), minlength=len(classes))
        return {"shares": {classes[label]: int(counts[label]) / (height * width) for label in counts.nonzero()[0]}}
    if "probabilities" in outputs:
        best = int(outputs["probabilities"].argmax())
        return {"class": classes[best], "probability": float(outputs["probabilities"][best])}
    return {name: rows.tolist() for name, rows in outputs.items()}


def describe_objects(
    outputs: dict[str, Any],
    classes: list[str],
    keypoints: list[str],
    size: tuple[int, int],
    original: tuple[int, int],
) -> list[dict[str, Any]]:
    """Return the detections, see :func:`describe`."""
    down, across = (there / here for there, here in zip(original, size, strict=True))
    boxes = outputs["boxes"]
    if boxes.shape[-1] == 5:
        boxes = boxes * np.array([across, down, *[(across * down) ** 0.5] * 2, 1.0])
    else:
        boxes = (boxes * np.array([across, down] * 2)).clip(0, np.array([*original[::-1]] * 2))
    rows = zip(outputs["labels"], outputs["scores"].tolist(), boxes.tolist(), strict=True)
    objects = [{"class": classes[label], "score": score, "box": box} for label, score, box in rows if label >= 0]
    for one, points in zip(objects, outputs.get("keypoints", []), strict=False):
        one["keypoints"] = dict(zip(keypoints, (points * [across, down, 1.0]).tolist(), strict=True))
    for one, mask in zip(objects, outputs.get("masks", []), strict=False):
        one["mask"] = {"size": list(original), "counts": run_lengths(stretch(mask, one["box"], original))}
    return objects


def stretch(mask: Any, box: list[float], size: tuple[int, int]) -> Any:
    """Return which pixels of an image (height, width) a square mask covers that is stretched to a box: those at whose
    centers the probability is at least 0.5."""

    def weights(begin: float, end: float, cells: int) -> tuple[slice, Any]:
        pixels = slice(int(begin), max(int(begin), int(np.ceil(end))))
        centers = np.arange(pixels.start, pixels.stop) + 0.5
        positions = (centers - begin) * (cells / max(end - begin, 1e-6)) - 0.5
        return pixels, (1 - np.abs(positions[:, None] - np.arange(cells))).clip(0).astype(np.float32)

    left, top, right, bottom = box
    (rows, down), (columns, across) = weights(top, bottom, len(mask)), weights(left, right, len(mask))
    covered = np.zeros(size, bool)
    covered[rows, columns] = down @ mask.astype(np.float32) @ across.T >= 0.5
    return covered


def run_lengths(mask: Any) -> list[int]:
    """Return COCO's run lengths of a mask, column by column, beginning with the pixels that it does not cover."""
    pixels = np.concatenate([[False], mask.T.ravel()])
    lengths: list[int] = np.diff((pixels[1:] != pixels[:-1]).nonzero()[0], prepend=0, append=mask.size).tolist()
    return lengths


def at_thresholds(
    prediction: dict[str, Any],
    outputs: dict[str, Any],
    classes: list[str],
    thresholds: dict[str, float],
    default: float,
) -> dict[str, Any]:
    """Return a prediction with the detections, or the classes, that reach the thresholds of their classes."""
    if "detections" in prediction:
        rows = prediction["detections"]
        return {"detections": [row for row in rows if row["score"] >= thresholds.get(row["class"], default)]}
    if "probability" not in prediction:
        return prediction
    columns = zip(classes, outputs["probabilities"].tolist(), strict=True)
    return {**prediction, "classes": [name for name, value in columns if value >= thresholds.get(name, default)]}


if __name__ == "__main__":
    main(*sys.argv[1:])
