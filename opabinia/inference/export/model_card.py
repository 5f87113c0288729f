"""The model card: a README with a model's scores, data and usage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from opabinia.config.datasets import training_sets, validation_sets
from opabinia.inference.export.description import Description

_PIPELINES = {
    "classification": "image-classification",
    "detection": "object-detection",
    "panoptic": "image-segmentation",
    "segmentation": "image-segmentation",
    "video": "video-classification",
}
"""The hub's pipeline tags by task; other tasks give features."""

_SOURCE_KEYS = ("root", "file", "data", "dataset", "split")


def model_card(description: Description, config: Mapping[str, Any], *, in_timm: bool, license: str = "") -> str:
    """Return the text of a model card (Markdown), whose first lines are the metadata that the hub reads.

    Args:
        description: description of the model.
        config: complete config of the run.
        in_timm: whether timm reads the folder.
        license: its name on the hub; empty leaves it open.
    """
    pipeline, name = _PIPELINES.get(description.task, "image-feature-extraction"), _plain(description.name)
    metadata: dict[str, Any] = {"library_name": "timm" if in_timm else "opabinia", "pipeline_tag": pipeline}
    metadata |= {"tags": ["opabinia"]}
    sources = {section["prefix"]: _source(section["source"]) for section in validation_sets(config)}
    results = [_result(prefix, source, pipeline, description.scores) for prefix, source in sources.items()]
    if results := [result for result in results if result["metrics"]]:
        metadata["model-index"] = [{"name": name, "results": results}]
    named = f"license: {_plain(license)}" if license else "# license: yours to choose, such as apache-2.0"
    parts = [
        f"---\n{named}\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        f"# {name}",
        f"A model of the task `{description.task}`, trained with Opabinia {description.version} for "
        f"{description.step:,} steps.",
        "## Scores\n\n" + _scores(description, sources),
        "## Data\n\n" + _data(description, config),
        "## Use\n\n" + _use(description, in_timm=in_timm),
        "## To be filled in\n\nIntended use, limitations and license (`license` in the first lines): only you know "
        "them. `config.yaml` is the complete config of the training; it names folders of the machine that it ran on.",
    ]
    return "\n\n".join(parts) + "\n"


def _result(prefix: str, source: str, pipeline: str, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the scores of a validation set in the format of the hub's ``model-index``."""
    metrics = [
        {"type": name.removeprefix(f"{prefix}/"), "name": name, "value": round(value, 6)}
        for name, value in scores.items()
        if name.startswith((f"{prefix}/", f"{prefix}_ema/")) and isfinite(value)
    ]
    return {"task": {"type": pipeline}, "dataset": {"name": source, "type": source.split(",")[0]}, "metrics": metrics}


def _source(section: Mapping[str, Any]) -> str:
    """Return the name of a source, and its split, folder and file without the folders that they are in."""
    values = [section["name"], *(Path(str(section[key])).name for key in _SOURCE_KEYS if section.get(key))]
    text, inner = _plain(", ".join(map(str, dict.fromkeys(values)))), section.get("source")
    return f"{text} of {_source(inner)}" if isinstance(inner, Mapping) else text


def _scores(description: Description, sources: Mapping[str, str]) -> str:
    if not description.scores:
        return "There has been no evaluation."
    sets = ", ".join(f"`{prefix}` is {source}" for prefix, source in sources.items())
    rows = [f"| `{_plain(name)}` | {value:.4f} |" for name, value in description.scores.items()]
    text = f"The last evaluation of the run up to step {description.step:,}; {sets or 'without validation data'}."
    return "\n".join([text, "", "| score | value |", "|---|---|", *rows])


def _data(description: Description, config: Mapping[str, Any]) -> str:
    height, width = description.size
    sources = {name: _source(train["source"]) for name, train in training_sets(config).items()}
    trained_on = "; ".join(f"{_plain(name)}: {source}" if name else source for name, source in sources.items())
    lines = [
        f"- trained on: `{trained_on}`",
        f"- images: {height} x {width}, {description.channels} channel{'s' if description.channels > 1 else ''}, "
        f"{description.dtype}, values {description.value_range}; mean {list(description.mean)}, standard deviation "
        f"{list(description.std)} of values in 0 to 1",
    ]
    if description.classes:
        lines.append(f"- {len(description.classes)} classes: {_names(description.classes)}")
    for name, about in description.tasks.items():
        lines.append(f"- {_plain(name)}: {about['task']}, {len(about['classes'])} classes: {_names(about['classes'])}")
    return "\n".join(lines)


def _names(classes: Sequence[str], count: int = 20) -> str:
    shown = ", ".join(f"`{_plain(name)}`" for name in classes[:count])
    return shown + (f" and {len(classes) - count} more (config.json)" if len(classes) > count else "")


def _use(description: Description, *, in_timm: bool) -> str:
    video = description.task == "video"
    code = (
        'import opabinia\n\npredictor = opabinia.load("PATH")    # this folder, or hf:OWNER/NAME\n'
        f'predictor("{"video.mp4" if video else "image.jpg"}").readable'
    )
    parts = [f"```python\n{code}\n```", "`pip install opabinia`. All commands take the folder, too, such as "
             "`opabinia predict PATH FILES` and `opabinia eval PATH`."]  # fmt: skip
    if in_timm:
        classifies = description.task in _PIPELINES
        what = "logits, in the order of `label_names` in config.json" if classifies else "features"
        mode = "RGB" if description.channels == 3 else "L"
        code = (
            "import timm\nfrom timm.data import create_transform, resolve_data_config\n\n"
            'model = timm.create_model("local-dir:PATH", pretrained=True).eval()\n'
            "transform = create_transform(**resolve_data_config(model.pretrained_cfg))\n"
            f"model(transform(image)[None])    # a PIL image of mode {mode}; {what}"
        )
        return "\n\n".join([*parts, f"```python\n{code}\n```"])
    transforms = "\n".join(json.dumps(transform, ensure_ascii=False) for transform in description.transforms) or "[]"
    return "\n\n".join([*parts, f"The preprocessing:\n\n```json\n{transforms}\n```"])


def _plain(text: str) -> str:
    """Remove characters with a meaning in Markdown, and line breaks."""
    return " ".join(text.replace("`", "'").replace("|", "/").replace("<", "(").replace(">", ")").split())
