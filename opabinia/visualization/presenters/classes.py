"""Class probabilities of images and videos, one label or several for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL.Image import Image

from opabinia.contracts import NO_CLASS, Comparison, DrawOptions, Panel, Presenter, Sample
from opabinia.contracts.presenting import OPTIONS, Predicted
from opabinia.visualization.drawing import draw_objects

if TYPE_CHECKING:  # imported where videos are shown: predictions of images do not need it
    from opabinia.visualization.video_strips import SampledClip


class ClassPresenter(Presenter):
    """Show ``probabilities`` (K), and ``views`` (V x K) of the clips of a video. Videos are drawn, images are not."""

    drawings_folder = "strips"
    extra_files = True

    def readable(self, prediction: Predicted) -> dict[str, Any]:
        """Return ``top``, the five most probable classes with their probabilities; ``views``: the best of each view;
        ``classes``: the names of those in ``present`` (bool, K), at thresholds of each class."""
        rows: dict[str, Any] = {"top": prediction["probabilities"].topk(min(5, len(self.dataset_info.classes)))}
        if "views" in prediction:
            rows["views"] = prediction["views"].max(1)
        names = self.dataset_info.classes
        chosen = {}
        if "present" in prediction:
            chosen["classes"] = [names[number] for number in prediction["present"].nonzero().flatten().tolist()]
        return chosen | {
            name: [
                {"class": names[number], "probability": round(value, 6)}
                for value, number in zip(values.tolist(), numbers.tolist(), strict=True)
            ]
            for name, (values, numbers) in rows.items()
        }

    def caption(self, readable: Mapping[str, Any], *, min_score: float = 0.5) -> list[str]:
        """Return the three most probable classes with their probabilities; the classes at thresholds of each, if there
        are such."""
        if "classes" in readable:
            return [", ".join(readable["classes"]) or NO_CLASS]
        return [f"{row['class']} {row['probability']:.1%}" for row in readable["top"][:3]]

    def draw(self, sample: Sample, prediction: Predicted, options: DrawOptions = OPTIONS) -> Image | None:
        """Return a strip of the frames that the model saw, a row for each clip, with the prediction as its title; None
        for images."""
        if "video" not in sample:
            return None
        from opabinia.visualization.video_strips import draw_strip

        caption = ", ".join(self.caption(self.readable(prediction)))
        title = f"{Path(str(sample['id'])).name}: {caption}"
        return draw_strip(sample["video"], self._clips(sample, prediction), title)

    def compare(
        self,
        sample: Sample,
        prediction: Predicted,
        classes: Sequence[str],
        options: DrawOptions = OPTIONS,
    ) -> Comparison | None:
        """Return the image, small ones enlarged, or the strip; correct if the most probable class is the label, of
        multi-label data if the classes above 0.5 are the labels."""
        if "label" not in sample:
            return None
        label, probabilities = torch.as_tensor(sample["label"]), prediction["probabilities"]
        if label.ndim:
            correct = bool(((probabilities > 0.5) == (label > 0.5)).all())
        else:
            correct = int(probabilities.argmax()) == int(label)
        verdict = "right" if correct else "wrong"
        truth, predicted = self.ground_truth_caption(sample, classes), self.caption(self.readable(prediction))
        caption = f"ground truth: {', '.join(truth)}; predicted: {', '.join(predicted)}"
        if "video" in sample:
            from opabinia.visualization.video_strips import draw_strip

            clips = self._clips(sample, prediction)
            title = "; ".join([caption, *(f"{clip.name}: {clip.text}" for clip in clips if clip.name)])
            return Comparison([Panel(draw_strip(sample["video"], clips), title)], caption, verdict)
        return Comparison([Panel(draw_objects(sample["image"], [], side=256), caption)], caption, verdict)

    def save(self, out: Path, name: str, sample: Sample, prediction: Predicted, options: DrawOptions) -> Image | None:
        """Write the strip of a video as ``strips/NAME.png`` and the clips that the model saw, labelled, as
        ``clips/NAME.mp4``."""
        if "video" in sample:
            from opabinia.visualization.video_strips import write_clip

            write_clip(out / "clips" / f"{name}.mp4", sample["video"], self._clips(sample, prediction))
        return super().save(out, name, sample, prediction, options)

    def _clips(self, sample: Sample, prediction: Predicted) -> list[SampledClip]:
        from opabinia.visualization.video_strips import sampled_clips

        return sampled_clips(sample["frames"], prediction, self.dataset_info.classes)
