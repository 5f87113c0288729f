"""The model card: a README with a model's scores, data and usage."""

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
"""The hub's pipeline tags by task; other tasks give features."""


def model_card(description: Description, config: Mapping[str, Any], *, in_timm: bool) -> str:
    """Return the text of a model card (Markdown).

    Args:
        description: of the model.
        config: of the run, complete.
        in_timm: whether timm reads the folder.
    """
    parts = [
        f"---\nlibrary_name: {'timm' if in_timm else 'opabinia'}\n"
        f"pipeline_tag: {_PIPELINES.get(description.task, 'image-feature-extraction')}\n"
        "# license: yours to choose, such as apache-2.0\ntags: [opabinia]\n---",
        f"# {_plain(description.name)}",
        f"A model of the task `{description.task}`, trained with Opabinia {description.version} for "
        f"{description.step:,} steps.",
        "## Scores\n\n" + _scores(description.scores),
        "## Data\n\n" + _data(description, config),
        "## Use\n\n" + _use(description, in_timm=in_timm),
        "## To be filled in\n\nIntended use, limitations and license (`license` in the first lines): only you know "
        "them. `config.yaml` is the complete config of the training; it names folders of the machine that it ran on.",
    ]
    return "\n\n".join(parts) + "\n"


def _scores(scores: Mapping[str, float]) -> str:
    if not scores:
        return "There has been no evaluation."
    rows = [f"| `{_plain(name)}` | {value:.4f} |" for name, value in scores.items()]
    return "\n".join(["The last evaluation of the run.", "", "| score | value |", "|---|---|", *rows])


def _data(description: Description, config: Mapping[str, Any]) -> str:
    height, width = description.size
    source = config["data"]["train"]["source"]
    lines = [
        f"- source: `{_plain(str(source['name'] if isinstance(source, Mapping) else source))}`",
        f"- images: {height} x {width}, {description.channels} channel{'s' if description.channels > 1 else ''}, "
        f"{description.dtype}, values {description.value_range}; mean {list(description.mean)}, standard deviation "
        f"{list(description.std)} of values in 0 to 1",
    ]
    if description.classes:
        lines.append(f"- {len(description.classes)} classes: {_names(description.classes)}")
    return "\n".join(lines)


def _names(classes: Sequence[str], count: int = 20) -> str:
    shown = ", ".join(f"`{_plain(name)}`" for name in classes[:count])
    return shown + (f" and {len(classes) - count} more (config.json)" if len(classes) > count else "")


def _use(description: Description, *, in_timm: bool) -> str:
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
        return f"```python\n{code}\n```"
    code = "opabinia train PATH/config.yaml init.weights=PATH/model.safetensors      # starts from these weights"
    transforms = "\n".join(json.dumps(transform, ensure_ascii=False) for transform in description.transforms) or "[]"
    return f"```\n{code}\n```\n\nThe preprocessing is in preprocessor_config.json:\n\n```json\n{transforms}\n```"


def _plain(text: str) -> str:
    """Remove characters with a meaning in Markdown, and line breaks."""
    return " ".join(text.replace("`", "'").replace("|", "/").replace("<", "(").replace(">", ")").split())
