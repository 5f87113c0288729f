"""The model card: a README that says what a model is, how good, and how it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opabinia.inference.export.description import Description

_PIPELINES = {
    "classification": "image-classification",
    "detection": "object-detection",
    "video": "video-classification",
}
"""The hub's names of what models are for; all others give features."""


def card(said: Description, config: Mapping[str, Any], *, in_timm: bool) -> str:
    """The text of a model card (Markdown).

    Args:
        said: of the model.
        config: of the run, complete.
        in_timm: whether timm reads the folder.
    """
    parts = [
        _front(said, in_timm=in_timm),
        f"# {_plain(said.name)}",
        f"A model of the task `{said.task}`, trained with Opabinia {said.version} for {said.step:,} steps.",
        "## Scores\n\n" + _scores(said.scores),
        "## Data\n\n" + _data(said, config),
        "## Use\n\n" + _use(said, in_timm=in_timm),
        "## To be filled in\n\nWhat the model is meant for, where it fails, and the licence (`license` in the first "
        "lines): these only you can tell. `config.yaml` is the whole config of the training; it names folders of the "
        "machine that it ran on.",
    ]
    return "\n\n".join(parts) + "\n"


def _front(said: Description, *, in_timm: bool) -> str:
    lines = [
        "---",
        f"library_name: {'timm' if in_timm else 'opabinia'}",
        f"pipeline_tag: {_PIPELINES.get(said.task, 'image-feature-extraction')}",
        "# license: yours to say, such as apache-2.0",
        "tags: [opabinia]",
        "---",
    ]
    return "\n".join(lines)


def _scores(scores: Mapping[str, float]) -> str:
    if not scores:
        return "No evaluation has been made."
    rows = [f"| `{_plain(name)}` | {value:.4f} |" for name, value in scores.items()]
    return "\n".join(["The last evaluation of the run.", "", "| score | value |", "|---|---|", *rows])


def _data(said: Description, config: Mapping[str, Any]) -> str:
    height, width = said.size
    source = config["data"]["train"]["source"]
    lines = [
        f"- source: `{_plain(str(source['name'] if isinstance(source, Mapping) else source))}`",
        f"- images: {height} x {width}, {said.channels} channel{'s' if said.channels > 1 else ''}, {said.dtype}, "
        f"values {said.value_range}; mean {list(said.mean)}, standard deviation {list(said.std)} of values in 0 to 1",
    ]
    if said.classes:
        lines.append(f"- {len(said.classes)} classes: {_names(said.classes)}")
    return "\n".join(lines)


def _names(classes: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(f"`{_plain(name)}`" for name in classes[:most])
    return shown + (f" and {len(classes) - most} more (config.json)" if len(classes) > most else "")


def _use(said: Description, *, in_timm: bool) -> str:
    if in_timm:
        classifies = said.task in _PIPELINES
        what = "logits, in the order of `label_names` in config.json" if classifies else "features"
        mode = "RGB" if said.channels == 3 else "L"
        code = (
            "import timm\nfrom timm.data import create_transform, resolve_data_config\n\n"
            'model = timm.create_model("local-dir:PATH", pretrained=True).eval()\n'
            "transform = create_transform(**resolve_data_config(model.pretrained_cfg))\n"
            f"model(transform(picture)[None])    # a PIL image of mode {mode}; {what}"
        )
        return f"```python\n{code}\n```"
    code = "opabinia train PATH/config.yaml init.weights=PATH/model.safetensors      # goes on from these weights"
    return f"```\n{code}\n```\n\nPreprocessing stands in preprocessor_config.json:\n\n```json\n{_transforms(said)}\n```"


def _transforms(said: Description) -> str:
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in said.transforms) or "[]"


def _plain(text: str) -> str:
    """Without what Markdown would take for something else, in one line."""
    return " ".join(text.replace("`", "'").replace("|", "/").replace("<", "(").replace(">", ")").split())
